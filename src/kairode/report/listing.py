"""A table as heads and rows of text: for the terminal, a document or a page."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from kairode.paper.studies import ORACLE


@dataclasses.dataclass(frozen=True)
class Listing:
    """A table: cells are text, the best ones between two pairs of stars."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def markdown(self) -> str:
        """As Markdown."""
        lines = [self.heads, ["---"] * len(self.heads), *self.rows]
        said = f"\n\n*{self.caption}*" if self.caption else ""
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + said


def cells(pairs: dict[str, Any], names: Sequence[str], least: bool = False) -> list[str]:
    """Mean ± std by name, the best of the models in bold, and the number of seeds where it is not five."""
    known = {name: pairs[name][0] for name in names if pairs.get(name) is not None and name != ORACLE}
    pick = min if least else max
    best = pick(known, key=lambda name: known[name]) if len(known) > 1 else None
    texts = []
    for name in names:
        if pairs.get(name) is None:
            texts.append("")
            continue
        mean, std, n = pairs[name]
        text = spread(mean, std, n, 3 if least else 2)
        texts.append(f"**{text}**" if name == best else text)
    return texts


def spread(mean: float, std: float, n: int | None, digits: int = 2, usual: int = 5) -> str:
    """Mean ± std, and the number of seeds where it is not the usual one (one has no spread)."""
    around = "" if n == 1 else f" ± {std:.{digits}f}"
    return f"{mean:.{digits}f}{around}" + (f" ({n})" if n not in (None, usual) else "")


def for_terminal(cell: str) -> str:
    """A cell as Rich prints it: bold for stars, a dash for nothing."""
    return f"[bold]{cell.strip('*')}[/bold]" if cell.startswith("**") else cell or "-"
