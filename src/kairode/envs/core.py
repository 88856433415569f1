"""The definition of a semi-Markov decision process: a task, its dynamics, and the step between decisions.

Everything is written for one example; `vmap` at the call site.
"""

import abc
import dataclasses
import functools
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
    """An observed variable."""

    name: str
    unit: str
    low: float = -math.inf
    high: float = math.inf
    relative: bool = False
    """Whether only its changes matter, to dynamics and reward, such as a position on an infinite plane."""
    log: tuple[float, float] | None = None
    """Mean and standard deviation of the log10, if the variable is a standardised logarithm of a quantity."""
    quantity_unit: str = ""
    """Unit of that quantity."""

    def quantity(self, values: np.ndarray) -> np.ndarray:
        """The quantity behind a standardised logarithm; other values unchanged."""
        with np.errstate(over="ignore"):  # of outliers
            return values if self.log is None else 10.0 ** (values * self.log[1] + self.log[0])

    @property
    def read_in(self) -> str:
        """Unit of `quantity`."""
        return self.unit if self.log is None else self.quantity_unit


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Discrete actions, given by index."""

    names: tuple[str, ...]

    @property
    def n(self) -> int:
        """Number of actions."""
        return len(self.names)


@dataclasses.dataclass(frozen=True)
class Continuous:
    """A vector of named actions, each with its own bounds."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def n(self) -> int:
        """Number of actions."""
        return len(self.names)

    @functools.cached_property
    def accepted(self) -> tuple[list[float], list[float]]:
        """The bounds, widened by what rounding may add."""
        low, high = np.array(self.low), np.array(self.high)
        slack = 1e-5 * (high - low)
        return (low - slack).tolist(), (high + slack).tolist()

    def contain(self, values: np.ndarray) -> np.ndarray:
        """Mask of the actions (last axis) within their bounds, up to rounding."""
        low, high = map(np.array, self.accepted)
        return (values >= low) & (values <= high)


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Possible times between two decisions, in the environment's unit of time.

    Args:
        low: the shortest.
        high: the longest.
        step: distance between intervals of the environment's own schedule; 0 if they are continuous. A positive step is
            also the finest time step: rewards accrue on it, and decision times are multiples of it.
        divisible: whether the dynamics can be run for other times too (not for physics in whole frames).
    """

    low: float
    high: float
    step: float = 0.0
    divisible: bool = True

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.high < math.inf and self.step >= 0):
            raise KairodeError(
                f"the interval range ({self.low:g}, {self.high:g}) must satisfy 0 < low <= high, with step >= 0."
            )

    @property
    def classes(self) -> int | None:
        """Number of different intervals; None if they are continuous."""
        return round((self.high - self.low) / self.step) + 1 if self.step else None

    @property
    def whole(self) -> bool:
        """Whether all intervals are integers."""
        return self.step == 1 and self.low == round(self.low)


MOST_DECISIONS = 1_000_000
"""Maximum per episode: more would not fit into memory."""
TERMINATION = 0x7E121
"""Folded into a step's key to draw its termination: far from the numbers of what a transition splits it into."""
RESERVED = ("episode", "t", "action", "reward", "terminated", "truncated")
"""Table columns that are not observations."""


