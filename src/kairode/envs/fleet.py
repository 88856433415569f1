"""Several instances stepped together, seen from the host: what Gymnasium's interface and host collection use."""

import abc
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.envs.core import Action, Environment, Moment, Outcome, Task, Tau, advance, begin, decimal, over
from kairode.envs.host import HostEnvironment
from kairode.envs.lanes import cores, over_lanes
from kairode.envs.schedule import Decision, Own, Schedule, due
from kairode.errors import KairodeError


class Step(NamedTuple):
    """What each instance shows after a step: arrays with a leading axis of instances."""

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    tau: np.ndarray
    """In float64, as the decimal it stands for; so is the time."""
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
    def step(self, actions: np.ndarray, taus: np.ndarray | None = None, anew: np.ndarray | None = None) -> Step:
        """Hold an action in each instance, for the given intervals or as the schedule says.

        Instances marked in `anew` start their next episode instead: no time passes there and nothing is earned.
        """

    @abc.abstractmethod
    def states(self) -> Any:
        """The true states now, with a leading axis of instances; None where they cannot be had."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what the instances hold."""


# Across the border to compiled code keys travel as plain numbers: calls with typed keys are several times slower.


def _following(data: jax.Array) -> jax.Array:
    """The key of an instance's next episode."""
    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(data), 0))


def _step_key(data: jax.Array, count: Any) -> jax.Array:
    """The key of a decision: 0 leads to the next episode, 1 to the start state, the others to the decisions."""
    return jax.random.fold_in(jax.random.wrap_key_data(data), count + 2)


@jax.jit
def _succeed(data: jax.Array, fresh: jax.Array, seeded: jax.Array, chosen: jax.Array) -> jax.Array:
    """The chosen instances' keys become their seed's, or without a seed the one that follows; others stay."""
    renewed = jnp.where(seeded[:, None], fresh, jax.vmap(_following)(data))
    return jnp.where(chosen[:, None], renewed, data)


class Keys:
    """The random key of each instance, from any seed that Gymnasium takes."""

    def __init__(self, size: int) -> None:
        self.data: Any = np.random.SeedSequence().generate_state(2 * size).reshape(size, 2)

    def reset(self, seeds: Sequence[int | None], which: Sequence[int]) -> np.ndarray:
        """Renew the keys of the instances named; returns the mask of these."""
        fresh = np.zeros(self.data.shape, np.uint32)
        chosen, seeded = np.zeros(len(fresh), bool), np.zeros(len(fresh), bool)
        for i, seed in zip(which, seeds, strict=True):
            chosen[i] = True
            if seed is not None:
                seeded[i], fresh[i] = True, np.random.SeedSequence(seed).generate_state(2)
        self.data = _succeed(self.data, fresh, seeded, chosen)
        return chosen


class Calls(NamedTuple):
    """The compiled calls of a JAX environment under a schedule, for any number of instances."""

    begin: Callable[..., Moment]
    renew: Callable[..., Moment]
    step: Callable[..., tuple[Moment, Outcome, jax.Array]]


def compiled(env: Environment, schedule: Schedule) -> Calls:
    """The calls with environment and schedule built in: a call then carries only what changes."""

    def start(data: jax.Array) -> Moment:
        return begin(env, key=jax.random.fold_in(jax.random.wrap_key_data(data), 1))

    def renew(chosen: jax.Array, data: jax.Array, moment: Moment) -> Moment:
        return _choose(chosen, start(data), moment)

    def step(
        moment: Moment, action: Action, tau: Tau | None, data: jax.Array, anew: jax.Array | None
    ) -> tuple[Moment, Outcome, jax.Array]:
        due_key, advance_key = jax.random.split(_step_key(data, moment.count))
        if tau is None:
            tau = due(env, schedule, moment, action, key=due_key)
        if anew is None:
            return *advance(env, moment, action, tau, key=advance_key), data
        held = jnp.where(anew, 0.0, tau)
        moved, outcome = advance(env, moment, action, held, key=advance_key)
        data = jnp.where(anew, _following(data), data)
        nothing = jax.tree.map(jnp.zeros_like, outcome)
        return _choose(anew, start(data), moved), _choose(anew, nothing, outcome), data

    return Calls(*(jax.jit(over_lanes(one)) for one in (start, renew, step)))


