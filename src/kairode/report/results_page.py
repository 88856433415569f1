"""The page and the document of all results, from records."""

import re
from collections.abc import Sequence
from pathlib import Path

from kairode.errors import KairodeError
from kairode.files import atomic_write, load_json
from kairode.report import page
from kairode.report.figures import save_figure
from kairode.report.results import ATTACKS, FIGURES, MAIN, PARTS, TABLES, TITLES
from kairode.report.scaling import scaling_figures
from kairode.report.summary import using_record
from kairode.report.table import Column, Table, to_html, to_markdown

WORDS = {
    "figure-values": "Value functions over the gridworld, one panel per model and the oracle, each scaled.",
    "figure-curves": "Return on the real system by training episodes, one panel per environment, one line per model.",
    "figure-pomdp": "Return on partially observed HIV by training episodes, of policies with and without the latent "
    "state.",
    "figure-rounds": "Return on HIV by real episodes: one line per seed of Dyna, a band for the model-free agent.",
    "figure-schedule": "Return on HIV against visits per episode, by schedule.",
    "figure-mujoco": "Learning curves on swimmer, hopper and half-cheetah, with models and model-free.",
    "figure-solvers": "Test error of Latent-ODEs against the cost of their solver, one panel per environment, with the "
    "solver of the fit and with a tight one.",
}
"""Descriptions of the figures for screen readers."""
PICTURES = {
    "figure-values": "values.svg",
    "figure-curves": "learning-curves.svg",
    "figure-pomdp": "partial.svg",
    "figure-rounds": "rounds.svg",
    "figure-schedule": "visits.svg",
    "figure-mujoco": "mujoco.svg",
    "figure-solvers": "solvers.svg",
}
"""Files of the figures, beside the document."""


def write_results_page(path: Path, results: Path, names: Sequence[str] = (), note: str = "") -> Path:
    """Write a page with the named tables and figures (or all), compared with the paper's."""
    selected = [name for name in TITLES if not names or name in names]
    shown = [section for name in selected if (section := _section(name, results))]
    if not shown:
        raise KairodeError(f"there are no records in {results} (in a clone: results/).")
    lead = (
        "Published results and Kairode's. Every number is read from a record; docs/results.md discusses the "
        "differences."
    )
    terms = (
        "The oracle is the model-free agent, DQN on the real system. The paper's settings use raw rewards, "
        "single models and unbounded predictions; ours scale rewards, use ensembles and bound predictions to "
        "the range of the data. hiv-whole has episodes of 1000 days; the published runs stop after 50 "
        "decisions."
    )
    head = [page.paragraph(lead, "lead"), page.paragraph(note) if note else "", page.paragraph(terms, "soft")]
    return page.write_page(path, "Kairode compared with the paper", [*head, *shown, _origin(results)])


def _section(name: str, results: Path) -> str:
    with using_record(results):
        parts = _parts(name, results)
    command = "kairode run hiv --seed 0" if name == MAIN else f"kairode reproduce {name}"
    return page.section(TITLES[name], *parts, page.code(command)) if parts else ""


def _parts(name: str, results: Path) -> list[str]:
    """A table, or a figure and a table; nothing without records."""
    parts = []
    try:
        if name in FIGURES:
            parts.append(page.picture(FIGURES[name](results), name, WORDS[name]))
        for one in (name, *(part for part, whole in PARTS.items() if whole == name)):
            table = TABLES[one](results) if one in TABLES else None
            if table and table.rows:
                parts.append(page.folded("In numbers", to_html(table)) if name in FIGURES else to_html(table))
    except KairodeError:
        return []
    return parts


def _origin(results: Path) -> str:
    rows = []
    for path in sorted(results.rglob("*.json")):
        record = load_json(path, "remove it, or restore it.")
        if isinstance(record, dict) and {"machine", "command", "seconds", "commit"} <= record.keys():
            with using_record(path):
                machine, commit = record["machine"], (record["commit"] or "")[:10]
                where = machine["device"] if machine["device"] != "cpu" else machine["processor"]
                seconds = f"{record['seconds']:,.0f} s"
            rows.append((path.relative_to(results), record["command"], where, seconds, commit))
    heads = ("record", Column("command", wrap=True), "machine", "time", "commit")
    return page.section("Records", page.folded(f"{len(rows)} records", to_html(Table.of(heads, rows))))


def write_document(document: Path, results: Path) -> list[str]:
    """Update the tables and figures of a document; returns the names of those written.

    A table is placed between <!-- table2a --> and <!-- end -->. The text around it is left unchanged, and so
    is a figure without records.
    """
    if not document.is_file():
        raise KairodeError(f"{document} does not exist (in a clone: docs/results.md); --page writes a page instead.")
    with using_record(results):
        return _write_document(document, results)


def _write_document(document: Path, results: Path) -> list[str]:
    marked = _write_tables(document, results)
    drawn = []
    for name, file in PICTURES.items():
        try:
            figure = FIGURES[name](results)
        except KairodeError:
            continue
        save_figure(figure, document.parent / file)
        drawn.append(name)
    scaling = scaling_figures(results)
    for name, figure in scaling.items():
        save_figure(figure, document.parent / f"scaling-{name}.svg")
    for name, present in (("scaling.md", bool(scaling)), ("reliability.md", (results / ATTACKS).exists())):
        if present and (document.parent / name).is_file():
            marked += _write_tables(document.parent / name, results)
    return [*marked, *drawn]


def _write_tables(document: Path, results: Path) -> list[str]:
    content = document.read_text(encoding="utf-8")
    marked = [name for name in re.findall(r"<!-- ([\w-]+) -->\n", content) if name != "end"]
    for name in marked:
        if name not in TABLES:
            raise KairodeError(f"{document} refers to an unknown table '{name}'; known: {', '.join(TABLES)}.")
        block = f"<!-- {name} -->\n{to_markdown(TABLES[name](results))}\n<!-- end -->"
        parts = re.split(rf"<!-- {name} -->\n.*?<!-- end -->", content, flags=re.DOTALL)
        content = block.join(parts)
        if len(parts) == 1:
            raise KairodeError(f"{document}: the mark <!-- {name} --> has no <!-- end -->.")
    with atomic_write(document) as part:
        part.write_text(content, encoding="utf-8")
    return marked
