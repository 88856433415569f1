"""Interval timers: P(tau | z, s, a)."""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, Key

from kairode.models.networks import MLP
from kairode.models.ode import Ticks

Features = Float[Array, "f *batch"]
"""[s a z]."""


class Timer(eqx.Module):
    """Predicts the interval to the next decision, in ticks."""

    @abc.abstractmethod
    def loss(self, features: Features, tau: Ticks) -> Ticks:
        """Loss of one decision, equation (10)."""

    @abc.abstractmethod
    def interval(self, features: Features, *, key: Key[Array, ""] | None = None) -> Ticks:
        """The most likely interval; with a key, a sampled one."""


class NoTimer(Timer):
    """Intervals are known, not learned."""

    def loss(self, features: Features, tau: Ticks) -> Ticks:
        return jnp.zeros_like(tau)

    def interval(self, features: Features, *, key: Key[Array, ""] | None = None) -> Ticks:
        """NaN: use a schedule instead."""
        return jnp.full(features.shape[1:], jnp.nan)


class ClassTimer(Timer):
    """Classifier over evenly spaced intervals, fitted by cross-entropy."""

    net: MLP
    low: float = eqx.field(static=True)
    step: float = eqx.field(static=True)

    def logits(self, features: Features) -> Float[Array, "classes *batch"]:
        """Logits of the classes, shortest interval first."""
        return self.net(features)

    def loss(self, features: Features, tau: Ticks) -> Ticks:
        log_p = jax.nn.log_softmax(self.logits(features), axis=0)
        this = jnp.clip(jnp.round((tau - self.low) / self.step).astype(jnp.int32), 0, log_p.shape[0] - 1)
        return -(log_p * jax.nn.one_hot(this, log_p.shape[0], axis=0)).sum(0)

    def interval(self, features: Features, *, key: Key[Array, ""] | None = None) -> Ticks:
        logits = self.logits(features)
        this: Any = jnp.argmax(logits, axis=0) if key is None else jax.random.categorical(key, logits, axis=0)
        return self.low + self.step * this.astype(logits.dtype)


NARROWEST, WIDEST = 1e-3, 10.0
"""Bounds of the scale, as a fraction of the range of intervals: at the upper one, draws are uniform within 0.2 %."""


class ContinuousTimer(Timer):
    """A normal distribution truncated to the range of the intervals.

    Its centre is fitted by squared error, as in the paper, and its scale by maximum likelihood, given the centre. The
    gradient of the likelihood reaches neither the centre nor the rest of the model, which are fitted as without it.
    """

    net: MLP
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)
    spread: MLP | None = None
    """Predicts the logarithm of the scale, as a fraction of the range. None (models saved by older versions): always
    the centre, no sampling."""

    def loss(self, features: Features, tau: Ticks) -> Ticks:
        """(tau^ - tau)^2 - log p(tau)."""
        centre = self.net(features)[0]
        if self.spread is None:
            return (centre - tau) ** 2
        fixed = jax.lax.stop_gradient(jnp.clip(centre, self.low, self.high))
        scale = self.scale(jax.lax.stop_gradient(features))
        return (centre - tau) ** 2 - truncated_normal_log_density(tau, fixed, scale, self.low, self.high)

    def scale(self, features: Features) -> Ticks:
        """Scale of the normal distribution before truncation."""
        assert self.spread is not None
        log_scale = jnp.clip(self.spread(features)[0], math.log(NARROWEST), math.log(WIDEST))
        return (self.high - self.low) * jnp.exp(log_scale)

    def interval(self, features: Features, *, key: Key[Array, ""] | None = None) -> Ticks:
        centre = jnp.clip(self.net(features)[0], self.low, self.high)
        if key is None or self.spread is None:
            return centre
        scale = self.scale(features)
        drawn = jax.random.truncated_normal(key, (self.low - centre) / scale, (self.high - centre) / scale)
        return jnp.clip(centre + scale * drawn, self.low, self.high)


def truncated_normal_log_density(tau: Ticks, centre: Ticks, scale: Ticks, low: float, high: float) -> Ticks:
    """log p of a normal distribution truncated to [low, high], within which its centre must lie."""
    inside = ndtr((high - centre) / scale) - ndtr((low - centre) / scale)
    standard = (tau - centre) / scale
    return -0.5 * standard**2 - jnp.log(scale) - 0.5 * math.log(2 * math.pi) - jnp.log(inside)
