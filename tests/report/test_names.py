"""Any Unicode name can be printed, drawn and put into a page."""

import io
import re
import warnings
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from rich.console import Console

from kairode.callbacks import Progress
from kairode.report import page
from kairode.report.course import course_figure
from kairode.report.figures import BESIDE, inline_svg, label, save_figure
from kairode.report.progress import Bars, Lines
from kairode.report.runs import map_figure
from kairode.report.table import Table, print_table, to_html, to_markdown
from kairode.text import MOST, listed, say, short_name, shorten, visible, visible_lines

NASTY = [
    "hr [/min]",
    "[bold]x[/bold]",
    "[/]",
    ":smile:",
    "cost $a_{$",
    r"$\frac{$",
    r"\$ and \alpha",
    "_underscore",
    "&<>\"'",
    "&amp; &lt;",
    "]]>",
    "-->",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    ' id="one" fill: black',
    "\x00\x01\x1f\x7f\x9b31m",
    "\x1b[31mred",
    "two\nlines\r\n\tand\u2028more",
    "\u202eright to left",
    "\u05e9\u05dc\u05d5\u05dd \u200f",
    "\udcff\ud800",
    "\ufffe\uffff\ufdd0\ufeff\U0001fffe",
    "\U0001f600\U0001f469\u200d\U0001f52c",
    "a" + 50 * "\u0301",
    "x" * 5000,
    "",
    " ",
]
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff\ufffe\uffff]")
"""What must not reach a terminal or a page."""


def course(names: list[str], actions: list[str], steps: int = 4) -> dict[str, Any]:
    """Of an episode, with predictions that are off by the index of the variable."""
    time = np.arange(steps + 1.0)
    seen = np.tile(np.sin(time)[:, None], len(names))
    off = np.arange(len(names)) * np.ones((steps, 2, 1))
    return {
        "spec": {"time_unit": names[0], "actions": {"kind": "discrete", "names": actions}},
        "variables": [{"name": name, "unit": name, "log": False} for name in names],
        "decisions": time.tolist(),
        "seen": seen.tolist(),
        "actions": [i % len(actions) for i in range(steps)],
        "intervals": [1.0] * steps,
        "time": time.tolist(),
        "true": seen.tolist(),
        "kind": "predicted",
        "model_time": np.stack([time[:-1], time[1:]], 1).tolist(),
        "model": (np.stack([seen[:-1], seen[1:]], 1) + off).tolist(),
    }


