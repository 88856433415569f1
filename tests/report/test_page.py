"""The page of a run, and that of all results: well formed, self-contained, the same in a real browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from kairode.errors import KairodeError
from kairode.report import page
from kairode.report.figures import inline_svg
from kairode.report.results_page import write_document, write_results_page
from kairode.report.run_page import write_run_page
from kairode.report.table import Cell, Table, to_html
from kairode.result import short_number

ROOT = Path(__file__).parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "link", "br", "img"}


class Strict(HTMLParser):
    """Every element closed, every id its own, every figure with words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.figures: list[dict[str, str | None]] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[name] for name in ("src", "href", "xlink:href") if name in found]
        if tag == "svg":
            self.figures.append(found)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    shutil.copy(ROOT / "results" / "run-hiv.json", folder / "record.json")
    return {"run": write_run_page(folder), "results": write_results_page(folder / "results.html", ROOT / "results")}


@pytest.mark.parametrize("name", ["run", "results"])
def test_a_page_is_well_formed_and_fetches_nothing(pages, name):
    text = pages[name].read_text()
    found = Strict()
    found.feed(text)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert not re.search(r"url\((?!#)", text)
    assert "<script" not in text
    assert len(found.figures) >= 6
    for figure in found.figures:
        assert figure["role"] == "img"
        words = re.search(rf'<title id="{figure["aria-labelledby"]}">([^<]+)</title>', text)
        assert words is not None
        assert len(words[1]) > 30
    assert "stroke: #000000" not in text  # it takes the page's ink, light or dark
    if name == "run":
        assert found.headings == [
            "Run",
            "Evaluation",
            "Predictions",
            "Learning",
            "Policy",
            "Decision times",
            "Reproduction",
        ]


def test_the_page_says_what_the_record_says(pages):
    made = json.loads((ROOT / "results" / "run-hiv.json").read_text())
    text = pages["run"].read_text()
    test = made["figures"]["tests"]["imagination"]
    for words in (
        short_number(test["discounted_return"]),
        short_number(test["low"], 3),
        made["command"],
        made["versions"]["jax"],
    ):
        assert words in text


def test_a_figure_keeps_its_numbers():
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 0.0041], [0, 0.123456])
    axes.text(0, 0, "price 0.125")
    text = inline_svg(figure, "small", "A small figure.")
    assert "price 0.125" in text
    assert "0.001" in text
    assert re.search(r' d="[^"]*\d\.\d\d[^\d]', text)


def test_a_run_with_controls_has_a_page(tmp_path):
    shutil.copy(ROOT / "results" / "control" / "hopper-ode-rnn.json", tmp_path / "record.json")
    text = write_run_page(tmp_path).read_text()
    assert "planning with an ode-rnn model" in text
    assert text.count("<svg") == 1


def test_what_people_write_is_escaped(tmp_path):
    path = page.write_page(
        tmp_path / "page.html", "a < b", [to_html(Table.of(["<x>"], [[Cell("1 ± 2", best=True)]], "c & d"))]
    )
    text = path.read_text()
    assert "<x>" not in text
    assert "c &amp; d" in text
    assert "<b>1 <small>± 2</small></b>" in text


def opened(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("name", ["run", "results"])
def test_a_browser_opens_it(pages, name, width, tmp_path):
    """Headless Chromium: nothing on the console, nothing fetched, a picture at two widths, no sideways scrolling."""
    log, shot = tmp_path / "net.json", tmp_path / "shot.png"
    # A phone is narrower than the least window of a headless browser: the page is looked at inside a frame.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><style>body{{margin:0}}</style>'
        f'<iframe id="page" src="{pages[name].as_uri()}" style="border:0;width:{width}px;height:2400px"></iframe>'
        "<script>onload = () => { const d = document.getElementById('page').contentDocument.documentElement;"
        "document.title = `${d.scrollWidth} of ${d.clientWidth}`; }</script>"
    )
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    words += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"]
    words += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}"]
    words += ["--enable-logging=stderr", f"--window-size={max(width, 600)},2400"]
    drawn = subprocess.run(
        [*words, f"--screenshot={shot}", frame.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert drawn.returncode == 0, drawn.stderr
    assert "CONSOLE" not in drawn.stderr
    assert shot.stat().st_size > 20_000
    asked = set(re.findall(r'"url":"(https?:[^"]+)"', log.read_text()))
    asked = {url for url in asked if not re.match(r"https?://[\w.-]*(google|gstatic|googleapis)\.com/", url)}  # its own
    assert not asked
    seen = opened(*words, "--dump-dom", frame.as_uri())
    title = re.search(r"<title>(\d+) of (\d+)</title>", seen.stdout)
    assert title is not None, seen.stdout[:500]
    assert int(title[1]) <= int(title[2])


def test_a_document_keeps_its_sentences(tmp_path):
    document = tmp_path / "results.md"
    document.write_text("Before.\n\n<!-- table3 -->\nold\n<!-- end -->\n\nAfter.\n")
    write_document(document, ROOT / "results")
    text = document.read_text()
    assert text.startswith("Before.\n\n<!-- table3 -->\n| policy |")
    assert "old" not in text
    assert text.endswith("<!-- end -->\n\nAfter.\n")
    assert (tmp_path / "visits.svg").exists()
    document.write_text("<!-- table9 -->\n<!-- end -->\n")
    with pytest.raises(KairodeError, match="table9"):
        write_document(document, ROOT / "results")


def test_the_document_here_is_what_the_records_say(tmp_path):
    document = tmp_path / "results.md"
    shutil.copy(ROOT / "docs" / "results.md", document)
    shutil.copy(ROOT / "docs" / "scaling.md", tmp_path)
    write_document(document, ROOT / "results")
    for name in ("results.md", "scaling.md"):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text(), "run `kairode report results/`"


def test_no_page_of_what_is_no_run(typed, tmp_path):
    code, _, err = typed("report", str(tmp_path / "nowhere"))
    assert code == 2
    assert "does not exist" in err
    (tmp_path / "config.json").write_text("{}")
    code, _, err = typed("report", str(tmp_path))
    assert code == 2
    assert "no finished run" in err
    (tmp_path / "record.json").write_text("{")
    code, _, err = typed("report", str(tmp_path))
    assert code == 2
    assert "damaged" in err
