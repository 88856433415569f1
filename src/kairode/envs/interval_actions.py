"""The interval as a part of the action: an agent that chooses what to do and for how long, and pays for each decision.

Time-adaptive control (TaCoS; Treven et al., NeurIPS 2024): with the duration in the action, any learner of a process in
discrete time chooses intervals too. Here DQN chooses among all pairs of an action and an interval, and an actor-critic
sets the interval by one more control. It is the alternative to intervals chosen by a model (`optimize_schedule`).
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from kairode.envs.accrual import AccruedRewards, AccruedState
from kairode.envs.consistency import check_course
from kairode.envs.core import (
    Action,
    Continuous,
    Discrete,
    Environment,
    Intervals,
    Moment,
    Obs,
    Spec,
    State,
    Task,
    Tau,
    Variable,
    is_truncated,
)
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import check_intervals
from kairode.errors import KairodeError

INTERVAL = "interval"
"""Name of the control that sets the interval."""
DECISIONS_LEFT = Variable("decisions_left", "fraction of max_decisions", 0.0, 1.0)
TIME_PASSED = Variable("time_passed", "fraction of the horizon", 0.0, 1.0)
"""Observed where the number of decisions is bounded: the best choice then depends on both."""


def split_product(choice: Any, intervals: tuple[float, ...]) -> tuple[Any, Any]:
    """Action and interval of an index of their product, a |intervals| + i. NumPy or JAX."""
    kind = _library(choice)
    return choice // len(intervals), kind.asarray(intervals, np.float32)[choice % len(intervals)]


def split_controls(choice: Any, low: float, high: float, whole: float = 0.0) -> tuple[Any, Any]:
    """Controls and interval of a vector (last axis) that ends with the interval; multiples of `whole` if it is not 0.
    NumPy or JAX."""
    kind = _library(choice)
    tau = kind.clip(choice[..., -1], low, high)
    return choice[..., :-1], kind.rint(tau / whole) * whole if whole else tau


def within_bound(tau: Any, time: Any, later: Any, horizon: float, longest: float) -> Any:
    """The interval, lengthened where `later` decisions of the longest interval would not reach the horizon. NumPy or
    JAX."""
    kind = _library(tau)
    return kind.maximum(tau, kind.clip(horizon - time - later * longest, 0.0, longest))


def _library(x: Any) -> Any:
    return jnp if isinstance(x, jax.Array) else np


class CountedState(NamedTuple):
    """A state of the environment, and the decisions taken so far."""

    inner: Any
    count: Any

    @property
    def disagreement(self) -> Any:
        """That of a model environment."""
        return self.inner.disagreement


class IntervalTask(Task):
    """The environment's task, for actions that hold an interval: rewards are those of the action alone."""

    spec: Spec = eqx.field(static=True)
    task: Task
    """The environment's own."""
    intervals: tuple[float, ...] = eqx.field(static=True)

    def decode(self, choice: Any) -> tuple[Any, Any]:
        """The action of the environment, and the interval. NumPy or JAX."""
        if isinstance(self.task.spec.actions, Discrete):
            return split_product(choice, self.intervals)
        own, (low, high) = self.task.spec.intervals, self.intervals
        return split_controls(choice, low, high, 0.0 if own.divisible else own.step)

    def reward(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """The environment's reward of an interval, without a price."""
        return self.task.reward(self._own(obs), self.decode(action)[0], self._own(next_obs), tau)

    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        return self.task.terminal(self._own(obs))

    def end_probability(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""] | None:
        return self.task.end_probability(self._own(obs), self.decode(action)[0], self._own(next_obs), tau)

    def measures(self, obs: Float[Array | np.ndarray, "... obs"]) -> dict[str, Any]:
        return self.task.measures(self._own(obs))

    def regime(self, obs: Float[Array | np.ndarray, "... obs"]) -> Any:
        return self.task.regime(self._own(obs))

    def _own(self, obs: Any) -> Any:
        return obs[..., : len(self.task.spec.observations)]


class IntervalActions(Environment):
    """Wraps an environment so that the agent chooses the interval: `IntervalActions(kairode.make("hiv"), (1, 3, 7))`.

    Discrete actions become all pairs of an action and an interval; continuous ones get one more control, the interval.
    The reward is counted on every finest time step while an action is held (`AccruedRewards`), so that longer intervals
    can be compared with shorter ones, minus the price of the decision. Pass it to `kairode.learn` or
    `kairode.train_mpc`, around the system or around a model environment.
    """

    env: Environment
    intervals: tuple[float, ...] = eqx.field(static=True)
    """Discrete actions: the intervals to choose among, ascending; by default all of the environment's. Continuous
    actions: the shortest and the longest; by default the environment's."""
    price: float = eqx.field(static=True)
    """Subtracted from the reward at each decision."""
    max_decisions: int | None = eqx.field(static=True)
    """Bound of the decisions in an episode; None for none. An interval is lengthened where the decisions left could not
    reach the horizon otherwise, and the fractions of decisions left and of time passed are observed. The episode
    terminates at the horizon: nothing is earned after it."""

    def __init__(
        self,
        env: Environment | HostEnvironment,
        intervals: Sequence[float] | None = None,
        price: float = 0.0,
        max_decisions: int | None = None,
    ) -> None:
        self.env = _checked_env(env)
        self.intervals = _checked_intervals(intervals, self.env.task.spec)
        self.price = _checked_price(price)
        self.max_decisions = _checked_bound(max_decisions, self.env.task.spec, self.intervals[-1])
        check_course(self.env)

    @property
    def action_mode(self) -> Any:
        return self.env.action_mode

    @property
    def loops(self) -> bool:
        return self.env.loops

    @property
    def task(self) -> IntervalTask:
        inner = self.env.task
        return IntervalTask(_spec(inner.spec, self.intervals, self.price, self.max_decisions), inner, self.intervals)

    def around(self, env: Environment) -> "IntervalActions":
        """The same choices around another environment, such as a model environment of this one."""
        return IntervalActions(env, self.intervals, self.price, self.max_decisions)

    def reset(self, *, key: Key[Array, ""]) -> AccruedState:
        return _counted(self._place.reset(key=key), jnp.zeros((), jnp.int32))

    def observe(self, state: AccruedState) -> Obs:
        obs = self.env.observe(state.inner.inner)
        if self.max_decisions is None:
            return obs
        left = 1.0 - state.inner.count / self.max_decisions
        fractions = [jnp.maximum(left, 0.0)]
        if math.isfinite(horizon := self.env.task.spec.horizon):
            fractions.append(jnp.minimum(state.time / horizon, 1.0))
        return jnp.concatenate([obs, jnp.stack(fractions).astype(obs.dtype)])

    def interval(self, state: AccruedState, action: Action, *, key: Key[Array, ""]) -> Tau:
        """The interval in the action."""
        tau = self.task.decode(action)[1].astype(state.time.dtype)
        horizon = self.env.task.spec.horizon
        if self.max_decisions is None or math.isinf(horizon):
            return tau
        later = self.max_decisions - 1 - state.inner.count
        return within_bound(tau, state.time, later, horizon, self.intervals[-1])

    def transition(self, state: AccruedState, action: Action, tau: Tau, *, key: Key[Array, ""]) -> AccruedState:
        after = self._place.transition(_uncounted(state), self.task.decode(action)[0], tau, key=key)
        return _counted(after, state.inner.count + 1)

    def course(self, state: AccruedState, action: Action, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> State:
        along = self._place.course(_uncounted(state), self.task.decode(action)[0], taus, key=key)
        return _counted(along, jnp.full(taus.shape, state.inner.count + 1))

    def halted(self, state: AccruedState) -> Any:
        """With a bound, the episode terminates at its end rather than being truncated: decisions and time left are
        observed, so that there is no value after it."""
        found = self.env.halted(state.inner.inner)
        if self.max_decisions is None:
            return found
        spec = self.env.task.spec
        over = is_truncated(dataclasses.replace(spec, max_decisions=self.max_decisions), state.time, state.inner.count)
        return over if found is None else over | found

    def earned(self, moment: Moment, action: Action, state: AccruedState, obs: Obs, tau: Tau) -> Float[Array, ""]:
        return state.earned

    @property
    def _place(self) -> AccruedRewards:
        return AccruedRewards(self.env.task, self.env, self.intervals[-1], self.price)


def _counted(state: AccruedState, count: Any) -> AccruedState:
    return state._replace(inner=CountedState(state.inner, count))


def _uncounted(state: AccruedState) -> AccruedState:
    return state._replace(inner=state.inner.inner)


def _spec(inner: Spec, intervals: tuple[float, ...], price: float, bound: int | None) -> Spec:
    shown = () if bound is None else (DECISIONS_LEFT,) if math.isinf(inner.horizon) else (DECISIONS_LEFT, TIME_PASSED)
    limits = [limit for limit in (inner.max_decisions, bound) if limit is not None]
    settings = (("agent_intervals", intervals), ("decision_price", price), ("decision_bound", bound))
    return dataclasses.replace(
        inner,
        observations=(*inner.observations, *shown),
        actions=_choices(inner, intervals),
        intervals=dataclasses.replace(inner.intervals, low=intervals[0], high=intervals[-1]),
        max_decisions=min(limits, default=None),
        settings=(*inner.settings, *settings),
    )


def _choices(spec: Spec, intervals: tuple[float, ...]) -> Discrete | Continuous:
    own = spec.actions
    if isinstance(own, Continuous):
        return Continuous((*own.names, INTERVAL), (*own.low, intervals[0]), (*own.high, intervals[-1]))
    lengths = [f"{tau:g} {spec.time_unit}{'s' * (tau != 1)}" for tau in intervals]
    return Discrete(tuple(f"{name} for {length}" for name in own.names for length in lengths))


def _checked_env(env: Any) -> Environment:
    if isinstance(env, HostEnvironment):
        raise KairodeError(
            f"'{env.task.spec.name}' runs on the host and does not report its states between decisions, so rewards "
            "cannot be counted while an action is held: IntervalActions needs a kairode.Environment."
        )
    if not isinstance(env, Environment):
        raise KairodeError(f"{env!r} is not an environment: pass e.g. kairode.make('hiv').")
    if isinstance(env, IntervalActions | AccruedRewards):
        raise KairodeError(
            f"{type(env).__name__} counts accrued rewards already: pass the environment itself to IntervalActions."
        )
    spec = env.task.spec
    taken = {variable.name for variable in spec.observations} & {DECISIONS_LEFT.name, TIME_PASSED.name}
    taken |= {INTERVAL} & set(spec.actions.names if isinstance(spec.actions, Continuous) else ())
    if taken:
        raise KairodeError(f"'{spec.name}' has a variable or control called '{min(taken)}' already: rename it.")
    return env


def _checked_intervals(given: Sequence[float] | None, spec: Spec) -> tuple[float, ...]:
    """The intervals to choose among, or the shortest and the longest."""
    own, discrete = spec.intervals, isinstance(spec.actions, Discrete)
    if given is None:
        return _multiples(own, spec) if discrete else (own.low, own.high)
    try:
        found = tuple(float(tau) for tau in given)
    except (TypeError, ValueError) as error:
        raise KairodeError(f"intervals of IntervalActions must be a list of numbers, got {given!r}.") from error
    shown = ", ".join(f"{tau:g}" for tau in found)
    if not found:
        raise KairodeError("intervals of IntervalActions are empty: give at least one, or None for the environment's.")
    check_intervals(found, spec)
    if any(later <= earlier for earlier, later in itertools.pairwise(found)):
        raise KairodeError(f"intervals of IntervalActions must be strictly ascending, got {shown}.")
    if not discrete and len(found) != 2:
        raise KairodeError(
            f"the actions of '{spec.name}' are continuous, so its intervals are the shortest and the longest, such as "
            f"({own.low:g}, {own.high:g}), got {shown}."
        )
    for tau in found if discrete and own.step else ():
        if abs(tau / own.step - round(tau / own.step)) > 1e-6:
            raise KairodeError(
                f"intervals of '{spec.name}' must be multiples of {own.step:g} {spec.time_unit}s, its finest time "
                f"step, got {tau:g}."
            )
    return found


def _multiples(own: Intervals, spec: Spec) -> tuple[float, ...]:
    """All multiples of the finest time step within the environment's intervals."""
    first, last = math.ceil(own.low / spec.finest - 1e-6), math.floor(own.high / spec.finest + 1e-6)
    if first > last:
        raise KairodeError(
            f"no interval of '{spec.name}' is a multiple of its finest time step, {spec.finest:g} {spec.time_unit}s: "
            "give the intervals to choose among."
        )
    return tuple(round(spec.finest * k, 9) for k in range(first, last + 1))


def _checked_price(price: Any) -> float:
    if isinstance(price, bool) or not (isinstance(price, int | float | np.number) and 0 <= price < math.inf):
        raise KairodeError(f"price must be a number of at least 0 (reward per decision), got {price!r}.")
    return float(price)


def _checked_bound(bound: Any, spec: Spec, longest: float) -> int | None:
    if bound is None:
        return None
    if isinstance(bound, bool) or not (isinstance(bound, int | np.integer) and bound >= 1):
        raise KairodeError(f"max_decisions must be an integer of at least 1, got {bound!r}.")
    if math.isfinite(spec.horizon) and bound < (least := math.ceil(spec.horizon / longest - 1e-6)):
        raise KairodeError(
            f"{bound} decisions cannot cover {spec.horizon:g} {spec.time_unit}s with intervals of at most {longest:g}: "
            f"increase max_decisions to at least {least}, or allow longer intervals."
        )
    return int(bound)
