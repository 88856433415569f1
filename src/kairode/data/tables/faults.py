"""Faults of a table: all are collected, so that one pass names every one of them."""

from collections.abc import Callable

import numpy as np

from kairode.errors import KairodeError
from kairode.text import short_name

MOST = 20
"""Faults that are listed."""


class Faults:
    """What is wrong with a table, by row and column.

    Args:
        name: of the table.
        rows: numbers of the rows in the file, in the order in which masks are given.
        lines: whether the file is a CSV file, whose lines people count.
    """

    def __init__(self, name: str, rows: np.ndarray, lines: bool) -> None:
        self.name, self.rows, self.lines = name, rows, lines
        self.found: list[str] = []
        self.columns: set[str] = set()
        """Columns that have a fault."""

    def at(self, row: int) -> str:
        """The place of a row, in words."""
        number = int(self.rows[row])
        return f"row {number:,}" + (f" (line {number + 2:,})" if self.lines else "")

    def add(self, column: str, what: str) -> None:
        """A fault of a whole column."""
        self.columns.add(column)
        self.found.append(f"column '{short_name(column)}': {what}")

    def add_rows(self, bad: np.ndarray, column: str, what: str | Callable[[int], str]) -> None:
        """A fault of some rows, named by the first of them; `what` is a text, or a function of that row."""
        if bad.any():
            self.columns.add(column)
            row, more = int(bad.argmax()), int(bad.sum()) - 1
            text = what if isinstance(what, str) else what(row)
            also = f" (and {more:,} more row{'s' * (more > 1)})" if more else ""
            self.found.append(f"{self.at(row)}, column '{short_name(column)}': {text}{also}")

    def raise_any(self) -> None:
        """Raise if there are any."""
        if not self.found:
            return
        rows = " (rows are counted from 0)" if any(text.startswith("row ") for text in self.found) else ""
        if len(self.found) == 1:
            raise KairodeError(f"{self.name}, {self.found[0]}{rows}.")
        listed = "".join(f"\n- {text}" for text in self.found[:MOST])
        more = f"\n- and {len(self.found) - MOST} more" if len(self.found) > MOST else ""
        raise KairodeError(f"{self.name}: {len(self.found)} faults{rows}:{listed}{more}")
