"""The visits of one episode as they are observed: names to numbers, and what is wrong with them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Spec
from kairode.errors import KairodeError, unknown
from kairode.text import listed, number_of, short_name


class Visits:
    """Visits of an episode, the last of them the current one."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.times: list[float] = []
        self.observations: list[np.ndarray] = []
        self.actions: list[Any] = []
        """None where it is not known yet."""

    def add(self, values: Mapping[str, Any], time: float, action: Any) -> None:
        """Add a visit; nothing is changed if anything is wrong with it."""
        if not (isinstance(time, int | float | np.number) and math.isfinite(time)):
            raise KairodeError(f"time must be a number, the time of the visit in {self.spec.time_unit}s, got {time!r}.")
        if self.times and not np.float32(time - self.times[-1]) > 0:
            raise KairodeError(
                f"visits must be given in the order of time: the last one was at {self.times[-1]:g}, this one at "
                f"{time:g}. For another episode, call advisor.reset() first."
            )
        if self.times and self.actions[-1] is None:
            raise KairodeError(
                f"the action taken at the last visit, at {self.times[-1]:g}, is not known: give it with that visit, "
                "observe(.., action=..), or with record_action(..) before the next one."
            )
        row = encode_observation(self.spec, values)
        code = None if action is None else encode_named_action(self.spec, action)
        self.times.append(float(time))
        self.observations.append(row)
        self.actions.append(code)

    def trajectory(self) -> Trajectory:
        """As one episode, whose last observation is the current one."""
        discrete = isinstance(self.spec.actions, Discrete)
        taken = self.actions[:-1]
        action = np.array(taken, np.int32) if discrete else np.array(taken).reshape(-1, self.spec.actions.n)
        count = len(taken)
        return Trajectory(
            spec=self.spec,
            observation=np.stack(self.observations)[None].astype(np.float32),
            action=action[None] if discrete else action[None].astype(np.float32),
            interval=np.diff(self.times)[None].astype(np.float32),
            reward=np.zeros((1, count), np.float32),
            length=np.array([count], np.int32),
            terminated=np.zeros(1, bool),
            truncated=np.zeros(1, bool),
        )


def encode_observation(spec: Spec, values: Mapping[str, Any]) -> np.ndarray:
    """One number for each variable, NaN where none was measured; columns of categories may be given by name."""
    if not isinstance(values, Mapping):
        raise KairodeError(f"an observation is a dict such as {{'{spec.observations[0].name}': 1.0}}, got {values!r}.")
    names = [variable.name for variable in spec.observations]
    columns = dict(spec.categories)
    row = np.full(len(names), np.nan)
    for name, value in values.items():
        if name in names:
            row[names.index(name)] = _number(name, value)
        elif name in columns:
            for variable, number in encode_category(name, value, columns[name]).items():
                if variable in names:
                    row[names.index(variable)] = number
        else:
            raise unknown("variable", str(name), [*names, *columns])
    return row


def encode_category(column: str, value: Any, known: Sequence[str]) -> dict[str, float]:
    """The variables NAME=CATEGORY of a category, all NaN if it is missing."""
    if _is_missing(value):
        return {f"{column}={name}": math.nan for name in known}
    text = str(value).strip()
    if text not in known and isinstance(value, float | np.floating) and float(value).is_integer():
        text = str(int(value))
    if text not in known:
        raise unknown(f"category of '{short_name(column)}'", text, known)
    return {f"{column}={name}": float(name == text) for name in known}


def _is_missing(value: Any) -> bool:
    """None, NaN, or what compares with nothing, such as pandas' NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _number(name: str, value: Any) -> float:
    if _is_missing(value):
        return math.nan
    try:
        found = float(value)
    except (TypeError, ValueError) as error:
        raise KairodeError(f"'{short_name(name)}' must be a number, or NaN if not measured, got {value!r}.") from error
    if math.isinf(found) or abs(found) > np.finfo(np.float32).max:
        raise KairodeError(f"'{short_name(name)}' must be a finite number in single precision, got {value!r}.")
    return found


def encode_named_action(spec: Spec, action: Any) -> Any:
    """The index of an action given by name, by number where names are numbers, or by index where they are not; the
    values of controls given by name or in order."""
    names = spec.actions.names
    if isinstance(spec.actions, Discrete):
        if isinstance(action, str):
            if action not in names:
                raise unknown("action", action, names)
            return names.index(action)
        number = isinstance(action, int | float | np.number) and not isinstance(action, bool)
        values = [number_of(name) for name in names]
        if number and any(value is not None for value in values):  # such as doses: never by position
            if action not in values:
                raise unknown("action", f"{action:g}", names)
            return values.index(float(action))
        if number and float(action).is_integer() and 0 <= action < len(names):
            return int(action)
        raise KairodeError(f"action must be a name or an index from 0 to {len(names) - 1}, got {action!r}.")
    if isinstance(action, Mapping):
        if set(action) != set(names):
            raise KairodeError(f"action must have a value for each of {listed(names)}, got {listed(action)}.")
        action = [action[name] for name in names]
    try:
        found = np.asarray(action, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise KairodeError(f"action must be numbers for {listed(names)}, got {action!r}.") from error
    if len(found) != len(names) or not np.isfinite(found).all():
        raise KairodeError(f"action must be {len(names)} finite numbers, for {listed(names)}, got {action!r}.")
    return found
