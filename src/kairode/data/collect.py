"""Episodes under any policy and schedule: compiled for JAX environments, batched on the host for the others."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from kairode.data.collect_host import Progress, collect_host
from kairode.data.policy import Memory, Policy, as_policy
from kairode.data.trajectory import Trajectory, stand_still
from kairode.envs.core import Discrete, Environment, Moment, advance, begin
from kairode.envs.host import HostEnvironment
from kairode.envs.lanes import most_lanes
from kairode.envs.schedule import Schedule, as_schedule, due
from kairode.errors import KairodeError


def collect(
    env: Environment | HostEnvironment,
    policy: Policy | Callable[..., Any] | None = None,
    *,
    episodes: int,
    seed: int = 0,
    schedule: Schedule | float | list[float] | str | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    """Run whole episodes and return them, padded to the longest.

    Args:
        env: from `kairode.make`.
        policy: None for random actions, a function of (observation, key), or a `Policy`.
        episodes: how many.
        seed: an episode depends on the seed and its own number alone, not on how many there are.
        schedule: None for the environment's own, an interval, a list of intervals, or a `Schedule`.
        progress: called with the number of episodes that just ended.
    """
    if episodes < 1:
        raise KairodeError(f"episodes must be at least 1, got {episodes}.")
    if not 0 <= seed < 2**32:
        raise KairodeError(f"seed must lie between 0 and 2^32 - 1, got {seed}.")
    spec = env.task.spec
    chooser, timing = as_policy(policy, spec), as_schedule(schedule, spec)
    tell = progress or (lambda ended: None)
    if isinstance(env, HostEnvironment):
        trajectory = collect_host(env, chooser, timing, episodes, seed, tell)
    else:
        trajectory = _collect_jax(env, chooser, timing, episodes, seed, tell)
    _check(trajectory)
    return trajectory


class Record(NamedTuple):
    """What is written down of one decision."""

    action: Any
    interval: Any
    reward: Any
    next_obs: Any


class Lane(NamedTuple):
    """Where one episode stands, with what its policy remembers."""

    moment: Moment
    memory: Memory
    elapsed: Array
    length: Array
    terminated: Array
    truncated: Array


def _start(env: Environment, policy: Policy, key: Key[Array, ""]) -> Lane:
    policy_key, reset_key = jax.random.split(jax.random.fold_in(key, 0))
    moment = begin(env, key=reset_key)
    off = jnp.zeros((), bool)
    return Lane(moment, policy.start(key=policy_key), jnp.zeros_like(moment.time), moment.count, off, off)


def _decide(
    env: Environment, policy: Policy, schedule: Schedule, lane: Lane, key: Key[Array, ""]
) -> tuple[Lane, Record]:
    """One decision of one episode. Where the episode is over, no time passes and nothing changes."""
    going = ~(lane.terminated | lane.truncated)
    act_key, due_key, advance_key = jax.random.split(jax.random.fold_in(key, lane.length + 1), 3)
    action, memory = policy.act(lane.memory, lane.moment.obs, lane.elapsed, key=act_key)
    tau = jnp.where(going, due(env, schedule, lane.moment, action, key=due_key), 0.0)
    moment, outcome = advance(env, lane.moment, action, tau, key=advance_key)
    new = Lane(moment, memory, tau, lane.length + 1, outcome.terminated, outcome.truncated)
    lane = jax.tree.map(lambda new, old: jnp.where(going, new, old), new, lane)
    record = Record(action, tau, outcome.reward, lane.moment.obs)
    return lane, record._replace(action=_where(going, action), reward=_where(going, outcome.reward))


def _where(going: Array, x: Array) -> Array:
    return jnp.where(going, x, jnp.zeros_like(x))


@eqx.filter_jit
def _run(
    env: Environment, policy: Policy, schedule: Schedule, keys: Key[Array, " n"], limit: int
) -> tuple[Lane, Array, Record]:
    """Episodes side by side until the last one ends; records have axes (decision, episode)."""
    lanes = jax.vmap(partial(_start, env, policy))(keys)
    first = lanes.moment.obs
    decide = jax.vmap(partial(_decide, env, policy, schedule))
    blank = jax.tree.map(
        lambda x: jnp.zeros((limit, *x.shape), x.dtype), jax.eval_shape(lambda: decide(lanes, keys)[1])
    )

    def unfinished(carry: tuple[Array, Lane, Record]) -> Array:
        k, lanes, _ = carry
        return (k < limit) & ~jnp.all(lanes.terminated | lanes.truncated)

    def step(carry: tuple[Array, Lane, Record]) -> tuple[Array, Lane, Record]:
        k, lanes, records = carry
        lanes, record = decide(lanes, keys)
        return k + 1, lanes, jax.tree.map(lambda all, now: all.at[k].set(now), records, record)

    _, lanes, records = jax.lax.while_loop(unfinished, step, (jnp.zeros((), jnp.int32), lanes, blank))
    return lanes, first, records


def _collect_jax(
    env: Environment, policy: Policy, schedule: Schedule, episodes: int, seed: int, tell: Progress
) -> Trajectory:
    spec = env.task.spec
    limit = spec.longest(schedule.shortest(spec))
    # On the CPU one call keeps one core busy: the cores share the calls.
    workers = (os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
    lanes = math.ceil(episodes / math.ceil(episodes / most_lanes()))
    starts = range(0, episodes, lanes)

    def part(start: int) -> tuple[Lane, np.ndarray, Record]:
        numbers = jnp.arange(start, start + lanes)
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(numbers)
        result = jax.device_get(eqx.filter(_run(env, policy, schedule, keys, limit), eqx.is_array))
        tell(min(lanes, episodes - start))
        return result

    with ThreadPoolExecutor(workers) as pool:
        first = part(starts[0])  # alone, so that it is compiled once
        parts = [first, *pool.map(part, starts[1:])]
    ends = [part[0] for part in parts]
    length = np.concatenate([end.length for end in ends])[:episodes]
    longest = int(length.max())

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.swapaxes(array[:longest], 0, 1) for array in arrays])[:episodes]

    first_obs = np.concatenate([part[1] for part in parts])[:episodes]
    observation = np.concatenate([first_obs[:, None], joined([part[2].next_obs for part in parts])], axis=1)
    return Trajectory(
        spec=spec,
        observation=stand_still(observation, length),
        action=joined([part[2].action for part in parts]),
        interval=joined([part[2].interval for part in parts]),
        reward=joined([part[2].reward for part in parts]),
        length=length,
        terminated=np.concatenate([end.terminated for end in ends])[:episodes],
        truncated=np.concatenate([end.truncated for end in ends])[:episodes],
    )


def _check(trajectory: Trajectory) -> None:
    """Refuse what compiled code cannot: actions outside their space, values that are no numbers."""
    spec, mask = trajectory.spec, trajectory.mask
    actions = trajectory.action
    if isinstance(spec.actions, Discrete):
        wrong = (actions < 0) | (actions >= spec.actions.n)
        allowed = f"0 to {spec.actions.n - 1}"
    else:
        low, high = spec.actions.low, spec.actions.high
        wrong = ~np.all((actions >= low - 1e-6) & (actions <= high + 1e-6), axis=-1)
        allowed = f"numbers within [{low:g}, {high:g}]"
    for bad, what in (
        (wrong, f"the policy chose an action outside those of '{spec.name}' ({allowed})"),
        (
            ~np.isfinite(trajectory.observation[:, 1:]).all(-1),
            f"'{spec.name}' showed a value that is no number",
        ),
    ):
        if (bad & mask).any():
            episode, k = np.argwhere(bad & mask)[0]
            raise KairodeError(f"{what}: episode {episode}, decision {k}, action {actions[episode, k]}.")
