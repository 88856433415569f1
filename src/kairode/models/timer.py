"""The interval timer: P(tau | z, s, a), when the next decision will be."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kairode.models.networks import MLP
from kairode.models.ode import Ticks

Features = Float[Array, "f *lanes"]
"""[s a z]."""


class Timer(eqx.Module):
    """Predicts the interval, in ticks."""

    @abc.abstractmethod
    def loss(self, features: Features, tau: Ticks) -> Ticks:
        """What is added to the objective for one decision, equation (10)."""

    @abc.abstractmethod
    def interval(self, features: Features, *, key: Key[Array, ""] | None = None) -> Ticks:
        """The most likely interval; with a key, a draw."""


class NoTimer(Timer):
    """Intervals are known, not learned."""

    def loss(self, features: Features, tau: Ticks) -> Ticks:
        """Nothing."""
        return jnp.zeros_like(tau)

    def interval(self, features: Features, *, key: Key[Array, ""] | None = None) -> Ticks:
        """Unknown: NaN. Plan with a schedule instead."""
        return jnp.full(features.shape[1:], jnp.nan)


class ClassTimer(Timer):
    """One class for each of a range of evenly spaced intervals: cross-entropy."""

    net: MLP
    low: float = eqx.field(static=True)
    step: float = eqx.field(static=True)

    def logits(self, features: Features) -> Float[Array, "classes *lanes"]:
        """Of the classes, the shortest interval first."""
        return self.net(features)

    def loss(self, features: Features, tau: Ticks) -> Ticks:
        """-log p of the interval that was."""
        log_p = jax.nn.log_softmax(self.logits(features), axis=0)
        this = jnp.clip(jnp.round((tau - self.low) / self.step).astype(jnp.int32), 0, log_p.shape[0] - 1)
        return -(log_p * jax.nn.one_hot(this, log_p.shape[0], axis=0)).sum(0)

    def interval(self, features: Features, *, key: Key[Array, ""] | None = None) -> Ticks:
        """The class with the largest logit, or a draw."""
        logits = self.logits(features)
        this: Any = jnp.argmax(logits, axis=0) if key is None else jax.random.categorical(key, logits, axis=0)
        return self.low + self.step * this.astype(logits.dtype)


class ContinuousTimer(Timer):
    """A number: squared error."""

    net: MLP
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    def loss(self, features: Features, tau: Ticks) -> Ticks:
        """(tau^ - tau)^2."""
        return (self.net(features)[0] - tau) ** 2

    def interval(self, features: Features, *, key: Key[Array, ""] | None = None) -> Ticks:
        """The predicted number, within the range of the intervals; the model has no spread to draw from."""
        return jnp.clip(self.net(features)[0], self.low, self.high)
