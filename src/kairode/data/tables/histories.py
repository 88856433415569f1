"""Records of new episodes, up to now, loaded onto the variables and actions of a table that was learned from."""

import dataclasses
import datetime
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kairode.config.tables import TIME_UNITS, TableConfig
from kairode.data.table import EpisodeRows, pad_episodes
from kairode.data.tables.columns import MISSING, Categories, categories, is_number, numbers
from kairode.data.tables.context import ENDS, SortedRows, TableContext, sort_rows
from kairode.data.tables.decisions import check_actions_given, read_actions, read_terminated
from kairode.data.tables.faults import Faults
from kairode.data.tables.observations import Observed, encode_observations, fill_static, merge_observations
from kairode.data.tables.source import read_source
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Spec
from kairode.errors import KairodeError
from kairode.text import listed, number_of, short_name


class LoadedHistories(NamedTuple):
    """Episodes up to now."""

    data: Trajectory
    """The last observation of each is the current one; an episode with a single row has no decision yet, and one that
    has terminated has none to come."""
    names: list[str]
    """Of the episodes."""
    origins: list[Any]
    """The time of the first row of each: a number, or a date and time."""
    warnings: list[str]

    def date(self, i: int, time: float) -> str | None:
        """A time of an episode, since its first row, as a date; None if the table has numbers."""
        origin, seconds = self.origins[i], TIME_UNITS.get(self.data.spec.time_unit)
        if isinstance(origin, float) or seconds is None:
            return None
        try:
            moment = origin + datetime.timedelta(seconds=time * seconds)
        except OverflowError:
            return None
        whole = seconds >= TIME_UNITS["day"] and (origin.hour, origin.minute, origin.second) == (0, 0, 0)
        return (moment.date() if whole else moment.replace(microsecond=0)).isoformat()


def load_histories(source: Any, config: TableConfig, spec: Spec) -> LoadedHistories:
    """Load records of new episodes as those were loaded that a policy was learned from.

    The last row of every episode is the current visit, whose action is not known yet. Columns of rewards and ends are
    not used. A column of observations that is absent or empty is missing throughout; a table without the column of
    episodes is one episode. All faults are named together.

    Args:
        source: a CSV or Parquet file, a data frame, an Arrow table, or a dict of columns.
        config: how the table was loaded that was learned from.
        spec: of that table.
    """
    try:
        return _load(source, config, spec)
    except pa.ArrowException as error:  # of a type that Arrow has no function for
        first = (str(error).splitlines() or [""])[0]
        name = source if isinstance(source, str | Path) else "the table"
        raise KairodeError(f"{name}: a column cannot be read ({first}): convert it, or leave it out.") from error


def _load(source: Any, config: TableConfig, spec: Spec) -> LoadedHistories:
    texts = (config.episode, *(() if config.controls else config.action), *config.categorical)
    name, table, lines = read_source(source, texts)
    if config.episode not in table.column_names:
        one = Path(name).stem if lines or name != "the table" else "1"
        table = table.append_column(config.episode, pa.array([one] * table.num_rows))
    unit = spec.time_unit if spec.time_unit in TIME_UNITS else config.time_unit
    context = TableContext(
        name,
        table,
        dataclasses.replace(config, time_unit=unit, missing="carry" if config.missing == "carry" else "keep"),
        Faults(name, np.arange(table.num_rows), lines),
    )
    decided = _check_columns(context, spec)
    rows = sort_rows(context)
    if rows.unit != unit:
        context.faults.add(config.time, f"times are numbers in {spec.time_unit}s where it was learned from, not dates")
    origins = _origins(context, rows)
    names = [str(context.table[config.episode][int(i)].as_py()) for i in np.flatnonzero(rows.first)]
    observed = _read_observations(context, spec)
    action = _read_actions(context, spec, decided)
    terminated = read_terminated(context, rows)
    context.config = dataclasses.replace(context.config, static=tuple(x for x in config.static if x in observed))
    fill_static(context, observed, rows)
    if not rows.groups.single:
        groups = rows.groups
        observed = merge_observations(observed, rows, context.config.static)
        action = groups.last(action) if action.ndim == 1 else np.stack([groups.mean(one) for one in action.T], 1)
        terminated = groups.any(terminated)
        context.faults.rows = context.faults.rows[groups.heads]
        rows = rows.merged()
    if decided or not rows.last.all():
        check_actions_given(context, action, rows.last)
    context.faults.raise_any()
    warnings = _warnings(context, observed, spec)
    if context.config.missing == "carry":
        _carry(observed, rows)
    return LoadedHistories(_episodes(context, spec, observed, action, terminated, rows), names, origins, warnings)


