"""Vector environments: several instances stepped together, for Gymnasium, MPC and host collection.

`vector_jax` compiles them into one call, `vector_host` steps simulations in threads.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kairode.envs.core import Task
from kairode.envs.keys import key_of


class Step(NamedTuple):
    """Result of a step: arrays with a leading axis of instances."""

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    tau: np.ndarray
    """Float64 with the shortest decimal, like the time."""
    time: np.ndarray
    total: np.ndarray | None = None
    """The reward without discount within the interval, where it differs from `reward`."""

    @property
    def ended(self) -> np.ndarray:
        return self.terminated | self.truncated


class OneStep(NamedTuple):
    """Result of a step of a single instance, without an axis of instances."""

    obs: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    tau: float
    time: float


class VectorEnv(abc.ABC):
    """Instances of one environment, with NumPy arrays as actions and observations."""

    task: Task
    size: int

    @abc.abstractmethod
    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """Start episodes in the instances `which` (default: all); without a seed their random generators continue.

        Returns the observations of all instances.
        """

    @abc.abstractmethod
    def step(self, actions: np.ndarray, taus: np.ndarray | None = None, autoreset: np.ndarray | None = None) -> Step:
        """Hold one action per instance, for the given intervals or those of the schedule.

        Instances marked in `autoreset` start their next episode instead: no time passes and the reward is 0.
        """

    @abc.abstractmethod
    def states(self) -> Any:
        """True states, with a leading axis of instances; None if they are not available."""

    @abc.abstractmethod
    def snapshot(self) -> dict[str, np.ndarray]:
        """The state of every instance as arrays, for `restore`."""

    @abc.abstractmethod
    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray | None:
        """Continue from a snapshot; returns the observations, None if it cannot continue."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the resources of the instances."""


# Keys are passed to compiled calls as raw key data: calls with typed keys are several times slower.


def next_episode_key(data: jax.Array, unrolled: bool = False) -> jax.Array:
    """Key data of the next episode, from those of the last one."""
    return jax.random.key_data(jax.random.fold_in(key_of(data, unrolled), 0))


def step_key(data: jax.Array, count: Any, unrolled: bool = False) -> jax.Array:
    """Key of a decision: 0 is folded in for the next episode, 1 for the initial state, 2 and above for decisions."""
    return jax.random.fold_in(key_of(data, unrolled), count + 2)


@jax.jit
def _reset_keys(data: jax.Array, fresh: jax.Array, seeded: jax.Array, chosen: jax.Array) -> jax.Array:
    """Keys after a reset: the seed's key or, without a seed, that of the next episode; instances not chosen keep
    theirs."""
    renewed = jnp.where(seeded[:, None], fresh, jax.vmap(next_episode_key)(data))
    return jnp.where(chosen[:, None], renewed, data)


class InstanceKeys:
    """The random key of each instance, from any seed that Gymnasium accepts."""

    def __init__(self, size: int) -> None:
        self.data: Any = np.random.SeedSequence().generate_state(2 * size).reshape(size, 2)

    def reset(self, seeds: Sequence[int | None], which: Sequence[int]) -> np.ndarray:
        """Set the keys of the instances `which`; returns their mask."""
        fresh = np.zeros(self.data.shape, np.uint32)
        chosen, seeded = np.zeros(len(fresh), bool), np.zeros(len(fresh), bool)
        for i, seed in zip(which, seeds, strict=True):
            chosen[i] = True
            if seed is not None:
                seeded[i], fresh[i] = True, np.random.SeedSequence(seed).generate_state(2)
        self.data = _reset_keys(self.data, fresh, seeded, chosen)
        return chosen
