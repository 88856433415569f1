"""Column and action names of any characters, from the table to the page; tables with many columns."""

import contextlib
import io
import json
import re
import time
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attacks._common import Effort, Outcome, amount, attack, count, kairode

FIXED = [
    "hr [/min]",
    "[bold]x[/bold]",
    "cost $a_{$",
    r"$\frac{$",
    "_underscore",
    "&<>\"'",
    "<script>alert(1)</script>",
    "\x1b[31mred",
    "\x00\x01\x1f\x7f",
    "two\nlines\r\n\tand\u2028more",
    "\U0001f600\U0001f469\u200d\U0001f52c",
    "x" * 5000,
    "[/]",
    ":smile:",
    r"\$ \alpha",
    "&amp;",
    "]]>",
    "-->",
    '"><img src=x onerror=alert(1)>',
    ' id="one" fill: black',
    "\x9b31m",
    "\u202eright to left",
    "\u05e9\u05dc\u05d5\u05dd\u200f",
    "\ufffe\uffff\ufdd0\ufeff\U0001fffe",
    "a" + 50 * "\u0301",
    "x" * 4999 + "y",
    "",
    " ",
    "%s {0} \\n",
    "../../etc/passwd",
]
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff\ufffe\uffff]")
"""What must not reach a terminal, a figure or a page."""
GROUP = 12
"""Names in a table."""
ROWS = 4
"""Rows of an episode."""


@attack("column names such as hr [/min], cost $a_{$, control characters", "any Unicode name works everywhere")
def names(folder: Path, effort: Effort) -> Outcome:
    """Tables with fixed and random names, read, drawn, printed and put into a page; then the command on one of them."""
    failures: list[str] = []
    groups = [FIXED[i : i + GROUP] for i in range(0, len(FIXED), GROUP)]
    groups = groups[:1] if effort == "quick" else [*groups, *_random_groups(amount(effort, 0, 5, 40))]
    for i, group in enumerate(groups):
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", module="kairode")
                failures += _use(folder / f"{i}.parquet", group)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error} with the names {group!r}"[:500])
    tried = sum(map(len, groups))
    if effort != "quick":
        failures += _run_page(folder / "run")
    if effort == "full":
        failures += _command(folder / "hr [per min] $a_{$ \u05e9 \U0001f600.parquet")
    return count(failures, tried, "names")


def _random_groups(number: int) -> Iterator[list[str]]:
    """Characters of all of Unicode but surrogates, which no table can hold, and often of those with a meaning."""
    rng = np.random.default_rng(0)
    special = [chr(i) for i in range(0xA0)] + list("\u200e\u202e\u2066\u2028\ufeff\ufffe\uffff\u0301\u200d")
    for _ in range(number):
        found: dict[str, None] = {}
        while len(found) < GROUP:
            codes = rng.integers(0, 0x110000, rng.integers(0, 30))
            letters = [chr(i) for i in codes if not 0xD800 <= i < 0xE000]
            letters += list(rng.choice(special, rng.integers(0, 10)))
            rng.shuffle(letters)
            name = "".join(letters)
            if not name.startswith("action_"):
                found[name] = None
        yield list(found)


def _use(path: Path, group: list[str]) -> list[str]:
    """What is wrong with a table of these names, as observations and as actions."""
    import jax

    import kairode as kd
    from kairode.config.models import ModelConfig
    from kairode.models.zoo import build
    from kairode.report import page
    from kairode.report.course import course_figure, draw_course
    from kairode.report.fits import fit_table, print_fit
    from kairode.report.table import to_html, to_markdown
    from kairode.runs.course import course

    write_table(path, group, group)
    data = kd.read(path)
    found = []
    if [variable.name for variable in data.spec.observations] != group or {*data.spec.actions.names} != {*group}:
        found.append(f"read as other names: {group!r}")
    again = path.with_name("again.parquet")
    kd.write(again, data)
    if kd.read(again).spec != data.spec:
        found.append(f"written as other names: {group!r}")
    model = build("rnn", data.spec, ModelConfig(latent_size=2, timer_hidden=2), key=jax.random.key(0))
    shown = course(None, data[0], model, "predicted", points=1)
    picture = path.with_suffix(".svg")
    draw_course(shown, picture, group[0])
    found += _faults("figure", picture.read_text(encoding="utf-8"), xml=True)
    record = _fit_record(str(path), group)
    table = fit_table(record, data.spec)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_fit(record, data.spec)
    found += _faults("output", printed.getvalue())
    found += _faults("Markdown", to_markdown(table))
    figure = page.picture(course_figure(shown, group[0]), "course", group[0], group[-1])
    found += _faults("table in HTML", to_html(table), xml=True)
    found += _faults("figure in HTML", figure, xml=True)
    parts = [figure, to_html(table), page.facts((name, name) for name in group)]
    parts += [builder(name) for name in group for builder in (page.paragraph, page.code, page.section)]
    written = page.write_page(path.with_suffix(".html"), group[0], parts)
    return found + _page_faults(written.read_text(encoding="utf-8"))


