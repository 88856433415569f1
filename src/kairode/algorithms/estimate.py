"""An estimated return with its interval."""

import dataclasses

import numpy as np
from scipy import stats

from kairode.result import short_number

RESAMPLES, LEVEL = 2000, 95.0
"""Of a bootstrap over episodes, and the level of its intervals in percent."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimated mean return with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether the data support an estimate with an interval."""
        return bool(np.isfinite([self.mean, self.low, self.high]).all())

    def __str__(self) -> str:
        if not self.known:
            return "no estimate"
        return f"{short_number(self.mean)} (95 % CI {short_number(self.low)} to {short_number(self.high)})"


def normal_interval(mean: float, samples: np.ndarray) -> tuple[float, float]:
    """Of few samples, as if they were normally distributed."""
    quantile = float(stats.t.ppf(0.5 + LEVEL / 200, len(samples) - 1))
    half = quantile * float(samples.std(ddof=1))
    return mean - half, mean + half


def percentiles(samples: np.ndarray) -> tuple[float, float]:
    """Percentiles of resamples; NaN where a twentieth of these or more have none."""
    known = samples[np.isfinite(samples)]
    if len(known) < 0.95 * len(samples):
        return float("nan"), float("nan")
    low, high = np.percentile(known, [50 - LEVEL / 2, 50 + LEVEL / 2])
    return float(low), float(high)
