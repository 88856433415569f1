"""Statistics of returns and errors: mean, spread, interquartile mean and bootstrap confidence intervals.

Aggregates over runs and tasks are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (2021), as in their library rliable; scores are [runs, tasks].
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

Statistic = Callable[..., Any]
"""A function of an array, with an argument `axis`."""
RESAMPLES = 2000
"""Number of bootstrap resamples."""


def mean(values: ArrayLike, axis: int | None = None) -> Any:
    """A float, or an array where an axis is given."""
    return _scalar(np.mean(np.asarray(values, np.float64), axis=axis))


def std(values: ArrayLike, axis: int | None = None) -> Any:
    """Population standard deviation, divided by n as in `numpy.std`."""
    return _scalar(np.std(np.asarray(values, np.float64), axis=axis))


def over_seeds(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, std, number and values of a figure with one value per seed; mean and std are None if one is missing."""
    known = [value for value in values if value is not None]
    whole = len(known) == len(values) > 0
    middle, around = (mean(known), std(known)) if whole else (None, None)
    return {"mean": middle, "std": around, "n": len(values), "values": list(values)}


def iqm(values: ArrayLike, axis: int | None = None) -> Any:
    """Interquartile mean: a quarter of the values, rounded down, is dropped at each end."""
    return _scalar(scipy.stats.trim_mean(np.asarray(values, np.float64), 0.25, axis=axis))


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> float:
    """Mean shortfall from a target; scores above the target count as the target."""
    return float(target - np.mean(np.minimum(np.asarray(scores, np.float64), target)))


def probability_of_improvement(scores: ArrayLike, others: ArrayLike) -> float:
    """P(X > Y) + P(X = Y) / 2 of a run X of `scores` and a run Y of `others`, averaged over tasks."""
    x, y = (np.asarray(some, np.float64) for some in (scores, others))
    above = x[:, None] > y[None]
    level = x[:, None] == y[None]
    return float(np.mean(above + 0.5 * level))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> np.ndarray:
    """Fraction of scores above each threshold."""
    return np.mean(np.ravel(scores)[None] > np.asarray(thresholds, np.float64)[:, None], axis=1)


def bootstrap_interval(
    values: ArrayLike, statistic: Statistic = np.mean, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of independent values; one value, or equal ones, have no spread."""
    values = np.asarray(values, np.float64)
    if len(values) < 2 or np.ptp(values) == 0:
        point = float(statistic(values))
        return point, point
    found = scipy.stats.bootstrap(
        (values,), statistic, n_resamples=resamples, confidence_level=level, method="percentile", rng=seed
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def stratified_interval(
    scores: ArrayLike,
    statistic: Statistic = iqm,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    rng: np.random.Generator | np.random.RandomState | int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of scores [runs, tasks]: runs are resampled within each task.

    `rliable.library.get_interval_estimates` with the same random state gives the same numbers.
    """
    scores = np.asarray(scores, np.float64)
    draw = np.random.default_rng(rng) if isinstance(rng, int) else rng
    tasks = np.arange(scores.shape[1])[None]
    found = [statistic(scores[draw.choice(len(scores), scores.shape), tasks]) for _ in range(resamples)]
    low, high = np.percentile(found, [50 * (1 - level), 50 * (1 + level)])
    return float(low), float(high)


def _scalar(found: Any) -> Any:
    return found if np.ndim(found) else float(found)
