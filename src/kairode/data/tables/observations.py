"""The observations of a table: numbers, categories, static columns and missing values."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kairode.data.tables.columns import EMPTY_COLUMN, MISSING, NOTHING, Categories, categories, is_time, numbers
from kairode.data.tables.context import SortedRows, TableContext
from kairode.envs.core import Variable
from kairode.errors import KairodeError
from kairode.text import listed, short_name

MOST_CATEGORIES = 50
MANY_ROWS = 10
"""Rows from which on a column that counts them is noticed."""
Observed = dict[str, np.ndarray | Categories]
"""Columns by name: numbers, or categories."""


def read_observations(context: TableContext) -> Observed:
    """Columns of numbers (NaN where missing) and of categories."""
    found: Observed = {}
    advice = ": add it to categorical if it holds categories, or to ignore"
    for name in context.observed:
        column = context.table[name]
        if name in context.config.categorical:
            found[name] = _checked_categories(context, name)
        elif is_time(column.type):
            context.faults.add(name, "dates are not observations: add it to ignore, or convert it to numbers")
        elif pa.types.is_null(column.type):
            context.faults.add(name, EMPTY_COLUMN)
        else:
            found[name] = values = numbers(column, name, context.faults, advice)
            if _counts_rows(values, context.faults.rows):
                context.faults.add(name, "it holds the numbers of the rows: add it to ignore")
    if not context.observed:
        raise KairodeError(f"{context.name}: no column is left that is an observation.")
    return found


def _counts_rows(values: np.ndarray, rows: np.ndarray) -> bool:
    """Whether a column, in the order of the file, is 0, 1, 2, .. or 1, 2, 3, .."""
    since = values[:MANY_ROWS] - rows[:MANY_ROWS]
    return len(values) >= MANY_ROWS and since[0] in (0, 1) and bool(np.all(values - rows == since[0]))


def _checked_categories(context: TableContext, name: str) -> Categories:
    found = categories(context.table[name], name, context.faults)
    if len(found.names) > MOST_CATEGORIES:
        context.faults.add(
            name,
            f"{len(found.names):,} categories, at most {MOST_CATEGORIES} are encoded: group them, or add it to "
            "ignore if it is an identifier",
        )
    doubtful = [f"'{one}'" for one in found.names if one in NOTHING]
    if doubtful:
        context.notes.append(
            f"{listed(doubtful)} is a category of '{short_name(name)}': empty these cells if they stand for missing "
            "values."
        )
    if not found.names and name not in context.faults.columns:
        context.faults.add(name, EMPTY_COLUMN)
    return found


def merge_observations(observed: Observed, rows: SortedRows, static: Sequence[str]) -> Observed:
    """One row for each group of rows with the same time."""

    def one(name: str, column: np.ndarray | Categories) -> np.ndarray | Categories:
        if isinstance(column, Categories):
            return Categories(rows.groups.last(column.codes), column.names)
        return rows.groups.first(column) if name in static else rows.groups.mean(column)

    return {name: one(name, column) for name, column in observed.items()}


def _missing(column: np.ndarray | Categories) -> np.ndarray:
    return column.codes == MISSING if isinstance(column, Categories) else np.isnan(column)


def _replace(column: np.ndarray | Categories, values: np.ndarray) -> np.ndarray | Categories:
    return Categories(values.astype(np.int64), column.names) if isinstance(column, Categories) else values


def fill_static(context: TableContext, observed: Observed, rows: SortedRows) -> None:
    """Repeat static values along their episodes; a value that changes is a fault."""
    for name in context.config.static:
        if name in context.faults.columns:
            continue
        column = observed[name]
        values = column.codes if isinstance(column, Categories) else column
        known = np.flatnonzero(~_missing(column))
        _, place = np.unique(rows.episode[known], return_index=True)
        fixed = np.full(rows.episode.max() + 1, MISSING if isinstance(column, Categories) else np.nan)
        fixed[rows.episode[known[place]]] = values[known[place]]
        context.faults.add_rows(
            ~_missing(column) & (values != fixed[rows.episode]),
            name,
            "a static column must not change within an episode: correct it, or leave it out of static",
        )
        observed[name] = _replace(column, fixed[rows.episode])


def carry_forward(column: np.ndarray | Categories, rows: SortedRows) -> tuple[np.ndarray | Categories, int]:
    """The last value of the episode in place of missing ones, and how many have none before them: these become the
    column's median or most frequent value."""
    lost, values = _missing(column), column.codes if isinstance(column, Categories) else column
    place = np.maximum.accumulate(np.where(lost & ~rows.first, 0, np.arange(len(lost))))
    none = lost[place]
    known = values[~lost]
    usual = np.bincount(known).argmax() if isinstance(column, Categories) else np.median(known)
    return _replace(column, np.where(none, usual, values[place])), int(none.sum())


def fill_missing(context: TableContext, observed: Observed, rows: SortedRows) -> None:
    """Keep missing values, carry the last one of the episode forward, or refuse them."""
    filled = early = kept = 0
    for name, column in observed.items():
        lost = _missing(column)
        if not lost.any() or name in context.faults.columns:
            continue
        if lost.all():
            context.faults.add(name, EMPTY_COLUMN)
        elif context.config.missing == "refuse":
            share = f"{lost.sum():,} of {len(lost):,} values ({lost.mean():.1%}) are missing, this one first"
            first = np.arange(len(lost)) == lost.argmax()
            context.faults.add_rows(
                first, name, f"{share}: keep them as missing (missing: keep), or carry the last value forward (carry)"
            )
        elif context.config.missing == "keep":
            kept += int(lost.sum())
        else:
            observed[name], none = carry_forward(column, rows)
            filled, early = filled + int(lost.sum()), early + none
    if kept:
        part = kept / (len(rows.t) * len(observed))
        context.notes.append(f"{kept:,} missing values ({part:.1%}) are kept as missing.")
    if filled:
        context.filled = True
        first = f", {early:,} of them, before the first one, with the column's median or most frequent value"
        context.notes.append(
            f"{filled:,} missing values ({filled / (len(rows.t) * len(observed)):.1%}) were filled with the last value "
            f"of their episode{first if early else ''}."
        )


def encode_observations(context: TableContext, observed: Observed) -> tuple[np.ndarray, tuple[Variable, ...]]:
    """Observations as one array, with one variable per category (one for two categories)."""
    columns: list[np.ndarray] = []
    variables: list[Variable] = []
    for name, column in observed.items():
        if not isinstance(column, Categories):
            columns.append(column)
            variables.append(Variable(name, "as given"))
            continue
        codes, names = column
        kept = [1] if len(names) == 2 else range(len(names))
        lost = codes == MISSING
        for i in kept:
            columns.append(np.where(lost, np.nan, codes == i))
            variables.append(Variable(f"{name}={names[i]}", "0 or 1", 0.0, 1.0))
        context.notes.append(f"'{name}' was encoded as {listed(f'{name}={names[i]}' for i in kept)}.")
    values = np.empty((len(columns[0]), len(columns)), np.float32)
    for i, column in enumerate(columns):
        values[:, i] = column
    return values, tuple(variables)


def names_of(observed: Observed) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The names of the categories of each such column."""
    return tuple((name, tuple(one.names)) for name, one in observed.items() if isinstance(one, Categories))
