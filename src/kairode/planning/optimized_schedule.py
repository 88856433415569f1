"""The schedule of the paper's algorithm 1: the interval with the largest rewards until it ends and value after it."""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from kairode.agents.encoder import ObsEncoder, TrackedMemory
from kairode.agents.network import ReLUNetwork
from kairode.data.policy import Policy
from kairode.envs.accrual import step_rewards
from kairode.envs.core import Spec, Task, Tau
from kairode.envs.schedule import Decision, Schedule
from kairode.errors import KairodeError
from kairode.planning.lookahead import Course, Lookahead

ZOOMS = 5
"""Rounds of refinement of a continuous choice: each narrows the bracket eight times."""

ROUNDING = 1e-6
"""Relative: worths that differ by less are equal in single precision."""


class Earned(NamedTuple):
    """What every model says was earned up to some times, and whether the process had ended by then."""

    total: Any
    """Rewards, discounted."""
    size: Any
    """The same of their absolute values."""
    ended: Any


class OptimizedSchedule(Schedule):
    """The interval with the largest sum of rewards until it ends and value from there on."""

    lookahead: Lookahead
    q: ReLUNetwork | None
    """Action values of the policy; None while it is yet to be learned."""
    encoder: ObsEncoder
    """What they are values of."""
    task: Task
    taus: tuple[float, ...] = eqx.field(static=True)
    """The candidates, ascending; the two ends where intervals are continuous."""
    scale: float = eqx.field(static=True, default=1.0)
    """What rewards were multiplied with when the values were learned."""
    price: Float[Array, "*agents"] | float = 0.0
    """Of a visit, in the unit of the reward: what a policy learned under this schedule pays."""
    visit_penalty: Float[Array, "*agents"] | float = 0.0
    """Taken for every later visit in the choice, beside what the values already count."""
    budget: Int[Array, "*agents"] | None = None
    """Visits in an episode, the first included."""
    quantile: float | None = eqx.field(static=True, default=None)
    """Over the models: how pessimistic to be about waiting. None for their mean."""
    continuous: bool = eqx.field(static=True, default=False)
    """Whether any interval between the two ends may be chosen."""
    tolerance: float = eqx.field(static=True, default=0.0)
    """Share of the rewards that may be lost in exchange for fewer decisions: the longest candidate is chosen whose
    worth is within `slack` of the best. 0 for the best candidate, the paper's equation."""

    def shortest(self, spec: Spec) -> float:
        """The first candidate."""
        return self.taus[0]

    def longest(self, spec: Spec) -> float:
        """The last."""
        return self.taus[-1]

    def track(self, policy: Any) -> Policy:
        """With what the foresight needs in its memory."""
        return self.lookahead.track(policy, self.task.spec)

    def with_q(self, q: ReLUNetwork) -> "OptimizedSchedule":
        """With these action values."""
        return dataclasses.replace(self, q=q)

    def accrued(self) -> bool:
        """Its returns are of every finest step."""
        return True

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """tau* = argmax_tau sum_(i <= tau) gamma^(i-1) r_i + gamma^tau Q(s_tau, a_tau): the paper's equation for it.

        With a tolerance, the longest tau whose worth is within it of the largest.
        """
        if self.continuous:
            return best_continuous(self, decision, key=key).astype(proposed.dtype)
        worths, earned = self._outlook(decision, key=key)
        return jnp.asarray(self.taus, proposed.dtype)[self.pick(worths, earned, worths.max())]

    def pick(self, worths: Float[Array, " k"], earned: Earned, best: Float[Array, ""]) -> Int[Array, ""]:
        """The index of the chosen candidate, given the largest worth."""
        if not self.tolerance:
            return jnp.argmax(worths)
        good = worths >= best - slack(earned.size.mean(0), best, self.tolerance)
        # Where all models say that the process has ended, waiting longer saves nothing (and if they err, costs more).
        good &= ~jnp.concatenate([jnp.zeros(1, bool), earned.ended.all(0)[:-1]])
        return jnp.where(good.any(), jnp.max(jnp.where(good, jnp.arange(len(worths)), 0)), jnp.argmax(worths))

    def worths(self, decision: Decision, *, key: Key[Array, ""]) -> Float[Array, " k"]:
        """What each candidate comes to, price and budget included."""
        return self._outlook(decision, key=key)[0]

    def _outlook(self, decision: Decision, *, key: Key[Array, ""]) -> tuple[Float[Array, " k"], Earned]:
        """What each candidate comes to, and what every model says is earned until then."""
        spec = self.task.spec
        grid = spec.finest * jnp.arange(1.0, round(self.taus[-1] / spec.finest) + 1)
        at = np.array([round(tau / spec.finest) - 1 for tau in self.taus])
        seen = self.lookahead.predict(decision, grid, key=key)
        each, earned = jax.vmap(partial(self._along, decision, grid))(seen)
        each, earned = jax.tree.map(lambda x: x[:, at], (each, earned))
        return self.weighed(decision, grid[at], each, each[:, 0]), earned

    def _along(
        self, decision: Decision, grid: Float[Array, " n"], seen: Float[Array, "n obs"]
    ) -> tuple[Float[Array, " n"], Earned]:
        """sum_(i <= n) gamma^(i-1) r_i + gamma^n V(s_n), on every step of one course; and what is earned until then."""
        spec = self.task.spec
        before = jnp.concatenate([decision.obs[None], seen[:-1]])
        rewards = step_rewards(self.task, before, decision.action, seen, jnp.diff(grid, prepend=0.0))
        ended = jnp.logical_or.accumulate(jax.vmap(self.task.terminal)(seen))
        alive = 1.0 - ended.astype(seen.dtype)
        was = jnp.concatenate([jnp.ones(1), alive[:-1]])
        gamma = spec.discount ** (grid / spec.tick)
        start = spec.discount ** ((grid - spec.finest) / spec.tick)
        each = start * rewards * was
        earned = Earned(jnp.cumsum(each), jnp.cumsum(jnp.abs(each)), ended)
        return earned.total + gamma * alive * self.values(decision, seen, grid), earned

    def values(self, decision: Decision, seen: Float[Array, "n obs"], taus: Float[Array, " n"]) -> Float[Array, " n"]:
        """V(s) = max_a Q(s, a) at what would be seen."""
        if self.q is None:
            raise KairodeError("this schedule has no policy yet: learn one under it, or give best_intervals a policy.")
        memory = decision.memory.inner if isinstance(decision.memory, TrackedMemory) else decision.memory
        features = jax.vmap(lambda obs, tau: self.encoder.encode(memory, obs, tau)[0])(seen, taus)
        return self.q(features).max(-1) / self.scale

    def weighed(
        self,
        decision: Decision,
        taus: Float[Array, " k"],
        each: Float[Array, "members k"],
        soonest: Float[Array, " members"],
    ) -> Float[Array, " k"]:
        """The worths of one course for each model as one, less the price, and none where the budget forbids it.

        `soonest` are those of the shortest interval: models differ in how good all is, which says nothing of when to
        look, so a quantile is one of what waiting adds to it.
        """
        if self.quantile is None:
            worth = each.mean(0)
        else:
            worth = soonest.mean() + jnp.quantile(each - soonest[:, None], self.quantile, axis=0)
        later = later_visits(self.task.spec, decision.time, taus)
        worth = worth - jnp.where(jnp.asarray(self.visit_penalty) > 0, self.visit_penalty * later, 0.0)
        if self.budget is None:
            return worth
        # After this visit so many are left, none of which can be followed by more than the longest interval. (A
        # thousandth of a tick counts as rounding at the horizon; half of it here.)
        left = self.budget - 1 - decision.count
        least = self.task.spec.horizon - decision.time - left * self.taus[-1]
        allowed = (taus >= least - 5e-4 * self.task.spec.tick) | (taus >= self.taus[-1])
        return jnp.where(allowed, worth, -jnp.inf)


