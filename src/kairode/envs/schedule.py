"""Schedules: the environment's own, a fixed interval, or a list of intervals."""

import abc
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from kairode.envs.core import Action, Environment, Moment, Outcome, Spec, Tau, advance_episode
from kairode.errors import KairodeError


class Decision(NamedTuple):
    """The decision just taken, as passed to a schedule."""

    obs: Any
    action: Any
    time: Any
    count: Any
    """Decisions taken before it."""
    memory: Any = ()
    """The policy's memory, such as a latent state."""
    state: Any = ()
    """The true state; used only by schedules of the true dynamics."""


class Schedule(eqx.Module):
    """Sets how long the chosen action is held."""

    @abc.abstractmethod
    def shortest(self, spec: Spec) -> float:
        """Lower bound of its intervals; it bounds the number of decisions per episode."""

    @abc.abstractmethod
    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """The interval, given the one proposed by the environment's own schedule."""

    def longest(self, spec: Spec) -> float:
        """Upper bound of its intervals."""
        return spec.intervals.high

    def track(self, policy: Any) -> Any:
        """The policy, with a memory that holds what this schedule needs."""
        return policy

    def accrued(self) -> bool:
        """Whether returns under this schedule are accrued by default."""
        return False

    def with_q(self, q: Any) -> "Schedule":
        """The schedule for new action values, if it depends on those of the policy being learned."""
        return self


class Own(Schedule):
    """The environment's own schedule."""

    def shortest(self, spec: Spec) -> float:
        return spec.intervals.low

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        return proposed


class Fixed(Schedule):
    """A constant interval."""

    tau: float | Float[Array, ""]

    def __check_init__(self) -> None:
        if isinstance(self.tau, int | float):
            check_intervals(self.tau)

    def shortest(self, spec: Spec) -> float:
        return float(self.tau)

    def longest(self, spec: Spec) -> float:
        return float(self.tau)

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        return jnp.asarray(self.tau, proposed.dtype)


class FixedOrOwn(Schedule):
    """A fixed interval, or the environment's own schedule if it is 0: schedules that differ only in a number."""

    tau: Float[Array, "*agents"]
    least: float = eqx.field(static=True)
    """Lower bound of its intervals."""

    def shortest(self, spec: Spec) -> float:
        return self.least

    def longest(self, spec: Spec) -> float:
        """The longest of them, or the environment's own."""
        return max(float(jnp.max(self.tau)), spec.intervals.high)

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        return jnp.where(self.tau > 0, self.tau, proposed)


class Given(Schedule):
    """A list of intervals, repeated from the start after the last."""

    taus: tuple[float, ...] = eqx.field(converter=lambda taus: tuple(float(tau) for tau in taus))

    def __check_init__(self) -> None:
        check_intervals(self.taus)

    def shortest(self, spec: Spec) -> float:
        return min(self.taus)

    def longest(self, spec: Spec) -> float:
        return max(self.taus)

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        return jnp.asarray(self.taus, proposed.dtype)[decision.count % len(self.taus)]


def as_schedule(schedule: Schedule | float | Sequence[Any] | np.ndarray | str | None, spec: Spec) -> Schedule:
    """Convert None or "own", a number, a list of numbers, or a `Schedule` to a schedule."""
    if schedule is None or (isinstance(schedule, str) and schedule == "own"):
        return Own()
    if isinstance(schedule, int | float | np.number):
        schedule = Fixed(float(schedule))
    elif isinstance(schedule, Sequence | np.ndarray) and not isinstance(schedule, str):
        check_intervals(schedule, spec)
        schedule = Given(tuple(map(float, schedule)))
    elif not isinstance(schedule, Schedule):
        raise KairodeError(
            f"'{schedule}' is not a schedule for '{spec.name}': use 'own', an interval in {spec.time_unit}s such "
            "as 5, or a list of intervals (a Gymnasium environment also takes 'agent')."
        )
    if isinstance(schedule, Fixed | Given):
        check_intervals(schedule.tau if isinstance(schedule, Fixed) else schedule.taus, spec)
    return schedule


def check_intervals(taus: object, spec: Spec | None = None) -> None:
    """Raise for intervals that are not positive and finite, or not whole frames where the physics needs them."""
    where = f" of '{spec.name}'" if spec else ""
    try:
        values = np.atleast_1d(np.asarray(taus, np.float64))
    except (TypeError, ValueError) as error:
        raise KairodeError(f"intervals{where} must be numbers, got {taus!r}.") from error
    if values.size == 0:
        raise KairodeError(f"the schedule{where} is empty: give at least one interval.")
    for value in values.ravel():
        if not 0 < value < math.inf:
            raise KairodeError(f"an interval{where} must be a positive, finite time, got {value:g}.")
        if spec and value > max(spec.horizon, spec.intervals.high):
            raise KairodeError(
                f"an interval{where} must not be longer than an episode, {spec.horizon:g} {spec.time_unit}s, "
                f"got {value:g}."
            )
        if spec and not spec.intervals.divisible and value != round(value):
            raise KairodeError(f"an interval{where} must be an integer number of {spec.time_unit}s, got {value:g}.")


def next_interval(
    env: Environment, schedule: Schedule, moment: Moment, action: Action, memory: Any = (), *, key: Key[Array, ""]
) -> Tau:
    """Time to the next decision under a schedule."""
    own_key, schedule_key = jax.random.split(key)
    proposed = env.interval(moment.state, action, key=own_key)
    decision = Decision(moment.obs, action, moment.time, moment.count, memory, moment.state)
    return schedule.interval(proposed, decision, key=schedule_key)


def hold(
    env: Environment,
    schedule: Schedule,
    moment: Moment,
    action: Action,
    memory: Any = (),
    *,
    keys: Key[Array, "2"],
    tau: Tau | None = None,
    going: Bool[Array, ""] | None = None,
) -> tuple[Moment, Outcome]:
    """Hold the action for `tau` (default: set by the schedule), then observe: the step of every compiled loop.

    The first key is for the interval, the second for the transition. If the episode is not `going`, no time passes.
    """
    if tau is None:
        tau = next_interval(env, schedule, moment, action, memory, key=keys[0])
    if going is not None:
        tau = jnp.where(going, tau, 0.0)
    return advance_episode(env, moment, action, tau, key=keys[1])
