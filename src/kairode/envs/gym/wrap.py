"""Any Gymnasium environment as one of ours: an action is held for several of its steps.

`kairode.from_gymnasium("CartPole-v1", intervals=(1, 5))`. Rewards of an interval are added up with gamma^i, a
termination within it ends it there.
"""

import contextlib
import dataclasses
import math
import operator
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from kairode.envs.core import Continuous, Intervals, Spec, Task
from kairode.envs.gym.making import described, environment_maker, make_checked, options_of
from kairode.envs.gym.spaces import convert_actions, convert_observations, known_names
from kairode.envs.host import HostEnvironment, NotRestored, Simulation, SimulationStep, SimulatorTask
from kairode.errors import KairodeError, KairodeWarning, unknown

Rule = Callable[[np.ndarray, Any], float]
"""The interval in a state, as steps of the environment: a function of observation and action."""
WITHOUT_LIMIT = 1000
"""Steps after which an episode is truncated if the environment has no time limit."""
OUTER = (gymnasium.wrappers.TimeLimit, gymnasium.wrappers.OrderEnforcing, gymnasium.wrappers.PassiveEnvChecker)
"""Wrappers of `gymnasium.make` whose work is done here."""


def from_gymnasium(
    env: str | gymnasium.Env | Callable[..., gymnasium.Env],
    intervals: float | Sequence[float] = (1, 5),
    *,
    rule: Rule | None = None,
    task: Task | Callable[[Spec], Task] | None = None,
    discount: float = 0.99,
    horizon: float | None = None,
    time_step: str | None = None,
    rewards: str = "rate",
    name: str | None = None,
    observation_names: Sequence[str] = (),
    action_names: Sequence[str] = (),
    time_unit: str = "step",
    **options: Any,
) -> "GymnasiumEnvironment":
    """A Gymnasium environment whose actions are held for varying numbers of its steps.

    Args:
        env: an id, such as "CartPole-v1"; a function that makes the environment; or an environment, which is copied.
        intervals: how many steps an action is held: a number; the least and the most, between which intervals are
            uniform; or three values and more to draw from.
        rule: a function of (observation, action) that sets the number of steps, between the least and the most of
            `intervals`, in place of a random draw.
        task: reward and termination as functions, if you have them: a `kairode.Task`, whose spec is replaced, or a
            function of the spec. By default they are the environment's own, which imagination learns from data.
        discount: gamma, for each step of the environment.
        horizon: steps after which an episode is truncated; by default the environment's time limit.
        time_step: name of the attribute of the environment that holds its time step, such as "tau" of CartPole or "dt"
            of Pendulum: intervals are then any real number of steps, as several steps of a shorter length.
        rewards: with `time_step`, how the reward of a shorter step counts: "rate" in proportion to its length (a cost
            per time), "event" as it is (a bonus for what happened, or a reward that has the time step in it).
        name: in files and messages; by default the id or the class.
        observation_names: of the observed variables, in the order of `task.spec.observations` (Gymnasium sorts the keys
            of a Dict).
        action_names: of the actions, or of the controls.
        time_unit: what a step is called, in the singular.
        options: passed to `gymnasium.make` or to the function.
    """
    low, high, values = _checked_intervals(intervals, continuous=time_step is not None)
    _check_arguments(rule, task, horizon, rewards, time_step, name, (observation_names, action_names))
    make, label = environment_maker(env, options)
    with contextlib.closing(make_checked(make, label, {})) as first:
        inner, limit = _without_outer(first)
        where = f"'{name or label}'"
        known = known_names(label)
        observations = convert_observations(inner.observation_space, observation_names, where, known[0])
        actions = convert_actions(inner.action_space, action_names, where, known[1])
        if time_step is not None:
            _time_step_of(inner, time_step, where)
        steps = limit if horizon is None else horizon
        if time_step is None and steps is not None and steps != math.inf and steps != round(steps):
            raise KairodeError(f"the horizon of {where} must be a whole number of steps, got {steps:g}.")
        if steps is None:
            steps = WITHOUT_LIMIT
            warnings.warn(
                f"{where} has no time limit: episodes are truncated after {WITHOUT_LIMIT:,} steps. Set another with "
                "horizon=..",
                KairodeWarning,
                stacklevel=2,
            )
    spec = Spec(
        name=name or label,
        observations=observations.variables,
        actions=actions.kind,
        intervals=Intervals(low, high, step=0.0 if time_step else 1.0, divisible=time_step is not None),
        time_unit=time_unit,
        horizon=float(steps),
        discount=discount,
        settings=(
            ("id", label),
            ("intervals", _plain(low) if np.ndim(intervals) == 0 else tuple(map(_plain, values or (low, high)))),
            ("discount", discount),
            ("horizon", float(steps)),
            ("time_step", time_step),
            *([("rewards", rewards)] if time_step else []),
            *([("rule", described(rule))] if rule else []),
            *((key, described(value)) for key, value in {**options_of(env), **options}.items()),
        ),
    )
    found = GymnasiumEnvironment(
        spec, make, values, rule, time_step, rewards, tuple(observation_names), tuple(action_names), _task(task, spec)
    )
    _check_contract(found)
    return found


