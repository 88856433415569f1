"""Several instances stepped together, seen from the host: what Gymnasium's interface and host collection use.

`fleet_jax` compiles them into one call, `fleet_host` steps simulations in threads.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kairode.envs.core import Task


class Step(NamedTuple):
    """What each instance shows after a step: arrays with a leading axis of instances."""

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    tau: np.ndarray
    """In float64, as the decimal it stands for; so is the time."""
    time: np.ndarray


class VectorEnv(abc.ABC):
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
    def snapshot(self) -> dict[str, np.ndarray]:
        """Where every instance stands, as arrays that `restore` goes on from."""

    @abc.abstractmethod
    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Go on from a snapshot; returns the observations."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what the instances hold."""


# Across the border to compiled code keys travel as plain numbers: calls with typed keys are several times slower.


def next_episode_key(data: jax.Array) -> jax.Array:
    """The key of an instance's next episode."""
    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(data), 0))


def step_key(data: jax.Array, count: Any) -> jax.Array:
    """The key of a decision: 0 leads to the next episode, 1 to the start state, the others to the decisions."""
    return jax.random.fold_in(jax.random.wrap_key_data(data), count + 2)


@jax.jit
def _succeed(data: jax.Array, fresh: jax.Array, seeded: jax.Array, chosen: jax.Array) -> jax.Array:
    """The chosen instances' keys become their seed's, or without a seed the one that follows; others stay."""
    renewed = jnp.where(seeded[:, None], fresh, jax.vmap(next_episode_key)(data))
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
