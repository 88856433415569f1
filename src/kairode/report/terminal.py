"""Tables on a terminal of any width."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def show(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None) -> None:
    """A table where it fits; on a narrower terminal every row as lines of its own."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 150)  # a file or a pipe has no width
    table = Table(*heads, box=SIMPLE_HEAD, caption=caption)
    for row in rows:
        table.add_row(*row)
    if Measurement.get(console, console.options.update(max_width=10_000), table).maximum <= console.width:
        console.print(table)
        return
    for row in rows:
        console.print(row[0], style="bold", highlight=False)
        for head, cell in zip(heads[1:], row[1:], strict=True):
            console.print(f"  {head}: {cell}", highlight=False, soft_wrap=True)
    if caption:
        console.print(caption, highlight=False)