def _check_columns(context: TableContext, spec: Spec) -> bool:
    """Raise if the column of times or of past actions is absent; returns whether there are actions."""
    config, present = context.config, context.table.column_names
    if config.time not in present:
        context.faults.add(config.time, f"there is no such column, and times are needed; columns: {listed(present)}")
        context.faults.raise_any()
    absent = [column for column in context.decided if column not in present]
    if absent and len(absent) < len(context.decided):
        context.faults.add(absent[0], "there is no such column, while other columns of the actions are given")
    return not absent


def _expected(spec: Spec) -> dict[str, tuple[str, ...]]:
    """The columns behind the variables of a spec, in their order, with the names of their categories."""
    columns = {f"{column}={one}": (column, names) for column, names in spec.categories for one in names}
    found: dict[str, tuple[str, ...]] = {}
    for variable in spec.observations:
        column, names = columns.get(variable.name, (variable.name, ()))
        found[column] = names
    return found


def _read_observations(context: TableContext, spec: Spec) -> Observed:
    """Columns as they were learned from; those that are absent or empty are missing throughout."""
    table, faults, found = context.table, context.faults, Observed()
    for name, known in _expected(spec).items():
        count = table.num_rows
        lost = np.full(count, MISSING) if known else np.full(count, np.nan)
        empty = name not in table.column_names or pa.types.is_null(table[name].type) or _is_blank(table[name])
        if empty:
            found[name] = Categories(lost, list(known)) if known else lost
        elif known:
            found[name] = _known_categories(context, name, known)
        else:
            found[name] = numbers(table[name], name, faults)
    return found


def _is_blank(column: pa.ChunkedArray) -> bool:
    """Whether all texts of a column are empty."""
    return pa.types.is_string(column.type) and not any((text or "").strip() for text in column.unique().to_pylist())


def _known_categories(context: TableContext, name: str, known: tuple[str, ...]) -> Categories:
    """Categories with the codes that they were learned with; others are faults."""
    found = categories(context.table[name], name, context.faults)
    codes, kinds = _matched(found, known)
    context.faults.add_rows(
        (codes == MISSING) & (found.codes != MISSING),
        name,
        lambda row: (
            f"'{short_name(found.names[found.codes[row]])}' is no category that was learned from: use one of "
            f"{listed(known)}, or leave the cell empty"
        ),
    )
    return Categories(codes, kinds)


def _matched(found: Categories, known: tuple[str, ...]) -> tuple[np.ndarray, list[str]]:
    """Codes of names in a list of known ones, `MISSING` for others; 1.0 is the number 1."""
    exact = {name: i for i, name in enumerate(known)}
    numeric = {number_of(name): i for i, name in enumerate(known) if number_of(name) is not None}
    code = [exact.get(name, numeric.get(number_of(name), MISSING)) for name in found.names]
    return np.array([*code, MISSING])[found.codes], list(known)


def _plain_numbers(name: str) -> str:
    """The name of a combination of actions with its numbers in one form: speed=1.0 is speed=1."""
    return re.sub(r"(?<==)[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?(?=, |$)", lambda found: f"{float(found[0]):g}", name)


