"""The paper's tables on the terminal, compared with the published numbers."""

from pathlib import Path
from typing import Any

from kairode.paper.table1 import ROWS
from kairode.report.results import TITLES, error_table, returns_table
from kairode.report.table import print_table


def print_table1(found: dict[str, dict[str, dict[str, Any]]], records: Path) -> None:
    print("State prediction error (open loop from the first observation), mean ± std over seeds")
    print_table(error_table(found))
    for row in found:
        print(f"{row}: {ROWS[row].about}.")
    seeds = {cell["n"] for cells in found.values() for cell in cells.values()}
    print(f"{' or '.join(map(str, sorted(seeds)))} seeds. Records: {records}/ROW-MODEL.json.")


def print_returns(what: str, found: dict[str, Any], records: Path) -> None:
    print(TITLES[what])
    print_table(returns_table(what, found))
    print(f"Records: {records}/STUDY.json. Settings: docs/results.md.")
