"""What an agent knows at a decision: what it sees, and what a model makes of all it has seen."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kairode.data.policy import Memory
from kairode.envs.core import Action, Obs, Spec, Tau
from kairode.models.dynamics import DynamicsModel

Features = Float[Array, " f"]


class Perception(eqx.Module):
    """Turns observations into features, with a memory carried from one decision to the next.

    The same in imagined and in real episodes: only what was observed, done and waited enters.
    """

    @abc.abstractmethod
    def size(self, spec: Spec) -> int:
        """How many features there are."""

    @abc.abstractmethod
    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        """The memory before the first observation."""

    @abc.abstractmethod
    def look(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """The features, given what is seen and the time since the last decision (0 at the first)."""

    @abc.abstractmethod
    def note(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """Remember what was just decided, upon what."""


class Plain(Perception):
    """The observation alone: a policy pi(a | s)."""

    def size(self, spec: Spec) -> int:
        """As many as are observed."""
        return len(spec.observations)

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        """Nothing."""
        return ()

    def look(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """The observation."""
        return obs, memory

    def note(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """Nothing."""
        return memory


class Recall(NamedTuple):
    """What the latent policy remembers."""

    z: Any
    obs: Any
    action: Any


class Latent(Perception):
    """[s z]: the latent state of a model that is carried along the episode, for a policy pi(a | s, z)."""

    model: DynamicsModel

    def size(self, spec: Spec) -> int:
        """Observations and latent dimensions."""
        return len(spec.observations) + self.model.initial.size

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        """z_0 as the model starts where nothing was seen."""
        blank = jnp.zeros(len(spec.observations))
        return Recall(self.model.start(key=key), blank, jnp.zeros((), jnp.int32))

    def look(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """The latent state moved on by what was seen and done at the last decision, over the time since."""
        moved, _ = self.model.step(memory.z, memory.obs, memory.action, elapsed)
        z = jnp.where(elapsed > 0, moved, memory.z)
        return jnp.concatenate([obs, z]), memory._replace(z=z)

    def note(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """What the model will need at the next decision."""
        return Recall(memory.z, obs, action)
