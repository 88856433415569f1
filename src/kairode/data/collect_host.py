"""Collection on the host: several simulations in parallel, the policy compiled in one call for all of them."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from kairode.data.host_rollout import HostRollout
from kairode.data.policy import Memory, Policy
from kairode.data.rollout import check_kind, episode_keys
from kairode.data.trajectory import Trajectory, stand_still
from kairode.envs.core import Action, Discrete, Obs, Spec, Tau
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import Schedule
from kairode.envs.vector import Step
from kairode.envs.vector_host import HostVectorEnv

INSTANCES = 16
"""Maximum number of simulations stepped in parallel."""

KeyData = UInt32[Array, "2"]


def collect_host(
    env: HostEnvironment,
    policy: Policy,
    schedule: Schedule,
    episodes: int,
    seed: int,
    advance: Callable[[int], None],
    accrued: bool = False,
) -> tuple[Trajectory, np.ndarray]:
    """Collect episodes; an instance whose episode ends continues with the next one not yet started.

    `advance` is called with the number of episodes that just ended. With `accrued`, a task's rewards are counted on
    every finest time step. Also returns the undiscounted return of each episode, without discount within intervals.
    """
    log = Log(env.task.spec, episodes, schedule)
    size = math.ceil(episodes / math.ceil(episodes / INSTANCES))
    actor = Actor(policy, env.task.spec, seed, episodes)
    seeds = np.random.SeedSequence(seed).generate_state(episodes).tolist()
    vector_env = HostVectorEnv(env, size, schedule, accrued=accrued)
    rollout = HostRollout(vector_env)
    episode, busy = np.zeros(size, np.int64), np.ones(size, bool)  # per instance; idle once all episodes are started
    waiting = iter(range(episodes))

    def start(instances: np.ndarray) -> None:
        numbers = list(itertools.islice(waiting, instances.size))
        started = instances[: len(numbers)]
        busy[instances[len(numbers) :]] = False
        episode[started] = numbers
        rollout.start(started, [seeds[number] for number in numbers])
        actor.start(started, episode[started])
        log.observation[episode[started], 0] = rollout.obs[started]

    try:
        start(np.arange(size))
        while busy.any():
            actions = actor.act(rollout.obs, rollout.elapsed, episode, rollout.length)
            step = rollout.step(actions, vector_env.intervals(actions, actor.memory))
            log.record(np.flatnonzero(busy), episode[busy], actions, step)
            ended = np.flatnonzero(step.ended & busy)
            if ended.size:
                advance(ended.size)
                start(ended)
    finally:
        vector_env.close()
    return log.trajectory(), log.total


class Log:
    """Arrays filled episode by episode and decision by decision."""

    def __init__(self, spec: Spec, episodes: int, schedule: Schedule) -> None:
        self.spec = spec
        limit = spec.longest(schedule.shortest(spec))
        discrete = isinstance(spec.actions, Discrete)
        self.observation = np.zeros((episodes, limit + 1, len(spec.observations)), np.float32)
        self.action = np.zeros(
            (episodes, limit) if discrete else (episodes, limit, spec.actions.n),
            np.int32 if discrete else np.float32,
        )
        self.interval, self.reward = np.zeros((2, episodes, limit), np.float32)
        self.length = np.zeros(episodes, np.int32)
        self.terminated, self.truncated = np.zeros((2, episodes), bool)
        self.total = np.zeros(episodes)

    def record(self, instances: np.ndarray, episode: np.ndarray, actions: np.ndarray, step: Step) -> None:
        k = self.length[episode]
        self.observation[episode, k + 1], self.action[episode, k] = step.obs[instances], actions[instances]
        self.interval[episode, k], self.reward[episode, k] = step.tau[instances], step.reward[instances]
        self.terminated[episode], self.truncated[episode] = step.terminated[instances], step.truncated[instances]
        self.length[episode] += 1
        self.total[episode] += (step.reward if step.total is None else step.total)[instances]

    def trajectory(self) -> Trajectory:
        longest = int(self.length.max())
        return Trajectory(
            spec=self.spec,
            observation=stand_still(self.observation[:, : longest + 1], self.length),
            action=self.action[:, :longest],
            interval=self.interval[:, :longest],
            reward=self.reward[:, :longest],
            length=self.length,
            terminated=self.terminated,
            truncated=self.truncated,
        )


class Actor:
    """A policy for all instances at once, with their memories and the random keys of their episodes."""

    def __init__(self, policy: Policy, spec: Spec, seed: int, episodes: int) -> None:
        self.policy, self.spec = policy, spec
        self.data = np.asarray(jax.random.key_data(episode_keys(seed, episodes)))
        self.memory: Memory = None

    def start(self, instances: np.ndarray, episode: np.ndarray) -> None:
        if not instances.size:
            return
        fresh = _start(self.policy, self.data[episode])
        if self.memory is None:
            self.memory = fresh
        else:
            self.memory = jax.tree.map(lambda old, new: old.at[instances].set(new), self.memory, fresh)

    def act(
        self,
        obs: Float[np.ndarray, "n obs"],
        elapsed: Float[np.ndarray, " n"],
        episode: Int[np.ndarray, " n"],
        count: Int[np.ndarray, " n"],
    ) -> np.ndarray:
        data = self.data[episode]
        actions, self.memory = _act(self.policy, self.spec, self.memory, obs, elapsed, data, count)
        return np.asarray(actions)


# Compiled once for all policies that differ only in their weights.


@eqx.filter_jit
def _start(policy: Policy, data: UInt32[Array, "n 2"]) -> Memory:
    return jax.vmap(lambda data: policy.start(key=jax.random.fold_in(jax.random.wrap_key_data(data), 0)))(data)


@eqx.filter_jit
def _act(policy: Policy, spec: Spec, memory: Memory, obs: Any, elapsed: Any, data: Any, count: Any) -> Any:
    def act(memory: Memory, obs: Obs, elapsed: Tau, data: KeyData, count: Int[Array, ""]) -> tuple[Action, Memory]:
        key = jax.random.fold_in(jax.random.wrap_key_data(data), count + 1)
        action, memory = policy.act(memory, obs, elapsed, key=key)
        check_kind(spec, action)
        return action, memory

    return jax.vmap(act)(memory, obs, elapsed, data, count)
