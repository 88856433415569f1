"""Gymnasium's spaces as ours: actions by index or as a vector with bounds, observations as named numbers."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from kairode.envs.core import Continuous, Discrete, Variable
from kairode.errors import KairodeError

MOST_ACTIONS, MOST_VARIABLES = 1000, 1000
"""Combinations of discrete actions, and observed variables, up to which a space is accepted."""
UNBOUNDED = 1e30
"""Bounds beyond it stand for none: some spaces have the largest float32."""
NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "CartPole": (("x", "dx", "angle", "dangle"), ("left", "right")),
    "MountainCar": (("x", "dx"), ("left", "none", "right")),
    "MountainCarContinuous": (("x", "dx"), ("force",)),
    "Acrobot": (("cos1", "sin1", "cos2", "sin2", "dtheta1", "dtheta2"), ("torque -1", "torque 0", "torque +1")),
    "Pendulum": (("cos", "sin", "dtheta"), ("torque",)),
    "LunarLanderContinuous": (
        ("x", "y", "dx", "dy", "angle", "dangle", "left leg", "right leg"),
        ("main engine", "side engines"),
    ),
    "LunarLander": (
        ("x", "y", "dx", "dy", "angle", "dangle", "left leg", "right leg"),
        ("none", "left engine", "main engine", "right engine"),
    ),
}
"""Variables and actions of environments whose documentation names them, by their id without its version."""


class Actions(NamedTuple):
    """Actions of ours, and how one is passed to the environment."""

    kind: Discrete | Continuous
    convert: Callable[[Any], Any]


class Observations(NamedTuple):
    """Observed variables, and how an observation becomes their values."""

    variables: tuple[Variable, ...]
    flatten: Callable[[Any], np.ndarray]


def known_names(gym_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of variables and actions of a registered environment; empty if they are not known."""
    return NAMES.get(gym_id.rpartition("/")[2].partition("-v")[0], ((), ()))


