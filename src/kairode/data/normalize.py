"""Running mean and variance of observations, as pure functions."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class RunningStatistics(eqx.Module):
    """Count, mean and sum of squared deviations."""

    count: Float[Array, ""]
    mean: Float[Array, " d"]
    squares: Float[Array, " d"]

    @property
    def std(self) -> Float[Array, " d"]:
        """Standard deviation; 1 for variables that have not varied, so that normalising leaves them unchanged."""
        std = jnp.sqrt(self.squares / jnp.maximum(self.count, 1.0))
        return jnp.where(std > 1e-6, std, 1.0)


def empty_statistics(size: int) -> RunningStatistics:
    return RunningStatistics(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))


def update_statistics(
    statistics: RunningStatistics, observations: Float[Array, "n d"], mask: Bool[Array, " n"] | None = None
) -> RunningStatistics:
    """Add observations (those selected by the mask), by the pairwise formula of Chan et al. (1979)."""
    weight = jnp.ones(observations.shape[0]) if mask is None else mask.astype(observations.dtype)
    new = weight.sum()
    mean = (weight[:, None] * observations).sum(0) / jnp.maximum(new, 1.0)
    squares = (weight[:, None] * (observations - mean[None]) ** 2).sum(0)
    count = statistics.count + new
    share = new / jnp.maximum(count, 1.0)
    shift = mean - statistics.mean
    return RunningStatistics(
        count,
        statistics.mean + share * shift,
        statistics.squares + squares + shift**2 * statistics.count * share,
    )


def normalize(statistics: RunningStatistics, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    return (x - _like(statistics.mean, x)) / _like(statistics.std, x)


def denormalize(statistics: RunningStatistics, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Inverse of `normalize`."""
    return x * _like(statistics.std, x) + _like(statistics.mean, x)


def _like(numbers: Float[Array, " d"], x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    return jnp.broadcast_to(numbers, x.shape)
