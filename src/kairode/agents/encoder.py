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


class ObsEncoder(eqx.Module):
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
    def encode(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """The features, given what is seen and the time since the last decision (0 at the first)."""

    @abc.abstractmethod
    def remember(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """Remember what was just decided, upon what."""


class IdentityEncoder(ObsEncoder):
    """The observation alone: a policy pi(a | s)."""

    def size(self, spec: Spec) -> int:
        """As many as are observed."""
        return len(spec.observations)

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        """Nothing."""
        return ()

    def encode(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """The observation."""
        return obs, memory

    def remember(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """Nothing."""
        return memory


class LatentMemory(NamedTuple):
    """What a model's latent state is carried along with."""

    z: Any
    obs: Any
    action: Any

    @classmethod
    def new(cls, spec: Spec, z: Any) -> "LatentMemory":
        """Before anything was seen."""
        actions = spec.actions
        nothing = jnp.zeros((), jnp.int32) if isinstance(actions, Discrete) else jnp.zeros(actions.n)
        return cls(z, jnp.zeros(len(spec.observations)), nothing)

    def moved(self, model: DynamicsModel, z: Any, elapsed: Tau) -> Any:
        """z after what was seen and done at the last decision, over the time since; as it is where none passed."""
        return jnp.where(elapsed > 0, model.step(z, self.obs, self.action, elapsed)[0], z)


class LatentEncoder(ObsEncoder):
    """[s z]: the latent state of a model that is carried along the episode, for a policy pi(a | s, z)."""

    model: DynamicsModel

    def size(self, spec: Spec) -> int:
        """Observations and latent dimensions."""
        return len(spec.observations) + self.model.initial.size

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        """z_0 as the model starts where nothing was seen."""
        return LatentMemory.new(spec, self.model.start(key=key))

    def encode(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """The latent state moved on by what was seen and done at the last decision, over the time since."""
        z = memory.moved(self.model, memory.z, elapsed)
        return jnp.concatenate([obs, z]), memory._replace(z=z)

    def remember(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """What the model will need at the next decision."""
        return LatentMemory(memory.z, obs, action)


class TrackedMemory(NamedTuple):
    """What is remembered for the policy, and for whoever else follows the episode."""

    inner: Any
    """The policy's own memory."""
    latents: LatentMemory
    """The latent states of several models, [models, z]."""


class TrackingEncoder(ObsEncoder):
    """What another perception makes of it, while the latent states of some models are carried along unseen."""

    inner: ObsEncoder
    models: DynamicsModel
    """Stacked: an axis in front of every array."""

    def size(self, spec: Spec) -> int:
        """As many as the other's."""
        return self.inner.size(spec)

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        """Both begin."""
        inner_key, models_key = jax.random.split(key)
        return TrackedMemory(self.inner.start(spec, key=inner_key), self.start_latents(spec, key=models_key))

    def encode(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """The other's features; the latent states move on."""
        features, inner = self.inner.encode(memory.inner, obs, elapsed)
        return features, TrackedMemory(inner, self.advance_latents(memory.latents, elapsed))

    def remember(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """Both note it."""
        return TrackedMemory(
            self.inner.remember(memory.inner, obs, action), memory.latents._replace(obs=obs, action=action)
        )

    def start_latents(self, spec: Spec, *, key: Key[Array, ""]) -> LatentMemory:
        """Every model's z_0."""
        count = self.models.decoder.weight.shape[0]
        start = eqx.filter_vmap(lambda model, key: model.start(key=key))
        return LatentMemory.new(spec, start(self.models, jax.random.split(key, count)))

    def advance_latents(self, latents: LatentMemory, elapsed: Tau) -> LatentMemory:
        """Every model's latent state after the time since the last decision."""
        move = eqx.filter_vmap(lambda model, z: latents.moved(model, z, elapsed))
        return latents._replace(z=move(self.models, latents.z))


def inner_encoder(encoder: ObsEncoder) -> ObsEncoder:
    """The perception itself, without what was carried along beside it."""
    return encoder.inner if isinstance(encoder, TrackingEncoder) else encoder


class TrackingPolicy(Policy):
    """Any policy, while the latent states of some models are carried along its episodes."""

    policy: Policy
    models: DynamicsModel
    """Stacked."""
    spec: Spec = eqx.field(static=True)

    def start(self, *, key: Key[Array, ""]) -> Memory:
        """Both begin."""
        policy_key, models_key = jax.random.split(key)
        return TrackedMemory(self.policy.start(key=policy_key), self._tracking.start_latents(self.spec, key=models_key))

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        """The policy acts; the latent states move on."""
        action, inner = self.policy.act(memory.inner, obs, elapsed, key=key)
        latents = self._tracking.advance_latents(memory.latents, elapsed)
        return action, TrackedMemory(inner, latents._replace(obs=obs, action=action))

    @property
    def _tracking(self) -> TrackingEncoder:
        return TrackingEncoder(IdentityEncoder(), self.models)
