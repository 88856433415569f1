"""Penalties of a decision, simulated and compared: how a price or a budget changes a schedule."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from kairode.agents.q_policy import QPolicy
from kairode.data.policy import Policy
from kairode.data.rollout import rollout
from kairode.envs.accrual import AccruedRewards
from kairode.envs.core import Environment
from kairode.envs.schedule import Schedule
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.seeds import Purpose, derive

PENALTIES = 16
"""Number of decision penalties simulated, log-spaced from 1e-6 to 1e3 times the return without a penalty."""


class PenaltySweep(NamedTuple):
    """Outcomes of schedules that differ in their decision penalty, as means over the same episodes."""

    prices: np.ndarray
    returns: np.ndarray
    decisions: np.ndarray
    discounted_decisions: np.ndarray
    """Decisions, weighted by gamma^t if returns are discounted: what a price multiplies."""
    each_return: np.ndarray
    """[prices, episodes]"""
    each_discounted: np.ndarray
    """Discounted decisions, [prices, episodes]"""

    def at_price(self, price: float, errors: float = 0.0) -> float:
        """The decision penalty that is best at this price per decision. Higher penalties lead to fewer decisions.

        With `errors`, the one with the fewest decisions among those that are worse by at most this many standard errors
        (of the paired difference): the simulated episodes cannot distinguish them.
        """
        net = self.returns - price * self.discounted_decisions
        best = int(np.argmax(net))
        if not errors:
            return float(self.prices[best])
        lost = (self.each_return[best] - self.each_return) - price * (self.each_discounted[best] - self.each_discounted)
        error = lost.std(axis=1, ddof=1) / np.sqrt(lost.shape[1])
        near = lost.mean(axis=1) <= errors * error + 1e-6 * abs(net[best])
        return float(self.prices[np.argmin(np.where(near, self.discounted_decisions, np.inf))])


def sweep_penalties(schedule: OptimizedSchedule, policy: QPolicy, env: Environment, episodes: int = 16) -> PenaltySweep:
    """Simulate a range of decision penalties.

    A price should be weighed against the benefit of a decision, but a policy's values do not include how many decisions
    follow from a state, and `later_decisions` only estimates it: an overestimate leads to long intervals and many
    corrections. So a range of penalties is simulated, within the budget if there is one, and compared by their
    outcomes.
    """
    spec = schedule.task.spec
    place = AccruedRewards.of(env, schedule.longest(spec))
    limit = spec.longest(schedule.shortest(spec))
    keys = jax.random.split(jax.random.key(derive(0, Purpose.SCHEDULE_TRIAL)), episodes)

    def outcome(price: float) -> Any:
        now = dataclasses.replace(schedule, decision_penalty=jnp.asarray(price, jnp.float32))
        return jax.device_get(_outcome(place, now.track(policy), now, keys, limit))

    free = outcome(0.0)
    prices = (abs(float(free[0])) + 1e-6) * np.logspace(-6, 3, PENALTIES)
    columns = zip(free, *map(outcome, prices), strict=True)
    return PenaltySweep(np.append(0.0, prices), *(np.array(column, np.float64) for column in columns))


@eqx.filter_jit
def _outcome(
    env: Environment, policy: Policy, schedule: Schedule, keys: Key[Array, " n"], limit: int
) -> tuple[Array, ...]:
    """Mean return, decisions and weighted decisions; also return and weighted decisions of each episode."""
    spec = env.task.spec
    found = rollout(env, policy, schedule, keys, limit)
    taus = found.records.interval
    starts = jnp.cumsum(taus, axis=0) - taus
    gamma = jnp.where(taus > 0, spec.discount ** (starts / spec.tick), 0.0)
    returns, discounted = (gamma * found.records.reward).sum(0), gamma.sum(0)
    return returns.mean(), found.length.mean(), discounted.mean(), returns, discounted
