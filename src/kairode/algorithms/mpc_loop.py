"""Several seeds steering side by side: their environments stepped together on the host, their minds on the device.

The loop of the paper's algorithm 3, in parts: `warm_up` (random decisions), `begin_epoch` (statistics, models, new
episodes) and `turn` (plan, act, store, update). `control.py` calls them and keeps the records.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.agents.actor_critic import (
    new_actor_critic,
)
from kairode.agents.actor_policy import controls
from kairode.agents.obs_normalizer import Sight
from kairode.algorithms.mpc_agent import FREE, Ended, Mind, Ways, compiled, policy_of
from kairode.algorithms.mpc_data import shares_of
from kairode.data.policy import Policy
from kairode.data.replay import add, empty
from kairode.data.rows import Row, pack, unpack, width
from kairode.envs.core import Environment
from kairode.envs.host import HostEnvironment
from kairode.envs.vector import Fleet
from kairode.envs.vector_host import HostFleet
from kairode.envs.vector_jax import JaxFleet
from kairode.models.zoo import build
from kairode.training.refit import refit
from kairode.training.step import Progress
from kairode.training.step import begin as begin_fit
from kairode.trees import one


class Crew:
    """The seeds, where they stand."""

    def __init__(self, env: Environment | HostEnvironment, ways: Ways, seeds: list[int], capacity: int) -> None:
        self.env, self.ways, self.seeds, self.task = env, ways, seeds, env.task
        self.spec, count = self.task.spec, len(seeds)
        self.fleet: Fleet = JaxFleet(env, count) if isinstance(env, Environment) else HostFleet(env, count)
        self.data = jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
        keys = jax.vmap(lambda data: jax.random.fold_in(jax.random.wrap_key_data(data), 2))(self.data)
        features, controls_n = len(self.spec.observations), self.spec.actions.n
        capacity = min(capacity, ways.agent.capacity)
        mind = Mind(
            jax.vmap(lambda key: new_actor_critic(features, controls_n, ways.agent, key=key))(keys),
            jax.vmap(lambda _: empty(capacity, jnp.zeros(width(self.spec))))(jnp.arange(count)),
            jnp.zeros(count, jnp.int32),
        )
        self.mind = jax.tree.map(jnp.copy, mind)  # each array its own: an update takes them over
        new = Sight.new(self.spec, ways.changes)
        self.sight = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), new)
        self.progress: Progress | None = None
        static: Any = None
        if ways.model != FREE:
            make = eqx.filter_vmap(lambda key: build(ways.model, self.spec, ways.sizes, key=key))
            models = make(jnp.stack([jax.random.fold_in(jax.random.key(seed), 0) for seed in seeds]))
            static = eqx.filter(models, eqx.is_array, inverse=True)
            self.progress = begin_fit(models, ways.fit, seeds)
        self.static = static
        self.calls = compiled(ways, self.task, static)
        self.decisions = 0
        """Taken by every seed."""
        self.epoch = 0
        self.memory: Any = None
        self.pending: np.ndarray | None = None
        """What the last turn brought: not stored yet, nothing learned from it yet."""
        self.obs = np.zeros((count, features), np.float32)
        self.shown = self.obs
        self.elapsed = np.zeros(count, np.float32)
        self.episode = np.zeros(count, np.int64)
        self.earned, self.length = np.zeros(count), np.zeros(count, np.int64)
        self.spent = dict.fromkeys(("planning", "physics", "learning", "fitting"), 0.0)
        """Seconds, as the host saw them: what the device does meanwhile is counted where the host waits for it."""

    def warm_up(self, tell: Callable[[int], None] = lambda done: None) -> list[Ended]:
        """Random decisions, which nothing is learned from yet."""
        count, wanted = len(self.seeds), self.ways.agent.warmup
        drawn = [np.random.default_rng([seed, 1]).uniform(-1, 1, (wanted, self.spec.actions.n)) for seed in self.seeds]
        random = np.asarray(controls(self.spec, np.stack(drawn, axis=1).astype(np.float32)))
        rows = np.zeros((count, wanted, width(self.spec)), np.float32)
        ended = []
        self.begin_episodes(np.ones(count, bool))
        for k in range(wanted):
            rows[:, k], new = self._step(random[k])
            ended += new
            if k % 100 == 99:
                tell(k + 1)
        kept = rows[:, -self.mind.replay.items.shape[1] :]
        replay = jax.vmap(add)(self.mind.replay, jnp.asarray(kept))
        self.mind = dataclasses.replace(self.mind, replay=replay)
        self._see(rows)
        return ended

    def begin_epoch(self) -> dict[str, Any]:
        """Statistics and models take in what happened; episodes begin anew, as algorithm 3 has it. What was fitted."""
        started = time.perf_counter()
        figures: dict[str, Any] = {}
        self.settle()
        if self.epoch and self.decisions > self.ways.agent.warmup:
            self._see(self._latest())
        if self.progress is not None:
            patience = max((self.ways.fit.patience or 15) - self.epoch, 3)
            settings = dataclasses.replace(self.ways.fit, patience=patience)
            capacity = self.mind.replay.items.shape[1]
            shares = shares_of(self.spec, self._rows(), self.sight, self.ways.fit, capacity)
            found = refit(
                self.progress,
                self.static,
                settings,
                shares,
                self.seeds,
                number=self.epoch,
                most=self.ways.most_iterations,
            )
            self.progress = found.progress
            skill = np.asarray(self.calls.skill(self.progress.params, self.sight, shares.valid, self.data), np.float64)
            figures = {
                "model_error": [error if np.isfinite(error) else None for error in found.error],
                "reward_skill": [[float(f"{x:.4g}") for x in one] for one in skill],
                "iterations": found.iterations,
            }
        self.epoch += 1
        self.begin_episodes(np.ones(len(self.seeds), bool))
        self.spent["fitting"] += time.perf_counter() - started
        return figures

    def turn(self, wait: bool = False) -> list[Ended]:
        """One decision of every seed; the episodes that it ended.

        The update that belongs to the last turn is handed to the device behind the plan of this one, so that it is done
        while the host steps the physics: decisions are made by networks one update behind. With `wait` every part is
        waited for, so that their times are told apart.
        """
        clock = time.perf_counter()
        params = None if self.progress is None else self.progress.params
        networks = self.mind.agent.networks
        control, self.memory = self.calls.decide(
            networks, self.sight, params, self.memory, self.obs, self.elapsed, self.data, self.decisions
        )
        if wait:
            jax.block_until_ready(control)
        decided = time.perf_counter()
        self.settle()
        if wait:
            jax.block_until_ready(self.mind)
        settled = time.perf_counter()
        control = np.asarray(control)
        ready = time.perf_counter()
        self.pending, ended = self._step(control)
        self.spent["planning"] += (decided - clock) + (ready - settled)
        self.spent["learning"] += settled - decided
        self.spent["physics"] += time.perf_counter() - ready
        return ended

    def settle(self) -> None:
        """Store what the last turn brought and update: the device does so while the host steps the physics."""
        if self.pending is not None:
            self.mind = self.calls.learn(self.mind, self.sight, self.pending, self.data, self.decisions)
            self.pending = None

    def begin_episodes(self, which: np.ndarray) -> None:
        """New episodes where marked: their random numbers follow from seed and episode alone."""
        index = np.flatnonzero(which)
        states = [np.random.SeedSequence([self.seeds[i], int(self.episode[i])]).generate_state(1) for i in index]
        obs = self.fleet.reset([int(state[0]) for state in states], index.tolist())
        self.episode[index] += 1
        self.earned[index], self.length[index], self.elapsed[index] = 0.0, 0, 0.0
        mark = which[:, None]
        self.obs = np.where(mark, obs, self.obs)
        self.shown = np.where(mark, self.sight.seen(self.obs, self.obs, np.ones(len(which), bool)), self.shown)

    def policies(self) -> list[Policy]:
        """Every seed's policy as it stands, without the noise of exploration."""
        found = []
        for i in range(len(self.seeds)):
            model = None if self.progress is None else eqx.combine(one(self.progress.params, i), self.static)
            parts = one(self.mind.agent.networks, i), one(self.sight, i)
            found.append(policy_of(self.ways, self.task, *parts, model, explores=False))
        return found

    def arrays(self) -> dict[str, Any]:
        """All that changes, to be saved after a turn; the replay without what is still empty."""
        size = min(self.decisions - 1, self.mind.replay.items.shape[1])
        mind = dataclasses.replace(
            self.mind, replay=dataclasses.replace(self.mind.replay, items=self.mind.replay.items[:, :size])
        )
        host = {name: getattr(self, name) for name in ("obs", "shown", "elapsed", "episode", "earned", "length")}
        return {
            "mind": mind,
            "sight": self.sight,
            "progress": self.progress,
            "memory": self.memory,
            "pending": self.pending,
            "host": host,
            "fleet": self.fleet.snapshot(),
        }

    def restore(self, arrays: dict[str, Any], decisions: int, epoch: int) -> None:
        """Go on from what was saved."""
        self.decisions, self.epoch = decisions, epoch
        kept: Mind = arrays["mind"]
        items = self.mind.replay.items.at[:, : kept.replay.items.shape[1]].set(kept.replay.items)
        self.mind = dataclasses.replace(kept, replay=dataclasses.replace(kept.replay, items=items))
        self.sight, self.progress, self.memory = arrays["sight"], arrays["progress"], arrays["memory"]
        self.pending = np.asarray(arrays["pending"])
        for name, value in arrays["host"].items():
            setattr(self, name, np.array(value, getattr(self, name).dtype))
        self.fleet.restore({name: np.asarray(value) for name, value in arrays["fleet"].items()})

    def like(self, decisions: int) -> dict[str, Any]:
        """Arrays of the shapes that `arrays` has after so many decisions."""
        self.begin_episodes(np.ones(len(self.seeds), bool))
        params = None if self.progress is None else self.progress.params
        decide = (self.mind.agent.networks, self.sight, params, None, self.obs, self.elapsed, self.data, 0)
        shapes = jax.eval_shape(self.calls.decide, *decide)[1]
        self.memory = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        self.decisions, self.pending = decisions, np.zeros((len(self.seeds), width(self.spec)), np.float32)
        return self.arrays()

    def close(self) -> None:
        """Give back the simulations."""
        self.fleet.close()

    def _step(self, control: np.ndarray) -> tuple[np.ndarray, list[Ended]]:
        """Hold the controls; the rows of what happened, and what ended."""
        first = self.elapsed == 0
        step = self.fleet.step(control)
        self.decisions += 1
        nothing = np.zeros(len(self.seeds), bool)
        after = self.sight.seen(step.obs, self.obs, nothing)
        rows = pack(Row(self.shown, after, control, step.reward, step.tau, step.terminated, first))
        self.obs, self.shown, self.elapsed = step.obs, after, step.tau.astype(np.float32)
        self.earned += step.reward
        self.length += 1
        over = step.terminated | step.truncated
        ended = [
            Ended(int(i), self.decisions, float(self.earned[i]), int(self.length[i])) for i in np.flatnonzero(over)
        ]
        if ended:
            self.begin_episodes(over)
        return rows, ended

    def _see(self, rows: np.ndarray) -> None:
        """Take what was seen into the statistics."""
        shown = jnp.asarray(unpack(self.spec, rows).shown)
        self.sight = jax.vmap(lambda sight, x: sight.with_more(x))(self.sight, shown)

    def _rows(self) -> np.ndarray:
        """All that is remembered, in order: [seed, decision, number]."""
        replay = self.mind.replay
        items, size = np.asarray(replay.items), int(replay.size[0])
        return items[:, :size] if size < items.shape[1] else np.roll(items, -int(replay.cursor[0]), axis=1)

    def _latest(self) -> np.ndarray:
        """What was added since the statistics were last renewed."""
        rows = self._rows()
        new = self.decisions - int(self.sight.statistics.count[0])
        return rows[:, max(rows.shape[1] - new, 0) :]