def slack(size: Float[Array, " k"], best: Float[Array, ""], tolerance: float) -> Float[Array, " k"]:
    """What waiting may cost: a share of the rewards until then, tolerance * sum_(i <= tau) gamma^(i-1) |r_i|.

    These add up over the intervals of an episode, so that however many decisions it has, no more than the same share of
    all its (discounted, absolute) rewards is lost.
    """
    return tolerance * size + ROUNDING * jnp.abs(best)


def later_visits(spec: Spec, time: Tau, taus: Float[Array, " k"]) -> Float[Array, " k"]:
    """How many visits follow, each counted gamma^t, if an interval were kept until the horizon."""
    gamma = spec.discount ** (taus / spec.tick)
    if math.isinf(spec.horizon):
        return gamma / (1 - gamma)
    count = jnp.ceil((spec.horizon - time) / taus - 1e-4) - 1
    if spec.discount == 1:
        return count
    return gamma * (1 - gamma**count) / (1 - gamma)


def best_continuous(schedule: OptimizedSchedule, decision: Decision, *, key: Key[Array, ""]) -> Tau:
    """argmax_tau of the integral of gamma^t r(s_t) to tau plus gamma^tau V(s_tau), over all tau between the ends.

    The best of many points of the flow, then the best of as many between its neighbours, and so on: the flow is
    followed to every one of them.
    """
    spec = schedule.task.spec
    low, high = schedule.taus
    parts = max(16, math.ceil(2 * (high - low) / spec.finest))
    members = jax.eval_shape(lambda: schedule.lookahead.predict(decision, jnp.ones(1), key=key)).shape[0]
    here = Earned(jnp.zeros(members), jnp.zeros(members), jnp.zeros(members, bool))
    left, right = low * jnp.ones(()), high * jnp.ones(())
    _, _, found = _earned(schedule, decision, jnp.zeros(()), left, parts, here, key=key)
    here = jax.tree.map(lambda x: x[:, -1], found)
    soonest: Any = None
    best, top = left, -jnp.inf * jnp.ones(())
    for _ in range(ZOOMS):
        taus, seen, found = _earned(schedule, decision, left, right, parts, here, key=key)
        gamma = spec.discount ** (taus / spec.tick)
        values = jax.vmap(partial(schedule.values, decision), in_axes=(0, None))(seen, taus)
        each = found.total + jnp.where(found.ended, 0.0, gamma[None] * values)
        soonest = each[:, 0] if soonest is None else soonest
        worths = schedule.weighed(decision, taus, each, soonest)
        top = jnp.maximum(top, worths.max())
        k = schedule.pick(worths, found, top)
        before = jnp.maximum(k - 1, 0)
        best, here = taus[k], jax.tree.map(lambda x, i=before: x[:, i], found)
        left, right = taus[before], taus[jnp.minimum(k + 1, parts)]
        parts = 16
    return best


