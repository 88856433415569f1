"""Tables of any kind as Arrow tables: CSV and Parquet files, data frames, Arrow tables, dictionaries of columns."""

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from kairode._memory import check_memory
from kairode.config.tables import CSV, PARQUET, ending
from kairode.data.content import DIGEST_KEY, ContentDigest, verify
from kairode.data.table import open_table, reading
from kairode.errors import KairodeError
from kairode.files import check_regular

DELIMITERS = ",;\t|"
EMPTY = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", ".", "#N/A")
"""Cells of CSV files that count as empty."""
GROWTH = 4
"""Memory of a CSV file's table in multiples of the file, at most."""


def read_source(source: Any) -> tuple[str, pa.Table, bool]:
    """Name and table of a source, and whether it is a CSV file, whose lines people count."""
    if isinstance(source, str | Path):
        path = Path(source)
        if ending(path) in PARQUET:
            return str(path), _read_parquet(path), False
        if ending(path) in CSV:
            return str(path), _read_csv(path), True
        raise KairodeError(f"{path}: a table is a file that ends in {', '.join((*CSV, *PARQUET))}, or a data frame.")
    try:
        table = pa.table(source) if hasattr(source, "__arrow_c_stream__") or isinstance(source, dict) else None
    except (pa.ArrowException, TypeError, ValueError) as error:
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
    return table


def _read_csv(path: Path) -> pa.Table:
    with reading(path, "CSV"):
        if not path.exists():
            raise KairodeError(f"{path}: no such file.")
        size = check_regular(path)
        if size == 0:
            raise KairodeError(f"{path} is empty (0 bytes).")
        check_memory(GROWTH * size, f"{path}: the rows", "write it as Parquet with kairode.write in parts")
        delimiter = _delimiter(path)
        try:
            table = _parse_csv(path, delimiter, threads=True)
        except pa.ArrowInvalid:
            table = _parse_csv(path, delimiter, threads=False)  # its errors name the row
    return _checked(str(path), table)


def _parse_csv(path: Path, delimiter: str, threads: bool) -> pa.Table:
    """A CSV file, in which ISO dates and timestamps are recognised."""
    with pa.input_stream(str(path)) as file:
        return pacsv.read_csv(
            file,
            read_options=pacsv.ReadOptions(use_threads=threads),
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(null_values=EMPTY, strings_can_be_null=True),
        )


def _delimiter(path: Path) -> str:
    """The delimiter that the first line has most of, outside of quotation marks."""
    with pa.input_stream(str(path)) as file:
        head = bytes(file.read(2**16)).decode("utf-8", "replace").splitlines()[0]
    return max(DELIMITERS, key=lambda one: len(next(csv.reader([head], delimiter=one), [])))


def _checked(name: str, table: pa.Table) -> pa.Table:
    names = table.column_names
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise KairodeError(f"{name}: the columns {', '.join(map(repr, twice))} occur twice: rename them.")
    if table.num_rows == 0:
        raise KairodeError(f"{name} has columns but no rows.")
    return table
