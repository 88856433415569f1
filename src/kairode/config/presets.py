"""The settings of every environment, as data. The paper's are from its table of hyperparameters and its protocol.

An environment without an entry takes the defaults of the config classes.
"""

import dataclasses
from typing import Any

from kairode.config.agents import ActorCriticConfig, DQNConfig
from kairode.config.algorithms import MODEL_FREE, DynaConfig, FitConfig, LearnConfig, MPCConfig, is_file
from kairode.config.models import MIDPOINT, ModelConfig
from kairode.config.planning import PlanConfig
from kairode.config.run import RunConfig
from kairode.config.tables import TableConfig
from kairode.config.training import LossWeights, TrainingConfig

_KNOWN_INTERVALS = LossWeights(timer=0.0)
_FITS: dict[str, dict[str, Any]] = {
    "gridworld": {
        "sizes": ModelConfig(latent_size=2, encoder_hidden=5, field_hidden=5, timer="none"),
        "training": TrainingConfig(weights=_KNOWN_INTERVALS),
    },
    "acrobot": {
        "sizes": ModelConfig(timer="none"),
        "training": TrainingConfig(learning_rate=5e-4, sampling_decay=1e-4, weights=_KNOWN_INTERVALS),
    },
    "hiv": {"sizes": ModelConfig(timer="classes"), "env_fields": {"max_decisions": 50}},
}
_FITS["hiv-partial"] = _FITS["hiv"]
ROBOTS = {"swimmer": 128, "hopper": 128, "half-cheetah": 400}
"""Robots and the latent dimensions of their models."""
for _robot, _latent in ROBOTS.items():
    _FITS[_robot] = {
        "sizes": ModelConfig(latent_size=_latent, field_hidden=_latent, timer="classes"),
        "training": TrainingConfig(batch_size=128, chunk_length=10, patience=15, validate_every=16),
        "episodes": 20,
        "validation_episodes": 3,
        "test_episodes": 3,
        "standardize": True,
    }
_OTHER_FIT: dict[str, Any] = {"sizes": ModelConfig(latent_size=16, field_hidden=32), "standardize": True}


def fit_preset(source: str, **changes: Any) -> FitConfig:
    """The fit of an environment, or of a file."""
    table = TableConfig() if is_file(source) else None
    return FitConfig(source=source, **{**_FITS.get(source, _OTHER_FIT), "table": table, **changes})


_LEARN: dict[str, LearnConfig] = {
    "gridworld": LearnConfig(episodes=400, validate_every=2000, dqn=DQNConfig(reward_scale=0.1, double_q=True)),
    "acrobot": LearnConfig(episodes=200, dqn=DQNConfig(reward_scale=0.1, double_q=True)),
    "hiv": LearnConfig(dqn=DQNConfig(reward_scale=1e-6, double_q=True)),
}
_LEARN["hiv-partial"] = _LEARN["hiv"]
_OTHER_DQN = DQNConfig(hidden=(128, 128), double_q=True, scale_rewards=True, test_epsilon=0.0)
_OTHER_LEARN = LearnConfig(dqn=_OTHER_DQN, standardize=True)
_ROLLOUTS = {
    "hiv": LearnConfig(
        episodes=2400, rollout_length=25, dqn=DQNConfig(reward_scale=1e-6, double_q=True, target_period=40)
    )
}
"""Imagination that starts along real episodes: short episodes, so more of them, also between two target updates."""


def learn_preset(env: str, *, rollouts: bool = False, model_free: bool = False) -> LearnConfig:
    """Learning for an environment.

    Args:
        env: its name.
        rollouts: start imagined episodes along real ones, where the environment's preset does so.
        model_free: on the real system.
    """
    config = _LEARN.get(env, _OTHER_LEARN)
    if model_free:
        return dataclasses.replace(config, episodes=400 if env == "gridworld" else 300)
    return _ROLLOUTS.get(env, config) if rollouts else config


_DYNA: dict[str, dict[str, Any]] = {env: {} for env in _LEARN}
_OTHER_DYNA: dict[str, Any] = {
    "initial_episodes": 10,
    "initial_decisions": 300,
    "episodes_per_round": 1,
    "decisions_per_round": 200,
    "exploration": 0.02,
    "fit_iterations": 1000,
    "chunk_length": 10,
    "standardize": True,
}
"""Episodes of other systems may have ten decisions or a thousand."""


