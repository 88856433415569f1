"""What a semi-Markov decision process is here: a task, its dynamics, and the step from one decision to the next.

Everything is written for one example; `vmap` at the call site.
"""

import abc
import dataclasses
import math
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kairode.errors import KairodeError

Obs = Float[Array, " obs"]
Action = Int[Array, ""] | Float[Array, " act"]
Tau = Float[Array, ""]
State = Any
"""Any pytree of arrays."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """One observed number."""

    name: str
    unit: str
    low: float = -math.inf
    high: float = math.inf
    relative: bool = False
    """Whether only its changes matter, to the dynamics and to the reward: a place on an endless plane."""
    log: tuple[float, float] | None = None
    """Mean and standard deviation of the log10, where the number is a quantity's standardised logarithm."""
    quantity_unit: str = ""
    """The unit of that quantity."""

    def quantity(self, values: np.ndarray) -> np.ndarray:
        """The values as people read them: the quantity behind a logarithm, all others as they are."""
        return values if self.log is None else 10.0 ** (values * self.log[1] + self.log[0])

    @property
    def read_in(self) -> str:
        """The unit that people read."""
        return self.unit if self.log is None else self.quantity_unit


@dataclasses.dataclass(frozen=True)
class Discrete:
    """One of several named actions, given by its index."""

    names: tuple[str, ...]

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.names)


@dataclasses.dataclass(frozen=True)
class Continuous:
    """A vector of named controls, each within bounds of its own."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def n(self) -> int:
        """How many controls there are."""
        return len(self.names)

    def contain(self, values: np.ndarray) -> np.ndarray:
        """Which controls (on the last axis) lie within their bounds, but for rounding."""
        slack = 1e-5 * (np.array(self.high) - np.array(self.low))
        return (values >= np.array(self.low) - slack) & (values <= np.array(self.high) + slack)


@dataclasses.dataclass(frozen=True)
class Intervals:
    """The times that may pass between two decisions, in the environment's unit of time."""

    low: float
    high: float
    step: float
    """Distance of neighbouring intervals of the environment's own schedule; 0 where they are continuous."""
    divisible: bool = True
    """Whether the dynamics can also be run for times between these (physics in whole frames cannot)."""

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.high < math.inf and self.step >= 0):
            raise KairodeError(
                f"the interval range ({self.low:g}, {self.high:g}) must satisfy 0 < low <= high, with step >= 0."
            )

    @property
    def classes(self) -> int | None:
        """How many different intervals there are; None where they are continuous."""
        return round((self.high - self.low) / self.step) + 1 if self.step else None

    @property
    def whole(self) -> bool:
        """Whether they are whole numbers."""
        return self.step == 1 and self.low == round(self.low)


MOST_DECISIONS = 1_000_000
"""Of one episode: more would not fit into memory."""
RESERVED = ("episode", "t", "action", "reward", "terminated", "truncated")
"""Columns of a table of experience that are not observations."""


