"""Episodes of environments that live on the host: simulations side by side, policies in one compiled call for all."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from kairode.data.policy import Memory, Policy
from kairode.data.rollout import check_kind
from kairode.data.trajectory import Trajectory, stand_still
from kairode.envs.core import Action, Discrete, Obs, Spec, Tau
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import Schedule
from kairode.envs.vector import Step
from kairode.envs.vector_host import HostVectorEnv

INSTANCES = 16
"""The most simulations stepped side by side."""

Progress = Callable[[int], None]
KeyData = UInt32[Array, "2"]


def collect_host(
    env: HostEnvironment, policy: Policy, schedule: Schedule, episodes: int, seed: int, callback: Progress
) -> Trajectory:
    """Run episodes; a simulation that ends its own goes on with the next that none has begun."""
    log = Log(env.task.spec, episodes, schedule)
    size = math.ceil(episodes / math.ceil(episodes / INSTANCES))
    actor = Actor(policy, env.task.spec, seed, episodes)
    seeds = np.random.SeedSequence(seed).generate_state(episodes).tolist()
    vector_env = HostVectorEnv(env, size, schedule)
    try:
        episode = np.arange(size)  # the one each simulation is in; past the last where nothing is left to do
        begun = size
        obs = vector_env.reset(seeds[:size])
        log.observation[:size, 0] = obs
        actor.start(np.arange(size), episode)
        elapsed = np.zeros(size, np.float32)
        while (busy := np.flatnonzero(episode < episodes)).size:
            current = np.minimum(episode, episodes - 1)
            actions = actor.act(obs, elapsed, current, log.length[current])
            step = vector_env.step(actions, vector_env.intervals(actions, actor.memory))
            log.record(busy, episode[busy], actions, step)
            obs, elapsed = step.obs, step.tau.astype(np.float32)
            ended = busy[(step.terminated | step.truncated)[busy]]
            if not ended.size:
                continue
            callback(ended.size)
            episode[ended] = np.arange(begun, begun + ended.size)
            begun += ended.size
            renewed = ended[episode[ended] < episodes]
            obs = vector_env.reset([seeds[e] for e in episode[renewed]], renewed.tolist())
            log.observation[episode[renewed], 0] = obs[renewed]
            elapsed[renewed] = 0.0
            actor.start(renewed, episode[renewed])
    finally:
        vector_env.close()
    return log.trajectory()


class Log:
    """Arrays that fill up, episode by episode and decision by decision."""

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

    def record(self, instances: np.ndarray, episode: np.ndarray, actions: np.ndarray, step: Step) -> None:
        """Write down what the lanes named did in their episodes."""
        k = self.length[episode]
        self.observation[episode, k + 1], self.action[episode, k] = step.obs[instances], actions[instances]
        self.interval[episode, k], self.reward[episode, k] = step.tau[instances], step.reward[instances]
        self.terminated[episode], self.truncated[episode] = step.terminated[instances], step.truncated[instances]
        self.length[episode] += 1

    def trajectory(self) -> Trajectory:
        """Everything, cut to the longest episode."""
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
    """A policy for all simulations at once: it holds their memories and the random keys of their episodes."""

    def __init__(self, policy: Policy, spec: Spec, seed: int, episodes: int) -> None:
        self.data = np.asarray(_episode_keys(jax.random.key(seed), episodes))
        self.memory: Memory = None

        self._start, self._act = partial(_start, policy), partial(_act, policy, spec)

    def start(self, instances: np.ndarray, episode: np.ndarray) -> None:
        """Fresh memories where episodes begin."""
        if not instances.size:
            return
        fresh = self._start(self.data[episode])
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
        """The actions of all simulations, each in its episode after so many decisions."""
        actions, self.memory = self._act(self.memory, obs, elapsed, self.data[episode], count)
        return np.asarray(actions)


# Compiled for all policies that differ in their weights alone.


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


@eqx.filter_jit
def _episode_keys(key: Array, episodes: int) -> Array:
    keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.arange(episodes))
    return jax.random.key_data(keys)
