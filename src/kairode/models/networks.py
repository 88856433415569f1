"""Building blocks of the models.

Arrays are feature first: `x[feature, *batch]`. Without batch axes x is one example; with them the same code works on a
whole batch. `vmap` is not used here: fitting spends its time in sequences of small matrix products, and under `vmap`
the batch does not stay in the last axis (docs/architecture.md).
"""

import dataclasses
import math
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

T = TypeVar("T")


@jax.custom_vjp
def matmul(weight: Float[Array, "o i"], transpose: Float[Array, "i o"], x: Float[Array, "i n"]) -> Float[Array, "o n"]:
    """W x, given W and its transpose, which the gradient needs.

    Otherwise XLA transposes W in every step of a loop, which is slow on the CPU.
    """
    return weight @ x


def _matmul_forward(weight: Array, transpose: Array, x: Array) -> tuple[Array, tuple[Array, Array]]:
    return weight @ x, (transpose, x)


def _matmul_backward(kept: tuple[Array, Array], c: Array) -> tuple[Array, None, Array]:
    transpose, x = kept
    return c @ x.T, None, transpose @ c


matmul.defvjp(_matmul_forward, _matmul_backward)


class Linear(eqx.Module):
    """W x + b, both initialised uniformly within 1/sqrt(inputs) (or another bound)."""

    weight: Float[Array, "*seeds o i"]
    bias: Float[Array, "*seeds o"] | Float[Array, "o n"] | None
    transpose: Float[Array, "i o"] | None = None
    """Transpose of the weight, precomputed for a loop (`unfold`)."""

    @classmethod
    def new(
        cls, inputs: int, outputs: int, *, key: Key[Array, ""], bound: float | None = None, bias: bool = True
    ) -> "Linear":
        weight_key, bias_key = jax.random.split(key)
        bound = 1 / math.sqrt(inputs) if bound is None else bound
        weight = jax.random.uniform(weight_key, (outputs, inputs), minval=-bound, maxval=bound)
        return cls(weight, jax.random.uniform(bias_key, (outputs,), minval=-bound, maxval=bound) if bias else None)

    def __call__(self, x: Float[Array, "i *batch"]) -> Float[Array, "o *batch"]:
        columns = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        y = self.weight @ columns if self.transpose is None else matmul(self.weight, self.transpose, columns)
        if self.bias is not None:
            y = y + (self.bias if self.bias.ndim == 2 else self.bias[:, None])
        return y.reshape(-1, *x.shape[1:])

    def unfold(self, batch: int | None) -> "Linear":
        """With its transpose, and with the bias broadcast over the batch."""
        if batch is None:
            return self
        spread = None if self.bias is None else jnp.tile(self.bias[:, None], (1, batch))
        return dataclasses.replace(self, bias=spread, transpose=jax.lax.stop_gradient(self.weight.T))


class MLP(eqx.Module):
    """Linear layers with tanh between them."""

    layers: tuple[Linear, ...]

    @classmethod
    def new(cls, *sizes: int, key: Key[Array, ""]) -> "MLP":
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(sizes[:-1], sizes[1:], keys, strict=True)
        return cls(tuple(Linear.new(a, b, key=key) for a, b, key in pairs))

    def __call__(self, x: Float[Array, "i *batch"]) -> Float[Array, "o *batch"]:
        for layer in self.layers[:-1]:
            x = jnp.tanh(layer(x))
        return self.layers[-1](x)


class GRU(eqx.Module):
    """Gated recurrent unit (Cho et al. 2014), gates in the order reset, update, new.

    Split in two, so that the contribution of the inputs can be computed for a whole sequence at once.
    """

    input: Linear
    hidden: Linear

    @classmethod
    def new(cls, inputs: int, size: int, *, key: Key[Array, ""]) -> "GRU":
        """All weights are initialised uniformly within 1/sqrt(size)."""
        input_key, hidden_key = jax.random.split(key)
        bound = 1 / math.sqrt(size)
        return cls(
            Linear.new(inputs, 3 * size, key=input_key, bound=bound),
            Linear.new(size, 3 * size, key=hidden_key, bound=bound),
        )

    def move(self, z: Float[Array, "z *batch"], gates: Float[Array, "g *batch"]) -> Float[Array, "z *batch"]:
        """Next hidden state, given `input(x)`."""
        ri, ui, ni = jnp.split(gates, 3)
        rh, uh, nh = jnp.split(self.hidden(z), 3)
        reset, update = jax.nn.sigmoid(ri + rh), jax.nn.sigmoid(ui + uh)
        new = jnp.tanh(ni + reset * nh)
        return new + update * (z - new)


def unfold(tree: T, batch: int | None) -> T:
    """The layers prepared for a loop; call it once before the loop.

    For a loop with gradients over a batch of size `batch`, transposes are precomputed and biases are broadcast over the
    batch, so that their gradients are accumulated per example in the loop and summed over the batch once after it. None
    is for a loop without gradients. Any part of a model with a method `unfold` is prepared by it.
    """

    def prepares(node: Any) -> bool:
        return hasattr(node, "unfold")

    return jax.tree.map(lambda node: node.unfold(batch) if prepares(node) else node, tree, is_leaf=prepares)
