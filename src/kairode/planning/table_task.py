"""The task of a table: its reward as an expression or learned, and termination as a learned hazard."""

import warnings
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kairode.data.tables.expression import Expression
from kairode.envs.core import Action, Discrete, Obs, Spec, Task, Tau
from kairode.errors import KairodeWarning
from kairode.models.outcomes import OutcomeModel


class TableTask(Task):
    """Reward and termination of data without a reward function of the user's own.

    The reward is the expression that the table was loaded with, or the mean of an ensemble of learned rewards.
    Termination is a learned hazard: a longer interval is more likely to end the episode.
    """

    spec: Spec
    outcomes: OutcomeModel | None = None
    """Members of the ensemble, stacked along the first axis; None if nothing is learned."""
    caution: float = eqx.field(static=True, default=0.0)
    """Standard deviations of the members' rewards that are subtracted from their mean."""
    least: float = eqx.field(static=True, default=0.0)
    """The smallest reward of the data: that of predictions for which the expression has no value, such as the logarithm
    of a negative one."""

    def reward(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """R(s, a, s', tau)."""
        if self.spec.reward_expression is not None:
            found = expression_reward(self.spec, obs, action, next_obs, tau)
            return jnp.where(jnp.isfinite(found), found, self.least)
        mean, _ = self.rewards(obs, action, next_obs, tau)
        return mean.mean() - self.caution * mean.std()

    def rewards(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Any:
        """Mean and standard deviation of the reward by each member, [members]."""
        assert self.outcomes is not None
        return eqx.filter_vmap(lambda one: one.reward_distribution(obs, action, next_obs, tau))(self.outcomes)

    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        """Never by the observation alone: see `end_probability`."""
        return jnp.zeros((), bool)

    def end_probability(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""] | None:
        """Mean over the members; None if no episode of the data terminated."""
        if self.outcomes is None or self.outcomes.hazard is None:
            return None
        return eqx.filter_vmap(lambda one: one.end_probability(obs, action, next_obs, tau))(self.outcomes).mean()


def warn_of_accrual(task: Task) -> None:
    """Warn if rewards on every finest time step are asked of a task whose rewards are those of whole intervals."""
    if not isinstance(task, TableTask):
        return
    spec = task.spec
    how = "given" if spec.reward_expression is not None else "learned"
    more = ", and no episode is taken to terminate within an interval" if task.outcomes is not None else ""
    warnings.warn(
        f"schedules count the reward on every finest time step ({spec.finest:g} {spec.time_unit}s), and that of this "
        f"table is {how} for whole intervals: an interval of ten steps earns about ten times as much{more}. Check the "
        "decision times that are chosen.",
        KairodeWarning,
        stacklevel=4,
    )


def expression_reward(spec: Spec, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
    """The reward of a spec that has an expression; not finite where the expression has no value."""
    assert spec.reward_expression is not None
    names = [variable.name for variable in spec.observations]
    before = dict(zip(names, obs, strict=True))
    if isinstance(spec.actions, Discrete):
        before |= {name: jnp.asarray(values, obs.dtype)[action] for name, values in spec.action_values}
    else:
        before |= dict(zip(spec.actions.names, action, strict=True))
    found = Expression(spec.reward_expression).value(before, dict(zip(names, next_obs, strict=True)), tau, jnp)
    return jnp.asarray(found, obs.dtype)
