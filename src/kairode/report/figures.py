"""Figures as files, and as accessible inline SVG in the page's colours."""

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from kairode.errors import KairodeError
from kairode.files import atomic_write
from kairode.text import escaped, short_name, shorten, visible, visible_lines, width

LINE, DECISION, EXPECTED = "#2b6cb0", "#c53030", "#dd6b20"
FIXED, OWN, CHOSEN, TRUTH, RANDOM = "#718096", "#2f855a", "#c53030", "#2b6cb0", "#805ad5"
INK = ("#000000", "black")
"""Colours of matplotlib's text, axes and ticks."""
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "kairode", "text.usetex": False}
"""Text as text, and reproducible bytes."""
LINE_LENGTH = 80
"""Longest line of text in a figure."""
LABEL, BESIDE = 24, 18
"""Longest name in a legend or at a tick, and beside a panel."""
LEGEND = 120
"""Letters beside each other in a legend as wide as a figure."""


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


def label(name: object) -> str:
    """A name for a legend, where Matplotlib drops those that are empty or start with an underscore."""
    text = short_name(name, LABEL)
    return f" {text}" if text.startswith("_") else text


def legend_columns(labels: Sequence[str]) -> int:
    """So that a legend is not wider than its figure."""
    return max(1, min(len(labels), 8, LEGEND // (max(map(width, labels), default=0) + 6)))


def variable_label(variable: Mapping[str, Any], between: str) -> str:
    """Name and unit of a variable, for an axis."""
    unit = shorten(visible(variable["unit"]), BESIDE)
    return short_name(variable["name"], BESIDE) + (f"{between}{unit}" if unit else "")


def plain_text(figure: Figure) -> None:
    """Show texts as they are, on lines of bounded length: no formulas, no control characters.

    Not those of ticks, which Matplotlib writes as formulas (powers of ten).
    """
    for text in _texts(figure):
        text.set_usetex(False)
        text.set_parse_math(False)
        lines = visible_lines(text.get_text()).split("\n")
        text.set_text("\n".join(shorten(line, LINE_LENGTH) for line in lines))


def _texts(artist: Artist) -> Iterator[Text]:
    if isinstance(artist, Text):
        yield artist
    for child in [artist.label] if isinstance(artist, Axis) else artist.get_children():
        yield from _texts(child)


def _save(figure: Figure, file: Any, **options: Any) -> None:
    plain_text(figure)
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # of emoji; an SVG is shown with other fonts
        warnings.filterwarnings("ignore", 'Creating legend with loc="best"')  # issued when it takes over a second
        figure.savefig(file, **options)


def save_figure(figure: Figure, path: str | Path) -> None:
    kind = Path(path).suffix.lstrip(".").lower() or "svg"
    if kind not in figure.canvas.get_supported_filetypes():
        raise KairodeError(f"cannot write {path}: '.{kind}' is not a supported image format. Use .svg, .png or .pdf.")
    with atomic_write(path) as part:
        _save(figure, part, format=kind, metadata={"Date": None} if kind == "svg" else None)


def inline_svg(figure: Figure, name: str, words: str) -> str:
    """A figure as inline SVG with unique ids, the page's text colour, and a description for screen readers."""
    drawn = io.StringIO()
    _save(figure, drawn, format="svg", transparent=True, metadata={"Date": None})
    found = drawn.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.DOTALL)
    found = re.sub(r"<[^<>]*>", lambda tag: _inline_tag(tag[0], name), found)  # text is left unchanged
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', found)
    assert box is not None
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-labelledby="{name}-words" viewBox="0 0 {box[1]} {box[2]}" '
        f'style="max-width: {float(box[1]) * 1.6:.0f}px">'
        f'<title id="{name}-words">'
        f"{escaped(words)}</title>"
    )
    return head + found[found.index(">", found.index("<svg")) + 1 :]


def _inline_tag(tag: str, name: str) -> str:
    """A tag of an SVG inside a page: its own ids, coordinates to a hundredth of a point, the page's ink and font."""
    tag = re.sub(r' (?:d|x|y)="[^"]*"', lambda part: re.sub(r"(\d\.\d\d)\d+", r"\1", part[0]), tag)
    tag = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', tag)
    tag = re.sub(r'(xlink:href="#|url\(#)', rf"\1{name}-", tag)
    for ink in INK:
        tag = tag.replace(f"stroke: {ink}", "stroke: currentColor").replace(f"fill: {ink}", "fill: currentColor")
    return re.sub(r"font: ([^;\"]*?) [^;\"]*sans-serif", r"font: \1 system-ui, sans-serif", tag)
