"""Columns of a table as arrays, with the faults of their cells."""

import math
import re
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kairode.config.tables import TIME_UNITS
from kairode.data.tables.faults import Faults

MOSTLY = 0.5
"""Fraction of the cells of a text column that are numbers, from which on it is taken for a column of numbers."""
NOTHING = {"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", ".", "#N/A"}
"""Texts that stand for an empty cell in a column of numbers; elsewhere they may be names (no treatment, a region)."""
EMPTY_COLUMN = "all cells are empty: add it to ignore"
FLAGS = {"true": 1.0, "yes": 1.0, "y": 1.0, "t": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "n": 0.0, "f": 0.0, "0": 0.0}
FLAGS[""] = 0.0
MISSING = -1
"""Code of a missing category."""


class Categories(NamedTuple):
    """Texts, or other values that are compared but not computed with."""

    codes: np.ndarray
    """Index of each row's name; `MISSING` if the cell is empty."""
    names: list[str]


def is_number(kind: pa.DataType) -> bool:
    """Whether a column holds numbers or booleans."""
    return pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_decimal(kind)


def is_time(kind: pa.DataType) -> bool:
    """Whether a column holds dates or timestamps."""
    return pa.types.is_temporal(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds texts."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)


def _is_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without dictionary encoding and string views, of which not all functions of Arrow are made."""
    if pa.types.is_dictionary(column.type):
        chunks = [_strings(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
        return pa.chunked_array(chunks, chunks[0].type) if chunks else column.cast(column.type.value_type)
    return _strings(column)


def _strings(column: Any) -> Any:
    return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column


def numbers(column: pa.ChunkedArray, name: str, faults: Faults, advice: str = "") -> np.ndarray:
    """Numbers as float64, NaN where a cell is empty; a text column of numbers with faults is read as such.

    Rows with other text, infinite numbers and columns without numbers are faults, the latter with advice.
    """
    column = plain(column)
    if is_text(column.type):
        values = _parsed(column, name, faults, advice)
    elif is_number(column.type):
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        values = np.require(values, np.float64, "W")
    else:
        faults.add(name, f"numbers are required, the column holds {column.type}{advice}")
        return np.full(len(column), np.nan)
    beyond = np.abs(values) > np.finfo(np.float32).max
    if not beyond.any():
        return values
    faults.add_rows(np.isinf(values), name, "the number is infinite: correct it, or leave the cell empty")
    faults.add_rows(
        beyond & ~np.isinf(values),
        name,
        lambda row: f"{values[row]:g} exceeds single precision: correct it, or use another unit",
    )
    return np.where(beyond, np.nan, values)


def _parsed(column: pa.ChunkedArray, name: str, faults: Faults, advice: str) -> np.ndarray:
    """Numbers in a column of texts."""
    encoded = column.fill_null("").combine_chunks().dictionary_encode()
    texts, places = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)
    values = np.array([_number(text) for text in texts])[places]
    empty = np.array([text.strip() in NOTHING for text in texts])[places]
    if empty.all():
        faults.add(name, EMPTY_COLUMN)
        return np.full(len(values), np.nan)
    found = ~np.isnan(values)
    if found.sum() <= MOSTLY * (~empty).sum():
        example = next(text for text in texts if text.strip() not in NOTHING and np.isnan(_number(text)))
        comma = re.fullmatch(r"\s*-?\d+,\d+\s*", example)
        hint = ": write decimals with a point, as in 1.5" if comma else advice
        faults.add(name, f"numbers are required, the column holds text such as {example!r}{hint}")
        return np.full(len(values), np.nan)
    faults.add_rows(~found & ~empty, name, lambda row: f"{texts[places[row]]!r} is not a number: correct or empty it")
    return values


def _number(text: str) -> float:
    try:
        return float("nan" if "_" in text else text)
    except ValueError:
        return float("nan")


def categories(column: pa.ChunkedArray, name: str, faults: Faults) -> Categories:
    """The different values of a column as names: numbers in their order, texts in alphabetical order."""
    column = plain(column)
    kind = column.type
    if not (is_text(kind) or is_number(kind) or is_time(kind) or pa.types.is_null(kind)):
        faults.add(name, f"names or numbers are required, the column holds {kind}")
        return Categories(np.full(len(column), MISSING), [])
    if is_time(kind):  # not every timestamp has a value in Python
        column = column.cast(pa.string())
    encoded = column.dictionary_encode().combine_chunks()
    found = [None if is_empty(value) else _name(value) for value in encoded.dictionary.to_pylist()]
    names = sorted({name for name in found if name is not None}, key=_sort_key)
    code = {name: i for i, name in enumerate(names)}
    code_of = np.array([*(MISSING if name is None else code[name] for name in found), MISSING], np.int32)
    places = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    return Categories(code_of[places], names)


def is_empty(value: object) -> bool:
    """Whether a cell of names or numbers is empty."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _sort_key(name: str) -> tuple[int, float, str]:
    value = _number(name)
    return (1, 0.0, name) if math.isnan(value) else (0, value, name)


def _name(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value):
        if value == int(value) and abs(value) < 2**53:
            return str(int(value))  # pandas stores integers with empty cells as floats
        short = f"{value:.6g}"  # of a number in single precision
        return short if abs(float(short) - value) <= 1e-7 * abs(value) else str(value)
    return str(value).strip()


def times(column: pa.ChunkedArray, name: str, unit: str | None, faults: Faults) -> tuple[np.ndarray, str | None]:
    """Times as float64, NaN where missing, and their unit; dates and timestamps from the first of all rows on."""
    column = plain(column)
    if is_text(column.type):
        column = _parsed_times(column, name, faults)
    if not is_time(column.type):
        found = numbers(column, name, faults, ": give numbers, dates or timestamps such as 2024-03-01 08:30")
        if _are_compact_dates(found):
            faults.add(name, "the numbers look like dates such as 20240131: write them as 2024-01-31")
        return found, unit
    unit = (unit or "day").removesuffix("s")
    if unit not in TIME_UNITS:
        faults.add(name, f"dates cannot be converted to the unit '{unit}': use {', '.join(TIME_UNITS)}")
        return np.zeros(len(column)), unit
    if pa.types.is_time(column.type):
        faults.add(name, "times of day without a date do not order the rows: give dates with times, or numbers")
        return np.zeros(len(column)), unit
    if pa.types.is_duration(column.type):
        moments = column.cast(pa.int64() if column.type.bit_width == 64 else pa.int32()).cast(pa.int64())
        scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[column.type.unit]
    else:
        zone = getattr(column.type, "tz", None)
        moments = column.cast(pa.timestamp("us", tz=zone), safe=False).cast(pa.int64())
        scale = 1e-6
    first = pc.min(moments).as_py() or 0
    since = pc.subtract(moments, first).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return since * scale / TIME_UNITS[unit], unit


def _are_compact_dates(values: np.ndarray) -> bool:
    """Whether all numbers have the form YYYYMMDD."""
    if not (np.nanmin(values, initial=np.inf) >= 19_000_101 and np.nanmax(values, initial=-np.inf) <= 21_001_231):
        return False
    known = values[~np.isnan(values)]
    day, month, year = known % 100, known // 100 % 100, known // 10000
    valid = (known == np.round(known)) & (day >= 1) & (day <= 31) & (month >= 1) & (month <= 12)
    return bool(known.size and np.all(valid & (year >= 1900) & (year <= 2100)))


def _parsed_times(column: pa.ChunkedArray, name: str, faults: Faults) -> pa.ChunkedArray:
    """Texts as timestamps (ISO 8601) or numbers; faults if they are neither."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.float64()):
        try:
            return column.cast(kind)
        except pa.ArrowException:
            continue
    bad = np.array([not _is_moment(text) for text in column.to_pylist()])
    faults.add_rows(
        bad,
        name,
        lambda row: (
            f"{column[row].as_py()!r} is not a time: write it as 2024-03-01 or 2024-03-01 08:30, or as a number"
        ),
    )
    if not bad.any():
        numeric = any(text is not None and not np.isnan(_number(text)) for text in column.to_pylist())
        mixed = "are numbers and some are dates" if numeric else "have a time zone and some have none"
        faults.add(name, f"some times {mixed}: write all in the same way")
    return pa.chunked_array([pa.nulls(len(column), pa.float64())])


def _is_moment(text: str | None) -> bool:
    if text is None or not np.isnan(_number(text)):
        return True
    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        try:
            pa.scalar(text).cast(kind)
        except pa.ArrowException:
            continue
        return True
    return False


def flag_values(column: pa.ChunkedArray, name: str, faults: Faults) -> np.ndarray:
    """Booleans, also as 0 and 1 or as yes and no; an empty cell is false."""
    column = plain(column)
    if pa.types.is_null(column.type):
        return np.zeros(len(column), bool)
    if is_text(column.type):
        values = np.array([FLAGS.get((text or "").strip().lower(), 2.0) for text in column.to_pylist()])
    elif is_number(column.type):
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        values = np.where(np.isnan(values), 0.0, values)
    else:
        faults.add(name, f"booleans are required, the column holds {column.type}")
        return np.zeros(len(column), bool)
    faults.add_rows(
        ~np.isin(values, (0.0, 1.0)),
        name,
        lambda row: f"{column[row].as_py()!r} is neither true nor false: write true, yes or 1, and false, no or 0",
    )
    return values == 1.0
