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


def one_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of scalars with a long loop inside, so compiled that a GPU runs the loop in one kernel.

    Left to itself, XLA launches kernels for every turn of a loop and asks the host after each whether to go on: an HIV
    interval of five days takes 3.5 ms on an H200, whatever the number of episodes. As one kernel, a lane each program,
    it takes 0.04 ms. Elsewhere the function is left as it is.
    """
    return _lanes(function) if jax.default_backend() == "gpu" else function


def _lanes(function: Callable[..., Any], interpret: bool = False) -> Callable[..., Any]:
    """The function applied to every lane of arrays of one shape, as one Pallas kernel, under any number of vmaps."""
    from jax.experimental import pallas as pl

    @jax.custom_batching.custom_vmap
    def lanes(*arrays: Array) -> tuple[Array, ...]:
        shape, count = arrays[0].shape, arrays[0].size
        one = [jax.ShapeDtypeStruct((), x.dtype) for x in arrays]
        outs = [jax.ShapeDtypeStruct((count,), x.dtype) for x in jax.eval_shape(function, *one)]

        def kernel(*refs: Any) -> None:
            i = pl.program_id(0)
            found = function(*(ref[i] for ref in refs[: len(arrays)]))
            for ref, value in zip(refs[len(arrays) :], found, strict=True):
                ref[i] = value

        call = pl.pallas_call(kernel, out_shape=outs, grid=(count,), interpret=interpret, **_one_warp(interpret))
        return tuple(x.reshape(shape) for x in call(*(x.reshape(count) for x in arrays)))

    @lanes.def_vmap
    def more_lanes(size: int, batched: Any, *arrays: Array) -> tuple[Any, Any]:
        full = [x if has else jnp.broadcast_to(x, (size, *x.shape)) for x, has in zip(arrays, batched, strict=True)]
        found = lanes(*full)
        return found, tuple(True for _ in found)

    return lanes


def _one_warp(interpret: bool) -> dict[str, Any]:
    """A lane is scalar work: one warp is enough."""
    if interpret:
        return {}
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=1)}
