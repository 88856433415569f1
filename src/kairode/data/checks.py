"""Warnings about data that would be fitted without complaint and mislead: outliers, gaps in time, rare actions."""

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kairode.data.stream import ROWS, EpisodeStream
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete
from kairode.errors import KairodeWarning
from kairode.result import short_number

SAMPLE = 200_000
"""Rows that quantiles are estimated from."""
TAIL = 0.005
"""Fraction of the values on each side that count as possible outliers."""
DOMINATES = 10.0
"""Factor by which the tails may increase a variable's standard deviation (or the mean interval)."""
FAR_FROM_NORMAL = 100.0
"""Ratio of the standard deviation to that of a normal distribution with the same interquartile range, at most."""
CONSTANT = 1e6
"""Distance from the median, relative to it, at which a value of an otherwise constant variable is an outlier."""
LARGE_REWARD = 1e9
"""Rewards above which a scale is advised."""
LARGE_SCALED_REWARD = 1e3
"""Size of rewards, times the scale that they are learned with, above which another scale is advised."""
MOST_NAMED = 5
"""Variables of each kind that are named, at most."""


class Place(NamedTuple):
    """A value, and where it is."""

    value: float
    episode: int
    observation: int
    row: int

    def words(self, source: str) -> str:
        """Its place: in a file, the row too."""
        row = f", row {self.row} of {source}" if source else ""
        return f"episode {self.episode}, observation {self.observation}{row}"


def check_data(data: Trajectory | EpisodeStream, source: str = "", *, robust: bool = False) -> list[str]:
    """Sentences about values that dominate a variable's scale, gaps in time, and large rewards.

    `source` is the file that the data are all the episodes of, in its order: rows are named then. Episodes,
    observations and rows are counted from 0. If `robust`, outliers do not affect the scale, and are not named.
    """
    names = [variable.name for variable in data.spec.observations]
    sample = sample_rows(data)
    bounds = np.quantile(sample, [TAIL, 0.5, 1 - TAIL], axis=0)
    far = _farthest(data, bounds[1])
    observed, taus = far[: len(names)], far[-2]
    said = []
    spread = _standard_deviations(data, bounds[1])
    for i, place in enumerate(() if robust else observed):
        if _dominated(sample[:, i], bounds[:, i], place.value, spread[i]):
            said.append(
                f"variable '{names[i]}': {short_number(place.value)} ({place.words(source)}) is far from the other "
                f"values (99 % are from {short_number(bounds[0, i])} to {short_number(bounds[2, i])}) and dominates "
                "the variable's scale, so that its usual changes count for nothing in the error: correct or remove "
                "it, or scale by the interquartile range (--robust-scale, robust_scale=True in Python)"
            )
    said = _few(said, "variables with such values")
    inner = sample[sample[:, -2] <= bounds[2, -2], -2]
    mean = _mean_interval(data)
    if mean > DOMINATES * float(inner.mean()):
        said.append(
            f"an interval of {short_number(taus.value)} {data.spec.time_unit}s ({taus.words(source)}) is far longer "
            f"than the others (99 % are at most {short_number(bounds[2, -2])}) and dominates the scale of time: split "
            "the episode there, or correct the time"
        )
    reward = far[-1]
    if abs(reward.value) >= LARGE_REWARD:
        said.append(
            f"rewards reach {short_number(reward.value)} ({reward.words(source)}): policies learn best from rewards of "
            f"about 1, so learn with reward_scale={_power(float(np.abs(sample[:, -1]).mean())):g}"
        )
    return said


def _dominated(values: np.ndarray, bounds: np.ndarray, farthest: float, spread: float) -> bool:
    """Whether few values determine a variable's standard deviation."""
    low, median, high = bounds
    usual = float(values[(values >= low) & (values <= high)].std())
    if usual == 0:
        return bool(abs(farthest - median) > CONSTANT * max(abs(median), 1.0))
    quartiles = np.quantile(values, [0.25, 0.75])
    middle = float(quartiles[1] - quartiles[0]) / 1.349
    return bool(spread > DOMINATES * usual or (middle > 0 and spread > FAR_FROM_NORMAL * middle))