@dataclasses.dataclass(frozen=True)
class GymnasiumEnvironment(HostEnvironment):
    """A Gymnasium environment whose actions are held; made by `kairode.from_gymnasium`."""

    spec: Spec
    make: Callable[..., gymnasium.Env] = dataclasses.field(repr=False)
    values: tuple[float, ...] = ()
    """Intervals to draw from; empty for a uniform draw between the least and the most."""
    rule: Rule | None = dataclasses.field(default=None, repr=False)
    time_step: str | None = None
    rewards: str = "rate"
    observation_names: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    action_names: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    given_task: Task | None = dataclasses.field(default=None, repr=False)

    @property
    def task(self) -> Task:
        return SimulatorTask(self.spec) if self.given_task is None else self.given_task

    @property
    def releases_gil(self) -> bool:
        return False

    def open(self, **options: Any) -> "GymnasiumSimulation":
        return GymnasiumSimulation(self, **{key: value for key, value in options.items() if value is not None})


class GymnasiumSimulation(Simulation):
    """An instance of a Gymnasium environment.

    It is saved as the seed and the actions of its episode, which lead to the same state again if the environment is
    reproducible; whether they do is checked.
    """

    def __init__(self, env: GymnasiumEnvironment, **options: Any) -> None:
        self.env, spec = env, env.spec
        self.where = f"'{spec.name}'"
        made = make_checked(env.make, spec.name, options)
        self.gym, _ = _without_outer(made)
        known = known_names(str(dict(spec.settings)["id"]))
        self.flatten = convert_observations(
            self.gym.observation_space, env.observation_names, self.where, known[0]
        ).flatten
        self.convert = convert_actions(self.gym.action_space, env.action_names, self.where, known[1]).convert
        self.step, self.gamma, self.limit = self.gym.step, spec.discount, spec.horizon
        self.shape = (len(spec.observations),)
        self.low, self.high = spec.intervals.low, spec.intervals.high
        self.random = np.random.default_rng()
        self.usual_step = _time_step_of(self.gym, env.time_step, self.where)[0]() if env.time_step else 0.0
        self.seed: int | None = None
        self.begun, self.over, self.terminated, self.taken = False, False, False, 0.0
        self.obs = np.zeros(self.shape)
        self.held: list[tuple[Any, float]] = []

    def reset(self, seed: int | None) -> np.ndarray:
        try:
            found = self.gym.reset(seed=seed)
        except TypeError as error:
            raise KairodeError(
                f"{self.where} failed in a reset ({error}): reset must take seed=.. and options=.., and begin with "
                "super().reset(seed=seed)."
            ) from error
        if not (isinstance(found, tuple) and len(found) == 2):
            raise KairodeError(
                f"{self.where} breaks Gymnasium's contract: reset must return (observation, info), got "
                f"{type(found).__name__}."
            )
        if seed is not None:
            self.random = np.random.default_rng([seed, 1])
        self.seed, self.over, self.taken, self.held, self.begun = seed, False, 0.0, [], True
        self.obs = self._seen(found[0])
        return self.obs

    def interval(self, action: np.ndarray | np.integer) -> float:
        env = self.env
        if self.over:  # waits for its reset, and draws nothing
            return self.low
        if env.rule is not None:
            try:
                tau = float(env.rule(self.obs, action))
            except Exception as error:  # the user's function
                raise KairodeError(f"the rule of {self.where} failed: {type(error).__name__}: {error}") from error
            if not self.low <= tau <= self.high or (env.time_step is None and tau != round(tau)):
                kind = "a number" if env.time_step else "a whole number"
                raise KairodeError(
                    f"the rule of {self.where} must return {kind} of {env.spec.time_unit}s between {self.low:g} and "
                    f"{self.high:g} (intervals), got {tau:g}."
                )
            return tau
        if env.values:
            return float(env.values[int(self.random.integers(len(env.values)))])
        if env.time_step is None:
            return float(self.random.integers(int(self.low), int(self.high) + 1))
        return float(self.random.uniform(self.low, self.high))

    def transition(self, action: np.ndarray | np.integer, tau: float) -> SimulationStep:
        if not self.begun:
            raise KairodeError(f"reset {self.where} before its first step.")
        if self.over:
            return SimulationStep(self.obs, 0.0, self.terminated, not self.terminated, 0.0, 0.0)
        self.held.append((action, tau))
        left = self.limit - self.taken
        if tau > left:
            tau = left
        given = self.convert(action)
        if self.env.time_step is not None:
            return self._hold_shorter(given, tau)
        steps = int(tau)
        if steps != tau or steps < 1:
            steps = whole_steps(self.where, tau)
        gamma, weight = self.gamma, 1.0
        step: Callable[[Any], Any] = self.step if isinstance(given, int) else self._step_copy
        reward = total = 0.0
        terminated = truncated = False
        k, obs = 0, None
        try:
            for k in range(1, steps + 1):  # noqa: B007  the number of steps taken
                obs, earned, terminated, truncated, _ = step(given)
                reward += weight * earned
                total += earned
                if terminated or truncated:
                    break
                weight *= gamma
        except Exception as error:  # whatever the environment raises
            raise self._broken(given, error) from error
        return self._ended(obs, reward, bool(terminated), bool(truncated), float(k), total)

    def _hold_shorter(self, given: Any, tau: float) -> SimulationStep:
        """Steps of equal length, as few as are not longer than the usual one."""
        assert self.env.time_step is not None
        steps = max(math.ceil(tau - 1e-6), 1)
        hold: Callable[[Any], Any] = self.step if isinstance(given, int) else self._step_copy
        share = tau / steps
        counted = share if self.env.rewards == "rate" else 1.0
        reward = total = 0.0
        k, terminated, truncated, obs = 0, False, False, None
        _, assign = _time_step_of(self.gym, self.env.time_step, self.where)
        assign(self.usual_step * share)
        try:
            while k < steps:
                obs, earned, terminated, truncated, _ = hold(given)
                reward += self.gamma ** (k * share) * earned * counted
                total += earned * counted
                k += 1
                if terminated or truncated:
                    break
        except Exception as error:  # whatever the environment raises
            raise self._broken(given, error) from error
        finally:
            assign(self.usual_step)
        return self._ended(obs, reward, bool(terminated), bool(truncated), k * share, total)

    def _step_copy(self, given: np.ndarray) -> Any:
        """An environment may change the array that it is given, which is held for further steps."""
        return self.step(given.copy())

    def _ended(
        self, obs: Any, reward: Any, terminated: bool, truncated: bool, elapsed: float, total: Any
    ) -> SimulationStep:
        self.taken += elapsed
        self.obs = self._seen(obs)
        if np.ndim(reward):
            raise KairodeError(
                f"{self.where} breaks Gymnasium's contract: a reward must be a number, got an array of shape "
                f"{np.shape(reward)}."
            )
        truncated = truncated or self.taken >= self.limit - 1e-6
        self.over, self.terminated = terminated or truncated, terminated
        return SimulationStep(self.obs, float(reward), terminated, truncated and not terminated, elapsed, float(total))

    def _seen(self, obs: Any) -> np.ndarray:
        try:
            seen = self.flatten(obs)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise self._outside(obs) from error
        if seen.shape != self.shape or seen.dtype.kind not in "fiub":
            raise self._outside(obs)
        return seen

    def _outside(self, obs: Any) -> KairodeError:
        got = f"an array of shape {np.shape(obs)}" if isinstance(obs, np.ndarray) else repr(obs)[:80]
        return KairodeError(
            f"{self.where} breaks Gymnasium's contract: an observation must be in its space, "
            f"{self.gym.observation_space}, got {got}."
        )

    def _broken(self, given: Any, error: Exception) -> KairodeError:
        """The error of a step: the environment's, or that it returned something else than it should."""
        found = None
        text = str(error)
        if "unpack" in text or "unsupported operand" in text:
            found = (
                f"step must return (observation, reward, terminated, truncated, info), with a number as reward: {text}"
            )
        if found is None:
            return KairodeError(f"{self.where} failed in a step with action {given!r}: {type(error).__name__}: {text}")
        return KairodeError(f"{self.where} breaks Gymnasium's contract: {found}.")

    def snapshot(self) -> Any:
        if self.seed is None:
            return None
        return {
            "seed": self.seed,
            "held": [(np.array(action), float(tau)) for action, tau in self.held],
            "obs": np.array(self.obs),
            "random": self.random.bit_generator.state,
        }

    def restore(self, state: Any) -> np.ndarray:
        """Repeat the episode's actions."""
        self.reset(int(state["seed"]))
        for action, tau in state["held"]:
            self.transition(action, tau)
        if not np.array_equal(self.obs, state["obs"]):
            raise NotRestored
        self.random.bit_generator.state = state["random"]
        return self.obs

    def render(self) -> np.ndarray:
        try:
            found = self.gym.render()
        except Exception as error:  # the type depends on the missing library
            raise KairodeError(f"{self.where} cannot be drawn ({type(error).__name__}: {error}).") from error
        if not isinstance(found, np.ndarray):
            raise KairodeError(f"{self.where} does not draw images: it has no render_mode 'rgb_array'.")
        return found

    def close(self) -> None:
        self.gym.close()


