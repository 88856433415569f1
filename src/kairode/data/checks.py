"""Warnings about data that would be fitted without complaint and mislead: outliers, gaps in time, rare actions."""

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kairode.data.normalize import ROBUST_LIMIT, robust_statistics
from kairode.data.stream import ROWS, EpisodeStream
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete
from kairode.errors import KairodeWarning
from kairode.result import short_number

SAMPLE = 200_000
"""Rows that quantiles are estimated from."""
TAIL, WIDE_TAIL = 0.005, 0.05
"""Fractions of the values on each side that count as possible outliers: of any size, and of enormous size."""
DOMINATES, ENORMOUS = 10.0, 100.0
"""Factors by which the tails may increase a variable's standard deviation."""
LONG = 100.0
"""Ratio of the mean interval to the median, at most."""
FEW_INTERVALS = 30
"""Below so many, a single long interval is not remarked on."""
CONSTANT = 1e6
"""Distance from the median, relative to it, at which a value of an otherwise constant variable is an outlier."""
CLIPPED = 0.01
"""Fraction of a variable's values that a robust scale may clip."""
CODE_COUNT, CODE_OTHERS, CODE_GAP = 3, 10, 2.0
"""A code for missing values: how often it occurs, among how many other values, how far from them (in their range)."""
RESOLVED = 1e3
"""Ratio of a variable's standard deviation to the resolution of single precision, at least."""
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


def check_data(
    data: Trajectory | EpisodeStream, source: str = "", *, rows: np.ndarray | None = None, robust: bool = False
) -> list[str]:
    """Sentences about values that dominate a variable's scale, gaps in time, and large rewards.

    Args:
        data: the episodes.
        source: the file that they are all the episodes of: its rows are named then. Episodes, observations and rows are
            counted from 0.
        rows: the row of the file that each observation is from; by default those of the file in its order.
        robust: whether the scale is robust: outliers do not affect it then, and are not named.
    """
    sample = sample_rows(data)
    middle = _medians(sample)
    middle[-1] = 0.0  # the largest reward, not the farthest from others
    far = _farthest(data, middle)
    if rows is not None:
        far = [place._replace(row=int(rows[place.row])) for place in far]
    spread = _standard_deviations(data, middle)
    said = []
    for i, variable in enumerate(data.spec.observations):
        values = sample[:, i][~np.isnan(sample[:, i])]
        if not values.size:  # of a variable that was hardly ever measured
            continue
        code = _repeated_extreme(values, far[i].value)
        if code is not None:
            said.append(_code(variable.name, values, code, far[i], source))
        elif robust and (part := _clipped(values)) > CLIPPED:
            said.append(
                f"variable '{variable.name}': {100 * part:.2g} % of the values are beyond ten standard deviations of "
                "the robust scale and treated as missing: without --robust-scale (robust_scale=True in Python) they "
                "are kept"
            )
        elif not robust and _dominated(values, far[i].value, spread[i]):
            said.append(_outlier(variable.name, values, far[i], source))
        elif 0 < spread[i] < RESOLVED * np.spacing(np.float32(np.abs(middle[i]))):
            said.append(_unresolved(variable.name, middle[i], spread[i]))
    said = _few(said, "variables with such values")
    mean_interval, mean_reward = _mean_sizes(data)
    if mean_interval > min(DOMINATES * _inner(sample[:, -2]).mean(), LONG * middle[-2]):
        said.append(
            f"an interval of {short_number(far[-2].value)} {data.spec.time_unit}s ({far[-2].words(source)}) is far "
            f"longer than most (the median is {short_number(middle[-2])}), and such intervals dominate the scale of "
            "time: split episodes there, or correct the times"
        )
    elif len(sample) >= FEW_INTERVALS and far[-2].value > DOMINATES * _inner(sample[:, -2]).max():
        said.append(
            f"an interval of {short_number(far[-2].value)} {data.spec.time_unit}s ({far[-2].words(source)}) is more "
            f"than {DOMINATES:g} times as long as {1 - TAIL:.1%} of them (the median is {short_number(middle[-2])}): "
            "correct the time if it is wrong, or split the episode there"
        )
    return [*said, *_large_reward(far[-1], np.abs(sample[:, -1]), mean_reward, source)]


def _inner(values: np.ndarray, tail: float = TAIL) -> np.ndarray:
    """Without the tails: at least one value on each side."""
    drop = max(1, int(tail * len(values)))
    return np.sort(values)[drop:-drop] if len(values) > 2 * drop else values


def _dominated(values: np.ndarray, farthest: float, spread: float) -> bool:
    """Whether few values determine a variable's standard deviation."""
    usual, middle = float(_inner(values).std()), float(_inner(values, WIDE_TAIL).std())
    if usual == 0:
        median = float(np.median(values))
        return abs(farthest - median) > CONSTANT * max(abs(median), 1.0)
    return bool(spread > DOMINATES * usual or (middle > 0 and spread > ENORMOUS * middle))


