"""Schedules chosen by models or by the true dynamics, with a price or a budget of decisions.

The paper's algorithm 1: a model predicts the states that the system passes through while an action is held. The next
decision is taken where the rewards until then plus the value from there on are largest.
"""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from kairode.agents.encoder import IdentityEncoder, ObsEncoder, TrackingEncoder
from kairode.agents.q_policy import QPolicy
from kairode.config.planning import TOLERANCE
from kairode.data.trajectory import Trajectory
from kairode.envs.accrual import AccruedRewards
from kairode.envs.consistency import check_course
from kairode.envs.core import Discrete, Environment, Spec, Task
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import Schedule, check_intervals
from kairode.errors import KairodeError, KairodeWarning
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import check_same
from kairode.planning.calibrate import calibrate_model
from kairode.planning.learned_task import system_task
from kairode.planning.lookahead import Lookahead, ModelLookahead, TrueLookahead
from kairode.planning.model_env import ModelEnv, ensemble, make_model_env, obs_range, task_of
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.planning.penalties import PenaltySweep, sweep_penalties
from kairode.planning.table_task import warn_of_accrual

NEAR = 0.2
"""Predictions are clipped to the range of the data, widened by this multiple of its width."""


def optimize_schedule(
    models: DynamicsModel | Sequence[DynamicsModel] | Environment,
    policy: QPolicy,
    env: Environment | HostEnvironment | Task,
    *,
    price: float = 0.0,
    budget: int | None = None,
    candidates: Sequence[float] | None = None,
    continuous: bool = False,
    quantile: float | None = None,
    tolerance: float = TOLERANCE,
    data: Trajectory | None = None,
    calibrate: bool | None = None,
    tried: PenaltySweep | None = None,
) -> OptimizedSchedule:
    """Choose intervals with a model: `kairode.optimize_schedule(model, policy, env.task, price=2e4)`.

    The policy's values must count rewards on every finest time step (each day for HIV): learn it with `accrue=True`, or
    on the finest fixed schedule. Pass the schedule to `kairode.evaluate`, `collect` or `learn`.

    Args:
        models: a fitted model, or several of one kind whose mean is used; or the environment itself, for the schedule
            of the true dynamics.
        policy: the policy whose values are used (while it is still being learned: `schedule_for_learning`).
        env: the system or its task. A budget needs the system, or `data`, for the initial states.
        price: cost of a decision, in units of reward. Its effect is simulated in the models (or in the system, if that
            is passed in their place). With a task alone there is nothing to simulate, and each interval is valued as if
            it were kept from then on.
        budget: maximum number of decisions per episode, simulated in the same way.
        candidates: intervals to choose from, ascending multiples of the finest time step; the environment's intervals
            by default. With `continuous`, the minimum and the maximum.
        continuous: choose from all intervals between minimum and maximum rather than from candidates.
        quantile: with several models, value waiting by this quantile over them: 0.1 is cautious, 0.5 the median; None
            takes the mean.
        tolerance: fraction of the rewards that may be lost in exchange for fewer decisions. The longest interval is
            chosen whose value is below the best by at most this fraction of the (absolute) rewards until its end:
            learned values are not exact, and smaller differences are not significant. An episode loses at most this
            fraction of its rewards. Likewise a price selects the fewest decisions that the simulated episodes cannot
            distinguish from the best. 0 chooses the best interval, as in the paper's equation.
        data: training data of the models: predictions are bounded to its range.
        calibrate: correct the models' predictions by their mean error on the data (`calibrate_model`). None: if there
            are data and a tolerance.
        tried: an earlier `sweep_penalties` for the same models, policy and budget, to be reused.
    """
    if isinstance(env, HostEnvironment):
        env = system_task(env, data)
    task = _check_systems(models, env)
    spec = task.spec
    intervals = check_candidates(candidates, spec, continuous)
    check_limits(spec, intervals[-1], price=price, budget=budget, quantile=quantile, tolerance=tolerance)
    _check_policy(policy, spec)
    if calibrate and data is None:
        raise KairodeError("calibrate=True compares the models' predictions with real transitions: pass data=...")
    if data is not None and not isinstance(models, Environment) and (tolerance > 0 if calibrate is None else calibrate):
        models = [calibrate_model(model, data) for model in _members(models)]
    schedule = dataclasses.replace(
        _new_schedule(models, task, intervals, price, budget, data),
        q=policy.q,
        encoder=policy.encoder,
        scale=policy.scale,
        quantile=quantile,
        continuous=continuous,
        tolerance=float(tolerance),
    )
    if not (price or budget):
        return schedule
    if tried is None and isinstance(env, Task) and data is None:
        if budget is not None:
            raise KairodeError("a budget needs simulated episodes: pass the system, or data=...")
        return dataclasses.replace(schedule, decision_penalty=schedule.price)
    if tried is None:
        tried = sweep_penalties(schedule, policy, trial_env(models, env, data))
    decision_penalty = tried.at_price(price, errors=1.0 if tolerance and price else 0.0)
    return dataclasses.replace(schedule, decision_penalty=jnp.asarray(decision_penalty, jnp.float32))


