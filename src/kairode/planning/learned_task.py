"""The task of a system whose rewards and terminations are its simulator's own: both learned from experience."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kairode.envs.core import Action, Obs, Spec, Task, Tau
from kairode.models.outcomes import OutcomeModel


class LearnedTask(Task):
    """An ensemble of rewards and hazards, whose scales are arrays: refitted to more data, it is the same program."""

    spec: Spec = eqx.field(static=True)
    outcomes: OutcomeModel
    """Members, stacked along the first axis, of standardised observations and rewards."""
    mean: Float[Array, "*seeds obs"]
    std: Float[Array, "*seeds obs"]
    reward_mean: Float[Array, "*seeds"]
    reward_std: Float[Array, "*seeds"]

    def reward(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """Mean over the members of the reward of an interval."""
        before, after = self._standardized(obs), self._standardized(next_obs)
        each = eqx.filter_vmap(lambda one: one.reward_distribution(before, action, after, tau)[0])(self.outcomes)
        return self.reward_mean + self.reward_std * each.mean()

    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        """Never by the observation alone: see `end_probability`."""
        return jnp.zeros((), bool)

    def end_probability(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """1 - exp(-h tau), mean over the members."""
        before, after = self._standardized(obs), self._standardized(next_obs)
        return eqx.filter_vmap(lambda one: one.end_probability(before, action, after, tau))(self.outcomes).mean()

    def _standardized(self, obs: Obs) -> Obs:
        return (obs - self.mean) / self.std
