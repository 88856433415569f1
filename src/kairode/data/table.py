"""Trajectories as Parquet tables, one row per decision time, validated on reading.

Columns: `episode`, `t` (float64, strictly increasing within an episode), the observations, `action` (a name or an
integer) or `action_NAME` for each continuous action, `reward` (of the interval that follows), `terminated`,
`truncated`. The last row of an episode is its last observation: it has no action and no reward, and tells how the
episode ended. An empty cell of an observation (NaN in memory) is a measurement that was not taken. The environment and
all units are stored in the file's metadata under "kairode"; without them, they are inferred from the columns.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kairode._memory import check_memory
from kairode.data.content import DIGEST_KEY, KEY, ContentDigest, verify
from kairode.data.describe import is_name_or_number, missing, spec_from_dict, spec_from_table, spec_to_dict
from kairode.data.trajectory import Trajectory
from kairode.envs.core import RESERVED, Continuous, Discrete, Spec
from kairode.errors import MALFORMED, KairodeError
from kairode.files import atomic_write, parse_json

END: Any = object()
"""After the last of several trajectories."""
RAGGED, RAGGED_BYTES = 4, 2**28
"""Episodes that padding makes so many times as large, and so many bytes larger, are streamed instead."""
MOST_METADATA = 2**24
"""Bytes of the largest description of its variables that a file may have."""


def write(path: str | Path, trajectory: Trajectory | Iterable[Trajectory]) -> None:
    """Write one or many episodes as Parquet, atomically; an iterable of trajectories is written part by part."""
    if _path(path).suffix not in ("", ".parquet", ".pq"):
        raise KairodeError(f"{path}: tables are written as Parquet, so the name must end in .parquet.")
    parts = iter([trajectory] if isinstance(trajectory, Trajectory) or not _iterable(trajectory) else trajectory)
    some = next(parts, END)
    if some is END:
        raise KairodeError(f"{path}: there are no episodes to write.")
    table, content = _table(some, 0), ContentDigest()
    with (
        atomic_write(path) as part,
        open(part, "wb") as target,  # Arrow takes only names in UTF-8
        ThreadPoolExecutor(1) as beside,  # both work outside of Python
        pq.ParquetWriter(target, table.schema, compression="zstd") as writer,
    ):
        while True:
            digested = beside.submit(content.update, table)
            writer.write_table(table)
            digested.result()
            some = next(parts, END)
            if some is END:
                break
            table = _table(some, table["episode"][-1].as_py() + 1)
            if table.schema.metadata != writer.schema.metadata:
                raise KairodeError(f"{path}: the trajectories describe different systems.")
        writer.add_key_value_metadata({DIGEST_KEY.decode(): content.hexdigest()})


def _iterable(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | dict)


def _table(trajectory: Any, number: int) -> pa.Table:
    """The rows of a trajectory, whose first episode has this number."""
    if not isinstance(trajectory, Trajectory):
        raise KairodeError(f"{trajectory!r} is not a trajectory: pass a result of kairode.collect or kairode.read.")
    spec = trajectory.spec
    if np.ndim(trajectory.length) == 0:
        trajectory = trajectory[None]
    length = np.asarray(trajectory.length)
    rows = np.arange(trajectory.observation.shape[1]) <= length[:, None]
    last = (np.arange(rows.shape[1]) == length[:, None])[rows]
    episode = np.broadcast_to(np.arange(len(length))[:, None], rows.shape)[rows]

    def at_rows(values: Any) -> np.ndarray:
        values = np.asarray(values)
        return np.concatenate([values, np.zeros_like(values[:, :1])], axis=1)[rows]

    columns: dict[str, Any] = {"episode": number + episode, "t": trajectory.time[rows]}
    observed = np.asarray(trajectory.observation)[rows]
    columns |= {v.name: pa.array(observed[:, i], from_pandas=True) for i, v in enumerate(spec.observations)}
    action = at_rows(trajectory.action)
    if isinstance(spec.actions, Discrete):
        codes = pa.array(action.astype(np.int32), mask=last)
        columns["action"] = pa.DictionaryArray.from_arrays(codes, pa.array(spec.actions.names))
    else:
        for i, name in enumerate(spec.actions.names):
            columns[f"action_{name}"] = pa.array(action[:, i], mask=last)
    columns["reward"] = pa.array(at_rows(trajectory.reward), mask=last)
    for end in ("terminated", "truncated"):
        columns[end] = last & np.asarray(getattr(trajectory, end))[episode]
    return pa.table(columns).replace_schema_metadata({KEY: json.dumps(spec_to_dict(spec)).encode()})


def read(path: str | Path, spec: Spec | None = None) -> Trajectory:
    """Read and validate episodes. An error names the file, row (from 0) and column of the first problem.

    Files written by Kairode describe themselves. For others, pass a `spec` (names, units, discount): `env.task.spec`,
    or your own. Without one, every column without a reserved name is an observation, the discount is 1, and action
    names are in alphabetical order.
    """
    if not (spec is None or isinstance(spec, Spec)):
        raise KairodeError(f"spec must be a Spec, such as kairode.make('hiv').task.spec, got {type(spec).__name__}.")
    with reading(path), ThreadPoolExecutor(1) as beside:
        table, metadata = open_table(path)
        content = ContentDigest()
        digested = beside.submit(content.update, table) if DIGEST_KEY in metadata else None
        try:
            spec = spec or described_spec(path, table.schema) or spec_from_table(path, table)
            rows = parse_rows(path, table, spec)
        finally:  # what is wrong with a damaged file is its digest in the first place
            if digested is not None:
                digested.result()
                verify(path, metadata, content)
    del table
    pa.default_memory_pool().release_unused()
    refuse_unmeasured(path, spec, np.isnan(rows.observed).all(0))
    return pad_episodes(path, spec, rows)


def refuse_unmeasured(path: str | Path, spec: Spec, unmeasured: np.ndarray) -> None:
    """Raise if a variable was never measured."""
    if unmeasured.any():
        name = spec.observations[int(unmeasured.argmax())].name
        raise KairodeError(f"{path}, column '{name}': every value is missing: leave the column out.")


def parse_rows(path: str | Path, table: pa.Table, spec: Spec, first_row: int = 0) -> "EpisodeRows":
    """Validate the rows of whole episodes; `first_row` is the number of the table's first row in the file."""
    names = {*RESERVED, *_action_columns(spec)} - ({"action"} if isinstance(spec.actions, Continuous) else set())
    for name in (*sorted(names), *(v.name for v in spec.observations)):
        if name not in table.column_names:
            raise missing(path, name, table.column_names)
    check = Check(path, table, first_row)
    check.no_gaps(["episode", "t", "terminated", "truncated"])
    first, last, t = check.episodes()
    terminated, truncated = (check.flags(name, last) for name in ("terminated", "truncated"))
    check.refuse(
        last & (terminated == truncated),
        "truncated",
        "the last row of an episode must be either terminated (the process ended) or truncated (the record ended)",
    )
    observed = np.stack([check.measured(v.name) for v in spec.observations], axis=1)
    action = check.actions(spec, last)
    reward = check.single("reward", last)
    return EpisodeRows(observed, action, reward, t, first, last, terminated, truncated)


