"""The loop of MPC: environments of several seeds on the host, their learners on the device.

The loop of the paper's algorithm 3, in parts: `warm_up` (random decisions), `begin_epoch` (statistics, models, new
episodes) and `step` (plan, act, store, update). `mpc.py` calls them and keeps the records.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.agents.actor_critic import init_actor_critic
from kairode.agents.actor_policy import controls
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.algorithms.mpc_agent import FinishedEpisode, LearnerState, compile_mpc, make_policy
from kairode.algorithms.mpc_data import split_rows
from kairode.config.algorithms import MODEL_FREE, MPCConfig
from kairode.data.host_rollout import HostRollout
from kairode.data.policy import Policy
from kairode.data.replay import add, empty
from kairode.data.rows import StepRow, pack_row, packed_width, unpack_row
from kairode.envs.core import Environment
from kairode.envs.host import HostEnvironment, SimulatorTask
from kairode.envs.vector_host import HostVectorEnv
from kairode.envs.vector_jax import JaxVectorEnv
from kairode.models.zoo import build
from kairode.planning.learned_task import LearnedTask, fit_learned_task, new_learned_task
from kairode.seeds import Purpose, derive
from kairode.training.outcomes import IntervalRows
from kairode.training.refit import refit
from kairode.training.step import FitState, init_fit_state
from kairode.trees import one, stack


class MPCLoop:
    """All seeds with their environments and learners."""

    def __init__(self, env: Environment | HostEnvironment, config: MPCConfig, seeds: list[int], capacity: int) -> None:
        self.env, self.config, self.seeds, self.task = env, config, seeds, env.task
        self.spec, count = self.task.spec, len(seeds)
        self.rollout = HostRollout(
            JaxVectorEnv(env, count) if isinstance(env, Environment) else HostVectorEnv(env, count)
        )
        self.data = jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
        keys = jax.vmap(lambda data: jax.random.fold_in(jax.random.wrap_key_data(data), 2))(self.data)
        features, controls_n = len(self.spec.observations), self.spec.actions.n
        capacity = min(capacity, config.agent.replay_capacity)
        learner = LearnerState(
            jax.vmap(lambda key: init_actor_critic(features, controls_n, config.agent, key=key))(keys),
            jax.vmap(lambda _: empty(capacity, jnp.zeros(packed_width(self.spec))))(jnp.arange(count)),
            jnp.zeros(count, jnp.int32),
        )
        self.learner = jax.tree.map(jnp.copy, learner)  # copies, because updates donate their arrays
        new = ObsNormalizer.new(self.spec, config.relative_obs)
        self.normalizer = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), new)
        self.fit_state: FitState | None = None
        self.static: Any = None
        if config.model != MODEL_FREE:
            make = eqx.filter_vmap(lambda key: build(config.model, self.spec, config.sizes, key=key))
            models = make(jnp.stack([jax.random.fold_in(jax.random.key(seed), 0) for seed in seeds]))
            self.static = eqx.filter(models, eqx.is_array, inverse=True)
            self.fit_state = init_fit_state(models, config.training, seeds)
        self.learned: LearnedTask | None = None
        """Reward and termination of each seed, learned where they are the simulator's own; only planning needs them."""
        if self.fit_state is not None and isinstance(self.task, SimulatorTask):
            self.learned = stack([new_learned_task(self.spec, seed) for seed in seeds])
        self.decide, self.learn, self.skill = compile_mpc(config, self.task, self.static)
        self.decisions = 0
        """Decisions per seed."""
        self.epoch = 0
        self.memory: Any = None
        self.pending: np.ndarray | None = None
        """Rows of the last step, not stored yet."""
        self.seen_obs = self.rollout.obs
        """The observations after the normaliser's changes."""
        self.stage_seconds = dict.fromkeys(("planning", "physics", "learning", "fitting"), 0.0)
        """Seconds on the host; work on the device counts where the host waits for it."""

    def warm_up(self, callback: Callable[[int], None] = lambda done: None) -> list[FinishedEpisode]:
        """Random decisions without learning."""
        count, steps = len(self.seeds), self.config.agent.warmup
        drawn = [np.random.default_rng([seed, 1]).uniform(-1, 1, (steps, self.spec.actions.n)) for seed in self.seeds]
        random = np.asarray(controls(self.spec, np.stack(drawn, axis=1).astype(np.float32)))
        rows = np.zeros((count, steps, packed_width(self.spec)), np.float32)
        ended = []
        self.begin_episodes(np.ones(count, bool))
        for k in range(steps):
            rows[:, k], new = self._step_envs(random[k])
            ended += new
            if k % 100 == 99:
                callback(k + 1)
        kept = rows[:, -self.learner.replay.items.shape[1] :]
        replay = jax.vmap(add)(self.learner.replay, jnp.asarray(kept))
        self.learner = dataclasses.replace(self.learner, replay=replay)
        self._update_statistics(rows)
        return ended

    def begin_epoch(self) -> dict[str, Any]:
        """Update statistics and models, and start new episodes, as in algorithm 3; returns the refit."""
        started = time.perf_counter()
        figures: dict[str, Any] = {}
        self.update_learner()
        if self.epoch and self.decisions > self.config.agent.warmup:
            self._update_statistics(self._latest())
        if self.fit_state is not None:
            patience = max((self.config.training.patience or 15) - self.epoch, 3)
            settings = dataclasses.replace(self.config.training, patience=patience)
            capacity = self.learner.replay.items.shape[1]
            split = split_rows(self.spec, self._rows(), self.normalizer, self.config.training, capacity)
            most = self.config.max_fit_iterations
            found = refit(self.fit_state, self.static, settings, split, self.seeds, number=self.epoch, most=most)
            self.fit_state = found.fit_state
            if self.learned is not None:
                self.learned = stack(
                    [self._learned_task(seed, mine) for seed, mine in zip(self.seeds, self._rows(), strict=True)]
                )
            skill = self.skill(self.fit_state.params, self.learned, self.normalizer, split.valid, self.data)
            figures = {
                "model_error": [error if np.isfinite(error) else None for error in found.error],
                "reward_skill": [[float(f"{x:.4g}") for x in one] for one in np.asarray(skill, np.float64)],
                "iterations": found.iterations,
            }
        self.epoch += 1
        self.begin_episodes(np.ones(len(self.seeds), bool))
        self.stage_seconds["fitting"] += time.perf_counter() - started
        return figures

    def step(self, wait: bool = False) -> list[FinishedEpisode]:
        """One decision of every seed; returns the episodes that ended.

        The update after the last step is queued behind this step's plan, so that it runs while the host steps the
        physics: decisions use networks one update behind. With `wait`, each part is waited for, so that their times can
        be measured.
        """
        clock = time.perf_counter()
        params = None if self.fit_state is None else self.fit_state.params
        networks = self.learner.agent.networks
        now = self.rollout.obs, self.rollout.elapsed, self.data, self.decisions
        control, self.memory = self.decide(networks, self.normalizer, params, self.learned, self.memory, *now)
        if wait:
            jax.block_until_ready(control)
        decided = time.perf_counter()
        self.update_learner()
        if wait:
            jax.block_until_ready(self.learner)
        updated = time.perf_counter()
        control = np.asarray(control)
        ready = time.perf_counter()
        self.pending, ended = self._step_envs(control)
        self.stage_seconds["planning"] += (decided - clock) + (ready - updated)
        self.stage_seconds["learning"] += updated - decided
        self.stage_seconds["physics"] += time.perf_counter() - ready
        return ended

    def update_learner(self) -> None:
        """Store the rows of the last step and update, while the host steps the physics."""
        if self.pending is not None:
            self.learner = self.learn(self.learner, self.normalizer, self.pending, self.data, self.decisions)
            self.pending = None

    def begin_episodes(self, which: np.ndarray) -> None:
        """Start new episodes where marked; their random numbers depend only on seed and episode."""
        instances, episode = np.flatnonzero(which), self.rollout.episode
        self.rollout.start(instances, [derive(self.seeds[i], Purpose.MPC_EPISODE, int(episode[i])) for i in instances])
        seen = self.normalizer.seen(self.rollout.obs, self.rollout.obs, np.ones(len(which), bool))
        self.seen_obs = np.where(which[:, None], seen, self.seen_obs)

    def policies(self) -> list[Policy]:
        """Policy of every seed, without exploration noise."""
        found = []
        for i in range(len(self.seeds)):
            model = None if self.fit_state is None else eqx.combine(one(self.fit_state.params, i), self.static)
            parts = one(self.learner.agent.networks, i), one(self.normalizer, i)
            task = self.task if self.learned is None else one(self.learned, i)
            found.append(make_policy(self.config, task, *parts, model, explores=False))
        return found

    def arrays(self) -> dict[str, Any]:
        """All state, to be saved after a step; the replay buffer without its empty part."""
        size = min(self.decisions - 1, self.learner.replay.items.shape[1])
        learner = dataclasses.replace(
            self.learner, replay=dataclasses.replace(self.learner.replay, items=self.learner.replay.items[:, :size])
        )
        return {
            "learner": learner,
            "normalizer": self.normalizer,
            "fit_state": self.fit_state,
            "memory": self.memory,
            "pending": self.pending,
            "host": {**self.rollout.snapshot(), "seen_obs": self.seen_obs},
            "vector_env": self.rollout.vector_env.snapshot(),
            **({} if self.learned is None else {"learned": self.learned}),
        }

    def restore(self, arrays: dict[str, Any], decisions: int, epoch: int) -> bool:
        """Continue from the arrays of a checkpoint; False if the simulations cannot, whose episodes begin again."""
        self.decisions, self.epoch = decisions, epoch
        kept: LearnerState = arrays["learner"]
        items = self.learner.replay.items.at[:, : kept.replay.items.shape[1]].set(kept.replay.items)
        self.learner = dataclasses.replace(kept, replay=dataclasses.replace(kept.replay, items=items))
        self.normalizer, self.fit_state, self.memory = arrays["normalizer"], arrays["fit_state"], arrays["memory"]
        self.pending = np.asarray(arrays["pending"])
        self.rollout.restore(arrays["host"])
        self.seen_obs = np.array(arrays["host"]["seen_obs"])
        self.learned = arrays.get("learned")
        state = {name: np.asarray(value) for name, value in arrays["vector_env"].items()}
        if self.rollout.vector_env.restore(state) is not None:
            return True
        self.rollout.episode -= 1
        self.begin_episodes(np.ones(len(self.seeds), bool))
        return False

    def checkpoint_template(self, decisions: int) -> dict[str, Any]:
        """Arrays with the shapes of `arrays` after this many decisions."""
        self.begin_episodes(np.ones(len(self.seeds), bool))
        params = None if self.fit_state is None else self.fit_state.params
        now = self.rollout.obs, self.rollout.elapsed, self.data, 0
        given = self.learner.agent.networks, self.normalizer, params, self.learned, None, *now
        shapes = jax.eval_shape(self.decide, *given)[1]
        self.memory = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        self.decisions, self.pending = decisions, np.zeros((len(self.seeds), packed_width(self.spec)), np.float32)
        return self.arrays()

    def close(self) -> None:
        """End the simulations."""
        self.rollout.vector_env.close()

    def _step_envs(self, control: np.ndarray) -> tuple[np.ndarray, list[FinishedEpisode]]:
        rollout, before, seen = self.rollout, self.rollout.obs, self.seen_obs
        first = rollout.elapsed == 0
        step = rollout.step(control)
        self.decisions += 1
        self.seen_obs = self.normalizer.seen(step.obs, before, np.zeros(len(self.seeds), bool))
        rows = pack_row(StepRow(seen, self.seen_obs, control, step.reward, step.tau, step.terminated, first))
        ended = [
            FinishedEpisode(int(i), self.decisions, float(rollout.earned[i]), int(rollout.length[i]))
            for i in np.flatnonzero(step.ended)
        ]
        if ended:
            self.begin_episodes(step.ended)
        return rows, ended

    def _learned_task(self, seed: int, rows: np.ndarray) -> LearnedTask:
        """Fit reward and hazard of one seed to its rows; every tenth is for validation."""
        row = unpack_row(self.spec, rows)
        columns = (row.seen_obs, row.control, row.next_seen_obs, row.tau, row.reward, row.terminated > 0)
        held_out = np.arange(len(rows)) % 10 == 4
        train, valid = (IntervalRows(*(np.asarray(x)[part] for x in columns)) for part in (~held_out, held_out))
        return fit_learned_task(self.spec, train, valid, seed)

    def _update_statistics(self, rows: np.ndarray) -> None:
        seen_obs = jnp.asarray(unpack_row(self.spec, rows).seen_obs)
        self.normalizer = jax.vmap(lambda normalizer, x: normalizer.with_more(x))(self.normalizer, seen_obs)

    def _rows(self) -> np.ndarray:
        """All stored rows, in order: [seed, decision, number]."""
        replay = self.learner.replay
        items, size = np.asarray(replay.items), int(replay.size[0])
        return items[:, :size] if size < items.shape[1] else np.roll(items, -int(replay.cursor[0]), axis=1)

    def _latest(self) -> np.ndarray:
        """Rows added since the last update of the statistics."""
        rows = self._rows()
        new = self.decisions - int(self.normalizer.statistics.count[0])
        return rows[:, max(rows.shape[1] - new, 0) :]
