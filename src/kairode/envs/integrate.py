"""Runge-Kutta over a given time, for the simulators."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Vector = Any
"""Any pytree of floats."""


def rk4_step(field: Callable[[Vector], Vector], y: Vector, h: Float[Array, ""]) -> Vector:
    """One classical fourth-order step of dy/dt = field(y)."""

    def shifted(k: Vector, scale: Float[Array, ""]) -> Vector:
        return jax.tree.map(lambda u, v: u + scale * v, y, k)

    k1 = field(y)
    k2 = field(shifted(k1, h / 2))
    k3 = field(shifted(k2, h / 2))
    k4 = field(shifted(k3, h))
    return jax.tree.map(lambda u, a, b, c, d: u + h / 6 * (a + 2 * b + 2 * c + d), y, k1, k2, k3, k4)


def integrate(
    field: Callable[[Vector], Vector],
    y: Vector,
    tau: Float[Array, ""],
    rate: Callable[[Vector], Float[Array, ""]],
    bound: Callable[[Vector], Vector] = lambda y: y,
) -> Vector:
    """RK4 over tau in steps of about 1 / rate(y), each step followed by `bound`; rate 0 is one single step.

    The time left is a compensated sum: over a thousand steps in float32, rounding would move the end of the interval
    far enough to show where a state grows fast.
    """

    def unfinished(carry: tuple[Float[Array, ""], Float[Array, ""], Vector]) -> Array:
        return carry[0] > 0

    def step(
        carry: tuple[Float[Array, ""], Float[Array, ""], Vector],
    ) -> tuple[Float[Array, ""], Float[Array, ""], Vector]:
        left, excess, y = carry
        steps = jnp.maximum(jnp.ceil(left * rate(y) - 1e-3), 1.0)
        h = left / steps
        passed = h + excess
        remaining = left - passed
        excess = (remaining - left) + passed
        return jnp.where(steps > 1, remaining, 0.0), excess, bound(rk4_step(field, y, h))

    return jax.lax.while_loop(unfinished, step, (tau, jnp.zeros_like(tau), y))[-1]
