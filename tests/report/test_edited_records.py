"""Records with markup in place of every string: a page without that markup, or an error that names the record."""

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kairode.errors import KairodeError
from kairode.report.compare import compare_runs, comparison_sentence, runs_table
from kairode.report.results import TABLES, TITLES
from kairode.report.results_page import write_results_page
from kairode.report.run_page import write_run_page
from kairode.report.table import to_html, to_markdown

RESULTS = Path(__file__).parents[2] / "results"
MARKUP = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]> --> </style></svg></title>",
    "$x_{$ [/bold] \x1b[31m\x00\n\ud800\u202e",
]
FIXED = ("kind", "objective", "low", "high")
"""Strings with a fixed set of values."""
NAMES = ("measures", "units", "stages", "versions", "values")
"""Objects with names given by users, or by other programs, as keys."""


def edited(value: Any, replace: Callable[[str], str], key: str = "") -> Any:
    """With every string that may be anything replaced, the same one always by the same."""
    if isinstance(value, dict):
        renamed = {replace(name) if key in NAMES else name: name for name in value}
        return {new: edited(value[name], replace, name) for new, name in renamed.items()}
    if isinstance(value, list):
        return [edited(item, replace, key) for item in value]
    return replace(value) if isinstance(value, str) and key not in FIXED else value


def rotating(first: int) -> Callable[[str], str]:
    """Each string gets one of the kinds of markup in turn, the same string always the same one."""
    seen: dict[str, int] = {}
    return lambda text: MARKUP[(first + seen.setdefault(text, len(seen))) % len(MARKUP)] + text


TURNS = [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(1, len(MARKUP)))]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where strings with a fixed set of values are: the first place of each kind."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, str) and key in FIXED:
            yield (*path, key)
        yield from places(item, (*path, key))


def small(record: dict[str, Any]) -> dict[str, Any]:
    """A run with one observed variable in its figures of episodes, and few decisions."""
    figures = record["figures"]
    for course in (*figures["courses"].values(), figures["visits"]["course"]):
        course["variables"] = course["variables"][:1]
        for name in ("seen", "true"):
            course[name] = [row[:1] for row in course[name]]
        if "model" in course:
            course["model"] = [[row[:1] for row in rows] for rows in course["model"]]
    return record


@pytest.fixture(scope="module")
def run_record() -> dict[str, Any]:
    return small(json.loads((RESULTS / "run-hiv.json").read_text()))


def save(folder: Path, record: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps(record))
    return folder


class Page(HTMLParser):
    """Every tag closed; none that we never write."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in ("script", "img", "bold")
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(content: str) -> None:
    assert Page(content).open == []
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", content)
    assert "<script" not in content
    assert "<img" not in content
    assert "&lt;script" in content


@pytest.mark.parametrize("first", TURNS)
def test_the_page_of_a_run(first: int, run_record: dict[str, Any], tmp_path: Path) -> None:
    replace = rotating(first)
    made = edited(run_record, replace)
    tests = made["figures"]["tests"]
    for name in [name for name in tests if name.startswith("always ")]:
        tests[f"always {replace(name)}"] = tests.pop(name)
    check(write_run_page(save(tmp_path, made)).read_text())


@pytest.mark.parametrize("first", range(len(MARKUP)))
def test_the_page_of_a_run_with_continuous_actions(first: int, tmp_path: Path) -> None:
    record = json.loads((RESULTS / "control" / "hopper-ode-rnn.json").read_text())
    check(write_run_page(save(tmp_path, edited(record, rotating(first)))).read_text())


@pytest.mark.parametrize("name", ["run-hiv.json", "control/hopper-ode-rnn.json"])
def test_strings_of_a_fixed_set_are_refused(name: str, tmp_path: Path) -> None:
    """The kind of a record and of a test, the objective, the bounds of a variable."""
    record = json.loads((RESULTS / name).read_text())
    seen = set()
    for path in places(record):
        # Those of agents are only shown; one test of another kind is a row; those of figures take seconds to reach.
        if {"agent", "tests", "courses", "visits", "rounds", "actions"} & {*path[:-1]} or path[-1] in seen:
            continue
        seen.add(path[-1])
        made = json.loads(json.dumps(record))
        inside = made
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = MARKUP[0]
        with pytest.raises(KairodeError, match=r"record\.json"):
            write_run_page(save(tmp_path, made))
    assert len(seen) >= 2


def test_tests_and_predictions_of_an_unknown_kind(run_record: dict[str, Any], tmp_path: Path) -> None:
    figures = run_record["figures"]
    for inside, key in (
        (figures["courses"]["random"], "kind"),
        (figures["spec"]["actions"], "kind"),
        (figures["tests"]["imagination"], "objective"),
    ):
        before, inside[key] = inside[key], MARKUP[0]
        with pytest.raises(KairodeError, match=r"record\.json is incomplete or was edited"):
            write_run_page(save(tmp_path, run_record))
        inside[key] = before


@pytest.mark.parametrize(
    "broken", [{}, {"kind": "run"}, {"kind": "run", "figures": []}, {"kind": "control", "config": 3}, {"figures": {}}]
)
def test_a_record_without_its_parts(broken: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KairodeError, match="record"):
        write_run_page(save(tmp_path, broken))


def test_several_runs(run_record: dict[str, Any], tmp_path: Path) -> None:
    made = edited(run_record, lambda text: MARKUP[0] + text)
    folders = []
    for seed in range(2):
        one = json.loads(json.dumps(made))
        one["seed"] = one["config"]["seed"] = seed
        folders.append(save(tmp_path / str(seed), one))
    record = compare_runs(folders)
    table = runs_table(record)
    assert "<script" not in to_html(table) + to_markdown(table) + comparison_sentence(record)
    del one["figures"]["tests"]["random"]
    save(tmp_path / "1", one)
    with pytest.raises(KairodeError, match="was edited"):
        compare_runs(folders)


@pytest.mark.parametrize("first", TURNS)
def test_the_page_of_all_results(first: int, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for path in RESULTS.rglob("*.json"):
        target = folder / path.relative_to(RESULTS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(edited(json.loads(path.read_text()), rotating(first))))
    content = write_results_page(tmp_path / "page.html", folder).read_text()
    check(content)
    assert content.count("<h2>") == len(TITLES) + 1
    for name in ("run-hiv", "table1-solver"):
        assert "<script" not in to_markdown(TABLES[name](folder))


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    record = json.loads((RESULTS / "solvers.json").read_text())
    record["figures"] = 3
    (tmp_path / "solvers.json").write_text(json.dumps(record))
    with pytest.raises(KairodeError, match="was edited"):
        write_results_page(tmp_path / "page.html", tmp_path)
