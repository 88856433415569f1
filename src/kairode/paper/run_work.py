"""One piece of work in this process: what `kairode study NAME` does."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from kairode.agents.train_loop import PracticeReport
from kairode.algorithms.dyna import Rounds, run_rounds
from kairode.algorithms.mpc import Tell, run_control
from kairode.config.mpc import Control
from kairode.errors import KairodeError, Stopped
from kairode.paper import table1
from kairode.paper.budget import Scope
from kairode.paper.plan import piece, split_cell
from kairode.paper.schedule_study import Visits, run_visits, visits_record
from kairode.paper.studies import Study, run_study, study_record
from kairode.paper.work import Work
from kairode.runs.record import save


def run_piece(
    name: str,
    scope: Scope,
    *,
    replace: bool = False,
    practice: Callable[[PracticeReport], None] = lambda report: None,
    control: Tell = lambda report: None,
) -> Work:
    """Do it, or go on with it, and write its record; whoever watches is told how far it is.

    A record of the same config that is there already stands, unless it is to be replaced.
    """
    work = piece(name, scope)
    if not work.words or name.startswith("fits/"):
        raise KairodeError(f"'{name}' is of table 1: `kairode reproduce table1` makes it.")
    for need in work.needs:
        if not piece(need, scope, needed=True).done:
            raise KairodeError(f"'{name}' needs '{need}', which is not done: `kairode reproduce` runs both in order.")
    keep = work.done and not replace
    try:
        made = _made(work, scope, practice, control)
    except Stopped as stopped:
        raise Stopped(f"{stopped} The same command goes on from there.") from None
    if not keep:
        save(work.record, made)
    return work


def _made(work: Work, scope: Scope, practice: Callable[[PracticeReport], None], control: Tell) -> dict[str, Any]:
    """The record of a study, of whichever kind."""
    config, started, name = work.config, time.perf_counter(), work.name.partition("/")[2]
    options = _options(scope)
    if isinstance(config, Study):
        figures = run_study(config, scope.runs / "table1", folder=work.folder, tell=practice)
        return study_record(name, config, figures, time.perf_counter() - started, options)
    if isinstance(config, Visits):
        figures = run_visits(config, scope.runs, work.folder, tell=practice)
        return visits_record(name, config, figures, time.perf_counter() - started, options)
    if isinstance(config, Rounds):
        made = run_rounds(config, work.folder)
    else:
        assert isinstance(config, Control)
        made = run_control(config, work.folder, control)
    # what is shortened cannot be said by the options of the command that it has of its own
    return {**made, "command": f"kairode study {work.name}{options}"} if scope.budget == "quick" else made


def _options(scope: Scope) -> str:
    """For a record's command."""
    return ("" if scope.seeds is None else f" --seeds {scope.seeds}") + " --budget quick" * (scope.budget == "quick")


def gather_cells(units: Iterable[Work], scope: Scope) -> None:
    """Write the records of table 1 whose fits are all there now."""
    options = _options(dataclasses.replace(scope, seeds=None))
    for work in units:
        kind, _, cell = work.name.partition("/")
        if kind == "table1" and not work.done and all(piece(need, scope, since=work.since).done for need in work.needs):
            row, model = split_cell(cell)
            table1.gather(row, model, range(work.seeds), scope.runs / "table1", work.record.parent, options)
