"""The paper's tables, ours beside the published numbers."""

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kairode.experiments.table1 import PAPER, ROWS


def print_table1(found: dict[str, dict[str, dict[str, Any]]], records: Path) -> None:
    """State prediction error, mean and std over seeds; the lowest of a row in bold."""
    models = list(next(iter(found.values())))
    table = Table("", "", *models, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for row, cells in found.items():
        best = min(cell["mean"] for cell in cells.values())
        table.add_row(row, "ours", *(_cell(cell["mean"], cell["std"], cell["mean"] == best) for cell in cells.values()))
        beside = ROWS[row].paper
        if beside is None:
            table.add_section()
            continue
        published = PAPER[beside]
        least = min(mean for mean, _ in published.values())
        known = [published.get(model) for model in models]
        table.add_row("", "paper", *("" if pair is None else _cell(*pair, pair[0] == least) for pair in known))
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


def _cell(mean: float, std: float, best: bool) -> str:
    text = f"{mean:.3f} ± {std:.3f}"
    return f"[bold]{text}[/bold]" if best else text
