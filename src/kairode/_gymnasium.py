"""The Gymnasium ids. Light to import: JAX is loaded when an environment is made."""

import gymnasium

IDS = {
    "kairode/WindyGridworld-v0": "gridworld",
    "kairode/Acrobot-v0": "acrobot",
    "kairode/HIV-v0": "hiv",
    "kairode/HIVPartial-v0": "hiv-partial",
    "kairode/Pendulum-v0": "pendulum",
    "kairode/Swimmer-v0": "swimmer",
    "kairode/Hopper-v0": "hopper",
    "kairode/HalfCheetah-v0": "half-cheetah",
}


def register() -> None:
    """Tell Gymnasium of our environments; `import kairode` calls it."""
    for gym_id, name in IDS.items():
        if gym_id not in gymnasium.registry:
            gymnasium.register(
                gym_id,
                entry_point="kairode.envs.gym:SemiMarkovEnv",
                vector_entry_point="kairode.envs.gym:SemiMarkovVectorEnv",
                kwargs={"name": name},
            )
