"""The vector field f of dz/dt = f(z), and Runge-Kutta steps in the coordinates of its first hidden layer.

f(z) = W3 tanh(W2 tanh(W1 z + b1) + b2) + b3. With u = W1 z + b1, M = W1 W3 and m = W1 b3,

    du/dt = M g(u) + m,    dz/dt = W3 g(u) + b3,    g(u) = tanh(W2 tanh(u) + b2),

so the stages of a method need two products each, in place of three, and z is computed once, at the end of the interval.
The numbers are those of the steps in z, up to rounding. The gradient is written out: one product per weight and
interval, in place of one per weight and stage.
"""

from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from diffrax import ButcherTableau
from jaxtyping import Array, Float, Key

from kairode.models.networks import MLP, Linear

Hidden = Float[Array, "h n"]


class VectorField(MLP):
    """The network of an ODE: linear layers with tanh between them."""

    @classmethod
    def new(cls, *sizes: int, key: Key[Array, ""]) -> "VectorField":
        return cls(MLP.new(*sizes, key=key).layers)

    def unfold(self, batch: int | None) -> "MLP | HiddenField":
        """Prepared for a loop: in hidden coordinates if there are two hidden layers and it saves work."""
        layers = [layer.unfold(batch) for layer in self.layers]
        hidden, latent = self.layers[0].weight.shape
        if len(layers) != 3 or hidden > max(2 * latent, SMALL):
            return MLP(tuple(layers))
        first, _, last = self.layers
        assert last.bias is not None
        # With the lower precision of a GPU's products, u would drift away from W1 z + b1.
        dot = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
        product = Linear(dot(first.weight, last.weight), dot(first.weight, last.bias))
        return HiddenField(layers[0], layers[1], layers[2], product.unfold(batch))


SMALL = 32
"""Hidden units up to which a product takes as long as any smaller one."""


class HiddenField(eqx.Module):
    """A field of two hidden layers, prepared for a loop; the gradient needs `unfold` with the size of the batch."""

    first: Linear
    inner: Linear
    last: Linear
    product: Linear
    """M and m."""

    def __call__(self, z: Float[Array, "z *batch"]) -> Float[Array, "z *batch"]:
        return self.last(jnp.tanh(self.inner(jnp.tanh(self.first(z)))))

    def steps(
        self, tableau: ButcherTableau, count: int, z: Float[Array, "z *batch"], tau: Float[Array, "*batch"]
    ) -> Float[Array, "z *batch"]:
        """The state after `count` equal steps of an explicit Runge-Kutta method."""
        return _steps(_Method(tableau), count, self, z, tau)


class _Method:
    """Coefficients of the stages that the solution needs; hashable, as a static argument."""

    def __init__(self, tableau: ButcherTableau) -> None:
        used = int(np.flatnonzero(tableau.b_sol)[-1])  # the last stage may only serve error estimation
        self.a = tuple(tuple(map(float, row)) for row in tableau.a_lower[:used])
        self.b = tuple(map(float, tableau.b_sol[: used + 1]))

    def __hash__(self) -> int:
        return hash((self.a, self.b))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Method) and (self.a, self.b) == (other.a, other.b)


def weighted(weights: Sequence[float], terms: Sequence[Array]) -> Array:
    """Sum of the terms with weights that are not 0, of which there is one at least."""
    parts = [term if w == 1 else w * term for w, term in zip(weights, terms, strict=False) if w != 0]
    return sum(parts[1:], parts[0])


Kept = tuple[list[Hidden], list[Hidden], Hidden]
"""tanh(u) and g(u) of every stage, and the weighted mean of g(u) over the interval."""


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _steps(method: _Method, count: int, field: HiddenField, z: Array, tau: Array) -> Array:
    return _forward(method, count, field, z, tau)[0]


