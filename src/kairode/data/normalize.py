"""Running mean and variance of observations."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


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
