"""Which actions the data support: the behaviour policy b(a | s) as a network, and a threshold on it."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kairode.agents.network import ReLUNetwork
from kairode.envs.core import Obs, Spec

LEAST = 0.01
"""Share of the marginal frequencies in every probability, which keeps ratios finite."""


class BehaviorPolicy(eqx.Module):
    """Probabilities of the actions given features: the observation, and for estimates also what was done before."""

    net: ReLUNetwork
    mean: Float[Array, "*folds f"]
    std: Float[Array, "*folds f"]
    marginal: Float[Array, "*folds a"]
    """Frequencies of the actions."""
    spec: Spec = eqx.field(static=True)

    def probabilities(self, features: Float[Array, "*n f"]) -> Float[Array, "*n a"]:
        """b(a | features)."""
        x = (features - jnp.broadcast_to(self.mean, features.shape)) / jnp.broadcast_to(self.std, features.shape)
        found = jax.nn.softmax(self.net(x))
        return (1 - LEAST) * found + LEAST * jnp.broadcast_to(self.marginal, found.shape)

    def on_standardized(self, mean: Float[np.ndarray, " f"], std: Float[np.ndarray, " f"]) -> "BehaviorPolicy":
        """The same probabilities as a function of standardised features."""
        own = ((np.asarray(self.mean) - mean) / std, np.asarray(self.std) / std)
        return dataclasses.replace(self, mean=jnp.asarray(own[0], jnp.float32), std=jnp.asarray(own[1], jnp.float32))


class ActionSupport(eqx.Module):
    """Actions that were taken often enough in states like this one: b(a | s) >= threshold max_a' b(a' | s), as in
    batch-constrained Q-learning (Fujimoto et al. 2019)."""

    behavior: BehaviorPolicy
    """Given the observation alone."""
    threshold: Float[Array, "*agents"] | float

    def mask(self, obs: Obs | Float[Array, "*n obs"]) -> Bool[Array, "*n a"]:
        """Whether each action is supported; the most frequent one always is."""
        chances = self.behavior.probabilities(obs)
        return chances >= self.threshold * chances.max(-1, keepdims=True)

    def restrict(self, obs: Obs | Float[Array, "*n obs"], values: Float[Array, "*n a"]) -> Float[Array, "*n a"]:
        """The action values, -inf for actions without support."""
        return jnp.where(self.mask(obs), values, -np.inf)
