"""The schedule of the paper's algorithm 1: the interval that maximises rewards until its end plus value after it."""

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
"""Refinements of a continuous choice; each narrows the bracket eightfold."""

ROUNDING = 1e-6
"""Relative difference below which values are equal in single precision."""


class PredictedRewards(NamedTuple):
    """Rewards accrued up to several times according to every model, and whether the process had terminated by then."""

    total: Any
    """Discounted rewards."""
    size: Any
    """Discounted absolute rewards."""
    ended: Any


class OptimizedSchedule(Schedule):
    """Chooses the interval that maximises the rewards until its end plus the value after it."""

    lookahead: Lookahead
    q: ReLUNetwork | None
    """Action values of the policy; None until it is learned."""
    encoder: ObsEncoder
    """Encoder of the features of `q`."""
    task: Task
    taus: tuple[float, ...] = eqx.field(static=True)
    """Candidates, ascending; minimum and maximum if `continuous`."""
    scale: float = eqx.field(static=True, default=1.0)
    """Factor of the rewards during training."""
    price: Float[Array, "*agents"] | float = 0.0
    """Price per decision, in units of reward, that a policy learned under this schedule pays."""
    decision_penalty: Float[Array, "*agents"] | float = 0.0
    """Penalty per later decision in the choice, on top of what the values include."""
    budget: Int[Array, "*agents"] | None = None
    """Decisions per episode, the first included."""
    quantile: float | None = eqx.field(static=True, default=None)
    """Quantile over the models of the benefit of waiting; None for the mean."""
    continuous: bool = eqx.field(static=True, default=False)
    """Whether any interval between minimum and maximum may be chosen."""
    tolerance: float = eqx.field(static=True, default=0.0)
    """Fraction of the rewards that may be lost in exchange for fewer decisions: the longest candidate is chosen whose
    value is within `allowed_loss` of the best. 0 for the best candidate, the paper's equation."""

    def shortest(self, spec: Spec) -> float:
        return self.taus[0]

    def longest(self, spec: Spec) -> float:
        return self.taus[-1]

    def track(self, policy: Any) -> Policy:
        return self.lookahead.track(policy, self.task.spec)

    def with_q(self, q: ReLUNetwork) -> "OptimizedSchedule":
        return dataclasses.replace(self, q=q)

    def accrued(self) -> bool:
        return True

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """tau* = argmax_tau sum_(i <= tau) gamma^(i-1) r_i + gamma^tau Q(s_tau, a_tau), the paper's equation.

        With a tolerance, the longest tau whose value is within it of the largest.
        """
        if self.continuous:
            return best_continuous(self, decision, key=key).astype(proposed.dtype)
        values, predicted = self._predict_candidates(decision, key=key)
        return jnp.asarray(self.taus, proposed.dtype)[self.pick(values, predicted, values.max())]

    def pick(self, values: Float[Array, " k"], predicted: PredictedRewards, best: Float[Array, ""]) -> Int[Array, ""]:
        """Index of the longest interval within the tolerance of the best one; of equal ones for a tolerance of 0."""
        lost = allowed_loss(predicted.size.mean(0), best, self.tolerance) if self.tolerance else 0.0
        good = values >= best - lost
        # Once all models predict termination, waiting longer saves no decision, and costs more if they are wrong.
        good &= ~jnp.concatenate([jnp.zeros(1, bool), predicted.ended.all(0)[:-1]])
        return jnp.where(good.any(), jnp.max(jnp.where(good, jnp.arange(len(values)), 0)), jnp.argmax(values))

    def candidate_values(self, decision: Decision, *, key: Key[Array, ""]) -> Float[Array, " k"]:
        """Value of each candidate, including penalty and budget."""
        return self._predict_candidates(decision, key=key)[0]

    def _predict_candidates(
        self, decision: Decision, *, key: Key[Array, ""]
    ) -> tuple[Float[Array, " k"], PredictedRewards]:
        """Value of each candidate, and the rewards every model predicts until then."""
        spec = self.task.spec
        grid = spec.finest * jnp.arange(1.0, round(self.taus[-1] / spec.finest) + 1)
        at = np.array([round(tau / spec.finest) - 1 for tau in self.taus])
        seen = self.lookahead.predict(decision, grid, key=key)
        each, predicted = jax.vmap(partial(self._along, decision, grid))(seen)
        each, predicted = jax.tree.map(lambda x: x[:, at], (each, predicted))
        return self.combine_models(decision, grid[at], each, each[:, 0]), predicted

    def _along(
        self, decision: Decision, grid: Float[Array, " n"], seen: Float[Array, "n obs"]
    ) -> tuple[Float[Array, " n"], PredictedRewards]:
        """sum_(i <= n) gamma^(i-1) r_i + gamma^n V(s_n) at every step of a predicted path; also the rewards until
        then."""
        spec = self.task.spec
        before = jnp.concatenate([decision.obs[None], seen[:-1]])
        rewards = step_rewards(self.task, before, decision.action, seen, jnp.diff(grid, prepend=0.0))
        ended = jnp.logical_or.accumulate(jax.vmap(self.task.terminal)(seen))
        alive = 1.0 - ended.astype(seen.dtype)
        was = jnp.concatenate([jnp.ones(1), alive[:-1]])
        gamma = spec.discount ** (grid / spec.tick)
        start = spec.discount ** ((grid - spec.finest) / spec.tick)
        each = start * rewards * was
        predicted = PredictedRewards(jnp.cumsum(each), jnp.cumsum(jnp.abs(each)), ended)
        return predicted.total + gamma * alive * self.values(decision, seen, grid), predicted

    def values(self, decision: Decision, seen: Float[Array, "n obs"], taus: Float[Array, " n"]) -> Float[Array, " n"]:
        """V(s) = max_a Q(s, a) of predicted observations."""
        if self.q is None:
            raise KairodeError(
                "this schedule has no policy yet: learn one under it, or pass a policy to optimize_schedule."
            )
        memory = decision.memory.inner if isinstance(decision.memory, TrackedMemory) else decision.memory
        features = jax.vmap(lambda obs, tau: self.encoder.encode(memory, obs, tau)[0])(seen, taus)
        return self.q(features).max(-1) / self.scale

    def combine_models(
        self,
        decision: Decision,
        taus: Float[Array, " k"],
        each: Float[Array, "members k"],
        soonest: Float[Array, " members"],
    ) -> Float[Array, " k"]:
        """Combine the models' values: mean or quantile, minus the penalty, -inf where the budget forbids the interval.

        `soonest` are the values of the shortest interval. Models differ in their overall level of value, which is
        irrelevant to timing, so the quantile is taken of the benefit of waiting relative to `soonest`.
        """
        if self.quantile is None:
            value = each.mean(0)
        else:
            value = soonest.mean() + jnp.quantile(each - soonest[:, None], self.quantile, axis=0)
        later = later_decisions(self.task.spec, decision.time, taus)
        value = value - jnp.where(jnp.asarray(self.decision_penalty) > 0, self.decision_penalty * later, 0.0)
        if self.budget is None:
            return value
        # Decisions left after this one; each is followed by at most the longest interval. (A
        # thousandth of a tick counts as rounding at the horizon; half of it here.)
        left = self.budget - 1 - decision.count
        least = self.task.spec.horizon - decision.time - left * self.taus[-1]
        allowed = (taus >= least - 5e-4 * self.task.spec.tick) | (taus >= self.taus[-1])
        return jnp.where(allowed, value, -jnp.inf)


