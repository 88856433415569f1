"""Reward and termination of an interval, learned from data where no function is given.

Both are functions of the observations at its ends, the action and its length. The reward is a normal distribution; its
mean is fitted by squared error and its standard deviation by maximum likelihood given the mean. Termination has a
constant hazard h within the interval, P(end) = 1 - exp(-h tau), so that a long interval is more likely to end the
episode than a short one.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from kairode.envs.core import Action, Obs, Spec, Tau
from kairode.models.dynamics import Scale, encode_action
from kairode.models.networks import MLP

NARROWEST, WIDEST = -7.0, 3.0
"""Bounds of the logarithm of a reward's standard deviation, in standard deviations of all rewards."""
LEAST_HAZARD, LARGEST_HAZARD = -15.0, 5.0
"""Bounds of the logarithm of the hazard, per tick."""


class OutcomeModel(eqx.Module):
    """Reward and hazard networks, for one example."""

    reward: MLP | None
    """Mean of the reward, standardised; None if the reward is known."""
    spread: MLP | None
    """Logarithm of its standard deviation, standardised."""
    hazard: MLP | None
    """Logarithm of the hazard per tick; None if no episode terminated."""
    scale: Scale
    reward_scale: tuple[float, float] = eqx.field(static=True)
    """Mean and standard deviation of the rewards."""
    spec: Spec = eqx.field(static=True)

    @classmethod
    def new(
        cls,
        spec: Spec,
        scale: Scale,
        rewards: tuple[float, float] | None,
        hazard: bool,
        hidden: int,
        *,
        key: Key[Array, ""],
    ) -> "OutcomeModel":
        """Random weights; `rewards` are the mean and standard deviation of those to learn."""
        reward_key, spread_key, hazard_key = jax.random.split(key, 3)
        inputs = 2 * len(spec.observations) + spec.actions.n + 2

        def net(key: Key[Array, ""]) -> MLP:
            return MLP.new(inputs, hidden, hidden, 1, key=key)

        return cls(
            reward=None if rewards is None else net(reward_key),
            spread=None if rewards is None else net(spread_key),
            hazard=net(hazard_key) if hazard else None,
            scale=scale,
            reward_scale=rewards or (0.0, 1.0),
            spec=spec,
        )

    def features(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, " f"]:
        """[s a s' tau log(tau)], standardised."""
        ticks = tau / self.spec.tick
        times = jnp.stack([ticks / (self.spec.intervals.high / self.spec.tick), jnp.log1p(ticks)])
        known = [self.scale.apply(obs), encode_action(self.spec, action), self.scale.apply(next_obs)]
        return jnp.concatenate([*known, times.astype(obs.dtype)])

    def reward_distribution(
        self, obs: Obs, action: Action, next_obs: Obs, tau: Tau
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean and standard deviation of the reward of an interval."""
        x, (center, size) = self.features(obs, action, next_obs, tau), self.reward_scale
        mean, log_std = self._reward(x)
        return center + size * mean, size * jnp.exp(log_std)

    def end_probability(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """1 - exp(-h tau)."""
        assert self.hazard is not None
        [log_hazard] = self.hazard(self.features(obs, action, next_obs, tau))
        return -jnp.expm1(-self._risk(log_hazard, tau))

    def loss(
        self,
        obs: Obs,
        action: Action,
        next_obs: Obs,
        tau: Tau,
        reward: Float[Array, ""],
        ended: Bool[Array, ""],
    ) -> Float[Array, ""]:
        """Loss of one interval: (m - r)^2 - log N(r; m, s) for the reward, -log P for the termination."""
        x, total = self.features(obs, action, next_obs, tau), jnp.zeros((), obs.dtype)
        if self.reward is not None:
            (mean, log_std), (center, size) = self._reward(x), self.reward_scale
            apart = mean - (reward - center) / size
            standard = jax.lax.stop_gradient(apart) * jnp.exp(-log_std)
            total = total + apart**2 + 0.5 * standard**2 + log_std
        if self.hazard is not None:
            [log_hazard] = self.hazard(x)
            risk = self._risk(log_hazard, tau)
            total = total + jnp.where(ended, -jnp.log(-jnp.expm1(-jnp.maximum(risk, 1e-12))), risk)
        return total

    def _reward(self, x: Float[Array, " f"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        assert self.reward is not None
        assert self.spread is not None
        return self.reward(x)[0], jnp.clip(self.spread(x)[0], NARROWEST, WIDEST)

    def _risk(self, log_hazard: Float[Array, ""], tau: Tau) -> Float[Array, ""]:
        """h tau."""
        return jnp.exp(jnp.clip(log_hazard, LEAST_HAZARD, LARGEST_HAZARD)) * tau / self.spec.tick
