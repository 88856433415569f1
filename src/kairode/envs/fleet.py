"""Several instances stepped together, seen from the host: what Gymnasium's interface and host collection use."""

import abc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.envs.core import Action, Environment, Moment, Outcome, Tau, Task, advance, begin, over
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import Own, Schedule, hold


class Step(NamedTuple):
    """What each instance shows after a step: arrays with a leading axis of instances."""

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    tau: np.ndarray
    time: np.ndarray


class Fleet(abc.ABC):
    """Instances of one environment. Actions come and observations go as NumPy arrays."""

    task: Task
    size: int

    @abc.abstractmethod
    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """Start episodes in the instances named (all, if none are), a seed each; without one, its numbers go on.

        Returns the observations of all.
        """

    @abc.abstractmethod
    def step(self, actions: np.ndarray, taus: np.ndarray | None = None) -> Step:
        """Hold an action in each instance, for the given intervals or as the schedule says."""

    @abc.abstractmethod
    def states(self) -> Any:
        """The true states now, with a leading axis of instances; None where they cannot be had."""

    def close(self) -> None:  # noqa: B027
        """Give back what the instances hold."""


@eqx.filter_jit
def _begin(env: Environment, keys: jax.Array) -> Moment:
    return jax.vmap(lambda key: begin(env, key=key))(keys)


@eqx.filter_jit
def _select(chosen: jax.Array, new: Moment, old: Moment) -> Moment:
    return jax.vmap(lambda c, a, b: jax.tree.map(lambda x, y: jnp.where(c, x, y), a, b))(chosen, new, old)


@eqx.filter_jit
def _hold(
    env: Environment, schedule: Schedule, moments: Moment, actions: jax.Array, keys: jax.Array
) -> tuple[Moment, Outcome]:
    def one(moment: Moment, action: Action, key: jax.Array) -> tuple[Moment, Outcome]:
        return hold(env, schedule, moment, action, key=jax.random.fold_in(key, moment.count + 1))

    return jax.vmap(one)(moments, actions, keys)


@eqx.filter_jit
def _advance(
    env: Environment, moments: Moment, actions: jax.Array, taus: jax.Array, keys: jax.Array
) -> tuple[Moment, Outcome]:
    def one(moment: Moment, action: Action, tau: Tau, key: jax.Array) -> tuple[Moment, Outcome]:
        return advance(env, moment, action, tau, key=jax.random.fold_in(key, moment.count + 1))

    return jax.vmap(one)(moments, actions, taus, keys)


class JaxFleet(Fleet):
    """Instances of a JAX environment: one compiled call steps them all."""

    def __init__(self, env: Environment, size: int, schedule: Schedule | None = None) -> None:
        self.env, self.task, self.size = env, env.task, size
        self.schedule = Own() if schedule is None else schedule
        # Until a seed is given, instances differ from each other and from run to run.
        entropy = np.random.SeedSequence().generate_state(1)[0]
        self.keys = jax.random.split(jax.random.key(entropy), size)
        self.moments: Moment | None = None

    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """Start episodes; a seed fixes all that follows in its instance."""
        which = range(self.size) if which is None else which
        keys = self.keys
        for i, seed in zip(which, seeds, strict=True):
            key = jax.random.fold_in(keys[i], 0) if seed is None else jax.random.key(seed)
            keys = keys.at[i].set(key)
        self.keys = keys
        fresh = _begin(self.env, self.keys)
        if self.moments is None or len(which) == self.size:
            self.moments = fresh
        else:
            chosen = np.zeros(self.size, bool)
            chosen[list(which)] = True
            self.moments = _select(chosen, fresh, self.moments)
        return np.asarray(self.moments.obs)

    def step(self, actions: np.ndarray, taus: np.ndarray | None = None) -> Step:
        """One compiled call."""
        assert self.moments is not None, "reset first"
        if taus is None:
            self.moments, outcome = _hold(self.env, self.schedule, self.moments, actions, self.keys)
        else:
            taus = np.asarray(taus, np.float32)
            self.moments, outcome = _advance(self.env, self.moments, actions, taus, self.keys)
        obs, time, out = jax.device_get((self.moments.obs, self.moments.time, outcome))
        return Step(obs, out.reward, out.terminated, out.truncated, out.tau, time)

    def states(self) -> Any:
        """The states as NumPy arrays."""
        return None if self.moments is None else jax.device_get(self.moments.state)