def _choose(condition: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


_compiled_once = functools.lru_cache(maxsize=64)(compiled)


class JaxFleet(Fleet):
    """Instances of a JAX environment: one compiled call steps them all."""

    def __init__(self, env: Environment, size: int, schedule: Schedule | None = None) -> None:
        self.env, self.task, self.size = env, env.task, size
        self.keys = Keys(size)
        self.time = np.zeros(size)
        self.moments: Moment | None = None
        self.schedule = schedule or Own()
        self.calls = self._calls()

    def _calls(self) -> Calls:
        try:
            return _compiled_once(self.env, self.schedule)
        except TypeError:  # a field that holds an array cannot be a key of the cache
            return compiled(self.env, self.schedule)

    def __getstate__(self) -> dict[str, Any]:
        return jax.device_get({key: value for key, value in vars(self).items() if key != "calls"})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.calls = self._calls()

    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """Start episodes; a seed fixes all that follows in its instance."""
        chosen = self.keys.reset(seeds, range(self.size) if which is None else which)
        if self.moments is None:
            self.moments = self.calls.begin(self.keys.data)
        else:
            self.moments = self.calls.renew(chosen, self.keys.data, self.moments)
        self.time = np.where(chosen, 0.0, self.time)
        return np.array(self.moments.obs, np.float32)

    def step(self, actions: np.ndarray, taus: np.ndarray | None = None, anew: np.ndarray | None = None) -> Step:
        """One compiled call."""
        if self.moments is None:
            raise KairodeError(f"reset '{self.task.spec.name}' before its first step.")
        held = None if taus is None else np.asarray(taus, self.moments.time.dtype)
        self.moments, out, self.keys.data = self.calls.step(self.moments, actions, held, self.keys.data, anew)
        obs, reward, terminated, truncated, tau = map(
            np.array, (self.moments.obs, out.reward, out.terminated, out.truncated, out.tau)
        )
        tau = decimal(tau)
        if anew is not None:
            self.time = np.where(anew, 0.0, self.time)
        self.time = self.time + tau
        return Step(obs.astype(np.float32), reward, terminated, truncated, tau, self.time)

    def states(self) -> Any:
        """The states as NumPy arrays."""
        return None if self.moments is None else jax.device_get(self.moments.state)

    def close(self) -> None:
        """Nothing is held."""


@eqx.filter_jit
def _schedule_intervals(schedule: Schedule, proposed: Any, decisions: Decision, data: Any) -> jax.Array:
    def one(proposed: Tau, decision: Decision, data: jax.Array) -> Tau:
        return schedule.interval(proposed, decision, key=_step_key(data, decision.count))

    return jax.vmap(one)(proposed, decisions, data)


class HostFleet(Fleet):
    """Running simulations of a host environment, stepped side by side in threads (the physics lets go of the GIL)."""

    def __init__(
        self,
        env: HostEnvironment,
        size: int,
        schedule: Schedule | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        self.env, self.task, self.size = env, env.task, size
        self.schedule = Own() if schedule is None else schedule
        self.simulations = [env.open(**options) for _ in range(size)]
        # Looked up once: an Equinox module builds a bound method anew at each look, which takes as long as physics.
        self.spec = self.task.spec
        self.reward: Callable[..., Any] = self.task.reward
        self.terminal: Callable[..., Any] = self.task.terminal
        self.obs = np.zeros((size, len(self.spec.observations)))
        self.time, self.count = np.zeros(size), np.zeros(size, np.int32)
        self.keys, self.begun = Keys(size), False
        # Measured on 16 cores: past four threads they wait for Python's lock more than they gain.
        workers = threads or min(4, cores(), max(1, size // 4))
        self.pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self.shares = [range(size)[i::workers] for i in range(workers)]

    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """Start episodes; the simulation's own generator takes the seed."""
        which = range(self.size) if which is None else which
        self.begun = True
        self.keys.reset(seeds, which)
        for i, seed in zip(which, seeds, strict=True):
            self.obs[i] = self.simulations[i].reset(seed)
            self.time[i], self.count[i] = 0.0, 0
        return self.obs.astype(np.float32)

    def step(self, actions: np.ndarray, taus: np.ndarray | None = None, anew: np.ndarray | None = None) -> Step:
        """Each thread moves its share of the instances; the rewards are the task's, in float64."""
        if not self.begun:
            raise KairodeError(f"reset '{self.spec.name}' before its first step.")
        actions = np.asarray(actions)
        if np.issubdtype(actions.dtype, np.floating):
            actions = actions.astype(np.float64)
        fresh = np.zeros(self.size, bool) if anew is None else anew
        held = self.intervals(actions) if taus is None else np.asarray(taus, np.float64)
        before = self.obs.copy()

        def move(i: int) -> None:
            if not fresh[i]:
                self.obs[i] = self.simulations[i].transition(actions[i], float(held[i]))

        self.each(move)
        self.time += held
        self.count += 1
        reward = np.asarray(self.reward(before, actions, self.obs, held))
        terminated = np.asarray(self.terminal(self.obs))
        truncated = over(self.spec, self.time, self.count) & ~terminated
        if fresh.any():
            self.reset([None] * int(fresh.sum()), np.flatnonzero(fresh).tolist())
            held, reward = np.where(fresh, 0.0, held), np.where(fresh, 0.0, reward)
            terminated, truncated = terminated & ~fresh, truncated & ~fresh
        obs, earned = self.obs.astype(np.float32), reward.astype(np.float32)
        return Step(obs, earned, terminated, truncated, held, self.time.copy())

    def intervals(self, actions: np.ndarray, memory: Any = ()) -> np.ndarray:
        """What the schedule says now, one for each instance."""
        proposed = np.array([sim.interval(a) for sim, a in zip(self.simulations, actions, strict=True)])
        if isinstance(self.schedule, Own):
            return proposed
        single = np.float32
        decisions = Decision(self.obs.astype(single), actions, self.time.astype(single), self.count, memory)
        chosen = _schedule_intervals(self.schedule, proposed.astype(single), decisions, self.keys.data)
        return np.asarray(chosen, np.float64)

    def __getstate__(self) -> dict[str, Any]:
        raise KairodeError(f"'{self.spec.name}' cannot be copied or pickled: its physics would start anew.")

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