def _run_page(folder: Path) -> list[str]:
    """The page of a recorded run whose variables and actions have other names, also ones that no table can hold."""
    from kairode.report.run_page import write_run_page

    record = json.loads((Path(__file__).parents[1] / "results" / "run-hiv.json").read_text())
    spec = record["figures"]["spec"]
    old = [*(variable["name"] for variable in spec["observations"]), *spec["actions"]["names"]]
    new = dict(zip(old, ["\ud800\udcff", *FIXED], strict=False))
    new |= {f"always {name}": f"always {new[name]}" for name in old}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {new.get(key, key): renamed(item) for key, item in value.items()}
        if isinstance(value, list):
            return [renamed(item) for item in value]
        return new.get(value, value) if isinstance(value, str) else value

    folder.mkdir()
    (folder / "record.json").write_text(json.dumps(renamed(record)))
    return _page_faults(write_run_page(folder).read_text(encoding="utf-8"))


def _page_faults(text: str) -> list[str]:
    wrong = {*_Tags(text).found} & {"script", "img", "bold"}
    return _faults("page", text) + [f"the page has the tags {wrong}"] * bool(wrong)


def _faults(where: str, text: str, xml: bool = False) -> list[str]:
    found = [f"{where}: {bad[0]!r}" for bad in [RAW.search(text)] if bad]
    if xml:
        try:
            ET.fromstring(text)
        except ET.ParseError as error:
            found.append(f"{where}: {error}")
    return found


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(tag)


def _command(path: Path) -> list[str]:
    """A fit of a table with such names, in a file with such a name."""
    write_table(path, FIXED[:GROUP], FIXED[GROUP : 2 * GROUP], episodes=20)
    out = path.with_name("fit [red] $x$")
    done = kairode("fit", str(path), "--iterations", "2", "--model", "rnn", "--out", str(out))
    found = _faults("output", done.stdout) + _faults("error stream", done.stderr)
    if done.returncode:
        return [*found, f"kairode fit: code {done.returncode}: {done.stderr[-300:]}"]
    return found + _faults("predictions.svg", (out / "predictions.svg").read_text(encoding="utf-8"), xml=True)


def write_table(path: Path, observed: list[str], actions: list[str], episodes: int = 2) -> None:
    """A table with these columns and action names, in episodes of `ROWS` rows."""
    rng = np.random.default_rng(0)
    episodes = max(episodes, -(-len(actions) // (ROWS - 1)))  # every action is taken
    last = np.tile(np.arange(ROWS) == ROWS - 1, episodes)
    chosen = np.full(len(last), "", dtype=object)
    chosen[~last] = np.resize(np.array(actions, dtype=object), int((~last).sum()))
    table = {
        "episode": np.repeat(np.arange(episodes), ROWS),
        "t": np.tile(np.arange(float(ROWS)), episodes),
        **{name: rng.normal(size=len(last)) for name in observed},
        "action": pa.array(chosen, mask=last),
        "reward": pa.array(rng.normal(size=len(last)), mask=last),
        "terminated": np.zeros(len(last), bool),
        "truncated": last,
    }
    pq.write_table(pa.table(table), path)


def _fit_record(source: str, group: list[str]) -> dict[str, Any]:
    """What `kairode fit` records, with made-up errors."""
    figures = {
        "test_error": [1.0],
        "mean": 1.0,
        "std": 0.0,
        "by_dimension": {name: [float(i)] for i, name in enumerate(group)},
        "time_edges": [0.0, 1.0],
        "by_time": [[1.0]],
        "median_episode": [1.0],
        "worst_share": [0.5],
        "timer_hits": None,
        "intervals": None,
        "solver": None,
        "skipped": [0],
    }
    config = {"source": source, "model": group[0], "seed": 0, "standardize": True, "test_episodes": 1}
    return {"config": config, "figures": figures}


@attack("200 observed columns", "at most 12 panels, chosen and said; 5 s", ("full",))
def panels(folder: Path, effort: Effort) -> Outcome:
    """Seconds of the picture of an episode with predictions, and the number of its panels."""
    import jax

    import kairode as kd
    from kairode.config.models import ModelConfig
    from kairode.models.zoo import build
    from kairode.report.course import course_figure
    from kairode.report.figures import save_figure
    from kairode.runs.course import course

    path, picture = folder / "wide.parquet", folder / "wide.svg"
    seconds, counts, said = [], set(), True
    for columns in (200, 1000)[: amount(effort, 1, 2, 2)]:
        names = [f"column {i}" for i in range(columns)]
        write_table(path, names, [f"action {i}" for i in range(columns)])
        data = kd.read(path)
        model = build("rnn", data.spec, ModelConfig(latent_size=2, timer_hidden=2), key=jax.random.key(0))
        began = time.monotonic()
        figure = course_figure(course(None, data[0], model, "predicted"), "wide")
        save_figure(figure, picture)
        seconds.append(time.monotonic() - began)
        counts.add(len(figure.axes) - 1)  # one has the actions
        drawn = picture.read_text()
        said = said and all(f"12 of {columns:,} {what}" in drawn for what in ("variables", "actions"))
    figures = ", ".join(f"{second:.1f} s" for second in seconds)
    held = counts == {12} and said and seconds[0] <= 5
    return Outcome(f"{max(counts)} panels in {figures}", held, {"seconds": seconds, "said": said})