def schedule_for_learning(
    models: DynamicsModel | Sequence[DynamicsModel] | Environment,
    env: Environment | HostEnvironment | Task,
    *,
    price: float = 0.0,
    budget: int | None = None,
    candidates: Sequence[float] | None = None,
    data: Trajectory | None = None,
) -> OptimizedSchedule:
    """A schedule chosen by the values of the policy that is being learned under it (the paper's algorithm 1).

    For `kairode.learn(models, env, schedule=..)`; the arguments are those of `optimize_schedule`. Intervals are those
    of the paper's equation, without a tolerance; the price is subtracted from the rewards while learning.
    """
    if isinstance(env, HostEnvironment):
        env = system_task(env, data)
    task = _check_systems(models, env)
    intervals = check_candidates(candidates, task.spec)
    check_limits(task.spec, intervals[-1], price=price, budget=budget)
    return _new_schedule(models, task, intervals, price, budget, data)


def _new_schedule(
    models: Any, task: Task, candidates: tuple[float, ...], price: float, budget: int | None, data: Trajectory | None
) -> OptimizedSchedule:
    """A schedule without a policy."""
    return OptimizedSchedule(
        _lookahead(models, task, data),
        None,
        IdentityEncoder(),
        task,
        candidates,
        price=jnp.asarray(price, jnp.float32),
        decision_penalty=jnp.zeros(()),
        budget=None if budget is None else jnp.asarray(budget, jnp.int32),
    )


def _check_systems(models: Any, env: Any) -> Task:
    """The task, if there is one; systems must give courses that agree with their transitions."""
    task = task_of(env)
    for system in (models, env):
        if isinstance(system, Environment):
            check_course(system)
    warn_of_accrual(task)
    return task


def _check_policy(policy: Any, spec: Spec) -> None:
    if not isinstance(policy, QPolicy):
        raise KairodeError("intervals are chosen by a policy's action values: pass a policy of kairode.learn.")
    check_same(policy.spec, spec, "policy")
    if not policy.accrues:
        warnings.warn(
            "the policy's values count one reward per decision, not one per finest time step, so long intervals "
            "look worse than they are: use kairode.learn(.., accrue=True), or learn under "
            "schedule_for_learning(..).",
            KairodeWarning,
            stacklevel=3,
        )


def check_limits(
    spec: Spec, longest: float, *, price: Any = 0.0, budget: Any = None, quantile: Any = None, tolerance: Any = 0.0
) -> None:
    """Raise for an invalid price, budget, quantile or tolerance."""
    if not isinstance(spec.actions, Discrete):
        raise KairodeError(f"optimized schedules need discrete actions; those of '{spec.name}' are continuous.")
    if not (isinstance(price, int | float) and 0 <= price < math.inf):
        raise KairodeError(f"price must be at least 0, got {price}.")
    if price and spec.discount == 1 and math.isinf(spec.horizon):
        raise KairodeError(f"a price needs a finite horizon or a discount below 1; '{spec.name}' has neither.")
    if quantile is not None and not (isinstance(quantile, int | float) and 0 <= quantile <= 1):
        raise KairodeError(f"quantile must lie in [0, 1], got {quantile}.")
    if not (isinstance(tolerance, int | float) and 0 <= tolerance <= 1):
        raise KairodeError(f"tolerance must lie in [0, 1] (a fraction of the rewards), got {tolerance}.")
    if budget is None:
        return
    if not (isinstance(budget, int | np.integer) and not isinstance(budget, bool) and budget >= 1):
        raise KairodeError(f"budget must be an integer of at least 1, got {budget}.")
    if math.isinf(spec.horizon):
        raise KairodeError(f"a budget needs a finite horizon; '{spec.name}' has none.")
    least = math.ceil(spec.horizon / longest - 1e-6)
    if budget < least:
        raise KairodeError(
            f"a budget of {budget} cannot cover {spec.horizon:g} {spec.time_unit}s with intervals of at most "
            f"{longest:g}: increase it to at least {least}, or allow longer intervals."
        )


