"""Figures as files, and as SVG inside a page: text as text, the page's own colours, words for who cannot see them."""

import html
import io
import re
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from kairode.errors import KairodeError
from kairode.files import atomic_write

LINE, DECISION, EXPECTED = "#2b6cb0", "#c53030", "#dd6b20"
FIXED, OWN, CHOSEN, TRUTH, RANDOM = "#718096", "#2f855a", "#c53030", "#2b6cb0", "#805ad5"
INK = ("#000000", "black")
"""What matplotlib draws text, axes and ticks with."""
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "kairode"}
"""Text as text, and the same figure as the same bytes."""


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure, whole or not at all."""
    kind = Path(path).suffix.lstrip(".").lower() or "svg"
    if kind not in figure.canvas.get_supported_filetypes():
        raise KairodeError(f"cannot draw {path}: '.{kind}' is no kind of picture. Take .svg, .png or .pdf.")
    with atomic_write(path) as part, rc_context(STYLE):
        figure.savefig(part, format=kind, metadata={"Date": None} if kind == "svg" else None)


def inline_svg(figure: Figure, name: str, words: str) -> str:
    """A figure for a page: it takes the page's ink, its ids are its own, and `words` say what it shows."""
    drawn = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    found = drawn.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.DOTALL)
    # A hundredth of a point is fine enough for a line; what is written stays as it is.
    found = re.sub(r' (?:d|x|y)="[^"]*"', lambda part: re.sub(r"(\d\.\d\d)\d+", r"\1", part[0]), found)
    found = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', found)
    found = re.sub(r'(xlink:href="#|url\(#)', rf"\1{name}-", found)
    for ink in INK:
        found = found.replace(f"stroke: {ink}", "stroke: currentColor").replace(f"fill: {ink}", "fill: currentColor")
    found = re.sub(r"font: ([^;\"]*?) [^;\"]*sans-serif", r"font: \1 system-ui, sans-serif", found)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', found)
    assert box is not None
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-labelledby="{name}-words" viewBox="0 0 {box[1]} {box[2]}" '
        f'style="max-width: {float(box[1]) * 1.6:.0f}px">'
        f'<title id="{name}-words">'
        f"{html.escape(words)}</title>"
    )
    return head + found[found.index(">", found.index("<svg")) + 1 :]