def _description(default: Any) -> Any:
    """A field that describes a task for people: two tasks that differ by it alone are the same."""
    return dataclasses.field(default=default, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Spec:
    """The sizes and units of a task: all that is fixed before anything happens."""

    name: str
    observations: tuple[Variable, ...]
    actions: Discrete | Continuous
    intervals: Intervals
    time_unit: str
    """The unit of intervals, times and horizon, in words."""
    tick: float = 1.0
    """How much time models and discounts count as one: 1 unit, except acrobot's 0.2 s."""
    horizon: float = math.inf
    """An episode is truncated at the first decision at or after this time."""
    max_decisions: int | None = None
    """An episode is truncated after this many decisions; None for no such cap."""
    discount: float = 1.0
    """Gamma, per tick."""
    discounted_objective: bool = False
    """Whether policies are evaluated by the discounted return; otherwise by the return."""
    settings: tuple[tuple[str, Any], ...] = ()
    """The environment's fields, name and value: what its files remember of it."""
    decision_name: str = _description("decision")
    """What a decision of this system is called, in the singular: visit, inspection."""
    subject: str = _description("system")
    """What the system is called in a sentence, in the singular: engine, greenhouse."""
    measures: tuple[tuple[str, str], ...] = _description(())
    """Names of the conditions that `Task.measures` checks, each an adjective ("healthy") with a sentence that explains
    it."""
    regimes: tuple[str, ...] = _description(("all",))
    """Names of the regimes that `Task.regime` tells apart."""
    map_axes: tuple[str, str] | None = _description(None)
    """The two observations over which a policy is drawn; None for the first two."""

    def __post_init__(self) -> None:
        names = [variable.name for variable in self.observations]
        for name in names:
            if name in RESERVED or name.startswith("action_") or names.count(name) > 1:
                raise KairodeError(
                    f"an observation of '{self.name}' cannot be called '{name}': names differ from each other, "
                    f"from {', '.join(RESERVED)}, and do not begin with action_."
                )
        if not self.horizon > 0:
            raise KairodeError(f"horizon must be positive, got {self.horizon} for '{self.name}'.")
        if self.max_decisions is not None and not (isinstance(self.max_decisions, int) and self.max_decisions >= 1):
            raise KairodeError(
                f"max_decisions must be a whole number of at least 1, got {self.max_decisions} for '{self.name}'."
            )
        if not 0 <= self.discount <= 1:
            raise KairodeError(f"discount must lie in [0, 1], got {self.discount} for '{self.name}'.")
        if self.map_axes is not None and not (len(self.map_axes) == 2 and set(self.map_axes) <= set(names)):
            raise KairodeError(
                f"map_axes of '{self.name}' must be two of its observations ({', '.join(names)}), got {self.map_axes}."
            )

    @property
    def finest(self) -> float:
        """The shortest time over which rewards are given: the step of the intervals, or a tick."""
        return self.intervals.step or self.tick

    def longest(self, shortest_interval: float) -> int:
        """The most decisions an episode can have when no interval is shorter than this."""
        by_time = math.inf if math.isinf(self.horizon) else math.ceil(self.horizon / shortest_interval - 1e-6)
        by_count = math.inf if self.max_decisions is None else self.max_decisions
        longest = min(by_time, by_count)
        if math.isinf(longest):
            raise KairodeError(f"episodes of '{self.name}' never end: give it a horizon or max_decisions.")
        if longest > MOST_DECISIONS:
            raise KairodeError(
                f"intervals of {shortest_interval:g} {self.time_unit}s make up to {longest:,} decisions in an episode "
                f"of '{self.name}', more than {MOST_DECISIONS:,}: lengthen them or set max_decisions."
            )
        return max(int(longest), 1)


class Task(eqx.Module):
    """All that a planner may know: sizes, reward and terminal as pure functions of what is observed."""

    spec: eqx.AbstractVar[Spec]

    @abc.abstractmethod
    def reward(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """R(s, a, s', tau), what the interval tau earned."""

    @abc.abstractmethod
    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        """Whether the process ends here, looked at in decision times only."""

    def measures(self, obs: Float[Array | np.ndarray, "... obs"]) -> dict[str, Any]:
        """Optional: whether each condition named in `spec.measures` holds.

        An evaluation reports the share of the time that ended with it: {"healthy": 0.34}.
        """
        return {}

    def regime(self, obs: Float[Array | np.ndarray, "... obs"]) -> Any:
        """Optional: the index in `spec.regimes` of the regime that an observation belongs to.

        Chosen intervals are listed for each.
        """
        return jnp.zeros(obs.shape[:-1], jnp.int32)


class Environment(eqx.Module):
    """A semi-Markov decision process in pure JAX: a task and its dynamics."""

    task: eqx.AbstractVar[Task]
    deterministic: ClassVar[bool] = False
    """Whether nothing random happens between decisions (nor at the start, unless `restored` knows the state), so that a
    course can be run again."""

    @property
    def action_mode(self) -> Literal["held", "once"]:
        """How an action works: `held` throughout the interval (a treatment, a torque), or `once`, at the decision (a
        pill, an injection). A subclass sets it: `action_mode = "once"`.

        Where it is held, two intervals of tau must equal one of 2 tau, and `course` goes from one time to the next.
        Where it acts once, a second interval would repeat it, so `course` computes every time from the decision.
        """
        return "held"

    @abc.abstractmethod
    def reset(self, *, key: Key[Array, ""]) -> State:
        """A start state."""

    @abc.abstractmethod
    def observe(self, state: State) -> Obs:
        """What is seen of the state."""

    @abc.abstractmethod
    def interval(self, state: State, action: Action, *, key: Key[Array, ""]) -> Tau:
        """The environment's own schedule: the time until the next decision, p(tau | s, a)."""

    @abc.abstractmethod
    def transition(self, state: State, action: Action, tau: Tau, *, key: Key[Array, ""]) -> State:
        """The state at time tau after the decision, p(s' | s, a, tau); see `action_mode` for how the action works."""

    def restored(self, obs: Obs) -> State | None:
        """The state behind an observation; None where it does not show the state whole."""
        return None

    def course(self, state: State, action: Action, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> State:
        """The states at several times (ascending) after a decision, time in front.

        An action that acts once meets the same key at every time: each state then has its own right distribution, and
        the last is the one that `transition` reaches. Where randomness must also agree along the path, draw it for each
        step with `jax.random.fold_in(key, step)`, or write a `course` of your own.
        """
        if self.action_mode == "once":
            return jax.vmap(lambda tau: self.transition(state, action, tau, key=key))(taus)
        waits = jnp.diff(taus, prepend=0.0)

        def on(state: State, step: tuple[Tau, Key[Array, ""]]) -> tuple[State, State]:
            state = self.transition(state, action, step[0], key=step[1])
            return state, state

        return jax.lax.scan(on, state, (waits, jax.random.split(key, len(taus))))[1]

    def earned(self, moment: "Moment", action: Action, state: State, obs: Obs, tau: Tau) -> Float[Array, ""]:
        """What the interval earned that led from a moment to this state: the task's reward, of its two ends."""
        return self.task.reward(moment.obs, action, obs, tau)


class Moment(NamedTuple):
    """Where an episode stands at a decision."""

    state: Any
    obs: Any
    time: Any
    lag: Any
    """What rounding left out of the time: thousands of intervals still add up to the horizon in float32."""
    count: Any
    """Decisions taken so far."""


class Outcome(NamedTuple):
    """What one interval brought."""

    reward: Any
    tau: Any
    terminated: Any
    truncated: Any


def begin_episode(env: Environment, *, key: Key[Array, ""]) -> Moment:
    """The first moment of an episode."""
    state = env.reset(key=key)
    obs = env.observe(state)
    zero = jnp.zeros((), obs.dtype)
    return Moment(state, obs, zero, zero, jnp.zeros((), jnp.int32))


def advance_episode(
    env: Environment, moment: Moment, action: Action, tau: Tau, *, key: Key[Array, ""]
) -> tuple[Moment, Outcome]:
    """From one decision to the next, tau later."""
    task = env.task
    state = env.transition(moment.state, action, tau, key=key)
    obs = env.observe(state)
    passed = tau - moment.lag
    time = moment.time + passed
    lag, count = (time - moment.time) - passed, moment.count + 1
    terminated = task.terminal(obs)
    truncated = is_truncated(task.spec, time, count) & ~terminated
    reward = env.earned(moment, action, state, obs, tau)
    return Moment(state, obs, time, lag, count), Outcome(reward, tau, terminated, truncated)


def is_truncated(spec: Spec, time: Any, count: Any) -> Any:
    """Whether the horizon or the cap on decisions is reached (a thousandth of a tick is taken as rounding)."""
    late = time >= spec.horizon - 1e-3 * spec.tick
    return late if spec.max_decisions is None else late | (count >= spec.max_decisions)


def settings_of(env: Any) -> tuple[tuple[str, Any], ...]:
    """An environment's fields with their values."""
    return tuple((field.name, getattr(env, field.name)) for field in dataclasses.fields(env))


def decimal(x: np.ndarray) -> np.ndarray:
    """Numbers in float64 as their shortest decimal says: float32's 0.2 becomes 0.2, not 0.20000000298."""
    if x.size == 1:
        return np.full(x.shape, float(str(x.reshape(()))))
    values, where = np.unique(x, return_inverse=True)
    return np.array([float(str(value)) for value in values], np.float64)[where].reshape(x.shape)
