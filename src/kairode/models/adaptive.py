"""Dormand-Prince 5(4) with step-size control, in the hidden coordinates of `field.py`.

The first step is that of Hairer, Norsett and Wanner (1993), the controller that of diffrax's `PIDController` (integral
only); all examples of a batch take the same steps. From the same first step, diffrax's `Dopri5` takes the same steps,
up to rounding. What differs is the cost: a stage takes two products, the first stage of a step is the last of the step
before, and the gradient recomputes the stages of each accepted step from its start instead of storing them. Under
`vmap` (several seeds) every instance has its own step sizes and all run in one loop until the last is finished.
"""

from functools import partial
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from kairode.models.field import HiddenField, weighted

DOPRI5 = diffrax.Dopri5.tableau
A = [row.tolist() for row in DOPRI5.a_lower[:-1]]
B, ERROR = DOPRI5.b_sol[:-1].tolist(), DOPRI5.b_error.tolist()
SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0
ORDER = 5


class _Progress(NamedTuple):
    """State of the loop; the first axis is the instance."""

    s: Float[Array, " k"]
    """Normalised time, from 0 to 1."""
    h: Float[Array, " k"]
    """Next step."""
    z: Float[Array, "k z n"]
    u: Float[Array, "k h n"]
    """W1 z + b1."""
    g: Float[Array, "k h n"]
    """g(u), the first stage of the next step."""
    tried: Int[Array, ""]
    """Steps of the loop."""
    own: Int[Array, " k"]
    """Steps of each instance."""
    starts: Any
    """z before every step, if a gradient will be needed."""
    lengths: Any
    """h of every step, 0 if it was rejected."""


def solve_adaptive(
    field: HiddenField, z: Float[Array, "z n"], tau: Float[Array, " n"], rtol: float, atol: float, most: int
) -> tuple[Float[Array, "z n"], Int[Array, ""]]:
    """The state after tau, NaN if `most` steps do not suffice; and the number of steps, then `most` + 1."""
    return _solve((rtol, atol, most), field, z, tau)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _solve(limits: tuple[float, float, int], field: HiddenField, z: Array, tau: Array) -> tuple[Array, Array]:
    return _integrator(limits, False)(field, z, tau)[:2]


def _keep(limits: tuple[float, float, int], field: HiddenField, z: Array, tau: Array) -> tuple[Any, Any]:
    after, steps, tried, starts, lengths = _integrator(limits, True)(field, z, tau)
    return (after, steps), (field, tau, tried, starts, lengths)


def _backward(limits: tuple[float, float, int], saved: Any, cotangents: tuple[Array, Any]) -> tuple[Any, Array, Array]:
    return _pullback()(*saved, cotangents[0])


_solve.defvjp(_keep, _backward)


def _integrator(limits: tuple[float, float, int], keep: bool) -> Any:
    """The loop as a function of one instance; under `vmap`, all instances in one loop."""

    @custom_vmap
    def integrate(field: HiddenField, z: Array, tau: Array) -> Any:
        found = _integrate(limits, keep, *_with_axis((field, z, tau)))
        return jax.tree.map(lambda x: x[0], found)

    @integrate.def_vmap
    def _(size: int, batched: Any, *arguments: Any) -> Any:
        found = _integrate(limits, keep, *_spread(size, batched, arguments))
        return found, jax.tree.map(lambda _: True, found)

    return integrate


def _pullback() -> Any:
    """Cotangents of field, z and tau, as a function of one instance."""

    @custom_vmap
    def pull(*arguments: Any) -> Any:
        return jax.tree.map(lambda x: x[0], _pull(*_with_axis(arguments)))

    @pull.def_vmap
    def _(size: int, batched: Any, *arguments: Any) -> Any:
        found = _pull(*_spread(size, batched, arguments))
        return found, jax.tree.map(lambda _: True, found)

    return pull


def _with_axis(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[None], tree)


def _spread(size: int, batched: Any, tree: Any) -> Any:
    """Every array with the axis of instances."""
    return jax.tree.map(lambda x, has: x if has else jnp.broadcast_to(x, (size, *x.shape)), tree, tuple(batched))


def worst_error(error: Float[Array, "z *batch"]) -> Float[Array, ""]:
    """Root mean square over features, maximum over the batch."""
    square = (error**2).mean(0).max()
    return jnp.sqrt(jnp.where(square > 0, square, 1.0)) * (square > 0)  # keeps the gradient of the root finite at 0


def _stage(field: HiddenField, u: Array) -> Array:
    return jnp.tanh(field.inner(jnp.tanh(u)))


