"""Tables of irregular records as episodes: any file or data frame whose columns the caller names."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kairode.config.keywords import field_names, with_options
from kairode.config.tables import CSV, PARQUET, TableConfig, ending
from kairode.data.content import KEY
from kairode.data.table import EpisodeRows, described_spec, is_ragged, open_file, pad_episodes, read, row_width
from kairode.data.tables.context import SortedRows, TableContext, sort_rows
from kairode.data.tables.decisions import (
    Reward,
    check_actions_given,
    decided_actions,
    read_actions,
    read_reward,
    read_terminated,
    reward_columns,
    reward_formula,
    rewards_of,
)
from kairode.data.tables.faults import Faults
from kairode.data.tables.observations import (
    encode_observations,
    fill_missing,
    fill_static,
    merge_observations,
    names_of,
    read_observations,
)
from kairode.data.tables.source import read_source
from kairode.data.trajectory import Trajectory
from kairode.envs.core import RESERVED, Continuous, Discrete, Intervals, Spec, Variable
from kairode.errors import KairodeError
from kairode.text import listed

SEVERAL = ("action", "controls", "static", "categorical", "ignore")
"""Options that take several columns."""


class LoadedTable(NamedTuple):
    """Episodes of a table."""

    data: Trajectory
    rows: np.ndarray
    """The row of the table that each observation is from, in the order of the episodes."""


class FlatTable(NamedTuple):
    """Episodes of a table as rows, without padding."""

    name: str
    spec: Spec
    episodes: EpisodeRows
    rows: np.ndarray
    """As in `LoadedTable`."""

    @property
    def ragged(self) -> bool:
        """Whether padding would take far more memory than the rows."""
        return is_ragged(self.episodes.lengths, row_width(self.spec))

    def padded(self) -> LoadedTable:
        """The episodes, padded to the longest."""
        return LoadedTable(pad_episodes(self.name, self.spec, self.episodes), self.rows)


def load_table(source: Any, *, reward: str | Reward | None = None, **columns: Any) -> Trajectory:
    """Load episodes from a table whose columns have names of your own.

    Rows need not be sorted. The last row of an episode has no interval after it: its action and reward are not used.
    All faults of a table are named together, with row and column. What was done to the table (sorted, merged, filled,
    encoded, dropped) is in `spec.notes` of the result.

    Args:
        source: a CSV or Parquet file, a pandas or polars DataFrame, an Arrow table, or a dict of columns.
        reward: a column, an expression of columns (see `TableConfig.reward`), or a function of the columns at the
            decisions, those at the ends of their intervals, and the intervals, all as arrays.
        columns: fields of `kairode.config.tables.TableConfig`: episode, time, time_unit, action, controls, reward_row,
            reward_missing, terminal, static, categorical, ignore, missing, same_time, discount.

    Example: `kairode.load_table("visits.csv", episode="subject", time="when", action="drug", static=["age"])`
    """
    return load_rows(source, *table_options(reward, columns, "kairode.load_table")).data


def table_options(
    reward: str | Reward | None, columns: Mapping[str, Any], where: str
) -> tuple[TableConfig, Reward | None]:
    """The config of what a function is given about a table, and the reward if it is a function."""
    given = {name: _as_tuple(name, value) if name in SEVERAL else value for name, value in columns.items()}
    if not (reward is None or isinstance(reward, str) or callable(reward)):
        raise KairodeError(f"reward must be a column, an expression or a function, got {type(reward).__name__}.")
    if not callable(reward):
        given["reward"] = reward
    config = with_options(TableConfig(), given, where=where, own=field_names(TableConfig))
    return config, reward if callable(reward) else None


def _as_tuple(name: str, value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else None
    if found is None or not all(isinstance(one, str) for one in found):
        raise KairodeError(f"{name} must be a column or a list of columns, got {value!r}.")
    return found


def load_rows(
    source: Any, config: TableConfig, reward: Reward | None = None, *, keep_missing: bool = False
) -> LoadedTable:
    """Load a table with a config; `keep_missing` leaves missing observations NaN, whatever the config."""
    return load_flat(source, config, reward, keep_missing=keep_missing).padded()


def load_flat(
    source: Any, config: TableConfig, reward: Reward | None = None, *, keep_missing: bool = False
) -> FlatTable:
    """`load_rows`, without padding."""
    try:
        return _load_flat(source, config, reward, keep_missing)
    except pa.ArrowException as error:  # of a type that Arrow has no function for
        first = (str(error).splitlines() or [""])[0]
        name = source if isinstance(source, str | Path) else "the table"
        raise KairodeError(f"{name}: a column cannot be read ({first}): convert it, or add it to ignore.") from error


def _load_flat(source: Any, config: TableConfig, reward: Reward | None, keep_missing: bool) -> FlatTable:
    texts = (config.episode, *(() if config.controls else config.action), *config.categorical)
    _check_not_described(source)
    name, table, lines = read_source(source, texts)
    pa.default_memory_pool().release_unused()
    context = TableContext(name, table, config, Faults(name, np.arange(table.num_rows), lines))
    _check_columns(context)
    del table
    rows = sort_rows(context)
    observed = read_observations(context)
    action, action_names = read_actions(context)
    terminated = read_terminated(context, rows)
    given = read_reward(context, reward)
    extra = reward_columns(context, given)
    fill_static(context, observed, rows)
    if not rows.groups.single:
        groups = rows.groups
        observed = merge_observations(observed, rows, config.static)
        action = groups.last(action) if action.ndim == 1 else np.stack([groups.mean(one) for one in action.T], 1)
        terminated = groups.any(terminated)
        given = groups.sum(given) if isinstance(given, np.ndarray) else given
        chosen = {*config.action} if not config.controls else set()  # of discrete actions the last one counts
        extra = {
            name: groups.last_number(values) if name in chosen else groups.mean(values)
            for name, values in extra.items()
        }
        context.faults.rows = context.faults.rows[groups.heads]
        rows = rows.merged()
    filled = dict(observed)
    if not (keep_missing and config.missing == "refuse"):
        fill_missing(context, filled, rows)
    usable = {name: column for name, column in filled.items() if isinstance(column, np.ndarray) and name in extra}
    rewards = rewards_of(context, given, {**extra, **usable}, rows, keep_missing)
    check_actions_given(context, action, rows.last)
    context.faults.raise_any()
    context.table = context.table.schema.empty_table()  # what follows needs the memory
    pa.default_memory_pool().release_unused()
    single = _single_rows(context, rows)
    action, actions = decided_actions(context, action, action_names, ~rows.last)
    formula = reward_formula(context, given, extra, action, actions, ~rows.last)
    categories = names_of(observed)
    values, variables = encode_observations(context, observed if keep_missing else filled)
    del observed, filled, usable, extra, given
    flat = EpisodeRows(values, action, rewards, rows.t, rows.first, rows.last, terminated, ~terminated)
    if single.any():
        flat = EpisodeRows(*(column[~single] for column in flat))
    spec = dataclasses.replace(_spec(context, variables, actions, flat, rows), **formula, categories=categories)
    return FlatTable(name, spec, flat, context.faults.rows[~single])


def read_episodes(path: str | Path, config: TableConfig | None = None, *, keep_missing: bool = False) -> LoadedTable:
    """Episodes of a file: one in Kairode's format is read as such, any other is loaded as a table.

    With a config, every file is loaded as a table.
    """
    if config is None and in_own_format(path):
        data = read(path)
        return LoadedTable(data, np.arange(data.decisions + len(data)))
    return load_rows(path, config or TableConfig(), keep_missing=keep_missing)


def in_own_format(source: Any) -> bool:
    """Whether a source is a Parquet file in the format of `kairode.write`."""
    if not isinstance(source, str | Path) or ending(source) in CSV:
        return False
    with open_file(source, streamed=True) as file:
        return described_spec(source, file.schema_arrow) is not None or _has_controls(file.schema_arrow.names)


def _has_controls(names: Sequence[str]) -> bool:
    """Whether columns are those that `kairode.write` writes for continuous actions."""
    controls = any(name.startswith("action_") for name in names)
    return controls and "action" not in names and set(RESERVED) - {"action"} <= set(names)


def _check_not_described(source: Any) -> None:
    """Raise for a file that describes itself: its discount, unit of time, reward and categories would be lost."""
    if not isinstance(source, str | Path) or ending(source) not in PARQUET:
        return
    with open_file(source, streamed=True) as file:
        described = KEY in (file.schema_arrow.metadata or {})
    if described:
        raise KairodeError(
            f"{source} was written by Kairode and describes itself: leave out all options about its columns (in "
            "Python, read it with kairode.read). To load it as any other table, with another discount or reward, write "
            "it as CSV first."
        )


def _check_columns(context: TableContext) -> None:
    """Raise if a named column does not exist, or an observation has a reserved name."""
    names = context.table.column_names
    for role, columns in context.config.roles.items():
        for column in columns:
            if column not in names:
                context.faults.add(column, f"there is no such column; set {role} to one of {listed(names)}")
            elif role in ("static", "categorical") and column not in context.observed:
                context.faults.add(column, f"it is not an observation, so it cannot be {role}")
    for name in context.observed:
        if name in RESERVED or name.startswith("action_"):
            context.faults.add(
                name,
                "an observation cannot have this name: give the column's role, rename it, or add it to ignore",
            )
    context.faults.raise_any()


def _single_rows(context: TableContext, rows: SortedRows) -> np.ndarray:
    """Mask of the episodes that have one row, and so no decision."""
    single = rows.first & rows.last
    if single.sum() == rows.first.sum():
        raise KairodeError(
            f"{context.name}: every episode has a single row, so there is no decision: is '{context.config.episode}' "
            "the column that identifies the episode?"
        )
    if single.any():
        where = listed(context.faults.at(int(row)) for row in np.flatnonzero(single))
        context.notes.append(
            f"Episodes with a single row, and so no decision, were dropped: {where}. Is '{context.config.episode}' "
            "written alike in all rows of an episode?"
        )
    return single


def _spec(
    context: TableContext,
    variables: tuple[Variable, ...],
    actions: Discrete | Continuous,
    flat: EpisodeRows,
    rows: SortedRows,
) -> Spec:
    tau = np.diff(flat.t)[~flat.last[:-1]]
    whole = bool(np.all(tau == np.round(tau)))
    return Spec(
        name=Path(context.name).stem if context.name != "the table" else "table",
        observations=variables,
        actions=actions,
        intervals=Intervals(float(tau.min()), float(tau.max()), step=1.0 if whole else 0.0),
        time_unit=rows.unit or "time unit",
        discount=context.config.discount,
        notes=tuple(context.notes),
    )
