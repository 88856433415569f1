"""When the next decision is due: the environment's own schedule, a fixed interval, or given ones."""

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
    """What a schedule may look at: the decision just taken."""

    obs: Any
    action: Any
    time: Any
    count: Any
    """Decisions taken before it."""
    memory: Any = ()
    """What the policy remembers, such as a latent state."""
    state: Any = ()
    """The state behind what is observed: only a schedule that knows the true dynamics looks at it."""


class Schedule(eqx.Module):
    """Decides how long the action just chosen is held."""

    @abc.abstractmethod
    def shortest(self, spec: Spec) -> float:
        """A lower bound on its intervals: it bounds the number of decisions in an episode."""

    @abc.abstractmethod
    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """The interval, given the one that the environment's own rule proposes."""

    def longest(self, spec: Spec) -> float:
        """An upper bound on its intervals."""
        return spec.intervals.high

    def track(self, policy: Any) -> Any:
        """The policy, remembering along its episodes what this schedule needs to see in its memory."""
        return policy

    def accrued(self) -> bool:
        """Whether what it comes to is counted on every finest step, unless said otherwise."""
        return False

    def with_q(self, q: Any) -> "Schedule":
        """The schedule when these are the action values, for one that is chosen by them while they are learned."""
        return self


class Own(Schedule):
    """The environment's own rule."""

    def shortest(self, spec: Spec) -> float:
        """The lower end of the environment's range."""
        return spec.intervals.low

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """What the environment proposes."""
        return proposed


class Fixed(Schedule):
    """The same interval always."""

    tau: float | Float[Array, ""]

    def __check_init__(self) -> None:
        if isinstance(self.tau, int | float):
            check_intervals(self.tau)

    def shortest(self, spec: Spec) -> float:
        """The interval itself."""
        return float(self.tau)

    def longest(self, spec: Spec) -> float:
        """The same."""
        return float(self.tau)

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """The fixed interval, whatever is proposed."""
        return jnp.asarray(self.tau, proposed.dtype)


class FixedOrOwn(Schedule):
    """A fixed interval, or the environment's own rule where it is 0: schedules that differ in a number alone."""

    tau: Float[Array, "*agents"]
    least: float = eqx.field(static=True)
    """No interval is shorter."""

    def shortest(self, spec: Spec) -> float:
        """As announced."""
        return self.least

    def longest(self, spec: Spec) -> float:
        """The longest of them, or the environment's own."""
        return max(float(jnp.max(self.tau)), spec.intervals.high)

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """The fixed one, or what the environment proposes."""
        return jnp.where(self.tau > 0, self.tau, proposed)


class Given(Schedule):
    """A list of intervals taken in order, from the start again after the last."""

    taus: tuple[float, ...] = eqx.field(converter=lambda taus: tuple(float(tau) for tau in taus))

    def __check_init__(self) -> None:
        check_intervals(self.taus)

    def shortest(self, spec: Spec) -> float:
        """The shortest of them."""
        return min(self.taus)

    def longest(self, spec: Spec) -> float:
        """The longest of them."""
        return max(self.taus)

    def interval(self, proposed: Tau, decision: Decision, *, key: Key[Array, ""]) -> Tau:
        """The one whose turn it is."""
        return jnp.asarray(self.taus, proposed.dtype)[decision.count % len(self.taus)]


def as_schedule(schedule: Schedule | float | Sequence[Any] | np.ndarray | str | None, spec: Spec) -> Schedule:
    """A schedule from what people write: None or "own", a number, a list of numbers, or a schedule."""
    if schedule is None or (isinstance(schedule, str) and schedule == "own"):
        return Own()
    if isinstance(schedule, Schedule):
        found = schedule
    elif isinstance(schedule, int | float | np.number):
        found = Fixed(float(schedule))
    elif isinstance(schedule, Sequence | np.ndarray) and not isinstance(schedule, str):
        check_intervals(schedule, spec)
        found = Given(tuple(map(float, schedule)))
    else:
        raise KairodeError(
            f"'{schedule}' is no schedule for '{spec.name}': give 'own', an interval in {spec.time_unit}s such as 5, "
            "or a list of intervals (a Gymnasium environment also takes 'agent')."
        )
    if isinstance(found, Fixed):
        check_intervals(found.tau, spec)
    elif isinstance(found, Given):
        check_intervals(found.taus, spec)
    return found


def check_intervals(taus: object, spec: Spec | None = None) -> None:
    """Refuse intervals that no time can take, and fractions of a frame where physics has frames."""
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
            raise KairodeError(f"an interval{where} must be a whole number of {spec.time_unit}s, got {value:g}.")


def next_interval(
    env: Environment, schedule: Schedule, moment: Moment, action: Action, memory: Any = (), *, key: Key[Array, ""]
) -> Tau:
    """The time until the next decision, as the schedule says."""
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
    """Hold the action for `tau` (default: as the schedule says), then observe: the step of every compiled loop.

    The first of the keys is the interval's, the second the transition's. Where the episode is not `going`, no time
    passes.
    """
    if tau is None:
        tau = next_interval(env, schedule, moment, action, memory, key=keys[0])
    if going is not None:
        tau = jnp.where(going, tau, 0.0)
    return advance_episode(env, moment, action, tau, key=keys[1])
