"""The paper's tables, ours beside the published numbers."""

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kairode.paper.table1 import PAPER, ROWS
from kairode.report.listing import cells as marked
from kairode.report.listing import for_terminal


def print_table1(found: dict[str, dict[str, dict[str, Any]]], records: Path) -> None:
    """State prediction error, mean and std over seeds; the lowest of a row in bold."""
    models = list(next(iter(found.values())))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("", "", "paper", "ours"):
        table.add_column(title, no_wrap=True)
    for row, cells in found.items():
        beside = ROWS[row].paper
        published = {model: (*pair, None) for model, pair in PAPER[beside].items()} if beside else {}
        ours = {model: (cell["mean"], cell["std"], cell["n"]) for model, cell in cells.items()}
        columns = zip(models, _column(published, models), _column(ours, models), strict=True)
        for i, (model, paper, here) in enumerate(columns):
            table.add_row("" if i else row, model, paper, here)
        table.add_section()
    console = Console()
    console.print("State prediction error (open loop from the first observation), mean ± std over seeds")
    console.print(table)
    for row in found:
        console.print(f"{row}: {ROWS[row].about}.", highlight=False)
    seeds = {cell["n"] for cells in found.values() for cell in cells.values()}
    console.print(
        f"{' or '.join(map(str, sorted(seeds)))} seeds. Records: {records}/ROW-MODEL.json.",
        highlight=False,
    )


def _column(pairs: dict[str, Any], models: list[str]) -> list[str]:
    return [for_terminal(cell) for cell in marked(pairs, models, least=True)]