def _forward(method: _Method, count: int, field: HiddenField, z: Array, tau: Array) -> tuple[Array, Kept]:
    h = tau[None] / count
    u = field.first(z)
    inner, outer, total = [], [], jnp.zeros_like(u)
    for step in range(count):
        slopes: list[Array] = []
        stages: list[Array] = []
        for row in ((), *method.a):
            if row:
                slopes.append(field.product(stages[-1]))
            inner.append(jnp.tanh(u + h * weighted(row, slopes) if row else u))
            stages.append(jnp.tanh(field.inner(inner[-1])))
        outer += stages
        mean = weighted(method.b, stages)
        total = total + mean
        if step < count - 1:
            u = u + h * field.product(mean)
    total = total / count
    return z + tau[None] * field.last(total), (inner, outer, total)


def _keep(
    method: _Method, count: int, field: HiddenField, z: Array, tau: Array
) -> tuple[Array, tuple[HiddenField, Array, Array, Kept]]:
    after, kept = _forward(method, count, field, z, tau)
    return after, (field, z, tau, kept)


def _backward(
    method: _Method, count: int, saved: tuple[HiddenField, Array, Array, Kept], c: Array
) -> tuple[HiddenField, Array, Array]:
    """Cotangents of the field's weights, of z and of tau, from that of the state after the steps."""
    field, z, tau, (inner, outer, total) = saved
    stages, h = len(method.b), tau[None] / count
    if field.first.transpose is None:
        raise ValueError("gradients through the steps of a field need its batch size: field.unfold(batch).")
    back = {name: getattr(field, name).transpose for name in ("first", "inner", "last", "product")}
    tc = tau[None] * c
    c_last = back["last"] @ tc / count
    c_tau = (c * field.last(total)).sum(0)
    c_h = jnp.zeros_like(c_tau)
    c_u = jnp.zeros_like(inner[0])  # of u after the step
    c_bias = {"inner": jnp.zeros_like(c_u), "product": jnp.zeros_like(c_u)}
    c_inner: list[Array] = []  # of W2 tanh(u) + b2, last stage first
    c_product: list[tuple[Array, Array]] = []  # of M g + m, with its g
    for step in reversed(range(count)):
        last = step == count - 1
        hcu = h * c_u
        c_mean = c_last if last else c_last + back["product"] @ hcu
        if not last:
            mean = weighted(method.b, outer[step * stages : (step + 1) * stages])
            c_product.append((hcu, mean))
            c_bias["product"] = c_bias["product"] + hcu
            c_h = c_h + (c_u * field.product(mean)).sum(0)
        c_stage: list[Array] = [jnp.zeros_like(c_u)] * stages  # of each stage's u
        for i in reversed(range(stages)):
            at = step * stages + i
            column = [method.a[j - 1][i] if j > i else 0.0 for j in range(stages)]
            c_g = method.b[i] * c_mean
            if any(column):
                pulled = weighted(column, c_stage)
                c_slope = h * pulled
                c_g = c_g + back["product"] @ c_slope
                c_product.append((c_slope, outer[at]))
                c_bias["product"] = c_bias["product"] + c_slope
                c_h = c_h + (pulled * field.product(outer[at])).sum(0)
            c_before = (1 - outer[at] ** 2) * c_g
            c_inner.append(c_before)
            c_bias["inner"] = c_bias["inner"] + c_before
            c_stage[i] = (1 - inner[at] ** 2) * (back["inner"] @ c_before)
        c_u = sum(c_stage[1:], c_u + c_stage[0])
    weights = {
        "first": c_u @ z.T,
        "inner": jnp.concatenate(c_inner, 1) @ jnp.concatenate(inner[::-1], 1).T,
        "last": tc @ total.T,
        "product": jnp.zeros_like(field.product.weight),
    }
    if c_product:
        slopes, stage_values = zip(*c_product, strict=True)
        weights["product"] = jnp.concatenate(slopes, 1) @ jnp.concatenate(stage_values, 1).T
    biases = {"first": c_u, "last": tc, **c_bias}
    return (
        HiddenField(**{name: Linear(weights[name], biases[name]) for name in back}),
        c + back["first"] @ c_u,
        c_tau + c_h / count,
    )


_steps.defvjp(_keep, _backward)
