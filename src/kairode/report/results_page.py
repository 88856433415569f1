"""The page and the document of all results, made from the records alone."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kairode.errors import KairodeError
from kairode.files import atomic_write, load_json
from kairode.report import page
from kairode.report.figures import save_figure
from kairode.report.results import FIGURES, MAIN, TABLES, TITLES
from kairode.report.table import Table, to_html, to_markdown

WORDS = {
    "figure-values": "Value functions over the gridworld, a panel for each model and the oracle, scaled to its range.",
    "figure-curves": "Return on the real system by episodes of practice, a panel each environment, a line each model.",
    "figure-pomdp": "Return on partially observed HIV by episodes of practice, of policies that see z and that do not.",
    "figure-rounds": "Return on HIV by real episodes: a line for each seed of rounds, a band for no model.",
    "figure-schedule": "Return on HIV against visits in an episode, a line or mark for each who says when.",
    "figure-mujoco": "Learning curves on swimmer, hopper and half-cheetah, of models and of DDPG without one.",
}
"""What each figure shows, for who cannot see it."""
PICTURES = {
    "figure-values": "values.svg",
    "figure-curves": "learning-curves.svg",
    "figure-pomdp": "partial.svg",
    "figure-rounds": "rounds.svg",
    "figure-schedule": "visits.svg",
    "figure-mujoco": "mujoco.svg",
}
"""Their files in the folder of the document."""


def write_results_page(path: Path, results: Path, names: Sequence[str] = (), note: str = "") -> Path:
    """A page with the tables and figures named (or all), ours beside the paper's."""
    wanted = [name for name in TITLES if not names or name in names]
    shown = [section for name in wanted if (section := _section(name, results))]
    if not shown:
        raise KairodeError(f"there is no record in {results} to make a page of: in a clone the folder is results/.")
    lead = (
        "What the paper published and what came out here, side by side. Every number is read from a record; what "
        "differs and why is said in docs/results.md."
    )
    terms = (
        "The oracle is the model-free agent: DQN on the real system. The paper's settings are its raw rewards, single "
        "models and unbounded predictions; ours scale rewards, take several models and keep predictions near what was "
        "seen. hiv-whole has episodes of 1000 days, where the published runs stop after 50 decisions."
    )
    head = [page.paragraph(lead, "lead"), page.paragraph(note) if note else "", page.paragraph(terms, "soft")]
    return page.write_page(path, "Kairode beside the paper", [*head, *shown, _origin(results)])


def _section(name: str, results: Path) -> str:
    """A table, a figure, or both; nothing where there is no record."""
    parts = []
    try:
        if name in FIGURES:
            parts.append(page.picture(FIGURES[name](results), name, WORDS[name]))
        if name in TABLES:
            table = TABLES[name](results)
            shown = to_html(table)
            if table.rows:
                parts.append(page.folded("In numbers", shown) if name in FIGURES else shown)
    except KairodeError:
        return ""
    command = "kairode run hiv --seed 0" if name == MAIN else f"kairode reproduce {name}"
    return page.section(TITLES[name], *parts, page.code(command)) if parts else ""


def _origin(results: Path) -> str:
    """Which records there are: how they were made, on what, in how long."""
    rows = []
    for path in sorted(results.rglob("*.json")):
        made = _read(path)
        if made is None:
            continue
        where = made["machine"]["device"] if made["machine"]["device"] != "cpu" else made["machine"]["processor"]
        commit = (made["commit"] or "")[:10]
        rows.append((str(path.relative_to(results)), made["command"], where, f"{made['seconds']:,.0f} s", commit))
    heads = ("record", "command", "machine", "time", "commit")
    return page.section(
        "Where the numbers come from", page.folded(f"{len(rows)} records", to_html(Table.of(heads, rows)))
    )


def _read(path: Path) -> dict[str, Any] | None:
    """A record, if the file is one."""
    made = load_json(path, "remove it, or restore it.")
    return made if isinstance(made, dict) and {"machine", "command", "seconds", "commit"} <= made.keys() else None


def write_document(document: Path, results: Path) -> list[str]:
    """Write the tables of a document anew, each between its marks, and its figures beside it; what was written.

    A mark is a comment, <!-- table2a -->, up to <!-- end -->. The sentences around them stay as they are.
    """
    if not document.is_file():
        raise KairodeError(f"there is no document {document}: in a clone it is docs/results.md; --page makes a page.")
    before = document.read_text(encoding="utf-8")
    marked = [name for name in re.findall(r"<!-- ([\w-]+) -->\n", before) if name != "end"]
    after = before
    for name in marked:
        if name not in TABLES:
            raise KairodeError(f"{document} asks for '{name}', which is none of {', '.join(TABLES)}.")
        inside = to_markdown(TABLES[name](results))
        block = f"<!-- {name} -->\n{inside}\n<!-- end -->"
        pieces = re.split(rf"<!-- {name} -->\n.*?<!-- end -->", after, flags=re.DOTALL)
        after = block.join(pieces)
        if len(pieces) == 1:
            raise KairodeError(f"{document}: the mark <!-- {name} --> has no <!-- end -->.")
    for name, file in PICTURES.items():
        save_figure(FIGURES[name](results), document.parent / file)
    with atomic_write(document) as part:
        part.write_text(after, encoding="utf-8")
    return [*marked, *PICTURES]
