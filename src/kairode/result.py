"""Results of evaluating policies: one type for every record, table and sentence.

    return                      sum of the rewards at decisions
    discounted_return           each of them times gamma^t, t the time of its decision
    accrued_return              sum of the rewards counted on every finest time step
    discounted_accrued_return   each of them times gamma^t

A task's objective is one of the four.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kairode.errors import KairodeError
from kairode.stats import bootstrap_interval, iqm, mean, std

RETURNS = ("return", "discounted_return", "accrued_return", "discounted_accrued_return")

Figure = float | list[float | None] | None
"""A mean over episodes: of one policy, or a list with one for each seed; None where it was not computed."""


def objective_name(*, discounted: bool, accrued: bool) -> str:
    """Which of the four returns."""
    return f"{'discounted_' * discounted}{'accrued_' * accrued}return"


class Spread(NamedTuple):
    """How far the objective varies: over the episodes of one policy, or over seeds."""

    std: float | None = None
    iqm: float | None = None
    low: float | None = None
    """Lower end of the 95 % bootstrap interval of the mean."""
    high: float | None = None

    @classmethod
    def of(cls, values: ArrayLike) -> "Spread":
        """Of one value for each episode, or for each seed; unknown where one of them is not finite."""
        values = np.asarray(values, np.float64)
        if not np.isfinite(values).all():
            return cls()
        return cls(std(values), iqm(values), *bootstrap_interval(values))


@dataclasses.dataclass(frozen=True)
class Result:
    """Means over the test episodes of a policy, or of one policy for each seed."""

    objective: str
    """The return that the task is evaluated by."""
    returns: Mapping[str, Figure]
    """By name; one that is not there was not computed."""
    spread: Spread
    """Of the objective."""
    decisions: Figure
    """In an episode."""
    time: Figure
    """Of an episode."""
    terminated: Figure
    """Share of the episodes that the process ended (a goal reached, a fall)."""
    measures: Mapping[str, Figure]
    """Share of the time with each condition of `Task.measures`: {"healthy": 0.34}."""
    episodes: int | None
    """Of each policy; None where it is not known."""
    episode_scores: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)
    """The objective of each episode; a record does not keep it."""

    def __post_init__(self) -> None:
        if unknown := ({self.objective, *self.returns} - set(RETURNS)):
            raise KairodeError(f"there is no return '{min(unknown)}': choose from {', '.join(RETURNS)}.")

    @property
    def score(self) -> float:
        """The mean of the objective over the episodes, and over seeds where there are several."""
        return _mean(self.returns.get(self.objective))

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """A 95 % bootstrap interval of the score."""
        return self.spread.low, self.spread.high

    def figures(self) -> dict[str, Any]:
        """For a record."""
        return {
            "objective": self.objective,
            **{name: self.returns.get(name) for name in RETURNS},
            **self.spread._asdict(),
            "decisions": self.decisions,
            "time": self.time,
            "terminated": self.terminated,
            "measures": dict(self.measures),
            "episodes": self.episodes,
        }

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> "Result":
        """The inverse of `figures`; what else a record holds beside them is left out."""
        return cls(
            objective=figures["objective"],
            returns={name: figures[name] for name in RETURNS if figures.get(name) is not None},
            spread=Spread(*(figures[name] for name in Spread._fields)),
            **{name: figures[name] for name in ("decisions", "time", "terminated", "measures", "episodes")},
        )

    def __str__(self) -> str:
        """One sentence without its full stop; of several seeds the means over them."""
        parts = [f"{self.objective.replace('_', ' ')} {short_number(self.score)}"]
        if self.spread.low is not None and self.spread.high is not None:
            parts[0] += f" (95 % CI {short_number(self.spread.low)} to {short_number(self.spread.high)})"
        if self.decisions is not None:
            parts.append(f"{_mean(self.decisions):.4g} decisions per episode")
        parts += [f"{self.episodes} episode{'s' * (self.episodes != 1)}"] if self.episodes is not None else []
        for name, share in self.measures.items():
            parts += [f"{100 * _mean(share):.0f} % of the time {name}"] if share is not None else []
        if self.terminated is not None and _mean(self.terminated):
            parts.append(f"{100 * _mean(self.terminated):.0f} % terminated")
        return ", ".join(parts)


def objective_of(figures: Mapping[str, Any]) -> Any:
    """The value of the objective in the figures of a record: a number, or a list with one for each seed."""
    return figures[figures["objective"]]


def rounded(value: Any, digits: int = 5) -> Any:
    """Numbers to some digits, in lists and dicts too; None where one is not finite."""
    if isinstance(value, Mapping):
        return {name: rounded(item, digits) for name, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [rounded(item, digits) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def _mean(figure: Figure) -> float:
    values = np.array(figure, np.float64)  # None becomes NaN
    return float(mean(values[np.isfinite(values)])) if np.isfinite(values).any() else float("nan")


def short_number(value: float, digits: int = 4) -> str:
    """To some digits, with a short exponent: 7.2e8, 1.5e-5."""
    text = f"{value:.{digits}g}"
    digits_, mark, power = text.partition("e")
    return f"{digits_}e{int(power)}" if mark else text