def dyna_preset(env: str, **changes: Any) -> DynaConfig:
    """Dyna rounds with the environment's settings of learning; `changes` replace fields."""
    # Imagined episodes are short, so the target network is updated after more of them.
    dqn = dataclasses.replace(learn_preset(env).dqn, target_period=100, cooldown=0.0 if env in _DYNA else 0.5)
    return DynaConfig(env=env, **{"dqn": dqn, **_DYNA.get(env, _OTHER_DYNA), **changes})


_USUAL = ActorCriticConfig(hidden=(256, 256), actor_learning_rate=3e-4, critic_learning_rate=3e-4, polyak=5e-3)
AGENTS = {
    "ddpg": ActorCriticConfig(),
    "td3": dataclasses.replace(_USUAL, kind="td3"),
    "sac": dataclasses.replace(_USUAL, kind="sac"),
}
"""DDPG as in the paper; the others with the sizes and rates that are usual for them."""
_MPC: dict[str, dict[str, Any]] = {
    "pendulum": {
        "agent": ActorCriticConfig(
            hidden=(128, 128),
            actor_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            polyak=5e-3,
            warmup=1000,
            reward_scale=0.1,
            noise=0.2,
        ),
        "plan": PlanConfig(candidates=200, elites=10, noise=0.3),
        "refit_every": 1000,
        "decisions": 10_000,
    }
}
_PAPER_MPC: dict[str, dict[str, Any]] = {env: {} for env in ROBOTS}
_OTHER_MPC: dict[str, Any] = {
    "agent": ActorCriticConfig(
        hidden=(128, 128),
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        polyak=5e-3,
        warmup=300,
        updates=4,
        reward_scale=0.1,
        noise=0.2,
    ),
    "plan": PlanConfig(candidates=200, elites=10, noise=0.3),
    "refit_every": 300,
    "decisions": 5000,
}
"""For a system that nobody has made settings for: something useful from 2,000 decisions."""


def mpc_preset(
    env: str, model: str = "latent-ode", agent: str | ActorCriticConfig | None = None, **changes: Any
) -> MPCConfig:
    """MPC on an environment; an agent by its name takes its own settings (the pendulum's keep theirs).

    The robots' models keep the solver that their published results were made with.
    """
    own = dict({**_PAPER_MPC, **_MPC}.get(env, _OTHER_MPC))
    if model == MODEL_FREE:
        if env not in _MPC:
            own.pop("plan", None)
        if env in ROBOTS:
            own["decisions"] = 400_000
    if isinstance(agent, ActorCriticConfig):
        own["agent"] = agent
    elif agent is not None:
        if env not in ROBOTS or agent not in AGENTS:
            own["agent"] = dataclasses.replace(own.get("agent", ActorCriticConfig()), kind=agent)
        else:
            own["agent"] = AGENTS[agent]
    fitted = fit_preset(env)
    sizes, training = fitted.sizes, dataclasses.replace(fitted.training, chunk_length=10, patience=15)
    if env in ROBOTS:
        sizes = dataclasses.replace(sizes, solver=MIDPOINT)
        training = dataclasses.replace(training, weights=dataclasses.replace(training.weights, consistency=0.0))
    return MPCConfig(env=env, model=model, **{"sizes": sizes, "training": training, **own, **changes})


_RUNS: dict[str, dict[str, Any]] = {
    # Models predict a week well enough and a fortnight not (docs/results.md). Away from the healthy state rewards
    # are a millionth of those in it, so a fraction of them does not bound what waiting may cost: no tolerance.
    "hiv": {"prices": (0.0, 1e8, 1e9), "candidates": tuple(map(float, range(1, 8))), "tolerance": 0.0},
    "gridworld": {"prices": (0.0, 0.5, 2.0)},
    "acrobot": {"prices": (0.0, 0.5, 2.0)},
}
_RUNS["hiv-partial"] = _RUNS["hiv"]
"""Of the choice of decision times. Prices of a decision are in the unit of the reward: from none to one that counts."""
_PAPER_EPISODES = {"gridworld": (1000, 1000), "acrobot": (200, 1000), "hiv": (1500, 3500)}
"""Training episodes of the paper's policies, in imagination and on the real system."""
ACCRUED_DQN = dict.fromkeys(("hiv", "hiv-partial"), DQNConfig(reward_scale=1e-7, double_q=True, cooldown=0.3))
"""Policies whose rewards accrue on every finest step: larger returns, so a smaller scale."""
RUN_MODES = ("rounds", "latent_policy", "schedule", "paper")
"""Options of `kairode run` that the defaults of the others depend on."""


