"""Collect episodes under any policy and schedule: compiled for JAX environments, batched on the host for the others."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from kairode._xla import for_threads
from kairode.callbacks import Callback, counter, no_callback
from kairode.data.collect_host import collect_host
from kairode.data.policy import Policy, as_policy
from kairode.data.rollout import Rollout, episode_keys, rollout_compiled
from kairode.data.trajectory import Trajectory, stand_still
from kairode.envs.batching import cores, max_batch
from kairode.envs.consistency import check_course, check_outputs
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
    return _collect(env, policy, episodes, seed, schedule, callback)[0]


def collect_scored(
    env: HostEnvironment,
    policy: Policy | Callable[..., Any] | None = None,
    *,
    episodes: int,
    seed: int = 0,
    schedule: Schedule | float | Sequence[Any] | np.ndarray | str | None = None,
    accrued: bool = False,
) -> tuple[Trajectory, Float[np.ndarray, " n"]]:
    """The episodes of `collect` on the host, and their undiscounted returns, in which rewards are not discounted within
    intervals either.

    Args:
        env: as for `collect`.
        policy: as for `collect`.
        episodes: as for `collect`.
        seed: as for `collect`.
        schedule: as for `collect`.
        accrued: count a task's rewards on every finest time step; a simulator's own always are.
    """
    trajectory, _, totals = _collect(env, policy, episodes, seed, schedule, no_callback, accrued=accrued)
    assert totals is not None
    return trajectory, totals


def collect_between(
    env: Environment | HostEnvironment,
    policy: Policy | Callable[..., Any] | None = None,
    *,
    episodes: int,
    fractions: Sequence[float],
    seed: int = 0,
    schedule: Schedule | float | Sequence[Any] | np.ndarray | str | None = None,
    callback: Callback = no_callback,
) -> tuple[Trajectory, Float[np.ndarray, "n T k obs"]]:
    """The episodes of `collect`, and the observations at fractions of every interval (`Environment.course`).

    Args:
        env: a JAX environment; one on the host does not report states between decisions.
        policy: as for `collect`.
        episodes: number of episodes.
        fractions: ascending, above 0 and at most 1.
        seed: as for `collect`; the same seed gives the same episodes.
        schedule: as for `collect`.
        callback: as for `collect`.
    """
    if isinstance(env, HostEnvironment):
        raise KairodeError(
            f"'{env.task.spec.name}' runs on the host and does not report its states between decisions: write it as "
            "a kairode.Environment, whose `course` does."
        )
    chosen = tuple(map(float, fractions))
    if not chosen or list(chosen) != sorted(set(chosen)) or not 0 < chosen[0] <= chosen[-1] <= 1:
        raise KairodeError(f"fractions must be ascending, above 0 and at most 1, got {list(fractions)}.")
    if isinstance(env, Environment):
        if not env.task.spec.intervals.divisible:
            raise KairodeError(
                f"'{env.task.spec.name}' can only be run for whole {env.task.spec.time_unit}s: it has no states at "
                "fractions of an interval."
            )
        check_course(env)
    trajectory, between, _ = _collect(env, policy, episodes, seed, schedule, callback, chosen)
    assert between is not None
    if not np.isfinite(between[trajectory.mask]).all():
        raise KairodeError(f"'{trajectory.spec.name}' returned a value between decisions that is not finite.")
    return trajectory, between


def _collect(
    env: Environment | HostEnvironment,
    policy: Policy | Callable[..., Any] | None,
    episodes: int,
    seed: int,
    schedule: Schedule | float | Sequence[Any] | np.ndarray | str | None,
    callback: Callback,
    fractions: tuple[float, ...] = (),
    accrued: bool = False,
) -> tuple[Trajectory, np.ndarray | None, np.ndarray | None]:
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
    between: np.ndarray | None = None
    totals: np.ndarray | None = None
    try:
        if isinstance(env, HostEnvironment):
            trajectory, totals = collect_host(env, chooser, timing, episodes, seed, advance, accrued)
        else:
            trajectory, between = _collect_jax(env, chooser, timing, episodes, seed, advance, fractions)
    except jax.errors.JAXTypeError as error:
        raise KairodeError(
            "the policy or schedule cannot be compiled by JAX: use jnp.where instead of if, and jax.numpy "
            "instead of NumPy."
        ) from error
    _check(trajectory, own=isinstance(timing, Own))
    return trajectory, between, totals


def _collect_jax(
    env: Environment,
    policy: Policy,
    schedule: Schedule,
    episodes: int,
    seed: int,
    advance: Callable[[int], None],
    fractions: tuple[float, ...],
) -> tuple[Trajectory, np.ndarray | None]:
    parts: list[Rollout] = []
    for part in _parts(env, policy, schedule, episodes, seed, fractions):
        advance(min(len(part.length), episodes - sum((len(done.length) for done in parts), 0)))
        parts.append(part)
    length = np.concatenate([part.length for part in parts])[:episodes]
    longest = int(length.max())

    def joined(name: str) -> np.ndarray:
        arrays = [getattr(part.records, name)[:longest] for part in parts]
        return np.concatenate([np.swapaxes(array, 0, 1) for array in arrays])[:episodes]

    first = np.concatenate([part.first_obs for part in parts])[:episodes]
    trajectory = Trajectory(
        spec=env.task.spec,
        observation=stand_still(np.concatenate([first[:, None], joined("next_obs")], axis=1), length),
        action=joined("action"),
        interval=joined("interval"),
        reward=joined("reward"),
        length=length,
        terminated=np.concatenate([part.terminated for part in parts])[:episodes],
        truncated=np.concatenate([part.truncated for part in parts])[:episodes],
    )
    return trajectory, joined("between") if fractions else None


def _parts(
    env: Environment,
    policy: Policy,
    schedule: Schedule,
    episodes: int,
    seed: int,
    fractions: tuple[float, ...],
) -> Iterator[Rollout]:
    """Blocks of episodes of one size, so that they are compiled once; the last may hold more than requested."""
    spec = env.task.spec
    limit = spec.longest(schedule.shortest(spec))
    batch_size = math.ceil(episodes / math.ceil(episodes / max_batch()))

    @for_threads
    def part(start: int) -> Rollout:
        keys = episode_keys(seed, batch_size, start)
        return jax.device_get(rollout_compiled(env, policy, schedule, keys, limit, fractions))

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
    # A simulator ends an interval with the episode.
    cut = np.arange(tau.shape[1]) == np.asarray(trajectory.length)[:, None] - 1
    for bad, what in (
        (wrong, f"the policy chose an action outside those of '{spec.name}'"),
        (
            ~np.isfinite(tau) | (tau <= 0),
            f"the schedule of '{spec.name}' returned an interval that is not positive and finite",
        ),
        (
            own & (((tau < low - 1e-5 * high) & ~cut) | (tau > high * (1 + 1e-5))),
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
