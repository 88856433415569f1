"""Collect episodes under any policy and schedule: compiled for JAX environments, batched on the host for the others."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from kairode.callbacks import Callback, counter, no_callback
from kairode.data.collect_host import collect_host
from kairode.data.policy import Policy, as_policy
from kairode.data.rollout import Rollout, episode_keys, rollout_compiled
from kairode.data.trajectory import Trajectory, stand_still
from kairode.envs.batching import cores, max_batch
from kairode.envs.consistency import check_outputs
from kairode.envs.core import Discrete, Environment
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import Own, Schedule, as_schedule
from kairode.errors import KairodeError


def collect(
    env: Environment | HostEnvironment,
    policy: Policy | Callable[..., Any] | None = None,
    *,
    episodes: int,
    seed: int = 0,
    schedule: Schedule | float | Sequence[Any] | np.ndarray | str | None = None,
    callback: Callback = no_callback,
) -> Trajectory:
    """Collect whole episodes, padded to the longest.

    Args:
        env: from `kairode.make`.
        policy: None for random actions, a function of (observation, key), or a `Policy`. JAX compiles it: write
            `jnp.where(obs[4] > 0, 3, 0)`, not `3 if obs[4] > 0 else 0`.
        episodes: number of episodes.
        seed: an episode depends only on the seed and its own number, not on how many there are.
        schedule: None or "own" for the environment's own, an interval, a list of intervals, or a `Schedule`.
        callback: called with a `kairode.callbacks.Progress` as episodes end.
    """
    if not isinstance(env, Environment | HostEnvironment):
        raise KairodeError(f"{env!r} is not an environment: create one, e.g. with kairode.make('hiv').")
    if not (isinstance(episodes, int | np.integer) and episodes >= 1):
        raise KairodeError(f"episodes must be an integer of at least 1, got {episodes}.")
    if not (isinstance(seed, int | np.integer) and 0 <= seed < 2**32):
        raise KairodeError(f"seed must be an integer between 0 and 2^32 - 1, got {seed}.")
    episodes, seed, spec = int(episodes), int(seed), env.task.spec
    if isinstance(env, Environment):
        check_outputs(env)
    chooser, timing = as_policy(policy, spec), as_schedule(schedule, spec)
    chooser = timing.track(chooser)
    advance = counter("collecting episodes", episodes, callback)
    try:
        if isinstance(env, HostEnvironment):
            trajectory = collect_host(env, chooser, timing, episodes, seed, advance)
        else:
            trajectory = _collect_jax(env, chooser, timing, episodes, seed, advance)
    except jax.errors.JAXTypeError as error:
        raise KairodeError(
            "the policy or schedule cannot be compiled by JAX: use jnp.where instead of if, and jax.numpy "
            "instead of NumPy."
        ) from error
    _check(trajectory, own=isinstance(timing, Own))
    return trajectory


def _collect_jax(
    env: Environment, policy: Policy, schedule: Schedule, episodes: int, seed: int, advance: Callable[[int], None]
) -> Trajectory:
    parts: list[Rollout] = []
    for part in _parts(env, policy, schedule, episodes, seed):
        advance(min(len(part.length), episodes - sum((len(done.length) for done in parts), 0)))
        parts.append(part)
    length = np.concatenate([part.length for part in parts])[:episodes]
    longest = int(length.max())

    def joined(name: str) -> np.ndarray:
        arrays = [getattr(part.records, name)[:longest] for part in parts]
        return np.concatenate([np.swapaxes(array, 0, 1) for array in arrays])[:episodes]

    first = np.concatenate([part.first_obs for part in parts])[:episodes]
    return Trajectory(
        spec=env.task.spec,
        observation=stand_still(np.concatenate([first[:, None], joined("next_obs")], axis=1), length),
        action=joined("action"),
        interval=joined("interval"),
        reward=joined("reward"),
        length=length,
        terminated=np.concatenate([part.terminated for part in parts])[:episodes],
        truncated=np.concatenate([part.truncated for part in parts])[:episodes],
    )


def _parts(env: Environment, policy: Policy, schedule: Schedule, episodes: int, seed: int) -> Iterator[Rollout]:
    """Blocks of episodes of one size, so that they are compiled once; the last may hold more than requested."""
    spec = env.task.spec
    limit = spec.longest(schedule.shortest(spec))
    batch_size = math.ceil(episodes / math.ceil(episodes / max_batch()))
    x64 = bool(jax.config.read("jax_enable_x64"))  # thread-local

    def part(start: int) -> Rollout:
        with jax.enable_x64(x64):
            keys = episode_keys(seed, batch_size, start)
            return jax.device_get(rollout_compiled(env, policy, schedule, keys, limit))

    # On the CPU a call uses one core: calls run in parallel. The first runs alone, so that it is compiled once.
    yield part(0)
    with ThreadPoolExecutor(cores() if jax.default_backend() == "cpu" else 1) as pool:
        yield from pool.map(part, range(batch_size, episodes, batch_size))


def _check(trajectory: Trajectory, own: bool) -> None:
    """Check what compiled code cannot: actions outside their space, non-finite values, endless episodes."""
    spec, mask, actions = trajectory.spec, trajectory.mask, np.asarray(trajectory.action)
    if isinstance(spec.actions, Discrete):
        wrong = (actions < 0) | (actions >= spec.actions.n)
    else:
        wrong = ~np.all(spec.actions.contain(actions), axis=-1)
    tau, (low, high) = trajectory.interval, (spec.intervals.low, spec.intervals.high)
    for bad, what in (
        (wrong, f"the policy chose an action outside those of '{spec.name}'"),
        (
            ~np.isfinite(tau) | (tau <= 0),
            f"the schedule of '{spec.name}' returned an interval that is not positive and finite",
        ),
        (
            own & ((tau < low - 1e-5 * high) | (tau > high * (1 + 1e-5))),
            f"the own schedule of '{spec.name}' returned an interval outside its range, {low:g} to {high:g} (intervals "
            "of its Spec)",
        ),
        (~np.isfinite(trajectory.observation[:, 1:]).all(-1), f"'{spec.name}' returned a value that is not finite"),
    ):
        if (bad & mask).any():
            episode, k = np.argwhere(bad & mask)[0]
            raise KairodeError(
                f"{what}: episode {episode}, decision {k}, action {actions[episode, k]}, interval {tau[episode, k]:g}."
            )
    endless = ~(trajectory.terminated | trajectory.truncated)
    if endless.any():
        raise KairodeError(
            f"episode {endless.argmax()} of '{spec.name}' did not end within {mask.shape[1]} decisions: the "
            "schedule returns intervals shorter than its `shortest`."
        )
