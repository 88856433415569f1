"""Tables, printed on a terminal of any width, or rendered as Markdown or HTML."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from kairode.text import escaped, shorten, visible

PIPE_WIDTH = 150
"""Minimum width if the output is not a terminal."""
WRAPPED = 30
"""Minimum width of a column that may wrap."""
MISSING = "-"
"""A missing cell on the terminal; empty elsewhere."""
_MARKS = re.compile(r"[\\|*`$~]|(?<=\])\(|(?<!\w)_|_(?!\w)")
"""What Markdown would interpret in a cell: code, emphasis, formulas, links."""
_ENTITY = re.compile(r"&(?=#?\w+;)")


@dataclasses.dataclass(frozen=True)
class Column:
    """Settings of a column."""

    header: str = ""
    align: Literal["left", "right"] | None = None
    """None: left, but in HTML right for all columns but the first."""
    wrap: bool = False
    """Whether it holds long text, which may be wrapped on a terminal; in other columns long names are shortened."""

    @property
    def title(self) -> str:
        """The header as it is shown."""
        return shorten(visible(self.header))

    def text(self, cell: "Cell") -> str | None:
        """A cell of this column as it is shown; None if it is missing."""
        if cell.text is None:
            return None
        return visible(cell.text) if self.wrap else shorten(visible(cell.text))


@dataclasses.dataclass(frozen=True)
class Cell:
    """Plain text: markup is not interpreted, control characters are made visible."""

    text: str | None
    """None for a missing value."""
    best: bool = False
    """Whether it is the best value among those compared: bold."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One cell per column."""

    cells: tuple[Cell, ...]
    marked: bool = False
    """Whether the whole row is highlighted."""

    @classmethod
    def of(cls, cells: Iterable[Any], marked: bool = False) -> "Row":
        """A row of cells, or of values to be converted; None for a missing one."""
        return cls(tuple(_cell(cell) for cell in cells), marked)


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns, rows in sections, and a caption."""

    columns: tuple[Column, ...]
    sections: tuple[tuple[Row, ...], ...] = ()
    caption: str = ""
    transpose: bool = False
    """On a terminal too narrow for the table, print the rows of a section side by side: each section is a small
    table with the first cell as its title, the second cells as headers and the other columns as rows."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"a row of {len(row.cells)} cells in a table of {len(self.columns)} columns: {row}")

    @classmethod
    def of(cls, headers: Iterable[str | Column], rows: Iterable[Any], caption: str = "") -> "Table":
        """A table with one section."""
        return cls.in_sections(headers, [rows], caption)

    @classmethod
    def in_sections(
        cls,
        headers: Iterable[str | Column],
        sections: Iterable[Iterable[Any]],
        caption: str = "",
        transpose: bool = False,
    ) -> "Table":
        """A table with rows in several sections."""
        columns = tuple(head if isinstance(head, Column) else Column(head) for head in headers)
        parts = (tuple(row if isinstance(row, Row) else Row.of(row) for row in section) for section in sections)
        return cls(columns, tuple(part for part in parts if part), caption, transpose)

    @property
    def headers(self) -> tuple[str, ...]:
        return tuple(column.header for column in self.columns)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for section in self.sections for row in section)


def _cell(value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    return Cell(None if value is None else str(value))


def mean_std(mean: float, std: float, n: int | None, digits: int = 2, usual: int = 5) -> str:
    """Mean ± std, and the number of seeds unless it is `usual`; a single seed has no std."""
    around = "" if n == 1 else f" ± {std:.{digits}f}"
    return f"{mean:.{digits}f}{around}" + (f" ({n})" if n not in (None, usual) else "")


def mean_std_cells(
    found: Mapping[str, tuple[float, float, int | None] | None],
    names: Sequence[str],
    *,
    lowest: bool = False,
    beside: Collection[str] = (),
    digits: int = 2,
) -> list[Cell]:
    """One cell per name: mean ± std (and n), with the highest or lowest mean in bold, except those in `beside`."""
    means = {name: one[0] for name in names if (one := found.get(name)) is not None and name not in beside}
    pick = min if lowest else max
    best = pick(means, key=means.__getitem__) if len(means) > 1 else None
    texts = {name: mean_std(*one, digits) for name, one in found.items() if one is not None}
    return [Cell(texts.get(name), name == best) for name in names]


def to_markdown(table: Table) -> str:
    """Markdown; what Markdown would interpret is escaped."""
    rules = ["---:" if column.align == "right" else "---" for column in table.columns]
    lines = [[_markdown(column.title) for column in table.columns], rules]
    lines += [
        [_markdown_cell(column.text(cell), cell.best or row.marked) for column, cell in _by_column(table, row)]
        for row in table.rows
    ]
    caption = f"\n\n*{_markdown(visible(table.caption))}*" if table.caption else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + caption


def _markdown(text: str) -> str:
    return _ENTITY.sub("&amp;", _MARKS.sub(r"\\\g<0>", text)).replace("<", "&lt;")


def _markdown_cell(text: str | None, bold: bool) -> str:
    return f"**{_markdown(text)}**" if text and bold else _markdown(text or "")


def _by_column(table: Table, row: Row) -> Iterable[tuple[Column, Cell]]:
    return zip(table.columns, row.cells, strict=True)


def to_html(table: Table) -> str:
    """HTML that scrolls horizontally if it is too wide; one `tbody` per section."""
    top = "".join(_html_cell("th", column, escaped(column.title)) for column in table.columns)
    body = "".join(
        f"<tbody>\n{''.join(_html_row(table, row) for row in section)}</tbody>" for section in table.sections
    )
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    label = escaped(table.caption or "table")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table>{caption}<thead><tr>{top}</tr>'
        f"</thead>{body}</table></div>"
    )


