"""Advice: what to do now, when to look next, what to expect, and how far to trust it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kairode.envs.core import Spec
from kairode.planning.reference import Likeness, Reference, neighbors
from kairode.result import short_number
from kairode.text import MOST, listed, short_name, visible

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the predicted course, over the members of the ensemble."""
RARE = 0.02
"""Share of the nearest decisions below which the advised action is rare."""


@dataclasses.dataclass(frozen=True, eq=False)
class PredictedCourse:
    """The observations that the ensemble predicts while the advised action is held."""

    times: np.ndarray
    """In the clock of the observations; one of them is that of the next visit."""
    mean: Mapping[str, np.ndarray]
    """By variable."""
    quantiles: Mapping[str, np.ndarray]
    """By variable, one row for each of `QUANTILES`: where the models differ, without the noise of a measurement."""

    def figures(self) -> dict[str, Any]:
        """For a record."""
        each = {
            name: {"mean": finite(mean), **{f"{q:g}": finite(row) for q, row in zip(QUANTILES, rows, strict=True)}}
            for (name, mean), rows in zip(self.mean.items(), self.quantiles.values(), strict=True)
        }
        return {"times": finite(self.times), "variables": each}


@dataclasses.dataclass(frozen=True, eq=False)
class Advice:
    """What `Advisor.advise` returns; `print` shows it in a few lines."""

    action: str | Mapping[str, float]
    """The name of the action; of controls, the value of each."""
    time: float
    """Of the current visit."""
    next_visit: float
    """Interval until the next visit."""
    next_time: float
    values: Mapping[str, float]
    """Expected rewards from now on by action, discounted as the policy was learned, NaN for those that the data do not
    support; of controls, that of the advised ones and of the data's mean (`usual`)."""
    course: PredictedCourse
    out_of_distribution: bool | None
    """Whether this state or this action in it is unlike the data; None if there are no data to compare with."""
    reasons: tuple[str, ...]
    """Why, in words."""
    likeness: Mapping[str, float]
    """Distance, disagreement and share of the action, with their limits."""
    warnings: tuple[str, ...]
    time_unit: str

    def __str__(self) -> str:
        unit = f"{self.time_unit}s"
        action = self.action if isinstance(self.action, str) else _listed(self.action)
        lines = [
            f"at {short_number(self.time)} {unit}: {short_name(action)}",
            f"next visit: in {short_number(self.next_visit)} {unit}, at {short_number(self.next_time)}",
            f"values: {_listed(self.values, ': ', '; ')}",
            f"expected then (in brackets, how far the models differ; outcomes vary more): {self._expected()}",
        ]
        lines += [f"unlike the data: {visible(text)}" for text in self.reasons]
        return "\n".join([*lines, *(f"warning: {visible(text)}" for text in self.warnings)])

    def _expected(self) -> str:
        at = int(np.argmin(np.abs(self.course.times - self.next_time)))
        words = []
        for name, mean in self.course.mean.items():
            if np.ptp(self.course.quantiles[name]) == 0:  # it never changes
                continue
            low, high = self.course.quantiles[name][[0, -1], at]
            numbers = [short_number(float(x)) for x in (mean[at], low, high)]
            words.append(f"{short_name(name)} {numbers[0]} ({numbers[1]} to {numbers[2]})")
        return listed_words(words)

    def figures(self) -> dict[str, Any]:
        """As plain JSON; None for numbers that are not known."""
        return {
            "action": self.action if isinstance(self.action, str) else dict(self.action),
            "time": self.time,
            "next_visit": self.next_visit,
            "next_time": self.next_time,
            "time_unit": self.time_unit,
            "values": {name: finite(value) for name, value in self.values.items()},
            "course": self.course.figures(),
            "out_of_distribution": self.out_of_distribution,
            "reasons": list(self.reasons),
            "likeness": {name: finite(value) for name, value in self.likeness.items()},
            "warnings": list(self.warnings),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class ManyAdvice:
    """What `Advisor.advise_many` returns: arrays with one entry for each episode."""

    action: np.ndarray
    """Indices of the actions; of controls, their values."""
    interval: np.ndarray
    """Until the next visit."""
    values: np.ndarray
    """As in `Advice.values`, one column for each action."""
    disagreement: np.ndarray
    """Of the ensemble about the next observation, in standard deviations."""
    out_of_distribution: np.ndarray | None
    """None if there are no data to compare with."""


def listed_words(words: list[str], mark: str = ", ") -> str:
    """The first texts, and how many more there are."""
    more = f" and {len(words) - MOST:,} more" if len(words) > MOST else ""
    return mark.join(words[:MOST]) + more


def _listed(values: Mapping[str, float], between: str = " ", mark: str = ", ") -> str:
    words = [
        f"{short_name(name)}{between}{'not supported' if math.isnan(value) else short_number(value)}"
        for name, value in values.items()
    ]
    return listed_words(words, mark)


def finite(values: Any) -> Any:
    """Plain numbers, None for those that are not finite."""
    if np.ndim(values):
        return [finite(value) for value in values]
    return float(values) if math.isfinite(values) else None


def out_of_distribution(reference: Reference, found: Likeness, disagreement: np.ndarray) -> np.ndarray:
    """Whether each state, or the action advised in it, is unlike the data."""
    return (
        found.outside.any(1)
        | (found.distance > reference.distance)
        | (disagreement > reference.disagreement)
        | (found.share < RARE)
    )


def reasons(
    reference: Reference, found: Likeness, disagreement: float, observation: np.ndarray, spec: Spec, action: str
) -> tuple[str, ...]:
    """Why one state is unlike the data."""
    said = [
        f"{short_name(variable.name)} = {float(observation[i]):.4g} is outside of the data's range "
        f"({float(reference.low[i]):.4g} to {float(reference.high[i]):.4g})"
        for i, variable in enumerate(spec.observations)
        if found.outside[0, i]
    ]
    if len(said) > MOST:
        said = [*said[:MOST], f"{len(said) - MOST:,} more variables are outside of their ranges"]
    if found.distance[0] > reference.distance:
        said.append(
            f"no decision of the data is near: the nearest is {found.distance[0]:.2g} standard deviations away, beyond "
            f"{float(reference.distance):.2g} (99 % of the data are nearer)"
        )
    if disagreement > reference.disagreement:
        said.append(
            f"the models disagree about what follows: by {disagreement:.2g} standard deviations, beyond "
            f"{float(reference.disagreement):.2g} (99 % of the data are below)"
        )
    if found.share[0] < RARE:
        said.append(
            f"{action} was hardly ever done in such states: in {found.share[0]:.0%} of the {neighbors(reference)} most "
            "similar ones"
        )
    return tuple(said)


def measures(reference: Reference, found: Likeness, disagreement: float) -> dict[str, float]:
    """The numbers behind the reasons."""
    return {
        "distance": float(found.distance[0]),
        "distance_limit": float(reference.distance),
        "disagreement": disagreement,
        "disagreement_limit": float(reference.disagreement),
        "action_share": float(found.share[0]),
        "action_share_limit": RARE,
    }


def missing_words(spec: Spec, measured: np.ndarray) -> list[str]:
    """Warnings of what was not measured at the current visit (the last row) or never."""
    names = np.array([variable.name for variable in spec.observations])
    never, now = ~measured.any(0), ~measured[-1]
    said = []
    if never.any():
        said.append(
            f"never measured, so the policy is given the value that is usual at first, and predictions do not show how "
            f"much depends on it: {listed(names[never])}"
        )
    if (now & ~never).any():
        said.append(f"not measured now, so the policy is given the last value: {listed(names[now & ~never])}")
    return said