class EpisodeRows(NamedTuple):
    """Validated rows of whole episodes, in order."""

    observed: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    t: np.ndarray
    first: np.ndarray
    """Masks of the first and the last row of every episode."""
    last: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Decisions of each episode."""
        return np.flatnonzero(self.last) - np.flatnonzero(self.first)


def row_width(spec: Spec) -> int:
    """Numbers of a row: observations, action, interval, reward."""
    return len(spec.observations) + (1 if isinstance(spec.actions, Discrete) else spec.actions.n) + 2


def padded_bytes(length: np.ndarray, width: int) -> tuple[int, int]:
    """Bytes of episodes padded to the longest, and of their rows alone, in single precision."""
    return 4 * width * len(length) * int(length.max() + 1), 4 * width * int((length + 1).sum())


def is_ragged(length: np.ndarray, width: int) -> bool:
    """Whether episodes padded to the longest take so much more memory than their rows that they are not padded."""
    padded, rows = padded_bytes(length, width)
    return padded > RAGGED * rows and padded - rows > RAGGED_BYTES


def index_type(rows: int) -> type[np.signedinteger[Any]]:
    """The smaller type of integers that counts so many rows."""
    return np.int32 if rows < 2**31 else np.int64


def pad_episodes(path: str | Path, spec: Spec, rows: EpisodeRows) -> Trajectory:
    """Rows as episodes, padded to the longest."""
    heads, tails = np.flatnonzero(rows.first), np.flatnonzero(rows.last)
    length = tails - heads
    check_memory(
        8 * len(length) * int(length.max() + 1) * (row_width(spec) + 1),
        f"{path}: {len(length):,} episodes, padded to the longest of {length.max():,} decisions,",
        "cut the longest episodes, or fit with --stream (kairode.stream in Python), which does not pad them",
    )
    number = index_type(len(rows.t))
    moments = np.arange(length.max() + 1, dtype=number)
    place = heads.astype(number)[:, None] + np.minimum(moments, length.astype(number)[:, None])
    padding = moments[:-1] >= length[:, None]

    def decisions(values: np.ndarray, kind: type) -> np.ndarray:
        found = values.astype(kind)[place[:, :-1]]
        found[padding] = 0
        return found

    return Trajectory(
        spec=spec,
        observation=rows.observed[place],
        action=decisions(rows.action, np.int32 if isinstance(spec.actions, Discrete) else np.float32),
        interval=decisions(np.diff(rows.t, append=0.0), np.float32),
        reward=decisions(rows.reward, np.float32),
        length=length.astype(np.int32),
        terminated=rows.terminated[tails],
        truncated=rows.truncated[tails],
    )


def _path(path: str | Path) -> Path:
    if not isinstance(path, str | Path):
        raise KairodeError(f"the path of a Parquet file is required, got {type(path).__name__}: write the table first.")
    return Path(path)


@contextlib.contextmanager
def reading(path: str | Path, kind: str = "Parquet") -> Iterator[None]:
    """Turn every other error of a block that reads a file into a `KairodeError`."""
    try:
        yield
    except (KairodeError, MemoryError):
        raise
    except (pa.ArrowException, OSError, *MALFORMED) as error:
        raise not_readable(path, error, kind) from error


def open_table(path: str | Path) -> tuple[pa.Table, dict[bytes, bytes]]:
    """The table of a Parquet file, and the file's metadata."""
    with open_file(path) as file:
        try:
            table = file.read()
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, *MALFORMED) as error:
            raise _damaged_column(path, file) or not_readable(path, error) from error
        return _without_views(table), file.metadata.metadata or {}