def _html_row(table: Table, row: Row) -> str:
    inside = "".join(
        _html_cell("td", column, _html_text(column.text(cell) or "", cell.best))
        for column, cell in _by_column(table, row)
    )
    mark = ' class="mark"' if row.marked else ""
    return f"<tr{mark}>{inside}</tr>\n"


def _html_cell(tag: str, column: Column, inside: str) -> str:
    align = f' style="text-align: {column.align}"' if column.align else ""
    scope = ' scope="col"' if tag == "th" else ""
    wrap = ' class="wrap"' if column.wrap else ""
    return f"<{tag}{scope}{wrap}{align}>{inside}</{tag}>"


def _html_text(text: str, best: bool) -> str:
    """The spread in smaller print below its mean."""
    mean, between, spread = escaped(text).partition(" ± ")
    inside = f"{mean} <small>± {spread}</small>" if between else mean
    return f"<b>{inside}</b>" if best else inside


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table; on a terminal that is too narrow, transpose its sections or print each row as lines."""
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    if _fits(table, console):
        console.print(_rich(table), highlight=False)
        return
    parts = [_transposed(section, table) for section in table.sections] if table.transpose else []
    if parts and all(_fits(part, console) for part in parts):
        for part in parts:
            console.print(_rich(part), highlight=False)
    else:
        for row in table.rows:
            _print_block(table, row, console)
    if table.caption:
        console.print(Text(visible(table.caption)), highlight=False)


def _rich(table: Table, cut: int | None = None) -> RichTable:
    """A Rich table; with `cut`, text in wrapping columns is shortened to measure the minimum width."""
    named = any(table.headers)
    rich_table = RichTable(
        box=SIMPLE_HEAD if named else None,
        show_header=named,
        pad_edge=False,
        caption=Text(visible(table.caption)) if table.caption else None,
    )
    for column in table.columns:
        rich_table.add_column(Text(column.title), justify=column.align or "left", no_wrap=not column.wrap)
    for section in table.sections:
        for row in section:
            cells = [
                _rich_cell(column, cell, row.marked, cut if column.wrap else None)
                for column, cell in _by_column(table, row)
            ]
            rich_table.add_row(*cells)
        rich_table.add_section()
    return rich_table


def _rich_cell(column: Column, cell: Cell, marked: bool, cut: int | None = None) -> Text:
    text = column.text(cell)
    text = MISSING if text is None else text
    return Text(text[:cut], style="bold" if cell.best or marked else "")


def _fits(table: Table, console: Console) -> bool:
    shortest = dataclasses.replace(table, caption="")
    wide = console.options.update(max_width=10_000)
    return Measurement.get(console, wide, _rich(shortest, WRAPPED)).maximum <= console.width


def _transposed(section: Sequence[Row], table: Table) -> Table:
    title, headers = section[0].cells[0].text or "", [row.cells[1].text or "" for row in section]
    rows = [[head, *(row.cells[i] for row in section)] for i, head in enumerate(table.headers) if i > 1]
    return Table.of([title, *headers], rows)


def _print_block(table: Table, row: Row, console: Console) -> None:
    (first, name), *others = _by_column(table, row)
    title = first.text(name) or first.title or MISSING
    console.print(Text(title, style="bold"), highlight=False)
    for column, cell in others:
        line = Text(f"  {column.title}: " if column.title else "  ").append(_rich_cell(column, cell, row.marked))
        console.print(line, highlight=False, soft_wrap=True)
