"""One piece of work in this process: what `kairode study NAME` does."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from kairode.agents.train_loop import TrainProgress
from kairode.algorithms.dyna import DynaConfig, run_dyna
from kairode.algorithms.mpc import Tell, run_mpc
from kairode.config.mpc import MPCConfig
from kairode.errors import KairodeError, Stopped
from kairode.files import save_json
from kairode.paper import table1
from kairode.paper.budget import Scope
from kairode.paper.plan import split_cell, work_item
from kairode.paper.schedule_study import ScheduleStudy, run_schedule_study, schedule_study_record
from kairode.paper.studies import Study, run_study, study_record
from kairode.paper.work import WorkItem


def run_work_item(
    name: str,
    scope: Scope,
    *,
    replace: bool = False,
    practice: Callable[[TrainProgress], None] = lambda report: None,
    control: Tell = lambda report: None,
) -> WorkItem:
    """Do it, or go on with it, and write its record; whoever watches is told how far it is.

    A record of the same config that is there already stands, unless it is to be replaced.
    """
    work = work_item(name, scope)
    if not work.words or name.startswith("fits/"):
        raise KairodeError(f"'{name}' is of table 1: `kairode reproduce table1` makes it.")
    for need in work.needs:
        if not work_item(need, scope, needed=True).done:
            raise KairodeError(f"'{name}' needs '{need}', which is not done: `kairode reproduce` runs both in order.")
    keep = work.done and not replace
    try:
        made = _made(work, scope, practice, control)
    except Stopped as stopped:
        raise Stopped(f"{stopped} The same command goes on from there.") from None
    if not keep:
        save_json(work.record, made)
    return work


def _made(work: WorkItem, scope: Scope, practice: Callable[[TrainProgress], None], control: Tell) -> dict[str, Any]:
    """The record of a study, of whichever kind."""
    config, started, name = work.config, time.perf_counter(), work.name.partition("/")[2]
    options = _options(scope)
    if isinstance(config, Study):
        figures = run_study(config, scope.runs / "table1", folder=work.folder, callback=practice)
        return study_record(name, config, figures, time.perf_counter() - started, options)
    if isinstance(config, ScheduleStudy):
        figures = run_schedule_study(config, scope.runs, work.folder, callback=practice)
        return schedule_study_record(name, config, figures, time.perf_counter() - started, options)
    if isinstance(config, DynaConfig):
        made = run_dyna(config, work.folder)
    else:
        assert isinstance(config, MPCConfig)
        made = run_mpc(config, work.folder, control)
    # what is shortened cannot be said by the options of the command that it has of its own
    return {**made, "command": f"kairode study {work.name}{options}"} if scope.budget == "quick" else made


def _options(scope: Scope) -> str:
    """For a record's command."""
    return ("" if scope.seeds is None else f" --seeds {scope.seeds}") + " --budget quick" * (scope.budget == "quick")


def gather_table1(units: Iterable[WorkItem], scope: Scope) -> None:
    """Write the records of table 1 whose fits are all there now."""
    options = _options(dataclasses.replace(scope, seeds=None))
    for work in units:
        kind, _, cell = work.name.partition("/")
        if (
            kind == "table1"
            and not work.done
            and all(work_item(need, scope, since=work.since).done for need in work.needs)
        ):
            row, model = split_cell(cell)
            table1.gather(row, model, range(work.seeds), scope.runs / "table1", work.record.parent, options)