def _earned(
    schedule: OptimizedSchedule,
    decision: Decision,
    left: Tau,
    right: Tau,
    parts: int,
    here: Earned,
    *,
    key: Key[Array, ""],
) -> tuple[Float[Array, " n"], Course, Earned]:
    """Times from left to right, what is seen there, and what is earned up to each, from what was earned at the left.

    Rewards are a rate along the flow, integrated by Simpson's rule. What the reward of a terminal state has beyond that
    of the flow into it (a goal's bonus) is earned once, where the flow first meets it.
    """
    task, spec = schedule.task, schedule.task.spec
    fine = left + (right - left) * jnp.linspace(0.0, 1.0, 2 * parts + 1)
    # The flow cannot be asked for no time at all; nothing changes in a millionth of a step.
    seen = schedule.lookahead.predict(decision, jnp.maximum(fine, 1e-6 * spec.finest), key=key)
    gamma = spec.discount ** (fine / spec.tick)

    def one(seen: Float[Array, "n obs"], here: Earned) -> Earned:
        step = jnp.asarray(spec.finest, seen.dtype)
        reward = jax.vmap(task.reward, in_axes=(0, None, 0, None))(seen, decision.action, seen, step)
        met = jax.vmap(task.terminal)(seen)
        over = here.ended | jnp.logical_or.accumulate(met)
        first = met & ~jnp.concatenate([here.ended[None], over[:-1]])
        bonus = jnp.where(first, gamma * (reward - jnp.roll(reward, 1)), 0.0).at[0].set(0.0)
        rate = jnp.where(over, 0.0, gamma * reward / spec.finest)

        def until(rate: Array, bonus: Array) -> Array:
            piece = (rate[:-2:2] + 4 * rate[1::2] + rate[2::2]) * (right - left) / (6 * parts)
            return jnp.concatenate([jnp.zeros(1), jnp.cumsum(piece)]) + jnp.cumsum(bonus)[::2]

        size = here.size + until(jnp.abs(rate), jnp.abs(bonus))
        return Earned(here.total + until(rate, bonus), size, over[::2])

    return fine[::2], seen[:, ::2], jax.vmap(one)(seen, here)
