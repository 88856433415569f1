"""When to act: schedules chosen by models or by the true dynamics, for a price or a budget of visits.

The paper's algorithm 1: while an action is held the system passes through states that nobody looks at, and a model says
which. The best time to look again is where the rewards until then and the value from there on are largest together.
"""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from kairode.agents.encoder import IdentityEncoder, ObsEncoder, TrackingEncoder
from kairode.agents.q_policy import QPolicy
from kairode.config.planning import TOLERANCE
from kairode.data.policy import Policy
from kairode.data.rollout import rollout
from kairode.data.trajectory import Trajectory
from kairode.envs.accrual import AccruedRewards
from kairode.envs.consistency import check_course
from kairode.envs.core import Discrete, Environment, Spec, Task
from kairode.envs.schedule import Schedule, check_intervals
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import check_same
from kairode.planning.calibrate import calibrate_models
from kairode.planning.lookahead import Lookahead, ModelLookahead, TrueLookahead
from kairode.planning.model_env import ModelEnv, ensemble, make_model_env, obs_range
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.seeds import Purpose, derive

"""Share of the rewards that may be lost in exchange for fewer visits, unless another is given."""
NEAR = 0.2
"""Predictions stay within the range of the experience, widened by so many times itself."""


def optimize_schedule(
    models: DynamicsModel | Sequence[DynamicsModel] | Environment,
    policy: QPolicy | None,
    env: Environment | Task,
    *,
    price: float = 0.0,
    budget: int | None = None,
    taus: Sequence[float] | None = None,
    continuous: bool = False,
    quantile: float | None = None,
    tolerance: float = TOLERANCE,
    data: Trajectory | None = None,
    calibrate: bool | None = None,
    tried: "PenaltySweep | None" = None,
) -> OptimizedSchedule:
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
        tolerance: the share of the rewards that may be lost in exchange for fewer visits: the longest interval is
            chosen whose worth is below the best by no more than this share of the (absolute) rewards until it ends.
            Learned values are not exact, and smaller differences say nothing. Over an episode at most this share of
            all rewards is lost. Likewise a price chooses the fewest visits that the trials cannot tell from the best.
            0 chooses the best interval, as in the paper's equation.
        data: the experience of the models: predictions then stay near it.
        calibrate: correct the models' predictions by their mean error on the data (`calibrate_models`). None: where
            there are data and a tolerance.
        tried: what `frontier` found before for the same models, policy and budget, so that it is not tried again.
    """
    task = env.task if isinstance(env, Environment) else env
    if not isinstance(task, Task):
        raise KairodeError(f"{env!r} is neither an environment nor a task: give kairode.make('hiv') or its task.")
    for system in (models, env):
        if isinstance(system, Environment):
            check_course(system)
    spec = task.spec
    candidates = check_candidates(taus, spec, continuous)
    check_limits(spec, candidates[-1], price=price, budget=budget, quantile=quantile, tolerance=tolerance)
    if policy is not None:
        _check_policy(policy, spec)
    if calibrate and data is None:
        raise KairodeError("calibrate=True compares the models' predictions with real transitions: give data=...")
    wanted = tolerance > 0 if calibrate is None else calibrate
    if wanted and data is not None and not isinstance(models, Environment):
        models = calibrate_models(models, data)
    schedule = OptimizedSchedule(
        _lookahead(models, task, data),
        None if policy is None else policy.q,
        IdentityEncoder() if policy is None else policy.encoder,
        task,
        candidates,
        scale=1.0 if policy is None else policy.scale,
        price=jnp.asarray(price, jnp.float32),
        visit_penalty=jnp.zeros(()),
        budget=None if budget is None else jnp.asarray(budget, jnp.int32),
        quantile=quantile,
        continuous=continuous,
        tolerance=float(tolerance),
    )
    if policy is None or not (price or budget):
        return schedule
    if tried is None and isinstance(env, Task) and data is None:
        if budget is not None:
            raise KairodeError("what a budget is best spent on is tried in imagination: give the system, or data=...")
        return dataclasses.replace(schedule, visit_penalty=schedule.price)
    if tried is None:
        tried = sweep_penalties(schedule, policy, trial_env(models, env, data))
    visit_penalty = tried.at_price(price, errors=1.0 if tolerance and price else 0.0)
    return dataclasses.replace(schedule, visit_penalty=jnp.asarray(visit_penalty, jnp.float32))


def _check_policy(policy: Any, spec: Spec) -> None:
    if not isinstance(policy, QPolicy):
        raise KairodeError("intervals are chosen by a policy's action values: give one of kairode.learn.")
    check_same(policy.spec, spec, "policy")
    if not policy.accrues:
        warnings.warn(
            "the policy's values are of one reward a decision, not of every finest step, so that long intervals look "
            "worse than they are: learn one with kairode.learn(.., accrue=True), or under best_intervals(.., None).",
            stacklevel=3,
        )


def check_limits(
    spec: Spec, longest: float, *, price: Any = 0.0, budget: Any = None, quantile: Any = None, tolerance: Any = 0.0
) -> None:
    """Refuse a price, a budget, a quantile or a tolerance that cannot be."""
    if not isinstance(spec.actions, Discrete):
        raise KairodeError(
            f"intervals are chosen by the values of named actions so far; those of '{spec.name}' are controls."
        )
    if not (isinstance(price, int | float) and 0 <= price < math.inf):
        raise KairodeError(f"a price per visit must be a number of at least 0, got {price}.")
    if price and spec.discount == 1 and math.isinf(spec.horizon):
        raise KairodeError(f"a price needs an end or a discount, and '{spec.name}' has neither.")
    if quantile is not None and not (isinstance(quantile, int | float) and 0 <= quantile <= 1):
        raise KairodeError(f"quantile must lie in [0, 1], got {quantile}.")
    if not (isinstance(tolerance, int | float) and 0 <= tolerance <= 1):
        raise KairodeError(f"tolerance is a share of the rewards and must lie in [0, 1], got {tolerance}.")
    if budget is None:
        return
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


def check_candidates(taus: Sequence[float] | None, spec: Spec, continuous: bool = False) -> tuple[float, ...]:
    """The candidates, or those of the environment; refused where they are none."""
    own = spec.intervals
    if taus is None and continuous:
        return own.low, own.high
    if taus is None:
        first, last = math.ceil(own.low / spec.finest - 1e-6), math.floor(own.high / spec.finest + 1e-6)
        if first > last:
            raise KairodeError(
                f"no interval of '{spec.name}' is a multiple of its finest step, {spec.finest:g} {spec.time_unit}s: "
                "choose continuously."
            )
        return tuple(round(spec.finest * k, 9) for k in range(first, last + 1))
    check_intervals(list(taus), spec)
    found = tuple(float(tau) for tau in taus)
    if list(found) != sorted(set(found)):
        raise KairodeError(f"candidate intervals must ascend, each once, got {', '.join(f'{tau:g}' for tau in found)}.")
    if continuous and len(found) != 2:
        raise KairodeError(f"continuous intervals lie between two ends: give the least and the most, got {found}.")
    for tau in () if continuous else found:
        if abs(tau / spec.finest - round(tau / spec.finest)) > 1e-6:
            raise KairodeError(
                f"candidate intervals of '{spec.name}' are multiples of {spec.finest:g} {spec.time_unit}s, got "
                f"{tau:g}: for those between, choose continuously."
            )
    return found


def _lookahead(models: Any, task: Task, data: Trajectory | None) -> Lookahead:
    """From what people give."""
    if isinstance(models, AccruedRewards):
        models = models.env
    if isinstance(models, Environment):
        check_same(models.task.spec, task.spec)
        return TrueLookahead(models)
    members = [models] if isinstance(models, DynamicsModel) else list(models or ())
    if not members or not all(isinstance(model, DynamicsModel) for model in members):
        raise KairodeError("intervals are chosen by fitted models (one, or a list of them) or by the environment.")
    check_same(members[0].spec, task.spec)
    spec = dataclasses.replace(task.spec, tick=members[0].spec.tick)
    return ModelLookahead(ensemble(members, spec), None if data is None else jnp.asarray(obs_range(data, NEAR)))


def trial_env(models: Any, env: Environment | Task, data: Trajectory | None) -> Environment:
    """Where shadow prices are tried: the models' imagination, or the system where it is given in their place."""
    if isinstance(models, Environment):
        return models.env if isinstance(models, AccruedRewards) else models
    if data is None:
        return make_model_env(models, env)
    starts = None if isinstance(env, Environment) else data
    return make_model_env(models, env, starts=starts, obs_bounds=jnp.asarray(obs_range(data, NEAR)))