def whole_steps(where: str, tau: float) -> int:
    """An interval as a number of steps; the environment cannot stop between two."""
    steps = round(tau) if 0.5 < tau < math.inf else 0
    if not steps or abs(tau - steps) > 1e-3:
        raise KairodeError(f"an interval of {where} must be a whole number of steps, got {tau:g}.")
    return steps


def _checked_intervals(given: Any, *, continuous: bool) -> tuple[float, float, tuple[float, ...]]:
    """The least, the most, and the values to draw from (empty for a uniform draw)."""
    try:
        values = [float(given)] if isinstance(given, int | float | np.number) else [float(one) for one in given]
    except (TypeError, ValueError) as error:
        raise KairodeError(f"intervals must be a number, or several, of steps, got {given!r}.") from error
    wrong = [one for one in values if not 0 < one < math.inf or not (continuous or one == round(one))]
    if wrong or not values:
        kind = "positive numbers of steps" if continuous else "whole numbers of steps, at least 1"
        advice = "" if continuous else " (parts of a step need time_step=..)"
        raise KairodeError(f"intervals must be {kind}{advice}, got {given!r}.")
    if len(values) == 2 and values[0] > values[1]:
        raise KairodeError(f"two intervals are the least and the most, in this order, got {given!r}.")
    return min(values), max(values), tuple(values) if len(values) > 2 else ()


