"""Output of `kairode reproduce`, from the available records."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kairode.cli.common import print_json
from kairode.errors import KairodeError
from kairode.paper.budget import Scope
from kairode.paper.work import WorkItem
from kairode.text import say

QUICK = "Quick budget (a twentieth of the work): a smoke test, not a reproduction."


@dataclasses.dataclass(frozen=True)
class View:
    """Options of the output."""

    scope: Scope
    rows: tuple[str, ...]
    models: tuple[str, ...]
    out: Path | None
    dry: bool
    """Do not draw figures."""
    json: bool


def show(what: str, view: View, units: Sequence[WorkItem], skip_missing: bool = False) -> None:
    """Show a table, a figure, or all of them; also lists missing records.

    With `skip_missing`, results without records are listed and skipped.
    """
    from kairode.paper.plan import ALL
    from kairode.report.results_page import write_results_page

    if what != "all":
        found = _show_one(what, view, skip_missing=skip_missing or view.dry)
    else:
        inside = {one: None if view.out is None else view.out / f"{one}.svg" for one in ALL}
        found = {
            one: _show_one(one, dataclasses.replace(view, out=out), skip_missing=True) for one, out in inside.items()
        }
    missing = [work.name for work in units if not work.done and not work.name.startswith("fits/")]
    if view.json:
        print_json(found)
        return
    if missing and not view.dry:
        say(f"No record yet: {', '.join(missing)}.")
    if not view.dry:
        page = view.scope.runs / "reproduce" / f"{what}.html"
        names = () if what == "all" else (what,)
        try:
            write_results_page(page, view.scope.results, names, QUICK if view.scope.budget == "quick" else "")
            say(f"Report: {page}")
        except KairodeError as error:
            say(f"No page: {error}")
    if view.scope.budget == "quick":
        print(QUICK)


def _show_one(what: str, view: View, skip_missing: bool) -> Any:
    try:
        if what == "table1":
            return _table1(view)
        if what == "table-between":
            return _between(view)
        return _returns(what, view) if what.startswith("table") else _figure(what, view)
    except KairodeError as error:
        if not skip_missing:
            raise
        if not view.json:
            say(f"{what}: {error}")
        return None


def _table1(view: View) -> Any:
    from kairode.config.models import PAPER_MODELS
    from kairode.paper import table1
    from kairode.report.prediction import print_table1

    folder, models = view.scope.results / "table1", view.models or PAPER_MODELS
    there = {
        row: [model for model in models if (folder / f"{row}-{model}.json").exists()]
        for row in view.rows or table1.USUAL
    }
    if view.json:
        return {row: {model: table1.read_cell(folder, row, model) for model in some} for row, some in there.items()}
    whole = [row for row, some in there.items() if len(some) == len(models)]  # rows of a table need every model
    if not whole:
        raise KairodeError(f"there is no complete row in {folder} yet.")
    print_table1({row: {model: table1.read_cell(folder, row, model) for model in models} for row in whole}, folder)
    return None


def _between(view: View) -> Any:
    from kairode.config.models import PAPER_MODELS
    from kairode.paper.between import read_between
    from kairode.report.prediction import print_between

    folder = view.scope.results / "between"
    found = read_between(folder, view.models or PAPER_MODELS)
    if not found:
        raise KairodeError(f"there are no records in {folder} yet.")
    if not view.json:
        print_between(found, folder)
    return found


def _returns(what: str, view: View) -> Any:
    from kairode.paper.returns import TABLES
    from kairode.report.results import print_returns

    folder = view.scope.results / "policies"
    found = {setting: TABLES[what](folder, setting) for setting in ("paper", "ours")}
    if not view.json:
        print_returns(what, found, folder)
    return found


def _figure(what: str, view: View) -> Any:
    """Draw a figure; some come with a table."""
    from kairode.report.figures import save_figure
    from kairode.report.mpc import mujoco_table, print_mujoco
    from kairode.report.prediction import print_solvers, solver_figures
    from kairode.report.results import FIGURES
    from kairode.report.schedule import print_visits, read_points

    results = view.scope.results
    tables: dict[str, tuple[Path, Callable[[Path], Any], Callable[[Path], None]]] = {
        "figure-schedule": (results / "visits", read_points, print_visits),
        "figure-mujoco": (results / "control", mujoco_table, print_mujoco),
        "figure-solvers": (results / "solvers.json", solver_figures, print_solvers),
    }
    if what in tables:
        folder, figures, print_table = tables[what]
        if view.json:
            return figures(folder)
        print_table(folder)
    if not view.dry:
        path = view.out or view.scope.runs / "reproduce" / f"{what}.svg"
        save_figure(FIGURES[what](results), path)
        if not view.json:
            say(f"Figure from the records in {results}: {path}.")
    return None
