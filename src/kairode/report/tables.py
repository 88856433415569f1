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
    table = Table("state prediction error", *models, box=SIMPLE_HEAD, pad_edge=False)
    for row, cells in found.items():
        best = min(cell["mean"] for cell in cells.values())
        shown = [_cell(cell["mean"], cell["std"], cell["mean"] == best) for cell in cells.values()]
        table.add_row(f"{row}", *shown)
        published = PAPER[ROWS[row].paper]
        least = min(mean for mean, _ in published.values())
        known = [published.get(model) for model in models]
        table.add_row(
            f"  [dim]{ROWS[row].about}[/dim]\n  [dim]paper[/dim]".replace("\\\n", "\n"),
            *("" if pair is None else "\n" + _cell(*pair, pair[0] == least, "dim") for pair in known),
        )
    console = Console()
    console.print(table)
    seeds = {cell["n"] for cells in found.values() for cell in cells.values()}
    console.print(
        f"Mean and std over {' or '.join(map(str, sorted(seeds)))} seeds; open loop over whole test episodes. "
        f"Records: {records}/ROW-MODEL.json.",
        highlight=False,
    )


def _cell(mean: float, std: float, best: bool, style: str = "") -> str:
    marks = " ".join(mark for mark in ("bold" if best else "", style) if mark)
    text = f"{mean:.3f} ± {std:.3f}"
    return f"[{marks}]{text}[/{marks}]" if marks else text