def _integrate(limits: tuple[float, float, int], keep: bool, field: HiddenField, z: Array, tau: Array) -> Any:
    """The loop over steps of several instances, each with its own step sizes."""
    rtol, atol, most = limits
    count = len(z)

    def begin(field: HiddenField, z: Array, tau: Array) -> tuple[Array, Array, Array]:
        """Hairer, Norsett and Wanner (1993), II.4: a first step from the size of f and of its change."""
        u = field.first(z)
        g = _stage(field, u)
        slope, scale = tau[None] * field.last(g), atol + rtol * jnp.abs(z)
        size, speed = worst_error(z / scale), worst_error(slope / scale)
        tiny = (size < 1e-5) | (speed < 1e-5)
        h = jnp.where(tiny, 1e-6, 0.01 * size / jnp.where(tiny, 1.0, speed))
        then = tau[None] * field.last(_stage(field, u + h * tau[None] * field.product(g)))
        most_change = jnp.maximum(speed, worst_error((then - slope) / scale) / h)
        second = jnp.where(
            most_change <= 1e-15,
            jnp.maximum(1e-6, 1e-3 * h),
            (0.01 / jnp.maximum(most_change, 1e-30)) ** (1 / ORDER),
        )
        return u, g, jnp.minimum(100 * h, second)

    def attempt(
        field: HiddenField, z: Array, u: Array, g: Array, h: Array, tau: Array
    ) -> tuple[Array, Array, Array, Array]:
        step = h * tau[None]
        stages, slopes = [g], []
        for row in A:
            slopes.append(field.product(stages[-1]))
            stages.append(_stage(field, u + step * weighted(row, slopes)))
        mean = weighted(B, stages)
        after, u = z + step * field.last(mean), u + step * field.product(mean)
        last = _stage(field, u)
        error = step * (field.last.weight @ weighted(ERROR, [*stages, last]))
        known = jnp.where(jnp.isnan(after).any(), jnp.abs(z), jnp.abs(after))
        return after, u, last, worst_error(error / (atol + rtol * jnp.maximum(jnp.abs(z), known)))

    def body(here: _Progress) -> _Progress:
        final = here.s + here.h >= 1 - 1e-6
        h = jnp.where(final, 1 - here.s, here.h)
        z, u, g, error = jax.vmap(attempt)(field, here.z, here.u, here.g, h, tau)
        good = (error < 1) & (here.s < 1)
        scale = SAFETY * jnp.maximum(error, 1e-10) ** (-1 / ORDER)
        scale = jnp.where(
            jnp.isnan(error), SHRINK, jnp.clip(scale, jnp.where(good, 1, SHRINK), jnp.where(good, GROW, SAFETY))
        )
        starts, lengths = here.starts, here.lengths
        if keep:
            starts = jax.lax.dynamic_update_index_in_dim(starts, here.z, here.tried, 0)
            lengths = jax.lax.dynamic_update_index_in_dim(lengths, jnp.where(good, h, 0.0), here.tried, 0)

        def take(new: Array, old: Array) -> Array:
            return jnp.where(good[:, None, None], new, old)

        own = here.own + (here.s < 1)
        s = jnp.where(good, jnp.where(final, 1.0, here.s + h), here.s)
        return _Progress(
            s, h * scale, take(z, here.z), take(u, here.u), take(g, here.g), here.tried + 1, own, starts, lengths
        )

    u, g, h = jax.vmap(begin)(field, z, tau)
    empty = (jnp.zeros((most, *z.shape), z.dtype), jnp.zeros((most, count), z.dtype)) if keep else ((), ())
    here = _Progress(
        jnp.zeros(count, z.dtype), h, z, u, g, jnp.zeros((), jnp.int32), jnp.zeros(count, jnp.int32), *empty
    )
    end = jax.lax.while_loop(lambda here: (here.s < 1).any() & (here.tried < most), body, here)
    return _finish(end, most, keep)


def _finish(end: _Progress, most: int, keep: bool) -> Any:
    reached = end.s >= 1
    after = jnp.where(reached[:, None, None], end.z, jnp.nan)
    steps = jnp.where(reached, end.own, most + 1)
    if not keep:
        return after, steps
    tried = jnp.full(len(reached), end.tried)
    return after, steps, tried, jnp.moveaxis(end.starts, 0, 1), jnp.moveaxis(end.lengths, 0, 1)


def _pull(field: HiddenField, tau: Array, tried: Array, starts: Array, lengths: Array, c: Array) -> Any:
    """Back through the steps; a rejected one has length 0 and leaves everything as it is."""
    starts, lengths = jnp.moveaxis(starts, 1, 0), jnp.moveaxis(lengths, 1, 0)

    def one(field: HiddenField, z: Array, tau: Array, h: Array, c: Array) -> Any:
        _, pull = jax.vjp(lambda field, z, tau: field.steps(DOPRI5, 1, z, h * tau), field, z, tau)
        return pull(c)

    def body(here: Any) -> Any:
        i, c, c_field, c_tau = here
        more_field, c, more_tau = jax.vmap(one)(field, starts[i], tau, lengths[i], c)
        return i - 1, c, jax.tree.map(jnp.add, c_field, more_field), c_tau + more_tau

    nothing = jax.tree.map(jnp.zeros_like, field)
    _, c, c_field, c_tau = jax.lax.while_loop(
        lambda here: here[0] >= 0, body, (tried.max() - 1, c, nothing, jnp.zeros_like(tau))
    )
    return c_field, c, c_tau