def _without_views(table: pa.Table) -> pa.Table:
    """With texts as plain strings: not every function of Arrow takes string views."""
    for i, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(pa.string()))
    return table


def _damaged_column(path: str | Path, file: pq.ParquetFile) -> KairodeError | None:
    """The error that names the first column that cannot be read alone."""
    for name in file.schema_arrow.names:
        try:
            file.read(columns=[name])
        except (pa.ArrowException, OSError, *MALFORMED) as error:
            return KairodeError(f"{path}, column '{name}': cannot be read, the file is damaged ({_first_line(error)}).")
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def open_file(path: str | Path, *, streamed: bool = False) -> pq.ParquetFile:
    """Open a Parquet file that has rows; unless it is streamed, they must fit into memory."""
    path = _path(path)
    with reading(path):
        if path.is_dir():
            raise KairodeError(f"{path} is a folder: give a file.")
        if not path.is_file():
            raise KairodeError(f"{path} is not a file." if path.exists() else f"{path}: no such file.")
        if path.stat().st_size == 0:
            raise KairodeError(f"{path} is empty (0 bytes).")
    with reading(path):
        file = pq.ParquetFile(_source(path), pre_buffer=False)  # it would keep all that was read
        names = file.schema_arrow.names
        if DIGEST_KEY not in (file.metadata.metadata or {}) and DIGEST_KEY in _footer(path):
            raise KairodeError(f"{path} is damaged: its metadata cannot be read. Restore it.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise KairodeError(f"{path}: the column '{twice}' occurs twice.")
    rows = file.metadata.num_rows
    if rows == 0:
        raise KairodeError(f"{path} has columns but no rows.")
    with reading(path):
        groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        if min(groups, default=0) < 0 or sum(groups) != rows:
            raise KairodeError(f"{path} is damaged: its numbers of rows do not agree.")
    if not streamed:
        check_memory(
            8 * rows * len(names),
            f"{path}: {rows:,} rows of {len(names)} columns",
            "fit with --stream (kairode.stream in Python)",
        )
    return file


def _footer(path: Path) -> bytes:
    """The bytes of the description at the end of a Parquet file: of damaged ones, parts may not be parsed."""
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little")
        file.seek(-8 - min(size, path.stat().st_size - 8), os.SEEK_END)
        return file.read(min(size, MOST_METADATA))


def _source(path: Path) -> Any:
    """What Arrow can open: it takes only names in UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return open(path, "rb")
    return path


def not_readable(path: str | Path, error: BaseException, kind: str = "Parquet") -> KairodeError:
    """The error for a file that cannot be read."""
    other = "CSV" if kind == "Parquet" else "Parquet"
    return KairodeError(
        f"{path} is not a valid {kind} file: it is truncated, damaged, or of another format such as {other} "
        f"({_first_line(error)})."
    )


def described_spec(path: str | Path, schema: pa.Schema) -> Spec | None:
    """The spec in the metadata of a file, if it has any."""
    raw = (schema.metadata or {}).get(KEY)
    if raw is None:
        return None
    try:
        if len(raw) > MOST_METADATA:
            raise KairodeError(f"{len(raw):,} bytes, at most {MOST_METADATA:,}")
        return spec_from_dict(parse_json(raw))
    except MALFORMED as error:
        raise KairodeError(f"{path}: the metadata under 'kairode' is invalid ({_first_line(error)}).") from error


def _action_columns(spec: Spec) -> list[str]:
    return ["action"] if isinstance(spec.actions, Discrete) else [f"action_{name}" for name in spec.actions.names]


class Check:
    """Columns as validated arrays; errors name the location of the first fault."""

    def __init__(self, path: str | Path, table: pa.Table, first_row: int = 0) -> None:
        self.path, self.table, self.first_row = path, table, first_row

    def fault(self, row: int, column: str, what: str) -> KairodeError:
        return KairodeError(
            f"{self.path}, row {self.first_row + row}, column '{column}': {what} (rows are counted from 0)."
        )

    def refuse(self, bad: np.ndarray, column: str, what: str | Callable[[int], str]) -> None:
        """Raise for the first row of a mask, if there is one; `what` is a text, or a function of that row."""
        if bad.any():
            row = int(bad.argmax())
            raise self.fault(row, column, what if isinstance(what, str) else what(row))

    def nulls(self, column: str) -> np.ndarray:
        """Mask of the empty cells."""
        return self.table[column].is_null().to_numpy()

    def no_gaps(self, columns: list[str]) -> None:
        for column in columns:
            self.refuse(
                self.nulls(column), column, "the value is missing: fill it, or load the table with kairode.load_table"
            )

    def numbers(self, column: str, last: np.ndarray | None = None) -> np.ndarray:
        """Finite numbers; with `last`, cells must be empty exactly in the last rows and are returned as 0."""
        kind = self.table.schema.field(column).type
        plain = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
        if not any(is_kind(kind) for is_kind in plain):
            times, others = "Give times as days or hours since a start.", "Drop columns that are not observations."
            hint = times if column == "t" else others
            raise KairodeError(f"{self.path}, column '{column}': numbers are required, the column holds {kind}. {hint}")
        if last is not None:
            self.empty_in_last(column, last)
        values = self.table[column].cast(pa.float64(), safe=False).fill_null(0).to_numpy()
        if last is not None:
            values = np.where(last, 0.0, values)
        self.refuse(~np.isfinite(values), column, lambda row: f"{values[row]} is not a finite number")
        return values

    def empty_in_last(self, column: str, last: np.ndarray) -> None:
        """Require an action or reward in all rows of an episode but the last.

        In a last row NaN counts as empty: some programs cannot write anything else.
        """
        nulls = self.nulls(column)
        if pa.types.is_floating(self.table.schema.field(column).type):
            nulls = nulls | (last & np.isnan(self.table[column].fill_null(0).to_numpy()))
        self.refuse(nulls & ~last, column, "the value is missing")
        self.refuse(~nulls & last, column, "must be empty in the last row of an episode, as no interval follows")

    def single(self, column: str, last: np.ndarray | None = None) -> np.ndarray:
        """Finite numbers that fit into float32, the precision of all computations."""
        values = self.numbers(column, last)
        bad = np.abs(values) > np.finfo(np.float32).max
        self.refuse(bad, column, lambda row: f"{values[row]:g} exceeds single precision; use a larger unit")
        return values.astype(np.float32)

    def measured(self, column: str) -> np.ndarray:
        """Numbers of an observation, NaN where it was not measured (an empty cell, or NaN)."""
        given = self.table[column]
        if pa.types.is_float16(given.type):
            given = given.cast(pa.float32())
        nan = pa.types.is_floating(given.type) and bool(pc.any(pc.is_nan(given)).as_py())
        if not (given.null_count or nan):
            return self.single(column)
        lost = self.nulls(column)
        if nan:
            lost = lost | np.isnan(given.cast(pa.float64()).fill_null(0).to_numpy())
        zeros = pa.array(np.where(lost, 0.0, given.cast(pa.float64(), safe=False).fill_null(0).to_numpy()))
        number = self.table.column_names.index(column)
        values = Check(self.path, self.table.set_column(number, column, zeros), self.first_row).single(column)
        return np.where(lost, np.float32(np.nan), values)

    def episodes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Masks of the first and last rows of episodes, and the times.

        Episodes are identified by numbers or strings; their rows must be contiguous and ordered by time.
        """
        names = self.table["episode"].combine_chunks()
        kind = names.type
        if pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_binary(kind):
            raise KairodeError(f"{self.path}, column 'episode': give numbers or names, not {kind}.")
        if pa.types.is_temporal(kind):  # not every timestamp has a value in Python
            names = names.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        encoded = names if pa.types.is_dictionary(kind) else names.dictionary_encode()
        known: dict[Any, int] = {}
        numbers = np.array([known.setdefault(name, len(known)) for name in encoded.dictionary.to_pylist()], np.int64)
        codes = numbers[encoded.indices.to_numpy(zero_copy_only=False)]
        _, first_of, codes = np.unique(codes, return_index=True, return_inverse=True)
        t = self.numbers("t").astype(np.float64)
        changes = codes[1:] != codes[:-1]
        first, last = np.append(True, changes), np.append(changes, True)
        starts = np.flatnonzero(first)
        again = starts[first_of[codes[starts]] != starts]
        if again.size:
            row = int(again[0])
            raise self.fault(row, "episode", f"episode {names[row]} begins again: sort the rows by episode and t")
        stuck = np.append(False, (np.diff(t) <= 0) & ~changes)
        self.refuse(stuck, "t", lambda row: f"times must increase within an episode, {t[row]:g} follows {t[row - 1]:g}")
        lost = np.append(False, (np.diff(t).astype(np.float32) <= 0) & ~changes)
        self.refuse(lost, "t", "the preceding interval is too short for single precision")
        self.refuse(
            first & last,
            "episode",
            lambda row: f"episode {names[row]} has only one row: at least two are required",
        )
        return first, last, t

    def flags(self, column: str, last: np.ndarray) -> np.ndarray:
        """Booleans, true only in last rows."""
        kind = self.table.schema.field(column).type
        values = self.numbers(column) if pa.types.is_integer(kind) else self.table[column].to_numpy()
        if not (pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and np.isin(values, (0, 1)).all())):
            raise KairodeError(f"{self.path}, column '{column}': booleans are required, the column holds {kind}.")
        values = values.astype(bool)
        self.refuse(values & ~last, column, "true in a row that is not its episode's last")
        return values

    def actions(self, spec: Spec, last: np.ndarray) -> np.ndarray:
        """Indices of discrete actions, or continuous actions within their bounds."""
        if isinstance(spec.actions, Continuous):
            columns = _action_columns(spec)
            controls = np.stack([self.numbers(column, last) for column in columns], axis=1)
            outside = ~spec.actions.contain(controls) & ~last[:, None]
            if outside.any():
                row, i = np.argwhere(outside)[0]
                bounds = f"[{spec.actions.low[i]:g}, {spec.actions.high[i]:g}]"
                raise self.fault(int(row), columns[i], f"action {controls[row, i]:g} is outside {bounds}")
            return controls
        return self.named_actions(spec.actions, last)

    def named_actions(self, actions: Discrete, last: np.ndarray) -> np.ndarray:
        """Indices of actions given by name or index."""
        self.empty_in_last("action", last)
        if pa.types.is_boolean(self.table.schema.field("action").type):
            raise KairodeError(f"{self.path}, column 'action': give names or integers, not booleans.")
        given = self.table["action"].combine_chunks()
        if not is_name_or_number(given.type):
            raise KairodeError(f"{self.path}, column 'action': give names or integers, not {given.type}.")
        encoded = given if pa.types.is_dictionary(given.type) else given.dictionary_encode()
        known: dict[Any, int] = {name: i for i, name in enumerate(actions.names)} | {i: i for i in range(actions.n)}
        code_of = np.array([known.get(value, -1) for value in [*encoded.dictionary.to_pylist(), actions.names[0]]])
        places = encoded.indices.cast(pa.int64()).fill_null(len(code_of) - 1)
        codes = code_of[places.to_numpy(zero_copy_only=False)]
        self.refuse(
            (codes < 0) & ~last,
            "action",
            lambda row: f"unknown action {given[row].as_py()!r}; known: {', '.join(actions.names)}",
        )
        return np.where(last, 0, codes)
