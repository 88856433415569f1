"""What the data look like: by which advice says whether a state is unlike them."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from kairode.data.normalize import mean_and_std
from kairode.data.trajectory import Trajectory, carried_forward, constant_variables, usual_values
from kairode.envs.core import Discrete
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.planning.pessimism import data_disagreement

ROWS = 2000
"""Decisions of the sample, at most."""
STARTS = 256
"""First observations of the sample, at most."""
EPISODES = 500
"""Episodes that the threshold of the disagreement is taken from, at most."""
QUANTILE = 0.99
"""Of the distances and disagreements of the data themselves: their threshold."""
NEIGHBORS = (20, 100)
"""Nearest decisions whose actions are counted, a twentieth of the sample within these bounds."""
NEAR = 0.2
"""Of the range of a control: how far the control of a neighbour may be from the advised one."""
CHUNK = 4096
"""States that are compared at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """A sample of the decisions of a data set, standardised, with thresholds of what is unlike them."""

    variables: tuple[str, ...]
    actions: tuple[str, ...]
    taken: Float[np.ndarray, "r act"] | Int[np.ndarray, " r"]
    """The actions at the sampled decisions."""
    rows: Float[np.ndarray, "r obs"]
    """The observations there, standardised."""
    mean: Float[np.ndarray, " obs"]
    std: Float[np.ndarray, " obs"]
    low: Float[np.ndarray, " obs"]
    """Range of each variable; NaN if it was never measured."""
    high: Float[np.ndarray, " obs"]
    median: Float[np.ndarray, " obs"]
    """Usual values: 0 of a variable that was never measured, the most frequent category of a column of categories."""
    static: Bool[np.ndarray, " obs"]
    """Variables that do not change within any episode."""
    starts: Float[np.ndarray, "s obs"]
    """First observations of episodes."""
    intervals: Float[np.ndarray, "4"]
    """Shortest, median, 90 % quantile and longest."""
    distance: Float[np.ndarray, ""]
    """99 % quantile of the distances from a decision to the nearest one of another episode; inf if there is none."""
    disagreement: Float[np.ndarray, ""]
    """99 % quantile of the ensemble's disagreement; inf for a single model."""


class Likeness(NamedTuple):
    """How like the data some states and the actions advised in them are."""

    distance: Float[np.ndarray, " n"]
    """To the nearest decision of the sample: root mean square over variables, in standard deviations."""
    share: Float[np.ndarray, " n"]
    """Of the nearest decisions, those with the advised action."""
    outside: Bool[np.ndarray, "n obs"]
    """Mask of the variables that are outside of the range of the data."""


def make_reference(models: Sequence[DynamicsModel], data: Trajectory, *, seed: int = 0) -> Reference:
    """The reference of a data set, usually the one that models and policy were learned from."""
    if not isinstance(data, Trajectory):
        raise KairodeError(f"data must be episodes, from kairode.load_table or kairode.read, got {data!r}.")
    rng, mask = np.random.default_rng(seed), np.asarray(data.mask)
    filled, measured = np.asarray(carried_forward(data).observation, np.float64), np.asarray(data.observation)
    seen = filled[:, :-1][mask]
    if not len(seen):
        raise KairodeError(f"'{data.spec.name}' has no decision: advice is compared with data that have some.")
    episode = np.nonzero(mask)[0]
    drawn = np.sort(rng.permutation(len(seen))[:ROWS])
    mean, std = mean_and_std(seen)
    rows = ((seen - mean) / std).astype(np.float32)
    real = np.concatenate([measured[:, :1].reshape(-1, seen.shape[1]), measured[:, 1:][mask]]).astype(np.float64)
    lost = np.isnan(real).all(0)
    low, high = (np.where(lost, np.nan, bound(np.where(lost, 0.0, real), axis=0)) for bound in (np.nanmin, np.nanmax))
    few = np.sort(rng.permutation(len(data))[:EPISODES])
    static = _constant(data)
    apart = data_disagreement(models, data[few], static) if len(models) > 1 else np.zeros(0)
    tau = np.asarray(data.interval, np.float64)[mask]
    return Reference(
        variables=tuple(variable.name for variable in data.spec.observations),
        actions=data.spec.actions.names,
        taken=np.asarray(data.action)[mask][drawn],
        rows=rows[drawn],
        mean=mean,
        std=std,
        low=low,
        high=high,
        median=usual_values(data),
        static=static,
        starts=filled[np.sort(rng.permutation(len(data))[:STARTS]), 0],
        intervals=np.array([tau.min(), np.median(tau), np.quantile(tau, 0.9), tau.max()]),
        distance=np.array(_usual_distance(rows[drawn], episode[drawn])),
        disagreement=np.array(np.quantile(apart, QUANTILE) if apart.size else np.inf),
    )