def _plain(value: float) -> int | float:
    return int(value) if value == round(value) else value


def _without_outer(env: gymnasium.Env) -> tuple[gymnasium.Env, int | None]:
    """The environment without the outermost wrappers of `gymnasium.make`, and its time limit, which is applied here: a
    limit further inside is lifted."""
    limit: int | None = None
    inner: Any = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, gymnasium.wrappers.TimeLimit):
            own = inner._max_episode_steps
            limit = own if limit is None else min(limit, own)
            inner._max_episode_steps = sys.maxsize
        inner = inner.env
    while isinstance(env, OUTER):
        env = env.env
    return env, limit


def _check_arguments(
    rule: Any, task: Any, horizon: Any, rewards: str, time_step: str | None, name: Any, names: tuple[Any, Any]
) -> None:
    if rule is not None and not callable(rule):
        raise KairodeError(f"rule must be a function of (observation, action), got {rule!r}.")
    if task is not None and not callable(task) and not isinstance(task, Task):
        raise KairodeError(f"task must be a kairode.Task or a function of the spec that returns one, got {task!r}.")
    if horizon is not None and not (isinstance(horizon, int | float) and horizon > 0):
        raise KairodeError(f"horizon must be a positive number of steps, got {horizon!r}.")
    if rewards not in ("rate", "event"):
        raise unknown("rewards", str(rewards), ("rate", "event"))
    if rewards != "rate" and time_step is None:
        raise KairodeError("rewards='event' has no effect without time_step: leave it out.")
    if any(isinstance(given, str) for given in names):
        raise KairodeError("observation_names and action_names are lists of names, not a text.")
    from kairode.envs.zoo import ENVIRONMENTS

    if name in ENVIRONMENTS:
        raise KairodeError(f"'{name}' is one of Kairode's own environments: choose another name.")


