"""What an agent knows at a decision: what it sees, and what a model makes of all it has seen."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kairode.data.policy import Memory, Policy
from kairode.envs.core import Action, Discrete, Obs, Spec, Tau
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
    """What a model's latent state is carried along with."""

    z: Any
    obs: Any
    action: Any

    @classmethod
    def new(cls, spec: Spec, z: Any) -> "Recall":
        """Before anything was seen."""
        actions = spec.actions
        nothing = jnp.zeros((), jnp.int32) if isinstance(actions, Discrete) else jnp.zeros(actions.n)
        return cls(z, jnp.zeros(len(spec.observations)), nothing)

    def moved(self, model: DynamicsModel, z: Any, elapsed: Tau) -> Any:
        """z after what was seen and done at the last decision, over the time since; as it is where none passed."""
        return jnp.where(elapsed > 0, model.step(z, self.obs, self.action, elapsed)[0], z)


class Latent(Perception):
    """[s z]: the latent state of a model that is carried along the episode, for a policy pi(a | s, z)."""

    model: DynamicsModel

    def size(self, spec: Spec) -> int:
        """Observations and latent dimensions."""
        return len(spec.observations) + self.model.initial.size

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        """z_0 as the model starts where nothing was seen."""
        return Recall.new(spec, self.model.start(key=key))

    def look(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """The latent state moved on by what was seen and done at the last decision, over the time since."""
        z = memory.moved(self.model, memory.z, elapsed)
        return jnp.concatenate([obs, z]), memory._replace(z=z)

    def note(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """What the model will need at the next decision."""
        return Recall(memory.z, obs, action)


class Tracked(NamedTuple):
    """What is remembered for the policy, and for whoever else follows the episode."""

    inner: Any
    """The policy's own memory."""
    recall: Recall
    """The latent states of several models, [models, z]."""


class Tracking(Perception):
    """What another perception makes of it, while the latent states of some models are carried along unseen."""

    inner: Perception
    models: DynamicsModel
    """Stacked: an axis in front of every array."""

    def size(self, spec: Spec) -> int:
        """As many as the other's."""
        return self.inner.size(spec)

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        """Both begin."""
        inner_key, models_key = jax.random.split(key)
        return Tracked(self.inner.start(spec, key=inner_key), self.begin(spec, key=models_key))

    def look(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """The other's features; the latent states move on."""
        features, inner = self.inner.look(memory.inner, obs, elapsed)
        return features, Tracked(inner, self.follow(memory.recall, elapsed))

    def note(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """Both note it."""
        return Tracked(self.inner.note(memory.inner, obs, action), memory.recall._replace(obs=obs, action=action))

    def begin(self, spec: Spec, *, key: Key[Array, ""]) -> Recall:
        """Every model's z_0."""
        count = self.models.decoder.weight.shape[0]
        start = eqx.filter_vmap(lambda model, key: model.start(key=key))
        return Recall.new(spec, start(self.models, jax.random.split(key, count)))

    def follow(self, recall: Recall, elapsed: Tau) -> Recall:
        """Every model's latent state after the time since the last decision."""
        move = eqx.filter_vmap(lambda model, z: recall.moved(model, z, elapsed))
        return recall._replace(z=move(self.models, recall.z))


def untracked(perception: Perception) -> Perception:
    """The perception itself, without what was carried along beside it."""
    return perception.inner if isinstance(perception, Tracking) else perception


class Accompanied(Policy):
    """Any policy, while the latent states of some models are carried along its episodes."""

    policy: Policy
    models: DynamicsModel
    """Stacked."""
    spec: Spec = eqx.field(static=True)

    def start(self, *, key: Key[Array, ""]) -> Memory:
        """Both begin."""
        policy_key, models_key = jax.random.split(key)
        return Tracked(self.policy.start(key=policy_key), self._tracking.begin(self.spec, key=models_key))

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        """The policy acts; the latent states move on."""
        action, inner = self.policy.act(memory.inner, obs, elapsed, key=key)
        recall = self._tracking.follow(memory.recall, elapsed)
        return action, Tracked(inner, recall._replace(obs=obs, action=action))

    @property
    def _tracking(self) -> Tracking:
        return Tracking(Plain(), self.models)
