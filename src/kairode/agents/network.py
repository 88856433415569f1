"""Multilayer perceptron of the agents."""

import itertools
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.linalg import block_diag

NARROW = 32
"""Inputs of a layer up to which its gradient is computed transposed."""


@jax.custom_vjp
def linear(weight: Float[Array, "o i"], bias: Float[Array, " o"], x: Float[Array, "n i"]) -> Float[Array, "n o"]:
    """W x + b of every row."""
    return x @ weight.T + bias[None]


def _linear_forward(weight: Array, bias: Array, x: Array) -> tuple[Array, tuple[Array, Array]]:
    return linear(weight, bias, x), (weight, x)


def _linear_backward(kept: tuple[Array, Array], c: Array) -> tuple[Array, Array, Array]:
    weight, x = kept
    inputs = x.shape[1]
    if inputs > NARROW:
        return c.T @ x, c.sum(0), c @ weight
    # A product with few columns is slow on the CPU, its transpose is not; a column of ones adds the bias.
    both = jnp.concatenate([x, jnp.ones((len(x), 1), x.dtype)], axis=1).T @ c
    return both[:inputs].T, both[inputs], c @ weight


linear.defvjp(_linear_forward, _linear_backward)


class ReLUNetwork(eqx.Module):
    """Linear layers with ReLU between them; features on the last axis.

    Weights are [outputs, inputs]: gradients then have the layout in which weights are stored, and a single observation
    reads rows, which is faster on a CPU.
    """

    weights: tuple[Float[Array, "*agents _ _"], ...]
    biases: tuple[Float[Array, "*agents _"], ...]

    @classmethod
    def new(cls, *sizes: int, key: Key[Array, ""]) -> "ReLUNetwork":
        """Layer sizes from features to outputs; weights are initialised uniformly within 1/sqrt(inputs)."""
        keys = jax.random.split(key, 2 * (len(sizes) - 1))
        pairs = list(itertools.pairwise(sizes))
        bounds = [1 / math.sqrt(i) for i, _ in pairs]

        def uniform(key: Key[Array, ""], shape: tuple[int, ...], bound: float) -> Array:
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        return cls(
            tuple(uniform(key, pair[::-1], bound) for key, pair, bound in zip(keys[::2], pairs, bounds, strict=True)),
            tuple(uniform(key, pair[1:], bound) for key, pair, bound in zip(keys[1::2], pairs, bounds, strict=True)),
        )

    def on_inputs(self, mean: Float[np.ndarray, " f"], std: Float[np.ndarray, " f"]) -> "ReLUNetwork":
        """The same function of inputs x as this one of (x - mean) / std: W ((x - mean) / std) + b, in double precision,
        as the first layer."""
        weight, bias = (np.asarray(x[0], np.float64) for x in (self.weights, self.biases))
        first = weight / std
        kind = self.weights[0].dtype
        weights = (jnp.asarray(first, kind), *self.weights[1:])
        return ReLUNetwork(weights, (jnp.asarray(bias - first @ mean, kind), *self.biases[1:]))

    def __call__(self, features: Float[Array, "*batch f"]) -> Float[Array, "*batch a"]:
        x = features.reshape(-1, features.shape[-1])
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jax.nn.relu(linear(weight, bias, x))
        values = linear(self.weights[-1], self.biases[-1], x)
        return values.reshape(*features.shape[:-1], values.shape[-1])


def mean_network(networks: Sequence[ReLUNetwork]) -> ReLUNetwork:
    """The mean of the outputs of networks of the same sizes, as one wider network."""
    kind = networks[0].weights[0].dtype
    layers = len(networks[0].weights)

    def joined(layer: int) -> tuple[np.ndarray, np.ndarray]:
        weights = [np.asarray(one.weights[layer], np.float64) for one in networks]
        biases = [np.asarray(one.biases[layer], np.float64) for one in networks]
        if layers == 1:
            return np.mean(weights, 0), np.mean(biases, 0)
        if layer == layers - 1:
            return np.concatenate(weights, 1) / len(networks), np.mean(biases, 0)
        return block_diag(*weights) if layer else np.concatenate(weights), np.concatenate(biases)

    found = [joined(layer) for layer in range(layers)]
    return ReLUNetwork(*(tuple(jnp.asarray(x, kind) for x in part) for part in zip(*found, strict=True)))
