"""Multilayer perceptron of the agents."""

import itertools
import math

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key


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

    def __call__(self, features: Float[Array, "*batch f"]) -> Float[Array, "*batch a"]:
        x = features.reshape(-1, features.shape[-1])
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jax.nn.relu(x @ weight.T + bias[None])
        values = x @ self.weights[-1].T + self.biases[-1][None]
        return values.reshape(*features.shape[:-1], values.shape[-1])
