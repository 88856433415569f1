"""The vector environment of a host environment: simulations stepped in threads."""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import numpy as np

from kairode.envs.batching import cores
from kairode.envs.core import Tau, is_truncated
from kairode.envs.host import HostEnvironment, SimulationGroup
from kairode.envs.schedule import Decision, Fixed, Given, Own, Schedule
from kairode.envs.vector import InstanceKeys, OneStep, Step, VectorEnv, step_key
from kairode.errors import KairodeError

GROUPED = 32
"""Instances from which groups are used. Measured with MuJoCo's batch (`kairode bench envs`): no faster for 16 robots,
faster for 128."""


@eqx.filter_jit
def _schedule_intervals(schedule: Schedule, proposed: Any, decisions: Decision, data: Any) -> jax.Array:
    def one(proposed: Tau, decision: Decision, data: jax.Array) -> Tau:
        return schedule.interval(proposed, decision, key=step_key(data, decision.count))

    return jax.vmap(one)(proposed, decisions, data)


class HostVectorEnv(VectorEnv):
    """Simulations of a host environment, stepped in threads (the physics releases the GIL)."""

    def __init__(
        self,
        env: HostEnvironment,
        size: int,
        schedule: Schedule | None = None,
        threads: int | None = None,
        grouped: bool | None = None,
        **options: Any,
    ) -> None:
        self.env, self.task, self.size = env, env.task, size
        self.schedule = Own() if schedule is None else schedule
        self.simulations = [env.open(**options) for _ in range(size)]
        # Looked up once, and not as an Equinox module's bound method: building one takes as long as the physics.
        self.spec, kind = self.task.spec, type(self.task)
        self.reward: Callable[..., Any] = functools.partial(kind.reward, self.task)
        self.terminal: Callable[..., Any] = functools.partial(kind.terminal, self.task)
        self.obs = np.zeros((size, len(self.spec.observations)))
        self.time, self.count = np.zeros(size), np.zeros(size, np.int32)
        self.keys, self.started = InstanceKeys(size), False
        # Measured on 16 cores: more than four threads are slower because of the GIL.
        workers = threads or min(4, cores(), max(1, size // 4))
        self.pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self.split = [range(size)[i::workers] for i in range(workers)]
        self.groups: list[SimulationGroup | None] = [None] * workers
        if size >= GROUPED if grouped is None else grouped:
            self.groups = [env.group([self.simulations[i] for i in part]) for part in self.split]

    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """The seed is passed to the simulation's own generator."""
        which = range(self.size) if which is None else which
        self.started = True
        self.keys.reset(seeds, which)
        for i, seed in zip(which, seeds, strict=True):
            self.obs[i] = self.simulations[i].reset(seed)
            self.time[i], self.count[i] = 0.0, 0
            self._load(i)
        return self.obs.astype(np.float32)

    def step(self, actions: np.ndarray, taus: np.ndarray | None = None, autoreset: np.ndarray | None = None) -> Step:
        """Instances are divided among the threads; rewards are computed by the task, in float64."""
        if not self.started:
            raise self._not_started()
        actions = np.asarray(actions)
        if actions.dtype.kind == "f":
            actions = actions.astype(np.float64)
        resets = np.zeros(self.size, bool) if autoreset is None else np.asarray(autoreset)
        intervals = self.intervals(actions) if taus is None else np.asarray(taus, np.float64)
        before = self.obs.copy()

        def move(instances: range, group: SimulationGroup | None) -> None:
            part = slice(instances.start, None, instances.step)
            if group is not None:
                self.obs[part] = group.transition(actions[part], intervals[part], ~resets[part])
                return
            for i in instances:
                if not resets[i]:
                    self.obs[i] = self.simulations[i].transition(actions[i], float(intervals[i]))

        if self.pool is None:
            move(self.split[0], self.groups[0])
        else:
            list(self.pool.map(move, self.split, self.groups))
        self.time += intervals
        self.count += 1
        reward = np.asarray(self.reward(before, actions, self.obs, intervals))
        terminated = np.asarray(self.terminal(self.obs))
        truncated = is_truncated(self.spec, self.time, self.count) & ~terminated
        if resets.any():
            self.reset([None] * int(resets.sum()), np.flatnonzero(resets).tolist())
            intervals, reward = np.where(resets, 0.0, intervals), np.where(resets, 0.0, reward)
            terminated, truncated = terminated & ~resets, truncated & ~resets
        obs, reward = self.obs.astype(np.float32), reward.astype(np.float32)
        return Step(obs, reward, terminated, truncated, intervals, self.time.copy())

    def step_one(self, action: Any, tau: float | None = None) -> OneStep:
        """The same numbers as `step` of a single instance, in less time: no axis of instances."""
        if not self.started:
            raise self._not_started()
        simulation = self.simulations[0]
        if action.dtype.kind == "f":
            action = action.astype(np.float64)
        if tau is None:
            own = isinstance(self.schedule, Own)
            tau = simulation.interval(action) if own else float(self.intervals(action[None])[0])
        obs = simulation.transition(action, tau)
        reward = self.reward(self.obs[0], action, obs, np.float64(tau))
        terminated = bool(self.terminal(obs))
        time, count = self.time.item() + tau, self.count.item() + 1
        truncated = not terminated and bool(is_truncated(self.spec, time, count))
        self.obs, self.time[0], self.count[0] = obs[None], time, count
        return OneStep(obs.astype(np.float32), float(np.float32(reward)), terminated, truncated, tau, time)

    def intervals(self, actions: np.ndarray, memory: Any = ()) -> np.ndarray:
        schedule = self.schedule
        # Constant schedules without JAX: a compiled call takes longer than the physics.
        if isinstance(schedule, Fixed):
            return np.full(self.size, np.float64(np.float32(schedule.tau)))
        if isinstance(schedule, Given):
            return np.array(schedule.taus, np.float32).astype(np.float64)[self.count % len(schedule.taus)]
        proposed = np.empty(self.size)
        for instances, group in zip(self.split, self.groups, strict=True):
            part = slice(instances.start, None, instances.step)
            if group is not None:
                proposed[part] = group.intervals(actions[part])
            else:
                proposed[part] = [self.simulations[i].interval(actions[i]) for i in instances]
        if isinstance(schedule, Own):
            return proposed
        single = np.float32
        decisions = Decision(self.obs.astype(single), actions, self.time.astype(single), self.count, memory)
        chosen = _schedule_intervals(schedule, proposed.astype(single), decisions, self.keys.data)
        return np.asarray(chosen, np.float64)

    def _not_started(self) -> KairodeError:
        return KairodeError(f"reset '{self.spec.name}' before its first step.")

    def __getstate__(self) -> dict[str, Any]:
        raise KairodeError(f"'{self.spec.name}' cannot be copied or pickled: a copy could not continue its physics.")

    def states(self) -> Any:
        return None

    def snapshot(self) -> dict[str, np.ndarray]:
        """Physical states, times and keys; later episodes are reproducible if they are reset with seeds."""
        physics = np.stack([self._snapshot(i) for i in range(self.size)])
        return {
            "physics": physics,
            "time": self.time.copy(),
            "count": self.count.copy(),
            "keys": np.array(self.keys.data),
        }

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        for i, simulation in enumerate(self.simulations):
            self.obs[i] = simulation.restore(np.asarray(state["physics"][i], np.float64))
            self._load(i)
        self.time, self.count = np.array(state["time"], np.float64), np.array(state["count"], np.int32)
        self.keys.data, self.started = np.array(state["keys"], np.uint32), True
        return self.obs.astype(np.float32)

    def _load(self, i: int) -> None:
        """Let the group of instance i continue from its simulation."""
        group = self.groups[i % len(self.split)]
        if group is not None:
            group.load(i // len(self.split))

    def _snapshot(self, i: int) -> np.ndarray:
        group = self.groups[i % len(self.split)]
        return self.simulations[i].snapshot() if group is None else group.snapshot(i // len(self.split))

    def close(self) -> None:
        for simulation in self.simulations:
            simulation.close()
        if self.pool is not None:
            self.pool.shutdown()