def allowed_loss(size: Float[Array, " k"], best: Float[Array, ""], tolerance: float) -> Float[Array, " k"]:
    """Value that may be given up for waiting: tolerance * sum_(i <= tau) gamma^(i-1) |r_i|.

    Summed over the intervals of an episode this is at most the fraction `tolerance` of its discounted absolute rewards,
    whatever the number of decisions.
    """
    return tolerance * size + ROUNDING * jnp.abs(best)


def later_decisions(spec: Spec, time: Tau, taus: Float[Array, " k"]) -> Float[Array, " k"]:
    """Number of later decisions, each weighted by gamma^t, if an interval were kept until the horizon."""
    gamma = spec.discount ** (taus / spec.tick)
    if math.isinf(spec.horizon):
        return gamma / (1 - gamma)
    count = jnp.ceil((spec.horizon - time) / taus - 1e-4) - 1
    if spec.discount == 1:
        return count
    return gamma * (1 - gamma**count) / (1 - gamma)


def best_continuous(schedule: OptimizedSchedule, decision: Decision, *, key: Key[Array, ""]) -> Tau:
    """argmax_tau of the integral of gamma^t r(s_t) to tau plus gamma^tau V(s_tau), for tau between minimum and maximum.

    Grid search with repeated refinement between the neighbours of the best point; each grid is integrated exactly.
    """
    spec = schedule.task.spec
    low, high = schedule.taus
    parts = max(16, math.ceil(2 * (high - low) / spec.finest))
    members = jax.eval_shape(lambda: schedule.lookahead.predict(decision, jnp.ones(1), key=key)).shape[0]
    here = PredictedRewards(jnp.zeros(members), jnp.zeros(members), jnp.zeros(members, bool))
    left, right = low * jnp.ones(()), high * jnp.ones(())
    _, _, found = _predict_rewards(schedule, decision, jnp.zeros(()), left, parts, here, key=key)
    here = jax.tree.map(lambda x: x[:, -1], found)
    soonest: Any = None
    best, top = left, -jnp.inf * jnp.ones(())
    for _ in range(ZOOMS):
        taus, seen, found = _predict_rewards(schedule, decision, left, right, parts, here, key=key)
        gamma = spec.discount ** (taus / spec.tick)
        final = jax.vmap(partial(schedule.values, decision), in_axes=(0, None))(seen, taus)
        each = found.total + jnp.where(found.ended, 0.0, gamma[None] * final)
        soonest = each[:, 0] if soonest is None else soonest
        values = schedule.combine_models(decision, taus, each, soonest)
        top = jnp.maximum(top, values.max())
        k = schedule.pick(values, found, top)
        before = jnp.maximum(k - 1, 0)
        best, here = taus[k], jax.tree.map(lambda x, i=before: x[:, i], found)
        left, right = taus[before], taus[jnp.minimum(k + 1, parts)]
        parts = 16
    return best


def _predict_rewards(
    schedule: OptimizedSchedule,
    decision: Decision,
    left: Tau,
    right: Tau,
    parts: int,
    here: PredictedRewards,
    *,
    key: Key[Array, ""],
) -> tuple[Float[Array, " n"], Course, PredictedRewards]:
    """Times from left to right, predicted observations, and rewards up to each time, starting from those at the left.

    Rewards are a rate along the path, integrated by Simpson's rule. The excess reward of a terminal state (a goal's
    bonus) is added once, where the path first reaches it.
    """
    task, spec = schedule.task, schedule.task.spec
    fine = left + (right - left) * jnp.linspace(0.0, 1.0, 2 * parts + 1)
    # A flow over zero time is not defined; a millionth of a step changes nothing.
    seen = schedule.lookahead.predict(decision, jnp.maximum(fine, 1e-6 * spec.finest), key=key)
    gamma = spec.discount ** (fine / spec.tick)

    def one(seen: Float[Array, "n obs"], here: PredictedRewards) -> PredictedRewards:
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
        return PredictedRewards(here.total + until(rate, bonus), size, over[::2])

    return fine[::2], seen[:, ::2], jax.vmap(one)(seen, here)
