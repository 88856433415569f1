"""Figures as files, and as accessible inline SVG in the page's colours."""

import html
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kairode.errors import KairodeError
from kairode.files import atomic_write

LINE, DECISION, EXPECTED = "#2b6cb0", "#c53030", "#dd6b20"
FIXED, OWN, CHOSEN, TRUTH, RANDOM = "#718096", "#2f855a", "#c53030", "#2b6cb0", "#805ad5"
INK = ("#000000", "black")
"""Colours of matplotlib's text, axes and ticks."""
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "kairode"}
"""Text as text, and reproducible bytes."""


def panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def finish_axes(axes: Axes, x: str, y: str, *, log: bool = False, legend: float = 8) -> None:
    """Labels of both axes (x logarithmic if `log`), a legend of this font size, no frame."""
    axes.set(xlabel=x, ylabel=y)
    if log:
        axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=legend)
    axes.spines[["top", "right"]].set_visible(False)


def label_points(axes: Axes, xs: Iterable[float], ys: Iterable[float], names: Iterable[str], **style: Any) -> None:
    for x, y, name in zip(xs, ys, names, strict=True):
        axes.annotate(name, (x, y), textcoords="offset points", xytext=(4, 4), **style)


def save_figure(figure: Figure, path: str | Path) -> None:
    kind = Path(path).suffix.lstrip(".").lower() or "svg"
    if kind not in figure.canvas.get_supported_filetypes():
        raise KairodeError(f"cannot write {path}: '.{kind}' is not a supported image format. Use .svg, .png or .pdf.")
    with atomic_write(path) as part, rc_context(STYLE):
        figure.savefig(part, format=kind, metadata={"Date": None} if kind == "svg" else None)


def inline_svg(figure: Figure, name: str, words: str) -> str:
    """A figure as inline SVG with unique ids, the page's text colour, and a description for screen readers."""
    drawn = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    found = drawn.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.DOTALL)
    # Round coordinates to a hundredth of a point; text is left unchanged.
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
