"""The vector environment of a host environment: simulations stepped in threads."""

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import numpy as np

from kairode.envs.batching import cores
from kairode.envs.core import Task, Tau, is_truncated
from kairode.envs.host import HostEnvironment, NotRestored, SimulationGroup, SimulationStep, SimulatorTask
from kairode.envs.schedule import Decision, Fixed, Given, Own, Schedule
from kairode.envs.vector import InstanceKeys, OneStep, Step, VectorEnv, step_key
from kairode.errors import KairodeError, KairodeWarning
from kairode.trees import pack, unpack

GROUPED = 32
"""Instances from which groups are used. Measured with MuJoCo's batch (`kairode bench envs`): no faster for 16 robots,
faster for 128."""


@eqx.filter_jit
def _schedule_intervals(schedule: Schedule, proposed: Any, decisions: Decision, data: Any) -> jax.Array:
    def one(proposed: Tau, decision: Decision, data: jax.Array) -> Tau:
        return schedule.interval(proposed, decision, key=step_key(data, decision.count))

    return jax.vmap(one)(proposed, decisions, data)


@eqx.filter_jit
def _judge(task: Task, obs: Any, action: Any, next_obs: Any, tau: Any) -> tuple[jax.Array, jax.Array]:
    """Rewards and terminations of all instances, by a task that is written for one."""
    return jax.vmap(task.reward)(obs, action, next_obs, tau), jax.vmap(task.terminal)(next_obs)