def _constant(data: Trajectory) -> np.ndarray:
    found = constant_variables(data)
    return np.zeros(len(data.spec.observations), bool) if found is None else found


def _usual_distance(rows: np.ndarray, episode: np.ndarray) -> float:
    """99 % quantile of the distances between decisions and the nearest ones of other episodes."""
    if len(np.unique(episode)) < 2:
        return float("inf")
    squares = _squared_distances(rows, rows)
    nearest = np.where(episode[:, None] == episode, np.inf, squares).min(1)
    return float(np.quantile(np.sqrt(nearest), QUANTILE))


def _squared_distances(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Mean over the variables of the squared difference, [x, rows]."""
    found = (x**2).sum(1)[:, None] + (rows**2).sum(1) - 2 * x @ rows.T
    return np.maximum(found, 0.0) / rows.shape[1]


def likeness(
    reference: Reference, observation: Float[np.ndarray, "n obs"], action: np.ndarray, actions: object
) -> Likeness:
    """Compare states, with the last value where one is missing, and the advised actions with the data."""
    x = ((np.asarray(observation, np.float64) - reference.mean) / reference.std).astype(np.float32)
    parts = [
        _likeness(reference, x[first : first + CHUNK], action[first : first + CHUNK], isinstance(actions, Discrete))
        for first in range(0, len(x), CHUNK)
    ]
    slack = 1e-5 * (reference.high - reference.low) + 1e-7 * np.maximum(np.abs(reference.low), np.abs(reference.high))
    seen = np.asarray(observation, np.float64)
    outside = (seen < reference.low - slack) | (seen > reference.high + slack)
    distance, share = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Likeness(distance, share, outside)


def _likeness(reference: Reference, x: np.ndarray, action: np.ndarray, discrete: bool) -> tuple[np.ndarray, np.ndarray]:
    squares = _squared_distances(x, reference.rows)
    count = neighbors(reference)
    near = squares <= np.partition(squares, count - 1, axis=1)[:, count - 1 : count]
    if discrete:
        same = reference.taken == action[:, None]
    else:
        width = np.maximum(np.ptp(reference.taken, axis=0), 1e-9)
        same = (np.abs(reference.taken - action[:, None]) <= NEAR * width).all(-1)
    return np.sqrt(squares.min(1)), (near & same).sum(1) / near.sum(1)


def neighbors(reference: Reference) -> int:
    """How many of the nearest decisions are counted."""
    size, (fewest, most) = len(reference.rows), NEIGHBORS
    return min(size, max(fewest, min(most, size // 20)))


def check_reference(reference: Reference, variables: Sequence[str], actions: Sequence[str]) -> None:
    """Raise if a reference is that of other data."""
    if tuple(variables) != reference.variables or tuple(actions) != reference.actions:
        raise KairodeError(
            f"the reference is that of other data, with the variables {', '.join(reference.variables)} and the actions "
            f"{', '.join(reference.actions)}: make it from the data of these models (data=..)."
        )
