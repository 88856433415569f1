"""A correction of a model's predictions, by action and interval."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kairode.envs.core import Action, Obs, Tau


class Correction(eqx.Module):
    """Added to a predicted observation: the mean error after the same action and interval."""

    taus: Float[Array, "*members k"]
    """Intervals, ascending, in the environment's unit."""
    table: Float[Array, "*members actions k obs"]

    def at(self, action: Action, tau: Tau) -> Obs:
        """Linear between the intervals, constant beyond them."""
        return jax.vmap(lambda column: jnp.interp(tau, self.taus, column), in_axes=1)(self.table[action])