def convert_actions(space: Any, names: Sequence[str], where: str, known: Sequence[str] = ()) -> Actions:
    """Actions of an action space; combinations of several discrete ones are numbered in order. `known` names are taken
    if they are as many."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        labels = _labels(names, [str(start + i) for i in range(int(space.n))], "action", where, known)
        return Actions(Discrete(labels), lambda action: int(action) + start)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        if isinstance(space, spaces.MultiBinary):
            counts = np.full(int(np.prod(space.shape)), 2)
            starts = np.zeros(len(counts), int)
        else:
            counts, starts = np.ravel(space.nvec), np.ravel(space.start)
        if math.prod(map(int, counts)) > MOST_ACTIONS:
            raise KairodeError(
                f"the actions of {where}, {space}, have {math.prod(map(int, counts)):,} combinations, more than "
                f"{MOST_ACTIONS:,}: choose some of them with a gymnasium.ActionWrapper whose action space is Discrete."
            )
        every = np.array(list(itertools.product(*map(range, counts)))) + starts
        table = every.reshape(-1, *space.shape).astype(space.dtype)
        labels = _labels(names, [" ".join(map(str, row)) for row in every], "action", where, known)
        return Actions(Discrete(labels), lambda action: table[int(action)].copy())
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        low, high = (np.ravel(bound).astype(float) for bound in (space.low, space.high))
        if not (np.abs(low) < UNBOUNDED).all() or not (np.abs(high) < UNBOUNDED).all():
            raise KairodeError(
                f"the actions of {where} have no bounds ({space}): give them some with gymnasium.wrappers.RescaleAction"
                " or ClipAction."
            )
        usual = [f"action{i}" if len(low) > 1 else "action" for i in range(len(low))]
        labels = _labels(names, usual, "action", where, known)
        shape, dtype, least, most = space.shape, space.dtype, space.low, space.high

        def convert(action: Any) -> np.ndarray:
            return np.asarray(np.minimum(np.maximum(np.asarray(action, dtype).reshape(shape), least), most))

        return Actions(Continuous(labels, tuple(low.tolist()), tuple(high.tolist())), convert)
    raise KairodeError(
        f"the action space of {where}, {space}, is not supported: it must be Discrete, MultiDiscrete, MultiBinary or a "
        "Box of real numbers. Convert it with a gymnasium.ActionWrapper."
    )


def convert_observations(space: Any, names: Sequence[str], where: str, known: Sequence[str] = ()) -> Observations:
    """Observed variables of an observation space, flattened as by `gymnasium.spaces.flatten`. `known` names are taken
    if they are as many."""
    if isinstance(space, spaces.Box) and len(space.shape) >= 2 and space.dtype == np.uint8:
        raise KairodeError(
            f"{where} is observed as images ({space}), and models learn from named variables: make it with its state "
            "as observation, or wrap it in a gymnasium.ObservationWrapper that computes features."
        )
    found = _variables(space, "", where)
    if len(found) > MOST_VARIABLES:
        raise KairodeError(
            f"{where} has {len(found):,} observed variables, more than {MOST_VARIABLES:,}: reduce them with a "
            "gymnasium.ObservationWrapper."
        )
    labels = _labels(names, [variable.name for variable in found], "observation", where, known)
    variables = tuple(Variable(name, one.unit, one.low, one.high) for name, one in zip(labels, found, strict=True))
    if isinstance(space, spaces.Box):
        # A copy: an environment may return its own state, and change it in the next step.
        return Observations(variables, np.array if len(space.shape) == 1 else lambda obs: np.array(obs).reshape(-1))
    single = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)

    def flatten(obs: Any) -> np.ndarray:
        if single and not space.contains(obs):  # a negative index would count from the end
            raise ValueError
        return np.asarray(spaces.flatten(space, obs), np.float64)

    return Observations(variables, flatten)


def _variables(space: Any, name: str, where: str) -> list[Variable]:
    """In the order of `gymnasium.spaces.flatten`, in which discrete observations are one number for each value."""
    if isinstance(space, spaces.Box):
        bounds = zip(np.ravel(space.low).astype(float), np.ravel(space.high).astype(float), strict=True)
        return [
            Variable(
                _numbered(name or "obs", i, int(np.prod(space.shape))),
                "",
                float(low) if abs(low) < UNBOUNDED else -math.inf,
                float(high) if abs(high) < UNBOUNDED else math.inf,
            )
            for i, (low, high) in enumerate(bounds)
        ]
    if isinstance(space, spaces.Discrete):
        return [Variable(f"{name or 'obs'}={int(space.start) + i}", "", 0.0, 1.0) for i in range(int(space.n))]
    if isinstance(space, spaces.MultiDiscrete):
        several = enumerate(zip(np.ravel(space.nvec).tolist(), np.ravel(space.start).tolist(), strict=True))
        return [
            Variable(f"{_numbered(name or 'obs', i, space.nvec.size)}={start + value}", "", 0.0, 1.0)
            for i, (count, start) in several
            for value in range(count)
        ]
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return [Variable(_numbered(name or "obs", i, size), "", 0.0, 1.0) for i in range(size)]
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        prefix = f"{name}." if name else ""
        return [variable for key, part in parts for variable in _variables(part, f"{prefix}{key}", where)]
    raise KairodeError(
        f"the observation space of {where} has a part that is not supported, {space}: it must be a Box, Discrete, "
        "MultiDiscrete, MultiBinary, or a Dict or Tuple of them. Convert it with a gymnasium.ObservationWrapper."
    )


def _numbered(name: str, i: int, count: int) -> str:
    return name if count == 1 else f"{name}{i}" if name == "obs" else f"{name} {i}"


def _labels(
    given: Sequence[str], usual: Sequence[str], what: str, where: str, known: Sequence[str] = ()
) -> tuple[str, ...]:
    """Names that were given, or known ones if they are as many, or the usual ones."""
    if not given:
        return tuple(known if len(known) == len(usual) else usual)
    if len(given) != len(usual) or len(set(given)) != len(given):
        raise KairodeError(f"{what}_names of {where} must be {len(usual)} different names, got {list(given)}.")
    return tuple(given)
