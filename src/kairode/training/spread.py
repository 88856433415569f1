"""Spread of the predictions of several models against their errors, on arrays; `calibration.py` has the models.

For a value y that the M members predict as p_1 .. p_M (all standardised), with their mean p:

    error e = y - p,   spread s^2 = (1 + 1 / M) sum_m (p_m - p)^2 / (M - 1)

If y were one more draw from the distribution of the members, E[e^2] would be E[s^2] (Fortin et al. 2014, "Why should
ensemble spread match the RMSE of the ensemble mean?"), and for a normal distribution e / s would have Student's t
distribution with M - 1 degrees of freedom. Hence the ratio rms(s) / rms(e), which should be 1, and the intervals
p ± t_q s. What all members get wrong in the same way, and noise of the system, is not in their spread. Calibrated
intervals add it:

    p ± c_q sqrt(s^2 + v),   v = max(0, mean(e^2 - s^2)),   c_q the q-quantile of |e| / sqrt(s^2 + v)

v and c_q are of validation episodes, separately for each variable and bin of prediction time (split conformal
prediction, Lei et al. 2018). Values within an episode depend on one another, so that coverage is right on average over
validation sets and varies more between them than the number of values suggests.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from kairode.errors import KairodeError
from kairode.result import short_number

LEVELS = (0.5, 0.8, 0.95)
"""Of the intervals."""
BINS = 10
"""Of the prediction time, at most, and of the spread."""
LEAST = 100
"""Validation values of a variable that a bin of the prediction time needs; otherwise all bins share theirs."""
RANKED = 100_000
"""Values of a variable that ranks are computed of, at most."""
TINY = 1e-12


class Errors(NamedTuple):
    """Errors of the mean of the members, and their spread."""

    error: Float[np.ndarray, "n d"]
    """NaN where nothing was measured."""
    spread: Float[np.ndarray, "n d"]
    time: Float[np.ndarray, " n"]
    """From the first observation of an episode."""
    members: int


def spread_and_error(
    predictions: Float[np.ndarray, "m n d"], truth: Float[np.ndarray, "n d"], time: Float[np.ndarray, " n"]
) -> Errors:
    """e and s of the equations above; NaN in `truth` is a value that was not measured."""
    members = len(predictions)
    variance = predictions.var(0, ddof=1, dtype=np.float64) * (1 + 1 / members)
    return Errors(truth - predictions.mean(0, dtype=np.float64), np.sqrt(variance), time, members)


@dataclasses.dataclass(frozen=True)
class Widths:
    """Widths of calibrated intervals, fitted to validation episodes."""

    edges: Float[np.ndarray, " inner"]
    """Between the bins of the prediction time."""
    residual: Float[np.ndarray, "bins d"]
    """v: the variance of the errors that the spread does not explain."""
    factor: Float[np.ndarray, "levels bins d"]
    """c_q; NaN for a variable that no validation episode measured."""

    @classmethod
    def fit(cls, found: Errors, bins: int = BINS) -> "Widths":
        """Bins hold equally many steps; those with fewer than `LEAST` values of a variable take all of its values."""
        count = int(np.clip(len(found.time) // LEAST, 1, bins))
        edges = np.quantile(found.time, np.linspace(0, 1, count + 1)[1:-1])
        place, size = np.searchsorted(edges, found.time), found.error.shape[1]
        residual, factor = np.zeros((count, size)), np.zeros((len(LEVELS), count, size))
        for i in range(count):
            for j in range(size):
                known = ~np.isnan(found.error[:, j])
                inside = known & (place == i)
                chosen = inside if inside.sum() >= LEAST else known
                residual[i, j], factor[:, i, j] = _width(found.error[chosen, j], found.spread[chosen, j])
        return cls(edges, residual, factor)

    def scale(self, spread: Float[np.ndarray, "n d"], time: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n d"]:
        """sqrt(s^2 + v)."""
        return np.sqrt(spread**2 + self.residual[np.searchsorted(self.edges, time)])

    def half(self, spread: Float[np.ndarray, "n d"], time: Float[np.ndarray, " n"]) -> Float[np.ndarray, "levels n d"]:
        """Half the width of the interval of every level."""
        scale = np.maximum(self.scale(spread, time), TINY)
        return self.factor[:, np.searchsorted(self.edges, time)] * scale


def _width(error: Float[np.ndarray, " n"], spread: Float[np.ndarray, " n"]) -> tuple[float, Float[np.ndarray, " q"]]:
    """v and c_q; the quantile is the ceil((n + 1) q)-th value (split conformal prediction), the last one at most."""
    n = len(error)
    if n == 0:
        return 0.0, np.full(len(LEVELS), np.nan)
    residual = max(0.0, float(np.mean(error**2 - spread**2)))
    scores = np.sort(np.abs(error) / np.maximum(np.sqrt(spread**2 + residual), TINY))
    rank = np.ceil((n + 1) * np.array(LEVELS)).astype(int)
    return residual, scores[np.minimum(rank, n) - 1]


@dataclasses.dataclass(frozen=True)
class SpreadCheck:
    """Spread against error of one kind of prediction, in standardised units."""

    error: float
    """Root mean square error of the mean of the members."""
    spread: float
    """Root mean square spread s."""
    rank_correlation: float | None
    """Spearman's, of the spread and the size of the error; mean over variables."""
    by_spread: list[tuple[float, float]]
    """Root mean square spread and error of the values in each tenth of the spread, smallest spread first."""
    coverage: Mapping[str, list[float]]
    """Fraction of the values within the intervals of each level: of the spread alone; with the residual variance
    (normal quantiles); calibrated. The last two only with validation episodes."""
    by_variable: Mapping[str, float | None]
    """The ratio of each variable; None where nothing was measured."""

    @property
    def ratio(self) -> float:
        """The spread relative to the error."""
        return self.spread / max(self.error, TINY)

    def __str__(self) -> str:
        """One line without a full stop."""
        rank = "" if self.rank_correlation is None else f", rank correlation {self.rank_correlation:.2f}"
        covered = ", ".join(f"{name} {100 * shares[-1]:.0f} %" for name, shares in self.coverage.items())
        return (
            f"error {short_number(self.error, 3)}, spread {short_number(self.spread, 3)} ({self.ratio:.2f} of it)"
            f"{rank}; {100 * LEVELS[-1]:.0f} % intervals cover: {covered}"
        )


