"""A film of a policy on a system that draws itself: a GIF of one episode, a frame for every finest time step."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from kairode.data.policy import Policy, as_policy
from kairode.envs.gym.wrap import GymnasiumEnvironment
from kairode.envs.host import HostEnvironment, SimulationStep
from kairode.errors import KairodeError
from kairode.files import atomic_write

FILM = "film.gif"
WIDEST = 320
"""Pixels of the longer side."""
MOST_FRAMES = 400


def record_film(env: HostEnvironment, policy: Policy | None, path: str | Path, *, seed: int = 0) -> Path:
    """Write one episode of a policy (None for random actions) as a GIF; raises where the system does not draw itself.

    An action is held in finest time steps, with a frame after each; a film ends with the episode or after 400 frames.
    """
    if not isinstance(env, HostEnvironment):
        raise KairodeError(f"films are of simulations on the host, such as kairode.from_gymnasium(..), got {env!r}.")
    spec, chooser = env.task.spec, as_policy(policy, env.task.spec)
    simulation = env.open(render_mode="rgb_array")
    try:
        start_key, key = jax.random.split(jax.random.key(seed))
        memory, elapsed, passed, ended = chooser.start(key=start_key), 0.0, 0.0, False
        obs = simulation.reset(seed)
        frames = [_small(simulation.render())]
        while not ended and len(frames) < MOST_FRAMES:
            key, now = jax.random.split(key)
            action, memory = _act(chooser, memory, np.asarray(obs, np.float32), np.float32(elapsed), now)
            elapsed = simulation.interval(np.asarray(action))
            left = elapsed
            while left > 1e-6 and not ended:
                step = simulation.transition(np.asarray(action), min(spec.finest, left))
                left -= spec.finest
                passed += spec.finest
                if isinstance(step, SimulationStep):
                    obs, ended = step.obs, step.terminated or step.truncated
                else:
                    obs, ended = step, bool(env.task.terminal(jnp.asarray(step, jnp.float32)))
                frames.append(_small(simulation.render()))
            ended = ended or passed >= spec.horizon
    finally:
        simulation.close()
    path = Path(path)
    with atomic_write(path) as part:
        frames[0].save(part, format="GIF", save_all=True, append_images=frames[1:], duration=50, loop=0)
    return path


@eqx.filter_jit
def _act(policy: Policy, memory: Any, obs: Any, elapsed: Any, key: Any) -> Any:
    return policy.act(memory, obs, elapsed, key=key)


def _small(frame: np.ndarray) -> Image.Image:
    image = Image.fromarray(np.asarray(frame, np.uint8))
    image.thumbnail((WIDEST, WIDEST))
    return image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64)


def film_of_run(env: Any, policy: Policy, folder: Path) -> str:
    """Write the film of a finished run where the system draws itself: a sentence that says where it is, or why there is
    none; empty for our own systems."""
    if not isinstance(env, GymnasiumEnvironment):
        return ""
    try:
        return f"Film: {record_film(env, policy, folder / FILM)}"
    except KairodeError as error:
        return f"No film: {error}"
    except Exception as error:  # whatever drawing raises: the run itself is finished
        return f"No film: {type(error).__name__}: {error}"