def accrual_setup(
    env: Environment, schedule: Schedule, encoder: ObsEncoder, scale: float
) -> tuple[Environment, Schedule, ObsEncoder]:
    """Where, when and with what eyes to practise so that rewards accrue (algorithm 1, where the schedule is chosen).

    The price of a chosen schedule is then taken from the reward, so that the values count it; its tolerance is left
    out, so that they are values of the best intervals.
    """
    place = AccruedRewards.of(env, schedule.longest(env.task.spec))
    if not isinstance(schedule, OptimizedSchedule):
        return place, schedule, encoder
    if isinstance(env, ModelEnv) and isinstance(schedule.lookahead, TrueLookahead):
        raise KairodeError(
            "the true dynamics choose intervals on the real system alone: in imagination let the models choose, "
            "best_intervals(models, ..)."
        )
    place = dataclasses.replace(place, price=schedule.price)
    free = jnp.zeros_like(schedule.visit_penalty)
    schedule = dataclasses.replace(schedule, q=None, encoder=encoder, scale=scale, visit_penalty=free, tolerance=0.0)
    if isinstance(schedule.lookahead, ModelLookahead):
        encoder = TrackingEncoder(encoder, schedule.lookahead.models)
    return place, schedule, encoder


SHADOWS = 16
"""Shadow prices tried, evenly spaced by their logarithm, from a millionth to a thousand times the free return."""