def check_actions(train: Trajectory | EpisodeStream, others: dict[str, Trajectory]) -> list[str]:
    """A sentence for actions that only held-out episodes have, by the name of the part."""
    if not isinstance(train.spec.actions, Discrete):
        return []
    names, seen = train.spec.actions.names, np.zeros(train.spec.actions.n, bool)
    for block in _blocks(train):
        seen[np.asarray(block.action)[block.mask]] = True
    said = []
    for part, data in others.items():
        taken = np.unique(np.asarray(data.action)[data.mask])
        unseen = [names[i] for i in taken if not seen[i]]
        if unseen:
            some = ", ".join(f"'{name}'" for name in unseen[:MOST_NAMED])
            some += f" and {len(unseen) - MOST_NAMED} more" if len(unseen) > MOST_NAMED else ""
            said.append(
                f"{'actions' if len(unseen) > 1 else 'action'} {some}: taken in the {part} episodes and never in the "
                "training episodes, so the models know nothing of their effect"
            )
    return said


def check_rewards(size: float, scale: float) -> list[str]:
    """A sentence if rewards of this size, times the scale that they are learned with, are large."""
    if not (np.isfinite(size) and size * scale > LARGE_SCALED_REWARD):
        return []
    return [
        f"rewards of about {short_number(size, 2)} with reward_scale={scale:g}: the values of a policy are learned "
        f"slowly or not at all from numbers of this size, so learn with reward_scale={_power(size):g}"
    ]


def _power(size: float) -> float:
    """The power of ten that brings rewards of this size to about 1."""
    return float(10.0 ** -round(np.log10(size))) if size > 0 else 1.0


def warn(sentences: Sequence[str], stacklevel: int = 2) -> None:
    """Issue each sentence as a warning."""
    for sentence in sentences:
        warnings.warn(f"{sentence}.", KairodeWarning, stacklevel=stacklevel + 1)


def _few(said: list[str], what: str) -> list[str]:
    more = len(said) - MOST_NAMED
    return [*said[:MOST_NAMED], *([f"{more} more {what}"] if more > 0 else [])]


def _blocks(data: Trajectory | EpisodeStream) -> Iterator[Trajectory]:
    if isinstance(data, Trajectory):
        yield data
    else:
        yield from data.blocks()


class _Rows(NamedTuple):
    """Some rows of the data."""

    columns: np.ndarray
    """Observations, interval and reward, [rows, variables + 2]; the last row of an episode repeats its last
    interval and reward."""
    episode: np.ndarray
    observation: np.ndarray


def _rows(data: Trajectory | EpisodeStream) -> Iterator[_Rows]:
    """All rows in order, some at a time."""
    before = 0
    for block in _blocks(data):
        length = np.asarray(block.length)
        width = block.observation.shape[1]
        flat = np.flatnonzero(np.arange(width) <= length[:, None])
        for first in range(0, len(flat), ROWS):
            episode, observation = np.divmod(flat[first : first + ROWS], width)
            decision = np.minimum(observation, length[episode] - 1)
            taken = [np.asarray(x)[episode, decision][:, None] for x in (block.interval, block.reward)]
            columns = np.concatenate([np.asarray(block.observation)[episode, observation], *taken], axis=1)
            yield _Rows(columns.astype(np.float64), before + episode, observation)
        before += len(length)


def sample_rows(data: Trajectory | EpisodeStream) -> np.ndarray:
    """Observations, interval and reward of rows at equal steps, at most about `SAMPLE` of them."""
    step = max(1, int(np.sum(data.length)) // SAMPLE)
    parts, offset = [], 0
    for rows in _rows(data):
        parts.append(rows.columns[(-offset) % step :: step])
        offset += len(rows.columns)
    return np.concatenate(parts)


def _standard_deviations(data: Trajectory | EpisodeStream, middle: np.ndarray) -> np.ndarray:
    """Standard deviation of every column, about a middle that keeps the sums accurate."""
    count, total, squares = 0, np.zeros_like(middle), np.zeros_like(middle)
    for rows in _rows(data):
        apart = rows.columns - middle
        count, total, squares = count + len(apart), total + apart.sum(0), squares + np.square(apart).sum(0)
    return np.sqrt(np.maximum(squares / count - np.square(total / count), 0.0))


def _mean_interval(data: Trajectory | EpisodeStream) -> float:
    total = sum(float(np.sum(block.interval, dtype=np.float64)) for block in _blocks(data))
    return total / float(np.sum(data.length))


def _farthest(data: Trajectory | EpisodeStream, middle: np.ndarray) -> list[Place]:
    """The value of each column that is farthest from its median."""
    found: list[Place | None] = [None] * len(middle)
    before = 0
    for rows in _rows(data):
        for i, k in enumerate(np.abs(rows.columns - middle).argmax(0).tolist()):
            best, value = found[i], float(rows.columns[k, i])
            if best is None or abs(value - middle[i]) > abs(best.value - middle[i]):
                found[i] = Place(value, int(rows.episode[k]), int(rows.observation[k]), before + k)
        before += len(rows.columns)
    return [place for place in found if place is not None]
