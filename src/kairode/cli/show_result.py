"""Output of `kairode reproduce`, from the available records."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kairode.cli.common import print_json
from kairode.errors import KairodeError
from kairode.paper.budget import Scope
from kairode.paper.work import WorkItem

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

    @property
    def results(self) -> Path:
        return self.scope.results

    def path(self, what: str) -> Path:
        """File of a figure."""
        return self.out or self.scope.runs / "reproduce" / f"{what}.svg"


def show(what: str, view: View, units: Sequence[WorkItem], skip_missing: bool = False) -> None:
    """Show a table, a figure, or all of them; also lists missing records.

    With `skip_missing`, results without records are listed and skipped.
    """
    from kairode.paper.plan import ALL

    if what != "all":
        found = _show_one(what, view, skip_missing=skip_missing or view.dry)
    else:
        found = {one: _show_one(one, _inside(view, one), skip_missing=True) for one in ALL}
    missing = [work.name for work in units if not work.done and not work.name.startswith("fits/")]
    if view.json:
        print_json(found)
        return
    if missing and not view.dry:
        print(f"No record yet: {', '.join(missing)}.")
    if not view.dry:
        print(_page(what, view))
    if view.scope.budget == "quick":
        print(QUICK)


def _page(what: str, view: View) -> str:
    from kairode.report.results_page import write_results_page

    page = view.scope.runs / "reproduce" / f"{what}.html"
    names = () if what == "all" else (what,)
    try:
        write_results_page(page, view.results, names, QUICK if view.scope.budget == "quick" else "")
    except KairodeError as error:
        return f"No page: {error}"
    return f"Report: {page}"


def _inside(view: View, what: str) -> View:
    return view if view.out is None else dataclasses.replace(view, out=view.out / f"{what}.svg")


def _show_one(what: str, view: View, skip_missing: bool) -> Any:
    kinds = {"table1": _table1, "figure-schedule": _with_table, "figure-mujoco": _with_table}
    one = kinds.get(what, _returns if what.startswith("table") else _figure)
    try:
        return one(what, view)
    except KairodeError as error:
        if not skip_missing:
            raise
        if not view.json:
            print(f"{what}: {error}")
        return None


def _table1(what: str, view: View) -> Any:
    from kairode.config.models import PAPER_MODELS
    from kairode.paper import table1
    from kairode.report.tables import print_table1

    folder, models = view.results / "table1", view.models or PAPER_MODELS
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


def _returns(what: str, view: View) -> Any:
    from kairode.paper.returns import TABLES
    from kairode.report.tables import print_returns

    folder = view.results / "policies"
    found = {setting: TABLES[what](folder, setting) for setting in ("paper", "ours")}
    if not view.json:
        print_returns(what, found, folder)
    return found


def _with_table(what: str, view: View) -> Any:
    from kairode.report import mpc as control
    from kairode.report import schedule as visits

    figures: Callable[[Path], Any]
    if what == "figure-schedule":
        folder, figures, printed = view.results / "visits", visits.read_points, visits.print_visits
    else:
        folder, figures, printed = view.results / "control", control.mujoco_table, control.print_mujoco
    if view.json:
        return figures(folder)
    printed(folder)
    _drawn(view, what)
    return None


def _figure(what: str, view: View) -> Any:
    _drawn(view, what)
    return None


def _drawn(view: View, what: str) -> None:
    from kairode.report.figures import save_figure
    from kairode.report.results import FIGURES

    if view.dry:
        return
    path = view.path(what)
    save_figure(FIGURES[what](view.results), path)
    if not view.json:
        print(f"Figure from the records in {view.results}: {path}.")