@eqx.filter_jit
def _schedule_intervals(
    schedule: Schedule, proposed: jax.Array, obs: jax.Array, actions: jax.Array, count: jax.Array, key: jax.Array
) -> jax.Array:
    keys = jax.random.split(key, proposed.shape[0])
    return jax.vmap(lambda p, o, a, c, k: schedule.interval(p, o, a, c, key=k))(
        proposed, obs, actions, count, keys
    )


class HostFleet(Fleet):
    """Running simulations of a host environment, stepped side by side in threads (the physics lets go of the GIL)."""

    def __init__(
        self, env: HostEnvironment, size: int, schedule: Schedule | None = None, threads: int | None = None, **options: Any
    ) -> None:
        self.env, self.task, self.size = env, env.task, size
        self.schedule = Own() if schedule is None else schedule
        self.simulations = [env.open(**options) for _ in range(size)]
        width = len(self.task.spec.observations)
        self.obs = np.zeros((size, width))
        self.time, self.count = np.zeros(size), np.zeros(size, np.int32)
        self.keys: list[jax.Array] = [jax.random.key(0)] * size
        workers = min(size, threads or os.cpu_count() or 1)
        self.pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self.shares = [range(size)[i::workers] for i in range(workers)]

    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """Start episodes; the simulation's own generator takes the seed."""
        which = range(self.size) if which is None else which
        for i, seed in zip(which, seeds, strict=True):
            self.obs[i] = self.simulations[i].reset(seed)
            self.time[i], self.count[i] = 0.0, 0
        return self.obs.astype(np.float32)

    def step(self, actions: np.ndarray, taus: np.ndarray | None = None) -> Step:
        """Each thread moves its share of the instances; the rewards are the task's, in float64."""
        actions = np.asarray(actions, np.float64)
        if taus is None:
            taus = self.intervals(actions)
        before = self.obs.copy()

        def move(i: int) -> None:
            self.obs[i] = self.simulations[i].transition(actions[i], float(taus[i]))

        self.each(move)
        self.time += taus
        self.count += 1
        pairs = list(zip(before, actions, self.obs, taus, strict=True))
        reward = np.array([self.task.reward(*pair) for pair in pairs])
        terminated = np.array([bool(self.task.terminal(obs)) for obs in self.obs])
        truncated = over(self.task.spec, self.time, self.count) & ~terminated
        return Step(
            self.obs.astype(np.float32),
            reward.astype(np.float32),
            terminated,
            truncated,
            taus.astype(np.float32),
            self.time.copy(),
        )

    def intervals(self, actions: np.ndarray) -> np.ndarray:
        """What the schedule says now, one for each instance."""
        proposed = np.array([sim.interval(a) for sim, a in zip(self.simulations, actions, strict=True)])
        if isinstance(self.schedule, Own):
            return proposed
        key = jax.random.fold_in(jax.random.key(0), int(self.count.sum()))
        asked = (proposed.astype(np.float32), self.obs.astype(np.float32), actions.astype(np.float32), self.count)
        return np.asarray(_schedule_intervals(self.schedule, *asked, key), np.float64)

    def each(self, move: Callable[[int], None]) -> None:
        """Apply to every instance, side by side."""
        if self.pool is None:
            for i in range(self.size):
                move(i)
            return

        def share(indices: range) -> None:
            for i in indices:
                move(i)

        list(self.pool.map(share, self.shares))

    def states(self) -> Any:
        """Not told: the physics keeps them."""
        return None

    def close(self) -> None:
        """Close simulations and threads."""
        for simulation in self.simulations:
            simulation.close()
        if self.pool is not None:
            self.pool.shutdown()


def launch(env: Environment | HostEnvironment, size: int, schedule: Schedule | None = None, **options: Any) -> Fleet:
    """Instances of any environment; options such as render_mode are for the host's ones."""
    if isinstance(env, HostEnvironment):
        return HostFleet(env, size, schedule, **options)
    return JaxFleet(env, size, schedule)
