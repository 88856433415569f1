"""Tables of any kind as Arrow tables: CSV and Parquet files, data frames, Arrow tables, dictionaries of columns."""

import contextlib
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from kairode._memory import check_memory
from kairode.config.tables import CSV, PARQUET, ending
from kairode.data.content import DIGEST_KEY, ContentDigest, verify
from kairode.data.table import open_table, reading
from kairode.data.tables.columns import NOTHING, plain
from kairode.errors import KairodeError
from kairode.files import check_regular
from kairode.text import short_name

DELIMITERS = ",;\t|"
GROWTH = 4
"""Memory of a CSV file's table in multiples of the file, at most."""


def read_source(source: Any, texts: Sequence[str] = ()) -> tuple[str, pa.Table, bool]:
    """Name and table of a source, and whether its rows are lines of a file.

    `texts` are columns of a CSV file that are not to be taken for numbers: 007 and 7 are different names.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if ending(path) in PARQUET:
            return str(path), _read_parquet(path), False
        if ending(path) in CSV:
            table, lines = _read_csv(path, texts)
            return str(path), table, lines
        raise KairodeError(f"{path}: a table is a file that ends in {', '.join((*CSV, *PARQUET))}, or a data frame.")
    try:
        table = pa.table(source) if hasattr(source, "__arrow_c_stream__") or isinstance(source, dict) else None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise KairodeError(f"the {type(source).__name__} cannot be read as a table ({first}).") from error
    if table is None:
        raise KairodeError(
            f"a table is the path of a CSV or Parquet file, a pandas or polars DataFrame, an Arrow table or a dict of "
            f"columns, got {type(source).__name__}."
        )
    return "the table", _checked("the table", table), False


def _read_parquet(path: Path) -> pa.Table:
    table, metadata = open_table(path)
    content = ContentDigest()
    if DIGEST_KEY in metadata:  # of a table that Kairode wrote
        content.update(table)
        verify(path, metadata, content)
    return _checked(str(path), table)


def _read_csv(path: Path, texts: Sequence[str]) -> tuple[pa.Table, bool]:
    with reading(path, "CSV"):
        if not path.exists():
            raise KairodeError(f"{path}: no such file.")
        if check_regular(path) == 0:
            raise KairodeError(f"{path} is empty (0 bytes).")
        head, lines, size = _head_and_size(path)
        if "\x00" in head:
            raise KairodeError(f"{path}: the text is not UTF-8 (UTF-16, as spreadsheets save it?). Save it as UTF-8.")
        if "\ufffd" in head:
            raise KairodeError(f"{path}: the names of the columns are not UTF-8. Save the file as UTF-8.")
        check_memory(
            GROWTH * size,
            f"{path}: the rows",
            "load and write it in parts (kairode.load_table, kairode.write), and fit with --stream",
        )
        if not head:
            raise KairodeError(f"{path} is empty: a first line with the names of the columns is required.")
        delimiter = max(DELIMITERS, key=lambda one: (len(next(csv.reader([head], delimiter=one), [])), head.count(one)))
        names = next(csv.reader([head], delimiter=delimiter), [])
        texts = [name for name in names if name.strip() in texts]  # as Arrow finds them in the file
        table = _read_rows(path, delimiter, dict.fromkeys(texts, pa.string()))
        table = table.rename_columns([name.strip() for name in table.column_names])
    for field in table.schema:
        if pa.types.is_binary(field.type):
            raise KairodeError(
                f"{path}, column '{short_name(field.name)}': the text is not UTF-8. Save the file as UTF-8."
            )
    return _checked(str(path), table), lines == table.num_rows + 1


def _head_and_size(path: Path) -> tuple[str, int, int]:
    """The first line of a file, and how many lines and bytes it has; those of its content if it is compressed."""
    head, lines, size, end = b"", 0, 0, b"\n"
    with pa.input_stream(str(path)) as file:
        while part := bytes(file.read(2**22)):
            head, lines, end = head or part[: 2**16], lines + part.count(b"\n"), part[-1:]
            size += len(part)
    first = head.decode("utf-8-sig", "replace").splitlines()
    return first[0] if first else "", lines + (end != b"\n"), size


def _read_rows(path: Path, delimiter: str, types: dict[str, pa.DataType]) -> pa.Table:
    """The rows of a CSV file, with the types of its first ones where all others agree: to recognise the types of all
    rows, the parser keeps the whole text in memory."""
    with contextlib.suppress(pa.ArrowInvalid):
        first = _first_rows(path, delimiter, types)
        found = {field.name: field.type for field in first if not pa.types.is_null(field.type)}
        return _parse_csv(path, delimiter, found, threads=True)
    with contextlib.suppress(pa.ArrowInvalid):
        return _parse_csv(path, delimiter, types, threads=True)
    return _parse_csv(path, delimiter, types, threads=False)  # its errors name the row


def _first_rows(path: Path, delimiter: str, types: dict[str, pa.DataType]) -> pa.Schema:
    with pa.input_stream(str(path)) as file, pacsv.open_csv(file, **_options(delimiter, types, threads=False)) as rows:
        return rows.schema


def _parse_csv(path: Path, delimiter: str, types: dict[str, pa.DataType], threads: bool) -> pa.Table:
    """A CSV file, in which numbers, ISO dates and timestamps are recognised."""
    with pa.input_stream(str(path)) as file:
        return pacsv.read_csv(file, **_options(delimiter, types, threads))


def _options(delimiter: str, types: dict[str, pa.DataType], threads: bool) -> dict[str, Any]:
    return {
        "read_options": pacsv.ReadOptions(use_threads=threads),
        "parse_options": pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        "convert_options": pacsv.ConvertOptions(
            null_values=sorted(NOTHING), strings_can_be_null=False, column_types=types
        ),
    }


def _checked(name: str, table: pa.Table) -> pa.Table:
    names = table.column_names
    if "" in names:
        raise KairodeError(f"{name}: column {names.index('')} has no name (row numbers of a data frame?): remove it.")
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise KairodeError(f"{name}: the columns {', '.join(map(repr, twice))} occur twice: rename them.")
    if table.num_rows == 0:
        raise KairodeError(f"{name} has columns but no rows.")
    return pa.table({column: plain(table[column]) for column in names})
