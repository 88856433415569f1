"""One table, printed, as Markdown and as HTML."""

import io
from html.parser import HTMLParser

import pytest
from rich.console import Console

from kairode.report.table import Cell, Column, Row, Table, mean_std, mean_std_cells, print_table, to_html, to_markdown

TABLE = Table.in_sections(
    ["", "", "hr [/min]", Column("a|b", align="right")],
    [
        [["first", "paper", Cell("1.0 ± 0.1", best=True), "[bold]x[/bold]"], ["", "ours", "2.0", None]],
        [Row.of(["<second>", "paper", "*3*", ":smile: &"], marked=True)],
    ],
    "Rates in [1/min].",
    transpose=True,
)


def printed(table: Table, width: int, terminal: bool = True) -> str:
    file = io.StringIO()
    print_table(table, Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue()


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip(" ─")]


def test_printed_literally() -> None:
    """What looks like Rich's markup is text; a missing cell is a dash."""
    assert words(printed(TABLE, 80)) == [
        ["hr", "[/min]", "a|b"],
        ["first", "paper", "1.0", "±", "0.1", "[bold]x[/bold]"],
        ["ours", "2.0", "-"],
        ["<second>", "paper", "*3*", ":smile:", "&"],
        ["Rates", "in", "[1/min]."],
    ]
    assert "\x1b" not in printed(TABLE, 80, terminal=False)


def test_the_best_is_bold_on_a_terminal() -> None:
    file = io.StringIO()
    print_table(TABLE, Console(file=file, width=80, force_terminal=True, color_system="standard"))
    assert "\x1b[1m1.0 ± 0.1" in file.getvalue()
    assert "\x1b[1m2.0" not in file.getvalue()
    assert "\x1b[1m<second>" in file.getvalue()


def test_sections_on_their_side_where_the_table_is_too_wide() -> None:
    found = printed(TABLE, 36)
    assert max(map(len, found.splitlines())) <= 36
    assert words(found) == [
        ["first", "paper", "ours"],
        ["hr", "[/min]", "1.0", "±", "0.1", "2.0"],
        ["a|b", "[bold]x[/bold]", "-"],
        ["<second>", "paper"],
        ["hr", "[/min]", "*3*"],
        ["a|b", ":smile:", "&"],
        ["Rates", "in", "[1/min]."],
    ]


def test_a_block_for_each_row_where_nothing_else_fits() -> None:
    found = printed(Table.of(["name", "rate [1/h]", "note"], [["one", "12345678", None], ["two", "3", "[x]"]]), 20)
    assert found.splitlines() == [
        "one", "  rate [1/h]: 12345678", "  note: -", "two", "  rate [1/h]: 3", "  note: [x]",
    ]  # fmt: skip


def test_a_pipe_has_room() -> None:
    rows = [["x" * 60, "y" * 60]]
    assert len(words(printed(Table.of(["a", "b"], rows), 80, terminal=False))) == 2
    assert "b: y" in printed(Table.of(["a", "b"], rows), 80)


def test_text_wraps_where_it_may() -> None:
    table = Table.of(["field", Column("meaning", wrap=True)], [["dt", "long words " * 12]])
    found = printed(table, 50)
    assert max(map(len, found.splitlines())) <= 50
    assert found.split().count("words") == 12
    assert "meaning:" not in found


def test_a_table_without_headers() -> None:
    assert words(printed(Table.of(["", ""], [["reward", "R = [alive]"]]), 80)) == [["reward", "R", "=", "[alive]"]]


def test_markdown() -> None:
    assert to_markdown(TABLE) == (
        "|  |  | hr [/min] | a\\|b |\n"
        "| --- | --- | --- | ---: |\n"
        "| first | paper | **1.0 ± 0.1** | [bold]x[/bold] |\n"
        "|  | ours | 2.0 |  |\n"
        "| **&lt;second>** | **paper** | **\\*3\\*** | **:smile: &** |\n"
        "\n*Rates in [1/min].*"
    )
    assert to_markdown(Table.of(["a"], [])) == "| a |\n| --- |"


class Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data) -> None:
        if self.rows and self.rows[-1] and data.strip():
            self.rows[-1][-1] += data


def test_html_holds_the_same_text() -> None:
    found = Texts()
    found.feed(to_html(TABLE))
    assert found.rows[0] == ["", "", "hr [/min]", "a|b"]
    assert found.rows[1] == ["first", "paper", "1.0 ± 0.1", "[bold]x[/bold]"]
    assert found.rows[2] == ["", "ours", "2.0", ""]
    assert found.rows[3] == ["<second>", "paper", "*3*", ":smile: &"]
    assert found.tags.count("tbody") == 2
    assert found.tags.count("b") == 1
    assert "<b>1.0 <small>± 0.1</small></b>" in to_html(TABLE)
    assert '<tr class="mark"><td>&lt;second&gt;</td>' in to_html(TABLE)


def test_the_best_of_those_compared() -> None:
    found = {"a": (1.0, 0.25, 5), "b": (2.0, 0.5, 3), "oracle": (9.0, 0.0, None), "c": None}
    names = ["a", "b", "c", "d", "oracle"]
    cells = mean_std_cells(found, names, beside=["oracle"])
    assert [cell.text for cell in cells] == ["1.00 ± 0.25", "2.00 ± 0.50 (3)", None, None, "9.00 ± 0.00"]
    assert [cell.best for cell in cells] == [False, True, False, False, False]
    assert [cell.best for cell in mean_std_cells(found, names, lowest=True)] == [True, False, False, False, False]
    assert not any(cell.best for cell in mean_std_cells(found, ["a"]))  # nothing to compare with


def test_mean_and_std() -> None:
    assert mean_std(1.234, 0.5, None) == "1.23 ± 0.50"
    assert mean_std(1.234, 0.0, 1, digits=1) == "1.2 (1)"
    assert mean_std(123.4, 7.0, 3, digits=0, usual=3) == "123 ± 7"


def test_rows_have_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        Table.of(["a", "b"], [["x"]])