def _repeated_extreme(values: np.ndarray, farthest: float) -> float | None:
    """The smallest or largest value if it is repeated, far from all others, as codes for missing values are."""
    for extreme in (values.min(), values.max()):
        same = values == np.float64(extreme)
        others = values[~same]
        if same.sum() < CODE_COUNT or extreme != farthest or len(np.unique(others[:1000])) < CODE_OTHERS:
            continue
        gap = max(others.min() - extreme, extreme - others.max())
        if gap > CODE_GAP * np.ptp(others):
            return float(extreme)
    return None


def _code(name: str, values: np.ndarray, code: float, place: Place, source: str) -> str:
    others = values[values != code]
    return (
        f"variable '{name}': {short_number(code)} occurs in {np.mean(values == code):.1%} of the rows (such as "
        f"{place.words(source)}), far from all other values ({short_number(others.min())} to "
        f"{short_number(others.max())}): if it stands for a missing measurement, it is fitted as if it were measured"
    )


def _unresolved(name: str, middle: float, spread: float) -> str:
    return (
        f"variable '{name}': its values ({short_number(middle)}, standard deviation {short_number(spread)}) differ by "
        "hardly more than single precision resolves at their size: subtract an offset, or leave the variable out"
    )


def _outlier(name: str, values: np.ndarray, place: Place, source: str) -> str:
    low, high = np.quantile(values, [0.25, 0.75])
    return (
        f"variable '{name}': {short_number(place.value)} ({place.words(source)}) is far from the other values (half "
        f"of them are from {short_number(low)} to {short_number(high)}) and dominates the fit of the variable, whose "
        "usual changes count for nothing: correct or remove it, or scale by the interquartile range (--robust-scale, "
        "robust_scale=True in Python)"
    )


def _clipped(values: np.ndarray) -> float:
    """Fraction of a variable's values that a robust scale clips."""
    (median,), (std,) = robust_statistics(values[:, None])
    return float(np.mean(np.abs(values - median) > ROBUST_LIMIT * std)) if std > 0 else 0.0


def _large_reward(largest: Place, sizes: np.ndarray, mean: float, source: str) -> list[str]:
    if abs(largest.value) < LARGE_REWARD:
        return []
    usual = float(_inner(sizes)[-1])
    if abs(largest.value) > ENORMOUS * usual:
        return [
            f"a reward of {short_number(largest.value)} ({largest.words(source)}) is far from the others (99 % are at "
            f"most {short_number(usual)} in size): correct it"
        ]
    return [
        f"rewards reach {short_number(largest.value)} ({largest.words(source)}): policies learn best from rewards of "
        f"about 1, so learn with reward_scale={_power(mean):g}"
    ]


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
            what, effect = ("actions", "their effects") if len(unseen) > 1 else ("action", "its effect")
            said.append(
                f"{what} {some}: taken in the {part} episodes and never in the training episodes, so the models know "
                f"nothing of {effect}"
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


def _medians(sample: np.ndarray) -> np.ndarray:
    """Medians of what is not missing; 0 where everything is."""
    if not np.isnan(sample).any():
        return np.median(sample, axis=0)
    known = (column[~np.isnan(column)] for column in sample.T)
    return np.array([np.median(values) if values.size else 0.0 for values in known])


def _standard_deviations(data: Trajectory | EpisodeStream, middle: np.ndarray) -> np.ndarray:
    """Standard deviation of every column, about a middle that keeps the sums accurate."""
    count, total, squares = np.zeros_like(middle), np.zeros_like(middle), np.zeros_like(middle)
    for rows in _rows(data):
        known = ~np.isnan(rows.columns)
        apart = np.where(known, rows.columns - middle, 0.0)
        count, total, squares = count + known.sum(0), total + apart.sum(0), squares + np.square(apart).sum(0)
    count = np.maximum(count, 1)
    return np.sqrt(np.maximum(squares / count - np.square(total / count), 0.0))


def _mean_sizes(data: Trajectory | EpisodeStream) -> tuple[float, float]:
    """Mean interval and mean size of the rewards."""
    totals = np.zeros(2)
    for block in _blocks(data):
        totals += [np.sum(np.abs(x), dtype=np.float64) for x in (block.interval, block.reward)]
    mean = totals / float(np.sum(data.length))
    return float(mean[0]), float(mean[1])


def _farthest(data: Trajectory | EpisodeStream, middle: np.ndarray) -> list[Place]:
    """The value of each column that is farthest from its median."""
    found: list[Place | None] = [None] * len(middle)
    before = 0
    for rows in _rows(data):
        apart = np.abs(rows.columns - middle)
        for i, k in enumerate(np.where(np.isnan(apart), -1.0, apart).argmax(0).tolist()):
            best, value = found[i], float(rows.columns[k, i])
            if best is None or np.isnan(best.value) or abs(value - middle[i]) > abs(best.value - middle[i]):
                found[i] = Place(value, int(rows.episode[k]), int(rows.observation[k]), before + k)
        before += len(rows.columns)
    return [place for place in found if place is not None]
