"""Encoders: what a policy conditions on at a decision, the observation alone or a model's latent state too."""

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
    """Maps observations to features, with a memory carried from one decision to the next.

    It uses only observations, actions and elapsed times, so it is the same in real and imagined episodes.
    """

    @abc.abstractmethod
    def size(self, spec: Spec) -> int:
        """Number of features."""

    @abc.abstractmethod
    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        """Memory before the first observation."""

    @abc.abstractmethod
    def encode(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        """Features for an observation, given the time since the last decision (0 at the first one)."""

    @abc.abstractmethod
    def remember(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        """Memory after choosing an action for an observation."""


class IdentityEncoder(ObsEncoder):
    """The observation itself, for a policy pi(a | s)."""

    def size(self, spec: Spec) -> int:
        return len(spec.observations)

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        return ()

    def encode(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        return obs, memory

    def remember(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        return memory


class StandardizedEncoder(ObsEncoder):
    """The observation less `mean`, in units of `std`: what networks learn from is then of size 1, whatever its units.

    `ReLUNetwork.on_inputs` makes a network of plain observations from one that was trained with it.
    """

    mean: Float[Array, "*agents f"]
    std: Float[Array, "*agents f"]

    def size(self, spec: Spec) -> int:
        return len(spec.observations)

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        return ()

    def encode(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        return (obs - self.mean) / self.std, memory

    def remember(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        return memory


class LatentMemory(NamedTuple):
    """A latent state with the last observation and action."""

    z: Any
    obs: Any
    action: Any

    @classmethod
    def new(cls, spec: Spec, z: Any) -> "LatentMemory":
        actions = spec.actions
        nothing = jnp.zeros((), jnp.int32) if isinstance(actions, Discrete) else jnp.zeros(actions.n)
        return cls(z, jnp.zeros(len(spec.observations)), nothing)

    def moved(self, model: DynamicsModel, z: Any, elapsed: Tau) -> Any:
        """The latent state after `elapsed`, given the last observation and action; unchanged if no time has passed."""
        return jnp.where(elapsed > 0, model.step(z, self.obs, self.action, elapsed)[0], z)


class LatentEncoder(ObsEncoder):
    """[s z]: observation and latent state of a model, for a policy pi(a | s, z)."""

    model: DynamicsModel

    def size(self, spec: Spec) -> int:
        return len(spec.observations) + self.model.initial.size

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        return LatentMemory.new(spec, self.model.start(key=key))

    def encode(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        z = memory.moved(self.model, memory.z, elapsed)
        return jnp.concatenate([obs, z]), memory._replace(z=z)

    def remember(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        return LatentMemory(memory.z, obs, action)


class TrackedMemory(NamedTuple):
    """A policy's memory and the latent states of tracked models."""

    inner: Any
    latents: LatentMemory
    """Latent states of all models, [models, z]."""


def start_latents(models: DynamicsModel, spec: Spec, key: Key[Array, ""]) -> LatentMemory:
    """Latent state of every model at the start of an episode."""
    keys = jax.random.split(key, models.decoder.weight.shape[0])
    return LatentMemory.new(spec, eqx.filter_vmap(lambda model, key: model.start(key=key))(models, keys))


def advance_latents(models: DynamicsModel, latents: LatentMemory, elapsed: Tau) -> LatentMemory:
    """Latent state of every model after the last observation and action were held for `elapsed`."""
    return latents._replace(z=eqx.filter_vmap(lambda model, z: latents.moved(model, z, elapsed))(models, latents.z))


class TrackingEncoder(ObsEncoder):
    """Another encoder's features, while the latent states of several models are tracked alongside."""

    inner: ObsEncoder
    models: DynamicsModel
    """Stacked along the first axis."""

    def size(self, spec: Spec) -> int:
        return self.inner.size(spec)

    def start(self, spec: Spec, *, key: Key[Array, ""]) -> Memory:
        inner_key, models_key = jax.random.split(key)
        return TrackedMemory(self.inner.start(spec, key=inner_key), start_latents(self.models, spec, models_key))

    def encode(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Features, Memory]:
        features, inner = self.inner.encode(memory.inner, obs, elapsed)
        return features, TrackedMemory(inner, advance_latents(self.models, memory.latents, elapsed))

    def remember(self, memory: Memory, obs: Obs, action: Action) -> Memory:
        return TrackedMemory(
            self.inner.remember(memory.inner, obs, action), memory.latents._replace(obs=obs, action=action)
        )


class TrackingPolicy(Policy):
    """Any policy, while the latent states of several models are tracked along its episodes."""

    policy: Policy
    models: DynamicsModel
    spec: Spec = eqx.field(static=True)

    def start(self, *, key: Key[Array, ""]) -> Memory:
        policy_key, models_key = jax.random.split(key)
        return TrackedMemory(self.policy.start(key=policy_key), start_latents(self.models, self.spec, models_key))

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        action, inner = self.policy.act(memory.inner, obs, elapsed, key=key)
        latents = advance_latents(self.models, memory.latents, elapsed)
        return action, TrackedMemory(inner, latents._replace(obs=obs, action=action))