class HostVectorEnv(VectorEnv):
    """Simulations of a host environment, stepped in threads (the physics releases the GIL)."""

    def __init__(
        self,
        env: HostEnvironment,
        size: int,
        schedule: Schedule | None = None,
        threads: int | None = None,
        grouped: bool | None = None,
        accrued: bool = False,
        **options: Any,
    ) -> None:
        self.env, self.task, self.size = env, env.task, size
        self.schedule = Own() if schedule is None else schedule
        self.accrued = accrued
        """Whether a task's rewards are counted on every finest time step; a simulator's own always are."""
        self.simulations = [env.open(**options) for _ in range(size)]
        # Looked up once, and not as an Equinox module's bound method: building one takes as long as the physics.
        self.spec, kind = self.task.spec, type(self.task)
        self.own_rewards = isinstance(self.task, SimulatorTask)
        self.reward: Callable[..., Any] = functools.partial(kind.reward, self.task)
        self.terminal: Callable[..., Any] = functools.partial(kind.terminal, self.task)
        self.obs = np.zeros((size, len(self.spec.observations)))
        self.time, self.count = np.zeros(size), np.zeros(size, np.int32)
        self.keys, self.started = InstanceKeys(size), False
        self.told = False
        """Whether it was said that the task does not know an end of the simulator's."""
        # Measured on 16 cores: more than four threads are slower because of the GIL.
        workers = threads or (min(4, cores(), max(1, size // 4)) if env.releases_gil else 1)
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
        if not np.isfinite(self.obs).all():
            raise self._not_finite()
        return self.obs.astype(np.float32)

    def step(self, actions: np.ndarray, taus: np.ndarray | None = None, autoreset: np.ndarray | None = None) -> Step:
        """Instances are divided among the threads; rewards are the task's, or the simulator's own."""
        if not self.started:
            raise self._not_started()
        actions = np.asarray(actions)
        if actions.dtype.kind == "f":
            actions = actions.astype(np.float64)
        resets = np.zeros(self.size, bool) if autoreset is None else np.asarray(autoreset)
        intervals = self.intervals(actions) if taus is None else np.asarray(taus, np.float64).copy()
        reports: list[SimulationStep | None] = [None] * self.size
        before = self.obs.copy()
        if self.accrued and not self.own_rewards:
            return self._step_accrued(actions, intervals, resets)

        def move(instances: range, group: SimulationGroup | None) -> None:
            part = slice(instances.start, None, instances.step)
            if group is not None:
                self.obs[part] = group.transition(actions[part], intervals[part], ~resets[part])
                return
            for i in instances:
                if not resets[i]:
                    reports[i] = self._moved(i, actions[i], float(intervals[i]))

        if self.pool is None:
            move(self.split[0], self.groups[0])
        else:
            list(self.pool.map(move, self.split, self.groups))
        reward, total, terminated, truncated = self._judged(before, actions, intervals, reports, resets)
        self.time += intervals
        self.count += 1
        truncated = (truncated | is_truncated(self.spec, self.time, self.count)) & ~terminated
        return self._finish(reward, total, terminated, truncated, intervals, resets)

    def _finish(
        self, reward: Any, total: Any, terminated: Any, truncated: Any, intervals: np.ndarray, resets: np.ndarray
    ) -> Step:
        with np.errstate(over="ignore"):  # beyond single precision is not finite either
            if not (np.isfinite(self.obs.astype(np.float32)).all() and np.isfinite(np.float32(reward)).all()):
                raise self._not_finite()
        if resets.any():
            self.reset([None] * int(resets.sum()), np.flatnonzero(resets).tolist())
            intervals, reward, total = (np.where(resets, 0.0, x) for x in (intervals, reward, total))
            terminated, truncated = terminated & ~resets, truncated & ~resets
        obs, reward = self.obs.astype(np.float32), np.asarray(reward).astype(np.float32)
        return Step(obs, reward, terminated, truncated, intervals, self.time.copy(), np.asarray(total, np.float64))

    def _moved(self, i: int, action: Any, tau: float) -> SimulationStep | None:
        """Step one simulation; what it reports besides its observation."""
        found = self.simulations[i].transition(action, tau)
        if isinstance(found, SimulationStep):
            self.obs[i] = found.obs
            return found
        self.obs[i] = found
        return None

    def _judged(
        self,
        before: np.ndarray,
        actions: np.ndarray,
        intervals: np.ndarray,
        reports: Sequence[SimulationStep | None],
        resets: np.ndarray,
    ) -> tuple[Any, Any, np.ndarray, np.ndarray]:
        """Reward, undiscounted reward, termination and truncation of every instance; sets the time that passed."""
        terminated, truncated = np.zeros((2, self.size), bool)
        reward, total = np.zeros((2, self.size))
        for i, report in enumerate(reports):
            if report is not None:
                reward[i], total[i], intervals[i] = report.reward, report.total, report.elapsed
                terminated[i], truncated[i] = report.terminated, report.truncated
            elif self.own_rewards and not resets[i]:
                raise KairodeError(
                    f"the simulation of '{self.spec.name}' must return a SimulationStep from `transition`: its task "
                    "knows no rewards."
                )
        if self.own_rewards:
            return reward, total, terminated, truncated
        reward, ended = self._by_task(before, actions, self.obs, intervals)
        if (terminated & ~ended).any():
            self._disagrees()
        return reward, reward, terminated | ended, truncated

    def _by_task(self, before: np.ndarray, actions: np.ndarray, after: np.ndarray, taus: np.ndarray) -> Any:
        """Rewards and terminations of the task, for arrays with a leading axis."""
        if self.task.batched:
            return np.asarray(self.reward(before, actions, after, taus)), np.asarray(self.terminal(after))
        single = [np.asarray(x, np.float32) for x in (before, after, taus)]
        if actions.dtype.kind == "f":
            actions = actions.astype(np.float32)
        try:
            found = _judge(self.task, single[0], actions, single[1], single[2])
        except jax.errors.JAXTypeError as error:
            raise KairodeError(
                f"the task of '{self.spec.name}' cannot be compiled by JAX: write its reward and terminal with "
                "jax.numpy, and jnp.where instead of if."
            ) from error
        return tuple(np.asarray(x) for x in found)

    def _disagrees(self) -> None:
        if self.told:
            return
        self.told = True
        warnings.warn(
            f"the simulator of '{self.spec.name}' ended an episode in a state that the task does not call terminal, so "
            "imagined episodes go on where real ones end: correct the task's `terminal`.",
            KairodeWarning,
            stacklevel=4,
        )

    def _step_accrued(self, actions: np.ndarray, intervals: np.ndarray, resets: np.ndarray) -> Step:
        """Hold the actions in finest time steps, each with the task's reward, up to a terminal state or the horizon."""
        spec, finest = self.spec, self.spec.finest
        reward, total, passed = np.zeros((3, self.size))
        terminated, truncated = np.zeros((2, self.size), bool)
        horizon = spec.horizon - self.time
        for k in itertools.count():
            waits = np.clip(np.minimum(intervals, horizon) - k * finest, 0.0, finest)
            going = (waits > 1e-9 * finest) & ~terminated & ~truncated & ~resets
            if not going.any():
                break
            before = self.obs.copy()
            for i in np.flatnonzero(going).tolist():
                report = self._moved(i, actions[i], float(waits[i]))
                if report is not None:
                    terminated[i], truncated[i] = report.terminated, report.truncated
            full = np.full(self.size, finest)
            each, ended = self._by_task(before, actions, self.obs, full)
            if (terminated & going & ~ended).any():
                self._disagrees()
            share = np.where(going, waits / finest, 0.0)
            reward += spec.discount ** (k * finest / spec.tick) * each * share
            total += each * share
            passed += np.where(going, waits, 0.0)
            terminated |= ended & going
        self.time += np.where(terminated | truncated, passed, intervals)
        self.count += 1
        truncated = (truncated | is_truncated(spec, self.time, self.count)) & ~terminated
        return self._finish(reward, total, terminated, truncated, passed, resets)

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
        if not (self.own_rewards or self.task.batched):
            step = self.step(action[None], np.array([tau]))
            return OneStep(step.obs[0], *(x[0].item() for x in step[1:6]))
        found, terminated, truncated = simulation.transition(action, tau), False, False
        if isinstance(found, SimulationStep):
            obs, reward, terminated, truncated, tau = found[:5]
        else:
            obs = found
        if not self.own_rewards:
            reward = self.reward(self.obs[0], action, obs, np.float64(tau))
            ended = bool(self.terminal(obs))
            if terminated and not ended:
                self._disagrees()
            terminated = terminated or ended
        time, count = self.time.item() + tau, self.count.item() + 1
        truncated = not terminated and (truncated or bool(is_truncated(self.spec, time, count)))
        self.obs, self.time[0], self.count[0] = np.asarray(obs, np.float64)[None], time, count
        if not (np.isfinite(obs).all() and np.isfinite(reward)):
            raise self._not_finite()
        return OneStep(self.obs[0].astype(np.float32), float(np.float32(reward)), terminated, truncated, tau, time)

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

    @property
    def resumable(self) -> bool:
        """Whether the simulations can be saved and continued."""
        return self._snapshot(0) is not None

    def snapshot(self) -> dict[str, np.ndarray]:
        """Physical states, times and keys; later episodes are reproducible if they are reset with seeds.

        The states of simulations that cannot be saved are empty.
        """
        return {
            "physics": pack_states([self._snapshot(i) for i in range(self.size)]),
            "time": self.time.copy(),
            "count": self.count.copy(),
            "keys": np.array(self.keys.data),
        }

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray | None:
        """None if the states could not be saved, or do not lead where they led: the episodes must begin again."""
        self.keys.data, self.started = np.array(state["keys"], np.uint32), True
        physics = unpack_states(np.asarray(state["physics"]))
        if any(one is None for one in physics):
            return None
        for i, (simulation, one) in enumerate(zip(self.simulations, physics, strict=True)):
            try:
                self.obs[i] = simulation.restore(one)
            except NotRestored:
                return None
            self._load(i)
        self.time, self.count = np.array(state["time"], np.float64), np.array(state["count"], np.int32)
        return self.obs.astype(np.float32)

    def _load(self, i: int) -> None:
        """Let the group of instance i continue from its simulation."""
        group = self.groups[i % len(self.split)]
        if group is not None:
            group.load(i // len(self.split))

    def _snapshot(self, i: int) -> Any:
        group = self.groups[i % len(self.split)]
        return self.simulations[i].snapshot() if group is None else group.snapshot(i // len(self.split))

    def _not_finite(self) -> KairodeError:
        fine = np.abs(self.obs) <= np.finfo(np.float32).max
        bad = np.flatnonzero(~fine.all(-1))
        if not bad.size:
            return KairodeError(f"'{self.spec.name}' returned a reward that is not finite.")
        j = int(np.flatnonzero(~fine[bad[0]])[0])
        return KairodeError(
            f"'{self.spec.name}' returned a value that is not finite: {self.spec.observations[j].name} is "
            f"{self.obs[bad[0], j]}, after {self.time[bad[0]]:g} {self.spec.time_unit}s of an episode."
        )

    def close(self) -> None:
        for simulation in self.simulations:
            simulation.close()
        if self.pool is not None:
            self.pool.shutdown()


def pack_states(states: Sequence[Any]) -> np.ndarray:
    """States of simulations as one array: rows of numbers if each is a vector of them, otherwise of bytes."""
    shapes = {one.shape if isinstance(one, np.ndarray) and one.dtype == np.float64 else None for one in states}
    if len(shapes) == 1 and len(next(iter(shapes)) or ()) == 1:
        return np.stack(states)
    packed = [b"" if one is None else pack(one) for one in states]
    rows = np.zeros((len(states), max(len(one) for one in packed)), np.uint8)
    for row, one in zip(rows, packed, strict=True):
        row[: len(one)] = np.frombuffer(one, np.uint8)
    return rows


def unpack_states(rows: np.ndarray) -> list[Any]:
    """Inverse of `pack_states`."""
    if rows.dtype == np.float64:
        return list(rows)
    return [unpack(row.tobytes()) if row.any() else None for row in rows]