def _description(default: Any) -> Any:
    """A field that describes a task to readers and is ignored when tasks are compared."""
    return dataclasses.field(default=default, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Spec:
    """Sizes and units of a task.

    Args:
        name: of the environment.
        observations: the observed variables.
        actions: `Discrete` or `Continuous`.
        intervals: possible times between two decisions.
        time_unit: unit of intervals, times and horizon, as a word: "day".
        tick: unit of time of models and discounts, in `time_unit`: 1, except for acrobot's 0.2 s. If `intervals.step`
            is 0 it is also the finest time step, on which rewards accrue and of which decision times are multiples.
        horizon: an episode is truncated at the first decision at or after this time.
        max_decisions: an episode is truncated after this many decisions; None for no such cap.
        discount: gamma, per tick.
        discounted_objective: whether policies are evaluated by the discounted return; otherwise by the return.
        settings: the environment's fields, name and value, stored in its files: `settings_of(self)`.
        decision_name: what a decision is called, in the singular: visit, inspection.
        subject: what the system is called, in the singular: engine, greenhouse.
        measures: conditions checked by `Task.measures`: an adjective ("healthy") and a sentence that explains it.
        regimes: names of the regimes of `Task.regime`.
        map_axes: two observations over which a policy is plotted; None for the first two.
        reward_expression: the reward as an expression of observations and actions, of data from a table.
        action_values: of columns of a table that the expression uses, the value of each discrete action.
        notes: what `kairode.load_table` did to the table that the data are from.
        categories: names of the categories of each such column of a table, encoded as variables COLUMN=CATEGORY.
    """

    name: str
    observations: tuple[Variable, ...]
    actions: Discrete | Continuous
    intervals: Intervals
    time_unit: str
    tick: float = 1.0
    horizon: float = math.inf
    max_decisions: int | None = None
    discount: float = 1.0
    discounted_objective: bool = False
    settings: tuple[tuple[str, Any], ...] = ()
    reward_expression: str | None = None
    action_values: tuple[tuple[str, tuple[float, ...]], ...] = ()
    decision_name: str = _description("decision")
    subject: str = _description("system")
    measures: tuple[tuple[str, str], ...] = _description(())
    regimes: tuple[str, ...] = _description(("all",))
    map_axes: tuple[str, str] | None = _description(None)
    notes: tuple[str, ...] = _description(())
    categories: tuple[tuple[str, tuple[str, ...]], ...] = _description(())

    def __post_init__(self) -> None:
        names = [variable.name for variable in self.observations]
        for name in names:
            if name in RESERVED or name.startswith("action_") or names.count(name) > 1:
                raise KairodeError(
                    f"an observation of '{self.name}' cannot be called '{name}': names must be unique, not start with "
                    f"action_, and not be one of {', '.join(RESERVED)}."
                )
        if not self.horizon > 0:
            raise KairodeError(f"horizon must be positive, got {self.horizon} for '{self.name}'.")
        if self.max_decisions is not None and not (isinstance(self.max_decisions, int) and self.max_decisions >= 1):
            raise KairodeError(
                f"max_decisions must be an integer of at least 1, got {self.max_decisions} for '{self.name}'."
            )
        if not 0 <= self.discount <= 1:
            raise KairodeError(f"discount must lie in [0, 1], got {self.discount} for '{self.name}'.")
        if self.map_axes is not None and not (len(self.map_axes) == 2 and set(self.map_axes) <= set(names)):
            raise KairodeError(
                f"map_axes of '{self.name}' must be two of its observations ({', '.join(names)}), got {self.map_axes}."
            )

    @property
    def finest(self) -> float:
        """Shortest time over which rewards are given: the step of the intervals, or a tick."""
        return self.intervals.step or self.tick

    def longest(self, shortest_interval: float) -> int:
        """Maximum number of decisions per episode if no interval is shorter than this."""
        by_time = math.inf if math.isinf(self.horizon) else math.ceil(self.horizon / shortest_interval - 1e-6)
        by_count = math.inf if self.max_decisions is None else self.max_decisions
        longest = min(by_time, by_count)
        if math.isinf(longest):
            raise KairodeError(f"episodes of '{self.name}' never end: give it a horizon or max_decisions.")
        if longest > MOST_DECISIONS:
            raise KairodeError(
                f"intervals of {shortest_interval:g} {self.time_unit}s allow up to {longest:,} decisions per episode "
                f"of '{self.name}', more than {MOST_DECISIONS:,}: use longer intervals or set max_decisions."
            )
        return max(int(longest), 1)


class Task(eqx.Module):
    """What a planner may know: sizes, and reward and termination as pure functions of observations."""

    spec: eqx.AbstractVar[Spec]
    batched: ClassVar[bool] = False
    """Whether its methods also take NumPy arrays with leading axes of instances: plain operators, no `jax.numpy`."""

    @abc.abstractmethod
    def reward(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """R(s, a, s', tau): reward of an interval."""

    @abc.abstractmethod
    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        """Whether the process terminates here; checked at decisions only."""

    def end_probability(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""] | None:
        """Optional: probability that the process terminates within an interval, where `terminal` does not tell."""
        return None

    def measures(self, obs: Float[Array | np.ndarray, "... obs"]) -> dict[str, Any]:
        """Optional: whether each condition named in `spec.measures` holds.

        An evaluation reports the fraction of time for which it did: {"healthy": 0.34}.
        """
        return {}

    def regime(self, obs: Float[Array | np.ndarray, "... obs"]) -> Any:
        """Optional: the index in `spec.regimes` of an observation's regime. Chosen intervals are listed by regime."""
        return jnp.zeros(obs.shape[:-1], jnp.int32)


class Environment(eqx.Module):
    """A semi-Markov decision process in pure JAX: a task and its dynamics."""

    task: eqx.AbstractVar[Task]
    deterministic: ClassVar[bool] = False
    """Whether nothing is random between decisions (nor at the start, unless `restored` recovers the state), so that a
    trajectory can be simulated again."""
    unrolled_keys: ClassVar[bool] = False
    """Whether its methods work with the keys of `envs/keys.py`: faster for many instances on a CPU."""

    @property
    def action_mode(self) -> Literal["held", "once"]:
        """How an action acts: `held` throughout the interval (a treatment, a torque), or `once`, at the decision (a
        pill, an injection). A subclass sets it: `action_mode = "once"`.

        If held, two intervals of tau must equal one of 2 tau, and `course` steps from one time to the next. If the
        action acts once, a second interval would repeat it, so `course` computes every time from the decision.
        """
        return "held"

    @property
    def loops(self) -> bool:
        """Whether `transition` is a loop of many small steps, which a CPU runs fastest in batches (`max_batch`)."""
        return True

    @abc.abstractmethod
    def reset(self, *, key: Key[Array, ""]) -> State:
        """Initial state."""

    @abc.abstractmethod
    def observe(self, state: State) -> Obs:
        """Observation of a state."""

    @abc.abstractmethod
    def interval(self, state: State, action: Action, *, key: Key[Array, ""]) -> Tau:
        """The environment's own schedule: time to the next decision, p(tau | s, a)."""

    @abc.abstractmethod
    def transition(self, state: State, action: Action, tau: Tau, *, key: Key[Array, ""]) -> State:
        """State at time tau after the decision, p(s' | s, a, tau); see `action_mode`."""

    def restored(self, obs: Obs) -> State | None:
        """The state of an observation; None if the state cannot be recovered."""
        return None

    def course(self, state: State, action: Action, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> State:
        """States at several times (ascending) after a decision; time is the first axis.

        An action that acts once uses the same key for every time: each state has the correct marginal distribution, and
        the last equals `transition`. If noise must also agree along the path, draw it per step with
        `jax.random.fold_in(key, step)`, or override `course`.
        """
        if self.action_mode == "once":
            return jax.vmap(lambda tau: self.transition(state, action, tau, key=key))(taus)
        waits = jnp.diff(taus, prepend=0.0)

        def on(state: State, step: tuple[Tau, Key[Array, ""]]) -> tuple[State, State]:
            state = self.transition(state, action, step[0], key=step[1])
            return state, state

        return jax.lax.scan(on, state, (waits, jax.random.split(key, len(taus))))[1]

    def halted(self, state: State) -> Bool[Array, ""] | None:
        """Optional: whether the episode terminates in this state for a reason that the task does not know."""
        return None

    def earned(self, moment: "Moment", action: Action, state: State, obs: Obs, tau: Tau) -> Float[Array, ""]:
        """Reward of the interval from `moment` to this state."""
        return self.task.reward(moment.obs, action, obs, tau)

    def to_gymnasium(self, interval: Any = "own", render_mode: str | None = None, num_envs: int | None = None) -> Any:
        """The environment as a Gymnasium environment; with `num_envs`, many of them as a vector environment.

        `interval` is "own", a number, a list, or "agent" (see `kairode.envs.gym.SemiMarkovEnv`).
        """
        from kairode.envs.gym.semi_markov import as_gymnasium

        return as_gymnasium(self, interval, render_mode, num_envs)


class Moment(NamedTuple):
    """State of an episode at a decision."""

    state: Any
    obs: Any
    time: Any
    lag: Any
    """Rounding error of the time, so that thousands of float32 intervals still add up to the horizon."""
    count: Any
    """Decisions taken so far."""


class Outcome(NamedTuple):
    """Result of one interval."""

    reward: Any
    tau: Any
    terminated: Any
    truncated: Any


def begin_episode(env: Environment, *, key: Key[Array, ""]) -> Moment:
    """Reset the environment to the start of an episode."""
    state = env.reset(key=key)
    obs = env.observe(state)
    zero = jnp.zeros((), obs.dtype)
    return Moment(state, obs, zero, zero, jnp.zeros((), jnp.int32))


def advance_episode(
    env: Environment, moment: Moment, action: Action, tau: Tau, *, key: Key[Array, ""]
) -> tuple[Moment, Outcome]:
    """Advance from one decision to the next, tau later."""
    task = env.task
    state = env.transition(moment.state, action, tau, key=key)
    obs = env.observe(state)
    passed = tau - moment.lag
    time = moment.time + passed
    lag, count = (time - moment.time) - passed, moment.count + 1
    terminated = task.terminal(obs)
    halted = env.halted(state)
    if halted is not None:
        terminated = terminated | halted
    chance = task.end_probability(moment.obs, action, obs, tau)
    if chance is not None:
        terminated = terminated | (jax.random.uniform(jax.random.fold_in(key, TERMINATION)) < chance)
    truncated = is_truncated(task.spec, time, count) & ~terminated
    reward = env.earned(moment, action, state, obs, tau)
    return Moment(state, obs, time, lag, count), Outcome(reward, tau, terminated, truncated)


def is_truncated(spec: Spec, time: Any, count: Any) -> Any:
    """Whether the horizon or the cap on decisions is reached (a thousandth of a tick counts as rounding)."""
    late = time >= spec.horizon - 1e-3 * spec.tick
    return late if spec.max_decisions is None else late | (count >= spec.max_decisions)


def settings_of(env: Any) -> tuple[tuple[str, Any], ...]:
    """Fields of an environment with their values."""
    return tuple((field.name, getattr(env, field.name)) for field in dataclasses.fields(env))


def decimal(x: np.ndarray) -> np.ndarray:
    """Float64 numbers with the shortest decimal: float32's 0.2 becomes 0.2, not 0.20000000298."""
    if x.size == 1:
        return np.full(x.shape, float(str(x.reshape(()))))
    if (x == np.rint(x)).all() and x.max(initial=0.0) < 2**24:  # integers that float32 holds exactly
        return x.astype(np.float64)
    values, where = np.unique(x, return_inverse=True)
    return np.array([float(str(value)) for value in values], np.float64)[where].reshape(x.shape)
