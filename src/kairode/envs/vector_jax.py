"""A fleet of a JAX environment: one compiled call steps all instances."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kairode.envs.batching import batched_vmap
from kairode.envs.core import Action, Environment, Moment, Outcome, Tau, advance_episode, begin_episode, decimal
from kairode.envs.schedule import Own, Schedule, next_interval
from kairode.envs.vector import Keys, Step, VectorEnv, next_episode_key, step_key
from kairode.errors import KairodeError
from kairode.trees import choose


class EnvCalls(NamedTuple):
    """The compiled calls of a JAX environment under a schedule, for any number of instances."""

    begin_episode: Callable[..., Moment]
    renew: Callable[..., Moment]
    step: Callable[..., tuple[Moment, Outcome, jax.Array]]


def compile_env(env: Environment, schedule: Schedule) -> EnvCalls:
    """The calls with environment and schedule built in: a call then carries only what changes."""

    def start(data: jax.Array) -> Moment:
        return begin_episode(env, key=jax.random.fold_in(jax.random.wrap_key_data(data), 1))

    def renew(chosen: jax.Array, data: jax.Array, moment: Moment) -> Moment:
        return choose(chosen, start(data), moment)

    def step(
        moment: Moment, action: Action, tau: Tau | None, data: jax.Array, anew: jax.Array | None
    ) -> tuple[Moment, Outcome, jax.Array]:
        due_key, advance_key = jax.random.split(step_key(data, moment.count))
        if tau is None:
            tau = next_interval(env, schedule, moment, action, key=due_key)
        if anew is None:
            return *advance_episode(env, moment, action, tau, key=advance_key), data
        held = jnp.where(anew, 0.0, tau)
        moved, outcome = advance_episode(env, moment, action, held, key=advance_key)
        data = jnp.where(anew, next_episode_key(data), data)
        nothing = jax.tree.map(jnp.zeros_like, outcome)
        return choose(anew, start(data), moved), choose(anew, nothing, outcome), data

    return EnvCalls(*(jax.jit(batched_vmap(one)) for one in (start, renew, step)))


_compiled_once = functools.lru_cache(maxsize=64)(compile_env)


class JaxVectorEnv(VectorEnv):
    """Instances of a JAX environment: one compiled call steps them all."""

    def __init__(self, env: Environment, size: int, schedule: Schedule | None = None) -> None:
        self.env, self.task, self.size = env, env.task, size
        self.keys = Keys(size)
        self.time = np.zeros(size)
        self.moments: Moment | None = None
        self.schedule = schedule or Own()
        self.calls = self._calls()

    def _calls(self) -> EnvCalls:
        try:
            return _compiled_once(self.env, self.schedule)
        except TypeError:  # a field that holds an array cannot be a key of the cache
            return compile_env(self.env, self.schedule)

    def __getstate__(self) -> dict[str, Any]:
        return jax.device_get({key: value for key, value in vars(self).items() if key != "calls"})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.calls = self._calls()

    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """Start episodes; a seed fixes all that follows in its instance."""
        chosen = self.keys.reset(seeds, range(self.size) if which is None else which)
        if self.moments is None:
            self.moments = self.calls.begin_episode(self.keys.data)
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

    def snapshot(self) -> dict[str, np.ndarray]:
        """The moments' arrays in order, clocks and keys."""
        leaves = [np.asarray(x) for x in jax.tree.leaves(self.moments)]
        return {"time": self.time, "keys": np.asarray(self.keys.data), **{f"{i}": x for i, x in enumerate(leaves)}}

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """The moments again."""
        self.keys.data, self.time = np.asarray(state["keys"], np.uint32), np.asarray(state["time"], np.float64)
        like = jax.eval_shape(self.calls.begin_episode, self.keys.data)
        leaves, structure = jax.tree.flatten(like)
        self.moments = jax.tree.unflatten(structure, [jnp.asarray(state[f"{i}"]) for i in range(len(leaves))])
        assert self.moments is not None
        return np.array(self.moments.obs, np.float32)

    def close(self) -> None:
        """Nothing is held."""