def _time_step_of(env: gymnasium.Env, path: str, where: str) -> tuple[Callable[[], float], Callable[[float], None]]:
    """How the attribute of the time step is read and set."""
    owner: Any = env.unwrapped
    parent, _, last = path.rpartition(".")
    try:
        owner = operator.attrgetter(parent)(owner) if parent else owner
        value = float(getattr(owner, last))
        setattr(owner, last, getattr(owner, last))
    except (AttributeError, TypeError, ValueError) as error:
        raise KairodeError(
            f"{where} has no time step that can be set: its attribute '{path}' is missing, is no "
            "number, or has no setter."
        ) from error
    if not 0 < value < math.inf:
        raise KairodeError(f"the time step of {where}, '{path}', must be positive, got {value:g}.")
    return lambda: float(getattr(owner, last)), lambda new: setattr(owner, last, new)


def _task(given: Any, spec: Spec) -> Task | None:
    if given is None:
        return None
    if isinstance(given, Task):
        return dataclasses.replace(given, spec=spec)
    try:
        found = given(spec)
    except Exception as error:  # the user's function
        raise KairodeError(f"the task cannot be made of its spec: {type(error).__name__}: {error}") from error
    if not isinstance(found, Task):
        raise KairodeError(f"task must be a kairode.Task or a function of the spec that returns one, got {found!r}.")
    return found


def _check_contract(env: GymnasiumEnvironment) -> None:
    """Step a first episode, and begin it twice from one seed: an environment that is not reproducible is warned of."""
    simulation = env.open()
    try:
        first = np.array(simulation.reset(0))
        kind = env.spec.actions
        middle = np.add(kind.low, kind.high) / 2 if isinstance(kind, Continuous) else np.int32(0)
        simulation.transition(np.asarray(middle), env.spec.intervals.low)
        again = np.array(simulation.reset(0))
    finally:
        simulation.close()
    if not np.isfinite(first).all():
        raise KairodeError(f"'{env.spec.name}' returned a value that is not finite from reset: {first}.")
    if not np.array_equal(first, again):
        warnings.warn(
            f"'{env.spec.name}' starts in other states when it is reset with the same seed, so that results cannot be "
            "reproduced: draw random numbers from self.np_random, after super().reset(seed=seed).",
            KairodeWarning,
            stacklevel=3,
        )