def run_preset(
    env: str,
    *,
    rounds: int | None = None,
    latent_policy: bool = False,
    schedule: float | None = None,
    paper: bool = False,
    **changes: Any,
) -> RunConfig:
    """The main job on an environment, in minutes; or the paper's protocol, in hours.

    The other defaults depend on what is named here.
    """
    learn = learn_preset(env, rollouts=not latent_policy)
    config = RunConfig(
        env=env,
        learn=learn,
        schedule_episodes=0 if schedule is not None else learn.episodes,
        latent_policy=latent_policy,
        schedule=schedule,
        **_RUNS.get(env, {}),
    )
    other = env not in _LEARN
    if paper:
        config = _paper_run(config)
    # Models of random treatment alone mislead a policy that treats well; a few episodes of the policy correct that.
    by_default = (
        (10 if other else 5) if (env == "hiv" or other) and not (latent_policy or paper) and schedule is None else 0
    )
    rounds = by_default if rounds is None else rounds
    if rounds and not paper:
        config = _dyna_run(config, rounds)
    return dataclasses.replace(config, **{"rounds": rounds, **changes})


def _paper_run(config: RunConfig) -> RunConfig:
    imagined, real = _PAPER_EPISODES.get(config.env, _PAPER_EPISODES["hiv"])
    learn = LearnConfig(
        episodes=imagined,
        obs_margin=None,
        sample_intervals=False,
        validate_every=config.learn.validate_every,
    )
    return dataclasses.replace(
        config,
        fit_iterations=fit_preset(config.env).training.iterations,
        ensemble_size=1,
        learn=learn,
        tolerance=0.0,
        model_free_episodes=real,
        setting="paper",
        paper=True,
    )


def _dyna_run(config: RunConfig, rounds: int) -> RunConfig:
    """Dyna rounds with smaller Q-networks and fewer iterations than `kairode dyna` (docs/results.md says why)."""
    dyna = dyna_preset(config.env)
    learn = LearnConfig(
        episodes=dyna.imagined_episodes,
        rollout_length=dyna.rollout_length,
        obs_margin=dyna.obs_margin,
        validate_every=config.learn.validate_every,
        standardize=dyna.standardize,
        dqn=dataclasses.replace(dyna.dqn, hidden=(128, 128)),
    )
    return dataclasses.replace(
        config,
        episodes=dyna.initial_episodes,
        initial_decisions=dyna.initial_decisions,
        episodes_per_round=dyna.episodes_per_round,
        decisions_per_round=dyna.decisions_per_round,
        rounds=rounds,
        ensemble_size=dyna.ensemble_size,
        fit_iterations=min(dyna.fit_iterations, 2000),
        learn=learn,
        schedule_episodes=min(config.schedule_episodes, 800),
        schedule_refits=1 if config.schedule_episodes else 0,
    )


def dyna_of_run(run: RunConfig) -> DynaConfig:
    """The Dyna rounds of the main job."""
    return dataclasses.replace(
        dyna_preset(run.env),
        model=run.model,
        initial_episodes=run.episodes,
        initial_decisions=run.initial_decisions,
        episodes_per_round=run.episodes_per_round,
        decisions_per_round=run.decisions_per_round,
        standardize=run.learn.standardize,
        rounds=run.rounds,
        ensemble_size=run.ensemble_size,
        solver=run.solver,
        consistency=run.consistency,
        fit_iterations=run.fit_iterations,
        imagined_episodes=run.learn.episodes,
        rollout_length=run.learn.rollout_length or DynaConfig.rollout_length,  # None in the oldest run folders
        obs_margin=DynaConfig.obs_margin if run.learn.obs_margin is None else run.learn.obs_margin,
        sample_intervals=run.learn.sample_intervals,
        dqn=run.learn.dqn,
        seed=run.seed,
        setting=run.setting,
        env_fields=run.env_fields,
    )