def check_candidates(candidates: Sequence[float] | None, spec: Spec, continuous: bool = False) -> tuple[float, ...]:
    """The candidates, or the environment's intervals; raises if they are invalid."""
    own = spec.intervals
    if candidates is None and continuous:
        return own.low, own.high
    if candidates is None:
        first, last = math.ceil(own.low / spec.finest - 1e-6), math.floor(own.high / spec.finest + 1e-6)
        if first > last:
            raise KairodeError(
                f"no interval of '{spec.name}' is a multiple of its finest time step, {spec.finest:g} "
                f"{spec.time_unit}s: use continuous=True."
            )
        if spec.finest * first > own.low * (1 + 1e-6):
            warnings.warn(
                f"intervals of '{spec.name}' are chosen among multiples of its finest time step, {spec.finest:g} "
                f"{spec.time_unit}s, so the shortest is {spec.finest * first:g}, not {own.low:g}: set step of its "
                "Intervals or tick of its Spec, pass candidates=.., or use continuous=True.",
                KairodeWarning,
                stacklevel=3,
            )
        return tuple(round(spec.finest * k, 9) for k in range(first, last + 1))
    check_intervals(list(candidates), spec)
    found = tuple(float(tau) for tau in candidates)
    if list(found) != sorted(set(found)):
        raise KairodeError(
            f"candidate intervals must be strictly ascending, got {', '.join(f'{tau:g}' for tau in found)}."
        )
    if continuous and len(found) != 2:
        raise KairodeError(f"with continuous=True, candidates must be the minimum and the maximum, got {found}.")
    for tau in () if continuous else found:
        if abs(tau / spec.finest - round(tau / spec.finest)) > 1e-6:
            raise KairodeError(
                f"candidate intervals of '{spec.name}' must be multiples of {spec.finest:g} {spec.time_unit}s, got "
                f"{tau:g}: for others, use continuous=True."
            )
    return found


def _lookahead(models: Any, task: Task, data: Trajectory | None) -> Lookahead:
    if isinstance(models, AccruedRewards):
        models = models.env
    if isinstance(models, Environment):
        check_same(models.task.spec, task.spec)
        return TrueLookahead(models)
    members = _members(models)
    check_same(members[0].spec, task.spec)
    spec = dataclasses.replace(task.spec, tick=members[0].spec.tick)
    return ModelLookahead(ensemble(members, spec), None if data is None else jnp.asarray(obs_range(data, NEAR)))


def _members(models: Any) -> list[DynamicsModel]:
    members = [models] if isinstance(models, DynamicsModel) else list(models or ())
    if not members or not all(isinstance(model, DynamicsModel) for model in members):
        raise KairodeError("pass a fitted model, a list of them, or the environment to choose intervals with.")
    return members


def trial_env(models: Any, env: Environment | Task, data: Trajectory | None) -> Environment:
    """Where decision penalties are simulated: a model environment, or the system if it is passed for `models`."""
    if isinstance(models, Environment):
        return models.env if isinstance(models, AccruedRewards) else models
    if data is None:
        return make_model_env(models, env)
    starts = None if isinstance(env, Environment) else data
    return make_model_env(models, env, starts=starts, obs_bounds=jnp.asarray(obs_range(data, NEAR)))


def accrual_setup(
    env: Environment, schedule: Schedule, encoder: ObsEncoder, scale: float
) -> tuple[Environment, Schedule, ObsEncoder]:
    """Environment, schedule and encoder for learning from accrued rewards (algorithm 1 if the schedule is optimised).

    An optimized schedule's price is subtracted from the reward, so that the values include it; its tolerance is set to
    0, so that they are the values of the best intervals.
    """
    place = AccruedRewards.of(env, schedule.longest(env.task.spec))
    if not isinstance(schedule, OptimizedSchedule):
        return place, schedule, encoder
    if isinstance(env, ModelEnv) and isinstance(schedule.lookahead, TrueLookahead):
        raise KairodeError(
            "the true dynamics can choose intervals only on the real system: in a model environment use "
            "optimize_schedule(models, ..)."
        )
    place = dataclasses.replace(place, price=schedule.price)
    free = jnp.zeros_like(schedule.decision_penalty)
    schedule = dataclasses.replace(schedule, q=None, encoder=encoder, scale=scale, decision_penalty=free, tolerance=0.0)
    if isinstance(schedule.lookahead, ModelLookahead):
        encoder = TrackingEncoder(encoder, schedule.lookahead.models)
    return place, schedule, encoder
