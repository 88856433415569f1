"""When to act: intervals chosen by what a model, or the true dynamics, says will happen until then.

The paper's algorithm 1: while an action is held the system passes through states that nobody looks at, and a model says
which. The best time to look again is where the rewards until then and the value from there on are largest together.
"""

import abc
import dataclasses
import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from kairode.agents.network import QNetwork
from kairode.agents.perception import Accompanied, Perception, Plain, Tracked, Tracking
from kairode.agents.policy import SoftGreedy
from kairode.data.policy import Policy
from kairode.data.rollout import rollout
from kairode.data.trajectory import Trajectory
from kairode.envs.accrual import Accruing, inner_state, step_rewards
from kairode.envs.core import Environment, Spec, Task, Tau
from kairode.envs.schedule import Decision, Schedule, check_intervals
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import check_same
from kairode.planning.world import World, ensemble, imagine, seen_range

Course = Float[Array, "members k obs"]
"""What would be observed at several times, as every member believes."""


class Foresight(eqx.Module):
    """What will be observed while an action is held."""

    @abc.abstractmethod
    def ahead(self, decision: Decision, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> Course:
        """Observations at several times (ascending) after a decision."""

    @abc.abstractmethod
    def follow(self, policy: Policy, spec: Spec) -> Policy:
        """The policy, remembering what is needed to look ahead."""


class Known(Foresight):
    """The true dynamics: the oracle of the paper's figure."""

    env: Environment

    def ahead(self, decision: Decision, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> Course:
        """What really would be observed."""
        states = self.env.course(inner_state(decision.state), decision.action, taus, key=key)
        return jax.vmap(self.env.observe)(states)[None]

    def follow(self, policy: Policy, spec: Spec) -> Policy:
        """Nothing is needed but the state."""
        return policy


class Believed(Foresight):
    """Fitted models, each with its latent state carried along the episode."""

    models: DynamicsModel
    """Stacked: an axis in front of every array."""
    within: Float[Array, "*agents 2 obs"] | None = None
    """Least and most that a prediction may be, as in an imagined world."""

    def ahead(self, decision: Decision, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> Course:
        """What each model says, every time within one solve."""
        if not isinstance(decision.memory, Tracked):
            raise KairodeError(
                "a schedule chosen by models follows them along the episode: use it with kairode.evaluate, "
                "kairode.collect or kairode.learn, which let the policy remember their latent states."
            )

        def along(model: DynamicsModel, z: Any) -> Array:
            return model.path(z, decision.obs, decision.action, taus)[1]

        seen = eqx.filter_vmap(along)(self.models, decision.memory.recall.z)
        if self.within is None:
            return seen
        return jnp.clip(seen, self.within[0][None, None], self.within[1][None, None])

    def follow(self, policy: Policy, spec: Spec) -> Policy:
        """The models' latent states are carried along."""
        if isinstance(policy, SoftGreedy) and isinstance(policy.perception, Tracking):
            return policy
        return Accompanied(policy, self.models, spec)


class Chosen(Schedule):
    """The interval with the largest sum of rewards until it ends and value from there on."""

    foresight: Foresight
    q: QNetwork | None
    """Action values of the policy; None while it is yet to be learned."""
    perception: Perception
    """What they are values of."""
    task: Task
    taus: tuple[float, ...] = eqx.field(static=True)
    """The candidates, ascending; the two ends where intervals are continuous."""
    scale: float = eqx.field(static=True, default=1.0)
    """What rewards were multiplied with when the values were learned."""
    price: Float[Array, "*agents"] | float = 0.0
    """Shadow price of every later visit, in the unit of the reward, beside what the values already count."""
    budget: Int[Array, "*agents"] | None = None
    """Visits in an episode, the first included."""
    quantile: float | None = eqx.field(static=True, default=None)
    """Over the models: how pessimistic to be about waiting. None for their mean."""
    continuous: bool = eqx.field(static=True, default=False)
    """Whether any interval between the two ends may be chosen."""

    def shortest(self, spec: Spec) -> float:
        """The first candidate."""
        return self.taus[0]

    def longest(self, spec: Spec) -> float:
        """The last."""
        return self.taus[-1]

    def accompany(self, policy: Any) -> Policy:
        """With what the foresight needs in its memory."""
        return self.foresight.follow(policy, self.task.spec)

    def informed(self, q: QNetwork) -> "Chosen":
        """With these action values."""
        return dataclasses.replace(self, q=q)

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """Equation (8): tau* = argmax_tau sum_i gamma^(i-1) r_i + gamma^tau Q(s_tau, a_tau)."""
        if self.continuous:
            return self.best_continuous(decision, key=key).astype(proposed.dtype)
        taus = jnp.asarray(self.taus, proposed.dtype)
        return taus[jnp.argmax(self.worths(decision, key=key))]

    def worths(self, decision: Decision, *, key: Key[Array, ""]) -> Float[Array, " k"]:
        """What each candidate comes to, price and budget included."""
        spec = self.task.spec
        grid = spec.finest * jnp.arange(1.0, round(self.taus[-1] / spec.finest) + 1)
        at = np.array([round(tau / spec.finest) - 1 for tau in self.taus])
        seen = self.foresight.ahead(decision, grid, key=key)
        each = jax.vmap(partial(self._along, decision, grid))(seen)
        return self._weighed(decision, grid[at], each[:, at])

    def _along(self, decision: Decision, grid: Float[Array, " n"], seen: Float[Array, "n obs"]) -> Float[Array, " n"]:
        """sum_(i <= n) gamma^(i-1) r_i + gamma^n V(s_n), on every step of one course."""
        spec = self.task.spec
        before = jnp.concatenate([decision.obs[None], seen[:-1]])
        rewards = step_rewards(self.task, before, decision.action, seen, jnp.diff(grid, prepend=0.0))
        alive = self._alive(seen)
        was = jnp.concatenate([jnp.ones(1), alive[:-1]])
        gamma = spec.discount ** (grid / spec.tick)
        start = spec.discount ** ((grid - spec.finest) / spec.tick)
        return jnp.cumsum(start * rewards * was) + gamma * alive * self._values(decision, seen, grid)

    def _alive(self, seen: Float[Array, "n obs"]) -> Float[Array, " n"]:
        """1 until the process ends, 0 from there on."""
        ended = jax.vmap(self.task.terminal)(seen)
        return 1.0 - jnp.logical_or.accumulate(ended).astype(seen.dtype)

    def _values(self, decision: Decision, seen: Float[Array, "n obs"], taus: Float[Array, " n"]) -> Float[Array, " n"]:
        """V(s) = max_a Q(s, a) at what would be seen."""
        if self.q is None:
            raise KairodeError("this schedule has no policy yet: learn one under it, or give best_intervals a policy.")
        memory = decision.memory.inner if isinstance(decision.memory, Tracked) else decision.memory
        features = jax.vmap(lambda obs, tau: self.perception.look(memory, obs, tau)[0])(seen, taus)
        return self.q(features).max(-1) / self.scale

    def _weighed(
        self, decision: Decision, taus: Float[Array, " k"], each: Float[Array, "members k"]
    ) -> Float[Array, " k"]:
        """The worths of one course for each model as one, less the price, and none where the budget forbids it."""
        if self.quantile is None:
            worth = each.mean(0)
        else:  # models differ in how good all is, which says nothing of when to look
            worth = each[:, 0].mean() + jnp.quantile(each - each[:, :1], self.quantile, axis=0)
        worth = worth - self.price * later_visits(self.task.spec, decision.time, taus)
        if self.budget is None:
            return worth
        # After this visit so many are left, none of which can be followed by more than the longest interval.
        left = self.budget - 1 - decision.count
        least = self.task.spec.horizon - decision.time - left * self.taus[-1]
        allowed = (taus >= least - 1e-3 * self.task.spec.tick) | (jnp.arange(len(taus)) == len(taus) - 1)
        return jnp.where(allowed, worth, -jnp.inf)

    def best_continuous(self, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """argmax_tau of the integral of gamma^t r(s_t) to tau plus gamma^tau V(s_tau), over all tau between the ends.

        The best of many points of the flow, then the best of as many between its neighbours, and so on: the flow is
        followed to every one of them.
        """
        low, high = self.taus
        parts = max(16, math.ceil(2 * (high - low) / self.task.spec.finest))
        base = jnp.zeros(self._members(decision, key))  # of the integral, at the left end of the bracket
        here = jnp.zeros(())
        if low > 0:
            base = self._integral(decision, here, low * jnp.ones(()), parts, base, key=key)[2][:, -1]
        left, right = low * jnp.ones(()), high * jnp.ones(())
        for _ in range(ZOOMS):
            taus, seen, integral = self._integral(decision, left, right, parts, base, key=key)
            gamma = self.task.spec.discount ** (taus / self.task.spec.tick)

            def value(seen: Any, taus: Any = taus, gamma: Any = gamma) -> Any:
                return gamma * self._alive(seen) * self._values(decision, seen, taus)

            worth = self._weighed(decision, taus, integral + jax.vmap(value)(seen))
            k = jnp.argmax(worth)
            best = taus[k]
            base = integral[:, jnp.maximum(k - 1, 0)]
            left, right = taus[jnp.maximum(k - 1, 0)], taus[jnp.minimum(k + 1, parts)]
            parts = 16
        return best

    def _members(self, decision: Decision, key: Key[Array, ""]) -> int:
        return jax.eval_shape(lambda: self.foresight.ahead(decision, jnp.ones(1), key=key)).shape[0]

    def _integral(
        self,
        decision: Decision,
        left: Tau,
        right: Tau,
        parts: int,
        base: Float[Array, " members"],
        *,
        key: Key[Array, ""],
    ) -> tuple[Float[Array, " n"], Course, Float[Array, "members n"]]:
        """Times from left to right, what is seen there, and the integral of gamma^t r(s_t) up to each (Simpson)."""
        spec = self.task.spec
        fine = left + (right - left) * jnp.linspace(0.0, 1.0, 2 * parts + 1)
        # The flow cannot be asked for no time at all; nothing changes in a millionth of a step.
        seen = self.foresight.ahead(decision, jnp.maximum(fine, 1e-6 * spec.finest), key=key)

        def rates(seen: Float[Array, "n obs"]) -> Float[Array, " n"]:
            reward = jax.vmap(self.task.reward, in_axes=(0, None, 0, None))
            per_step = reward(seen, decision.action, seen, jnp.asarray(spec.finest, seen.dtype))
            return per_step / spec.finest * spec.discount ** (fine / spec.tick) * self._alive(seen)

        rate = jax.vmap(rates)(seen)
        piece = (rate[:, :-2:2] + 4 * rate[:, 1::2] + rate[:, 2::2]) * (right - left) / (6 * parts)
        integral = jnp.concatenate([base[:, None], base[:, None] + jnp.cumsum(piece, axis=1)], axis=1)
        return fine[::2], seen[:, ::2], integral


ZOOMS = 5
"""Rounds of refinement: each narrows the bracket eight times."""


def later_visits(spec: Spec, time: Tau, taus: Float[Array, " k"]) -> Float[Array, " k"]:
    """How many visits follow, each counted gamma^t, if an interval were kept until the horizon."""
    gamma = spec.discount ** (taus / spec.tick)
    if math.isinf(spec.horizon):
        return gamma / (1 - gamma)
    count = jnp.ceil((spec.horizon - time) / taus - 1e-4) - 1
    if spec.discount == 1:
        return count
    return gamma * (1 - gamma**count) / (1 - gamma)


def accruing(
    env: Environment, schedule: Schedule, perception: Perception, scale: float
) -> tuple[Environment, Schedule, Perception]:
    """Where, when and with what eyes to practise so that rewards accrue (algorithm 1, where the schedule is chosen).

    The price of a chosen schedule is then taken from the reward, so that the values count it.
    """
    place = Accruing.of(env, schedule.longest(env.task.spec))
    if not isinstance(schedule, Chosen):
        return place, schedule, perception
    place = dataclasses.replace(place, price=schedule.price)
    free = jnp.zeros_like(schedule.price)
    schedule = dataclasses.replace(schedule, q=None, perception=perception, scale=scale, price=free)
    if isinstance(schedule.foresight, Believed):
        perception = Tracking(perception, schedule.foresight.models)
    return place, schedule, perception


def best_intervals(
    models: DynamicsModel | Sequence[DynamicsModel] | Environment,
    policy: SoftGreedy | None,
    env: Environment | Task,
    *,
    price: float = 0.0,
    budget: int | None = None,
    taus: Sequence[float] | None = None,
    continuous: bool = False,
    quantile: float | None = None,
    data: Trajectory | None = None,
) -> Chosen:
    """The schedule that a model chooses for a policy: `kairode.best_intervals(model, policy, env.task, price=2e4)`.

    The values of the policy must be of rewards on every finest step (each day of HIV): those of a policy learned with
    `accrue=True`, or for the finest interval. Give the schedule to `kairode.evaluate`, `collect` or `learn`.

    Args:
        models: one fitted model, or several of one kind, of which the mean counts; or the environment itself, for the
            schedule that the true dynamics would choose.
        policy: whose values count; None for a schedule to learn a policy under (algorithm 1).
        env: the system or its task. A budget needs the system, or `data`, for where episodes start.
        price: of a visit, in the unit of the reward. What it comes to is tried in the models' imagination (on the
            system itself, where that is given in their place); with a task alone there is nowhere to try it, and each
            interval is weighed as if it were kept from then on.
        budget: visits in an episode: no episode has more, whatever happens. Which are worth it is tried likewise.
        taus: candidates, ascending multiples of the finest step; the environment's intervals by default. With
            `continuous` the least and the most.
        continuous: choose among all intervals between the least and the most, not the candidates alone.
        quantile: with several models, wait only as long as this quantile of them finds good: 0.1 is cautious, 0.5 the
            median; None takes the mean.
        data: the experience of the models: predictions then stay near it.
    """
    task = env.task if isinstance(env, Environment) else env
    if not isinstance(task, Task):
        raise KairodeError(f"{env!r} is neither an environment nor a task: give kairode.make('hiv') or its task.")
    spec = task.spec
    foresight = _foresight(models, task, data)
    candidates = check_candidates(taus, spec, continuous)
    if not (isinstance(price, int | float) and 0 <= price < math.inf):
        raise KairodeError(f"a price per visit must be a number of at least 0, got {price}.")
    if price and spec.discount == 1 and math.isinf(spec.horizon):
        raise KairodeError(f"a price needs an end or a discount, and '{spec.name}' has neither.")
    if quantile is not None and not (isinstance(quantile, int | float) and 0 <= quantile <= 1):
        raise KairodeError(f"quantile must lie in [0, 1], got {quantile}.")
    if policy is not None and not isinstance(policy, SoftGreedy):
        raise KairodeError("intervals are chosen by a policy's action values: give one of kairode.learn.")
    if policy is not None:
        check_same(policy.spec, spec, "policy")
        if not policy.accrues:
            warnings.warn(
                "the policy's values are of one reward a decision, not of every finest step, so that long intervals "
                "look worse than they are: learn one with kairode.learn(.., accrue=True), or under best_intervals(.., "
                "None, ..).",
                stacklevel=2,
            )
    schedule = Chosen(
        foresight,
        None if policy is None else policy.q,
        Plain() if policy is None else policy.perception,
        task,
        candidates,
        scale=1.0 if policy is None else policy.scale,
        price=jnp.asarray(price, jnp.float32),
        quantile=quantile,
        continuous=continuous,
    )
    if budget is not None:
        check_budget(budget, spec, candidates[-1])
        schedule = dataclasses.replace(schedule, budget=jnp.asarray(budget, jnp.int32))
    startless = isinstance(env, Task) and data is None
    if policy is None or (startless and budget is None) or not (price or budget):
        return schedule
    tried = frontier(schedule, policy, models if isinstance(models, Environment) else _imagined(models, env, data))
    return dataclasses.replace(schedule, price=jnp.asarray(tried.at_price(price), jnp.float32))


NEAR = 0.2
"""Predictions stay within the range of the experience, widened by so many times itself."""


def _foresight(models: Any, task: Task, data: Trajectory | None) -> Foresight:
    """From what people give."""
    if isinstance(models, Environment):
        check_same(models.task.spec, task.spec)
        return Known(models)
    members = [models] if isinstance(models, DynamicsModel) else list(models or ())
    if not members or not all(isinstance(model, DynamicsModel) for model in members):
        raise KairodeError("intervals are chosen by fitted models (one, or a list of them) or by the environment.")
    check_same(members[0].spec, task.spec)
    spec = dataclasses.replace(task.spec, tick=members[0].spec.tick)
    return Believed(ensemble(members, spec), None if data is None else jnp.asarray(seen_range(data, NEAR)))


def _imagined(models: Any, env: Environment | Task, data: Trajectory | None) -> World:
    """Where a budget's price is found."""
    if data is None:
        return imagine(models, env)
    starts = None if isinstance(env, Environment) else data
    return imagine(models, env, starts=starts, within=jnp.asarray(seen_range(data, NEAR)))


def check_candidates(taus: Sequence[float] | None, spec: Spec, continuous: bool = False) -> tuple[float, ...]:
    """The candidates, or those of the environment; refused where they are none."""
    own = spec.intervals
    if taus is None:
        if continuous:
            return own.low, own.high
        count = round((own.high - own.low) / spec.finest) + 1
        return tuple(round(own.low + k * spec.finest, 9) for k in range(count))
    check_intervals(list(taus), spec)
    found = tuple(float(tau) for tau in taus)
    if list(found) != sorted(set(found)):
        raise KairodeError(f"candidate intervals must ascend, each once, got {', '.join(f'{tau:g}' for tau in found)}.")
    if continuous and len(found) != 2:
        raise KairodeError(f"continuous intervals lie between two ends: give the least and the most, got {found}.")
    if not continuous:
        for tau in found:
            if abs(tau / spec.finest - round(tau / spec.finest)) > 1e-6:
                raise KairodeError(
                    f"candidate intervals of '{spec.name}' are multiples of {spec.finest:g} {spec.time_unit}s, "
                    f"got {tau:g}: for those between, choose continuously."
                )
    return found


def check_budget(budget: Any, spec: Spec, longest: float) -> None:
    """Refuse one that no schedule can keep to."""
    if not (isinstance(budget, int | np.integer) and not isinstance(budget, bool) and budget >= 1):
        raise KairodeError(f"a budget of visits must be a whole number of at least 1, got {budget}.")
    if math.isinf(spec.horizon):
        raise KairodeError(f"episodes of '{spec.name}' have no horizon that a budget of visits could cover.")
    least = math.ceil(spec.horizon / longest - 1e-6)
    if budget < least:
        raise KairodeError(
            f"{budget} visits cannot cover {spec.horizon:g} {spec.time_unit}s with intervals of at most {longest:g}: "
            f"at least {least} are needed, or longer intervals."
        )


PRICES = 16
"""Shadow prices tried, evenly spaced by their logarithm, from a millionth to a thousand times the value at a start."""


class Frontier(NamedTuple):
    """What a family of schedules comes to that differ in their shadow price; means over the same episodes."""

    prices: np.ndarray
    returns: np.ndarray
    visits: np.ndarray
    weighed: np.ndarray
    """Visits, each counted gamma^t where returns are discounted: what a price is paid for."""

    def at_price(self, price: float) -> float:
        """The shadow price that is best when each visit costs this much. The higher it is, the fewer the visits."""
        return float(self.prices[np.argmax(self.returns - price * self.weighed)])


def frontier(schedule: Chosen, policy: SoftGreedy, env: Environment, episodes: int = 16) -> Frontier:
    """Try shadow prices in episodes of a system, imagined or real.

    What a visit costs should be weighed against what it brings, but a policy's values do not know how many visits
    follow from a state: `later_visits` guesses. A guess that is too high makes for long waits and many repairs. So the
    price that goes into the choice is not taken at its word: a range of them is tried, within the budget if there is
    one, and what counts is what they come to.
    """
    spec = schedule.task.spec
    place = Accruing.of(env, schedule.longest(spec))
    limit = spec.longest(schedule.shortest(spec))
    keys = jax.random.split(jax.random.key(7), episodes)
    first = env.observe(env.reset(key=keys[0]))
    worth = abs(float(policy.value(first))) + 1e-6
    prices = np.append(0.0, worth * np.logspace(-6, 3, PRICES))
    found = []
    for price in prices:
        now = dataclasses.replace(schedule, price=jnp.asarray(price, jnp.float32))
        found.append(_outcome(place, now.accompany(policy), now, keys, limit))
    returns, visits, weighed = np.array(jax.device_get(found), np.float64).T
    return Frontier(prices, returns, visits, weighed)


@eqx.filter_jit
def _outcome(
    env: Environment, policy: Policy, schedule: Schedule, keys: Key[Array, " n"], limit: int
) -> tuple[Array, Array, Array]:
    """Mean return, visits, and visits weighed as the return is."""
    spec = env.task.spec
    found = rollout(env, policy, schedule, keys, limit)
    taus = found.records.interval
    starts = jnp.cumsum(taus, axis=0) - taus
    gamma = jnp.where(taus > 0, spec.discount ** (starts / spec.tick), 0.0)
    return (gamma * found.records.reward).sum(0).mean(), found.length.mean(), gamma.sum(0).mean()