def _read_actions(context: TableContext, spec: Spec, decided: bool) -> np.ndarray:
    """The actions taken with the codes that they were learned with; missing ones `MISSING` or NaN."""
    discrete, count = isinstance(spec.actions, Discrete), context.table.num_rows
    lost = np.full(count, MISSING) if discrete else np.full((count, spec.actions.n), np.nan)
    if not decided:
        context.table = context.table.append_column(
            *[column for column in context.decided if column not in context.table.column_names][:1], pa.nulls(count)
        )
        return lost
    if not discrete:
        return np.stack([_controls(context, name) for name in context.decided], 1)
    blank = [pa.types.is_null(context.table[name].type) or _is_blank(context.table[name]) for name in context.decided]
    if any(blank):
        return lost
    codes, names = read_actions(context)
    plain, learned = ([_plain_numbers(name) for name in some] for some in (names, spec.actions.names))
    found, _ = _matched(Categories(codes, plain), tuple(learned))
    context.faults.add_rows(
        (found == MISSING) & (codes != MISSING),
        context.decided[0],
        lambda row: (
            f"'{short_name(names[codes[row]])}' is no action that was learned from: use one of "
            f"{listed(spec.actions.names)}"
        ),
    )
    return found


def _controls(context: TableContext, name: str) -> np.ndarray:
    column = context.table[name]
    if pa.types.is_null(column.type) or _is_blank(column):
        return np.full(len(column), np.nan)
    return numbers(column, name, context.faults)


def _origins(context: TableContext, rows: SortedRows) -> list[Any]:
    """The time of the first row of every episode, as it stands in the table."""
    firsts = pa.array(np.flatnonzero(rows.first))
    first = context.table[context.config.time].take(firsts)
    kinds = [pa.timestamp("us", tz=getattr(first.type, "tz", None)), pa.timestamp("us", tz="UTC")]
    for kind in [*(() if is_number(first.type) else kinds), pa.float64()]:
        try:
            return first.cast(kind, safe=False).to_pylist()
        except pa.ArrowException:
            continue
    return [0.0] * len(firsts)  # of durations


def _warnings(context: TableContext, observed: Observed, spec: Spec) -> list[str]:
    """What was absent, and what was not used."""
    present, expected = {*context.table.column_names}, _expected(spec)
    roles = {context.config.episode, context.config.time, *context.decided, *context.config.ignore, *ENDS}
    roles |= {name for name in (context.config.terminal, context.config.reward, "reward") if name}
    absent = [name for name in expected if name not in present]
    extra = [name for name in context.table.column_names if name not in roles and name not in expected]
    said = [f"there is no column {listed(absent)}: it counts as not measured"] if absent else []
    return [*said, *([f"columns that were not learned from are not used: {listed(extra)}"] if extra else [])]


def _carry(observed: Observed, rows: SortedRows) -> None:
    """Carry the last value of the episode forward, as in the table that was learned from."""
    for name, column in observed.items():
        coded = isinstance(column, Categories)
        values = column.codes if isinstance(column, Categories) else column
        lost = values == MISSING if coded else np.isnan(values)
        place = np.maximum.accumulate(np.where(lost & ~rows.first, 0, np.arange(len(lost))))
        observed[name] = Categories(values[place], column.names) if isinstance(column, Categories) else values[place]


def _episodes(
    context: TableContext,
    spec: Spec,
    observed: Observed,
    action: np.ndarray,
    terminated: np.ndarray,
    rows: SortedRows,
) -> Trajectory:
    values, variables = encode_observations(context, observed)
    assert [one.name for one in variables] == [one.name for one in spec.observations]
    taken = np.where(rows.last if action.ndim == 1 else rows.last[:, None], 0, action)
    zeros = np.zeros(len(rows.t))
    flat = EpisodeRows(values, taken, zeros, rows.t, rows.first, rows.last, terminated, zeros > 0)
    return pad_episodes(context.name, spec, flat)