class PenaltySweep(NamedTuple):
    """What a family of schedules comes to that differ in their shadow price; means over the same episodes."""

    prices: np.ndarray
    returns: np.ndarray
    visits: np.ndarray
    weighed: np.ndarray
    """Visits, each counted gamma^t where returns are discounted: what a price is paid for."""
    each_return: np.ndarray
    """[prices, episodes]"""
    each_weighed: np.ndarray

    def at_price(self, price: float, errors: float = 0.0) -> float:
        """The shadow price that is best when each visit costs this much. The higher it is, the fewer the visits.

        With `errors`, the one with the fewest visits of those that are worse by no more than so many standard errors
        (of the difference, episode by episode): a few episodes cannot tell them apart.
        """
        net = self.returns - price * self.weighed
        best = int(np.argmax(net))
        if not errors:
            return float(self.prices[best])
        lost = (self.each_return[best] - self.each_return) - price * (self.each_weighed[best] - self.each_weighed)
        error = lost.std(axis=1, ddof=1) / np.sqrt(lost.shape[1])
        near = lost.mean(axis=1) <= errors * error + 1e-6 * abs(net[best])
        return float(self.prices[np.argmin(np.where(near, self.weighed, np.inf))])


def sweep_penalties(schedule: OptimizedSchedule, policy: QPolicy, env: Environment, episodes: int = 16) -> PenaltySweep:
    """Try shadow prices in episodes of a system, imagined or real.

    What a visit costs should be weighed against what it brings, but a policy's values do not know how many visits
    follow from a state: `later_visits` guesses. A guess that is too high makes for long waits and many repairs. So the
    price that goes into the choice is not taken at its word: a range of them is tried, within the budget if there is
    one, and what counts is what they come to.
    """
    spec = schedule.task.spec
    place = AccruedRewards.of(env, schedule.longest(spec))
    limit = spec.longest(schedule.shortest(spec))
    keys = jax.random.split(jax.random.key(derive(0, Purpose.SCHEDULE_TRIAL)), episodes)

    def outcome(price: float) -> Any:
        now = dataclasses.replace(schedule, visit_penalty=jnp.asarray(price, jnp.float32))
        return jax.device_get(_outcome(place, now.track(policy), now, keys, limit))

    free = outcome(0.0)
    prices = (abs(float(free[0])) + 1e-6) * np.logspace(-6, 3, SHADOWS)
    columns = zip(free, *map(outcome, prices), strict=True)
    return PenaltySweep(np.append(0.0, prices), *(np.array(column, np.float64) for column in columns))


@eqx.filter_jit
def _outcome(
    env: Environment, policy: Policy, schedule: Schedule, keys: Key[Array, " n"], limit: int
) -> tuple[Array, ...]:
    """Mean return, visits, and visits weighed as the return is; the first and the last of each episode."""
    spec = env.task.spec
    found = rollout(env, policy, schedule, keys, limit)
    taus = found.records.interval
    starts = jnp.cumsum(taus, axis=0) - taus
    gamma = jnp.where(taus > 0, spec.discount ** (starts / spec.tick), 0.0)
    returns, weighed = (gamma * found.records.reward).sum(0), gamma.sum(0)
    return returns.mean(), found.length.mean(), weighed.mean(), returns, weighed


def schedule_for_learning(
    models: DynamicsModel | Sequence[DynamicsModel] | Environment,
    env: Environment | Task,
    *,
    price: float = 0.0,
    taus: Sequence[float] | None = None,
    data: Trajectory | None = None,
) -> OptimizedSchedule:
    """A schedule chosen by the values of the policy that is learned under it (the paper's algorithm 1).

    For `kairode.learn(models, env, schedule=..)`; the arguments are those of `optimize_schedule`.
    """
    return optimize_schedule(models, None, env, price=price, taus=taus, tolerance=0.0, data=data)