def check_spread(found: Errors, names: Sequence[str], widths: Widths | None = None) -> SpreadCheck:
    """Compare spread and error."""
    known = ~np.isnan(found.error)
    if not known.any():
        raise KairodeError("nothing was measured after the first observations, so there is no error to compare with.")
    error, spread = found.error[known], found.spread[known]
    ranks = [_rank_correlation(found.error[k, j], found.spread[k, j]) for j, k in enumerate(known.T)]
    ranked = [rank for rank in ranks if rank is not None]
    order = np.array_split(np.argsort(spread, kind="stable"), min(BINS, len(spread)))
    half = {"spread": stats.t.ppf(_upper(), found.members - 1)[:, None] * spread}
    if widths is not None:
        scale = widths.scale(found.spread, found.time)[known]
        half["with residual"] = stats.norm.ppf(_upper())[:, None] * scale
        half["calibrated"] = widths.half(found.spread, found.time)[:, known]
    return SpreadCheck(
        error=_rms(error),
        spread=_rms(spread),
        rank_correlation=float(np.mean(ranked)) if ranked else None,
        by_spread=[(_rms(spread[part]), _rms(error[part])) for part in order],
        coverage={name: _coverage(error, width) for name, width in half.items()},
        by_variable={
            name: _rms(found.spread[k, j]) / max(_rms(found.error[k, j]), TINY) if k.any() else None
            for j, (name, k) in enumerate(zip(names, known.T, strict=True))
        },
    )


def _upper() -> np.ndarray:
    return 0.5 + np.array(LEVELS) / 2


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _coverage(error: np.ndarray, half: np.ndarray) -> list[float]:
    """Of the values whose interval is known."""
    return [float(np.mean(np.abs(error[k]) <= width[k])) for width in half for k in [~np.isnan(width)]]


def _rank_correlation(error: np.ndarray, spread: np.ndarray) -> float | None:
    step = max(1, len(error) // RANKED)
    size, spread = np.abs(error[::step]), spread[::step]
    if len(size) < 3 or np.ptp(size) == 0 or np.ptp(spread) == 0:
        return None
    return float(stats.spearmanr(size, spread).statistic)
