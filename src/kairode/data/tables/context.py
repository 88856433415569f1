"""A table on its way to episodes, and the order of its rows."""

import dataclasses
import functools

import numpy as np
import pyarrow as pa

from kairode.config.tables import TableConfig
from kairode.data.table import index_type
from kairode.data.tables.columns import MISSING, categories, times
from kairode.data.tables.faults import Faults

ENDS = ("terminated", "truncated")
"""Columns that say how an episode ended."""


@dataclasses.dataclass
class TableContext:
    """A table, what its columns mean, and what was found and done so far."""

    name: str
    table: pa.Table
    config: TableConfig
    faults: Faults
    notes: list[str] = dataclasses.field(default_factory=list)
    filled: bool = False
    """Whether missing observations were filled."""
    order: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    """The row of the file that each row of the table is from."""

    def has(self, name: str) -> bool:
        """Whether there is a column of this name that is not to be ignored."""
        return name in self.table.column_names and name not in self.config.ignore

    @property
    def decided(self) -> tuple[str, ...]:
        """Columns of the actions."""
        return self.config.controls or self.config.action

    @property
    def observed(self) -> list[str]:
        """Columns that are observations: all that have no other role."""
        config = self.config
        reward = config.reward if config.reward in self.table.column_names else "reward"
        others = {config.episode, config.time, *self.decided, *config.ignore, config.terminal, *ENDS, reward}
        names = [name for name in self.table.column_names if not name.startswith("__index_level_")]
        return [name for name in names if name not in others]


class RowGroups:
    """Sorted rows of which those of one episode and time belong together; each group becomes one row."""

    def __init__(self, same: np.ndarray) -> None:
        self.same = same
        self.single = not same.any()
        """Whether every group has one row."""

    @functools.cached_property
    def heads(self) -> np.ndarray:
        """The first row of every group."""
        return np.flatnonzero(~self.same)

    @functools.cached_property
    def number(self) -> np.ndarray:
        """The group of every row."""
        return np.cumsum(~self.same) - 1

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Means of what is not missing."""
        known = ~np.isnan(values)
        count = np.add.reduceat(known.astype(np.int64), self.heads)
        return np.where(count > 0, self._total(values, known) / np.maximum(count, 1), np.nan)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sums of what is not missing."""
        known = ~np.isnan(values)
        return np.where(np.logical_or.reduceat(known, self.heads), self._total(values, known), np.nan)

    def first(self, values: np.ndarray) -> np.ndarray:
        """The first value."""
        return values[self.heads]

    def last(self, codes: np.ndarray) -> np.ndarray:
        """The last code that is not missing."""
        found, known = np.full(len(self.heads), MISSING), codes != MISSING
        found[self.number[known]] = codes[known]  # the last one stays
        return found

    def last_number(self, values: np.ndarray) -> np.ndarray:
        """The last number that is not missing."""
        found, known = np.full(len(self.heads), np.nan), ~np.isnan(values)
        found[self.number[known]] = values[known]
        return found

    def any(self, values: np.ndarray) -> np.ndarray:
        """Whether any is true."""
        return np.logical_or.reduceat(values, self.heads)

    def _total(self, values: np.ndarray, known: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.where(known, values, 0.0), self.heads)


@dataclasses.dataclass
class SortedRows:
    """Rows sorted by episode (in the order of the file) and time."""

    episode: np.ndarray
    t: np.ndarray
    """Since the first row of the episode."""
    unit: str | None
    groups: RowGroups

    def merged(self) -> "SortedRows":
        """One row for each group."""
        heads = self.groups.heads
        groups = RowGroups(np.zeros(len(heads), bool))
        return SortedRows(self.episode[heads], self.t[heads], self.unit, groups)

    @property
    def first(self) -> np.ndarray:
        """Mask of the first row of every episode."""
        return np.append(True, self.episode[1:] != self.episode[:-1])

    @property
    def last(self) -> np.ndarray:
        """Mask of the last row of every episode."""
        return np.append(self.first[1:], True)


def sort_rows(context: TableContext) -> SortedRows:
    """Sort the rows of a table; raises what is wrong with episodes and times, without which nothing can be said."""
    config, faults = context.config, context.faults
    ids = categories(context.table[config.episode], config.episode, faults)
    faults.raise_any()
    faults.add_rows(ids.codes == MISSING, config.episode, "the episode is missing")
    t, unit = times(context.table[config.time], config.time, config.time_unit, faults)
    if config.time not in faults.columns:
        faults.add_rows(np.isnan(t), config.time, "the time is missing")
    faults.raise_any()
    number = index_type(len(t))
    place = np.empty(len(ids.names), number)
    place[ids.codes[::-1]] = np.arange(len(t) - 1, -1, -1, dtype=number)  # the first row stays
    episode = np.argsort(np.argsort(place)).astype(number)[ids.codes]  # in the order of the file
    follows = (episode[1:] > episode[:-1]) | ((episode[1:] == episode[:-1]) & (t[1:] >= t[:-1]))
    order = np.arange(len(t), dtype=number)
    if not follows.all():
        order = np.lexsort((t, episode)).astype(number)
        episode, t = episode[order], t[order]
        context.table = context.table.take(order)
        context.notes.append("Rows were sorted by episode and time.")
    faults.rows = context.order = order
    within = np.append(False, episode[1:] == episode[:-1])
    t = t - t[~within][episode]
    step = np.append(1.0, np.diff(t))
    same = within & (step == 0)
    if config.same_time == "refuse":
        faults.add_rows(
            same,
            config.time,
            "the row has the same time as another of its episode: correct it, or merge such rows (same_time: merge)",
        )
    elif same.any():
        context.notes.append(f"Rows merged with another of the same episode and time: {same.sum():,}.")
    lost = within & ~same & (step.astype(np.float32) <= 0)
    faults.add_rows(lost, config.time, "the interval before it is too short for single precision")
    return SortedRows(episode, t, unit, RowGroups(same if config.same_time == "merge" else np.zeros_like(same)))
