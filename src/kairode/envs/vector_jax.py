"""The vector environment of a JAX environment: one compiled call steps all instances."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kairode.envs.batching import batched_vmap
from kairode.envs.core import Action, Environment, Moment, Outcome, Tau, begin_episode, decimal
from kairode.envs.keys import key_of
from kairode.envs.schedule import Own, Schedule, hold
from kairode.envs.vector import InstanceKeys, Step, VectorEnv, next_episode_key, step_key
from kairode.errors import KairodeError
from kairode.trees import choose


class EnvCalls(NamedTuple):
    """The compiled calls of a JAX environment under a schedule, for any number of instances."""

    reset: Callable[..., Moment]
    reset_some: Callable[..., Moment]
    step: Callable[..., tuple[Moment, Outcome, jax.Array]]


MANY = 32
"""Instances from which on unrolled keys are faster."""


def compile_env(env: Environment, schedule: Schedule, unrolled: bool = False) -> EnvCalls:
    """Compile with environment and schedule as constants; only what changes is an argument."""

    def reset(data: jax.Array) -> Moment:
        return begin_episode(env, key=jax.random.fold_in(key_of(data, unrolled), 1))

    def reset_some(chosen: jax.Array, data: jax.Array, moment: Moment) -> Moment:
        return choose(chosen, reset(data), moment)

    def step(
        moment: Moment, action: Action, tau: Tau | None, data: jax.Array, autoreset: jax.Array | None
    ) -> tuple[Moment, Outcome, jax.Array]:
        keys = jax.random.split(step_key(data, moment.count, unrolled))
        if autoreset is None:
            return *hold(env, schedule, moment, action, keys=keys, tau=tau), data
        after, outcome = hold(env, schedule, moment, action, keys=keys, tau=tau, going=~autoreset)
        data = jnp.where(autoreset, next_episode_key(data, unrolled), data)
        nothing = jax.tree.map(jnp.zeros_like, outcome)
        return choose(autoreset, reset(data), after), choose(autoreset, nothing, outcome), data

    together = batched_vmap if env.loops else jax.vmap
    return EnvCalls(*(jax.jit(together(one)) for one in (reset, reset_some, step)))


_compiled_once = functools.lru_cache(maxsize=64)(compile_env)


class JaxVectorEnv(VectorEnv):
    """Instances of a JAX environment: one compiled call steps them all."""

    def __init__(self, env: Environment, size: int, schedule: Schedule | None = None) -> None:
        self.env, self.task, self.size = env, env.task, size
        self.keys = InstanceKeys(size)
        self.time = np.zeros(size)
        self.episodes: Moment | None = None
        """State of each instance's episode."""
        self.schedule = schedule or Own()
        self.calls = self._calls()

    def _calls(self) -> EnvCalls:
        unrolled = self.env.unrolled_keys and self.size >= MANY
        try:
            return _compiled_once(self.env, self.schedule, unrolled)
        except TypeError:  # an environment with an array in a field is not hashable
            return compile_env(self.env, self.schedule, unrolled)

    def __getstate__(self) -> dict[str, Any]:
        return jax.device_get({key: value for key, value in vars(self).items() if key != "calls"})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.calls = self._calls()

    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """A seed determines everything that follows in its instance."""
        chosen = self.keys.reset(seeds, range(self.size) if which is None else which)
        if self.episodes is None:
            self.episodes = self.calls.reset(self.keys.data)
        else:
            self.episodes = self.calls.reset_some(chosen, self.keys.data, self.episodes)
        self.time = np.where(chosen, 0.0, self.time)
        return np.array(self.episodes.obs, np.float32)

    def step(self, actions: np.ndarray, taus: np.ndarray | None = None, autoreset: np.ndarray | None = None) -> Step:
        if self.episodes is None:
            raise KairodeError(f"reset '{self.task.spec.name}' before its first step.")
        held = None if taus is None else np.asarray(taus, self.episodes.time.dtype)
        self.episodes, out, self.keys.data = self.calls.step(self.episodes, actions, held, self.keys.data, autoreset)
        reward, terminated, truncated = map(np.array, (out.reward, out.terminated, out.truncated))
        obs, tau = np.array(self.episodes.obs, np.float32), decimal(np.asarray(out.tau))
        if autoreset is not None:
            self.time = np.where(autoreset, 0.0, self.time)
        self.time = self.time + tau
        return Step(obs, reward, terminated, truncated, tau, self.time)

    def states(self) -> Any:
        return None if self.episodes is None else jax.device_get(self.episodes.state)

    def snapshot(self) -> dict[str, np.ndarray]:
        leaves = [np.asarray(x) for x in jax.tree.leaves(self.episodes)]
        return {"time": self.time, "keys": np.asarray(self.keys.data), **{f"{i}": x for i, x in enumerate(leaves)}}

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        self.keys.data, self.time = np.asarray(state["keys"], np.uint32), np.asarray(state["time"], np.float64)
        like = jax.eval_shape(self.calls.reset, self.keys.data)
        leaves, structure = jax.tree.flatten(like)
        self.episodes = jax.tree.unflatten(structure, [jnp.asarray(state[f"{i}"]) for i in range(len(leaves))])
        assert self.episodes is not None
        return np.array(self.episodes.obs, np.float32)

    def close(self) -> None: ...
