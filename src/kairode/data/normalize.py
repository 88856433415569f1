"""Statistics that observations are normalised by: robust ones, and a running mean and variance."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

ROBUST_LIMIT = 10.0
"""Standard deviations from the median at which a robust scale clips."""
IQR = 1.349
"""Interquartile range of the standard normal distribution."""


def robust_statistics(observations: Float[np.ndarray, "n d"]) -> tuple[np.ndarray, np.ndarray]:
    """Median, and the standard deviation of a normal distribution with the same interquartile range.

    A variable whose interquartile range is 0 takes its standard deviation within the middle 99 %.
    """
    x = observations.astype(np.float64)
    quantile = np.nanquantile if np.isnan(x).any() else np.quantile
    low, lower, median, upper, high = quantile(x, [0.005, 0.25, 0.5, 0.75, 0.995], axis=0)
    std = (upper - lower) / IQR
    if np.isnan(median).any():  # a variable that was never measured
        median, std = np.where(np.isnan(median), 0.0, median), np.where(np.isnan(std), 1.0, std)
    if not std.all():
        inner = np.where((x >= low) & (x <= high), x, np.nan)
        std = np.where(std > 0, std, np.nanstd(inner, axis=0))
    return median, std


def mean_and_std(rows: Float[np.ndarray, "n d"]) -> tuple[np.ndarray, np.ndarray]:
    """In double precision; a standard deviation of 1 for variables that do not vary, whatever their unit."""
    rows = np.asarray(rows, np.float64)
    mean, std = rows.mean(0), rows.std(0)
    return mean, np.where(std > 1e-9 * np.abs(mean), std, 1.0)


class RunningStatistics(eqx.Module):
    """Count, mean and sum of squared deviations."""

    count: Float[Array, ""]
    mean: Float[Array, " d"]
    squares: Float[Array, " d"]

    @property
    def std(self) -> Float[Array, " d"]:
        """Standard deviation; 1 for variables that have not varied, so that normalising leaves them unchanged."""
        std = jnp.sqrt(self.squares / jnp.maximum(self.count, 1.0))
        return jnp.where(std > 1e-6 * jnp.minimum(jnp.abs(self.mean), 1.0), std, 1.0)

    @classmethod
    def empty(cls, size: int) -> "RunningStatistics":
        return cls(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))

    def with_more(self, observations: Float[Array, "n d"]) -> "RunningStatistics":
        """Add observations, by the pairwise formula of Chan et al. (1979)."""
        new = observations.shape[0]
        mean = observations.sum(0) / max(new, 1)
        squares = ((observations - mean[None]) ** 2).sum(0)
        count = self.count + new
        share = new / jnp.maximum(count, 1.0)
        shift = mean - self.mean
        return RunningStatistics(
            count, self.mean + share * shift, self.squares + squares + shift**2 * self.count * share
        )

    def normalize(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return (x - jnp.broadcast_to(self.mean, x.shape)) / jnp.broadcast_to(self.std, x.shape)

    def denormalize(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Inverse of `normalize`."""
        return x * jnp.broadcast_to(self.std, x.shape) + jnp.broadcast_to(self.mean, x.shape)