def texts(svg: str) -> list[str]:
    return [found.text or "" for found in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_visible_text() -> None:
    assert visible("hr [/min] $x$ \U0001f600 \u05e9\u200f e\u0301") == "hr [/min] $x$ \U0001f600 \u05e9\u200f e\u0301"
    assert visible("\x1b[31m\n\udcff\u202e\U0001fffe") == r"\x1b[31m\n\udcff\u202e\U0001fffe"
    assert visible_lines("a\x00\nb") == "a\\x00\nb"
    assert short_name("") == '""'
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abcdef…ijk"
    assert shorten("\u957f" * 9, 10) == "\u957f\u957f\u957f…\u957f", "an ideograph is as wide as two letters"
    assert listed("abcd", 2) == "a, b and 2 more"


@given(st.text(st.characters(exclude_categories=[]), max_size=50))
def test_everything_can_be_written(text: str) -> None:
    found = visible(text)
    found.encode()
    assert not RAW.search(found)
    assert len(found.splitlines()) <= 1
    assert ET.fromstring(f"<p>{page.escaped(text)}</p>").text in (found, None)


@pytest.mark.parametrize("names", [NASTY[:12], NASTY[12:24], NASTY[24:]], ids=["marks", "characters", "lengths"])
def test_a_figure_with_any_names(names: list[str], tmp_path: Path) -> None:
    figure = course_figure(course(names, names), names[0])
    save_figure(figure, tmp_path / "course.svg")
    for drawn in ((tmp_path / "course.svg").read_text(), inline_svg(figure, "course", names[0])):
        found = texts(drawn)
        assert not RAW.search(drawn)
        for name in names:
            assert any(label(name).strip() in text for text in found), "in the legend"
            assert any(short_name(name, BESIDE).strip() in text for text in found), "beside its panel"


def test_long_names_leave_room_for_the_panels() -> None:
    """Matplotlib warns if there is none, and warnings are errors."""
    names = [letter * 1000 + str(i) for letter in "x\u957f\U0001f600" for i in range(4)]
    found = course(names, names)
    drawn = inline_svg(course_figure(found, names[4]), "course", "long names")
    assert all(sum(label(name) in text for text in texts(drawn)) == 1 for name in names), "they differ at their end"


def test_names_at_ticks_are_no_formulas() -> None:
    grid = [[0, 1, 2], [2, 1, 0], [0, 0, 1]]
    names = ["cost $a_{$", r"$\frac{$ \$", "_x"]
    axis = {"name": "$x_{$", "unit": "", "log": True, "at": [1.0, 10.0, 100.0]}
    drawn = inline_svg(map_figure({"axes": [axis, axis], "names": names, "actions": grid, "values": grid}), "map", "m")
    found = texts(drawn)
    for name in (*names, "$x_{$"):
        assert any(name.strip() == text.strip() for text in found), name
    assert not any("mathdefault" in text for text in found), "powers of ten are formulas"


def test_text_of_a_figure_is_no_part_of_its_svg() -> None:
    """What looks like an id, a colour or a coordinate inside a text is left as it is."""
    figure = Figure()
    figure.text(0.1, 0.5, ' id="a" x="1.23456" fill: black; url(#b)')
    assert ' id="a" x="1.23456" fill: black; url(#b)' in texts(inline_svg(figure, "one", "words"))


def test_missing_glyphs_are_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(course_figure(course(["\U0001f600"], ["\u4f60"]), "\U0001f600"), tmp_path / "course.png")


@pytest.mark.parametrize("width", [40, 150])
def test_a_table_of_any_names(width: int) -> None:
    table = Table.of(NASTY[:3], [[name, name, "1.0"] for name in NASTY], "".join(NASTY[:-5]))
    file = io.StringIO()
    print_table(table, Console(file=file, width=width, force_terminal=True, color_system=None))
    file.getvalue().encode()
    assert not RAW.search(file.getvalue())
    for name in NASTY[:16]:
        assert visible(name).strip() in file.getvalue()
    assert max(map(len, file.getvalue().splitlines()[:-60])) < 400
    markdown, found = to_markdown(table), to_html(table)
    assert len({line.replace("\\|", "").count("|") for line in markdown.splitlines()[:-2]}) == 1
    assert "<" not in markdown
    assert not RAW.search(markdown + found)
    ET.fromstring(found)


def test_markdown_shows_the_name_itself() -> None:
    names = ["_a_", "a_b", "[x](y)", "`c`", "$d$", "&lt;", "a & b", "\\|"]
    assert to_markdown(Table.of(names, [])).splitlines()[0] == (
        r"| \_a\_ | a_b | [x]\(y) | \`c\` | \$d\$ | &amp;lt; | a & b | \\\| |"
    )


class Parsed(HTMLParser):
    """Tags that are open, and all text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_page_of_any_names(tmp_path: Path) -> None:
    parts = [
        builder(name)
        for name in NASTY
        for builder in (page.paragraph, page.code, page.section, lambda name: page.facts([(name, name)]))
    ]
    content = page.write_page(tmp_path / "page.html", NASTY[12], parts).read_text()
    assert not RAW.search(content)
    found = Parsed(content)
    assert {"script", "img"}.isdisjoint(found.tags)
    for name in NASTY[:-2]:
        assert found.words.count(visible(name)) >= 2, name


def test_nothing_printed_controls_the_terminal(capsys) -> None:
    say(*NASTY)
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=False)
    with Lines(console, heartbeat=None) as lines:
        for name in NASTY:
            lines(Progress("stage", message=name or "-"))
            lines(Progress(f"stage {name}", 1, 2, {name: 1.0}))
    printed = capsys.readouterr().out + file.getvalue()
    printed.encode()
    assert not RAW.search(printed)
    assert ":smile:" in file.getvalue()
    assert r"\x1b[31mred" in printed


def test_bars_of_any_stage() -> None:
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=True, color_system=None, legacy_windows=False)
    with Bars(console, auto_refresh=False) as bars:
        for name in NASTY:
            bars(Progress(f"stage {name}", 1, 2, {name: 1.0}))
    file.getvalue().encode()
    assert "\x1b[31m" not in file.getvalue()
    assert r"\x1b[31mred" in file.getvalue()


def test_at_most_twelve_panels_those_predicted_worst(tmp_path: Path) -> None:
    figure = course_figure(course([f"v{i:03d}." for i in range(200)], ["a"]), "many")
    assert len(figure.axes) == MOST + 1
    save_figure(figure, tmp_path / "course.svg")
    drawn = (tmp_path / "course.svg").read_text()
    assert "12 of 200 variables: those predicted worst" in drawn
    assert re.findall(r"v\d{3}\.", drawn)[:24:2] == [f"v{199 - i}." for i in range(MOST)]


def test_constant_variables_are_not_the_worst() -> None:
    found = course([f"v{i}" for i in range(MOST + 1)], ["a"])
    for row in (*found["seen"], *found["true"]):
        row[-1] = 1.0
    figure = course_figure(found, "with a constant")
    shown = [axes.get_ylabel().split("\n")[0] for axes in figure.axes[:-1]]
    assert shown == [f"v{i}" for i in reversed(range(MOST))]
    found["model"][0][-1][0] = float("nan")
    assert course_figure(found, "with a model that fails").axes[0].get_ylabel().startswith("v0")


def test_a_legend_of_many_actions_is_bounded() -> None:
    found = course(["x"], [f"action {i}" for i in range(1000)], steps=20)
    found["intervals"][7] = 5.0
    legend = course_figure(found, "many actions").axes[-1].get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "12 of 1,000 actions: those held longest"
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [f"action {i}" for i in range(12)]
    found["intervals"][15] = 5.0
    legend = course_figure(found, "many actions").axes[-1].get_legend()
    assert legend is not None
    assert legend.get_texts()[-1].get_text() == "action 15"


def test_continuous_actions_are_bounded() -> None:
    found = course(["x"], ["a"])
    many = {"kind": "continuous", "names": [f"a{i}" for i in range(50)], "low": [-1.0] * 50, "high": [1.0] * 50}
    found["spec"]["actions"], found["actions"] = many, np.zeros((4, 50)).tolist()
    axes = course_figure(found, "many actions").axes[-1]
    assert axes.get_title("left") == "12 of 50 actions: the first"
    assert len(axes.lines) == MOST + 1
