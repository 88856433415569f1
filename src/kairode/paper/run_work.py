"""`kairode study NAME`: one work item in this process."""

import dataclasses
import math
import time
from collections.abc import Iterable
from typing import Any

from kairode._lock import locked
from kairode.callbacks import Callback, no_callback
from kairode.config.algorithms import DynaConfig, MPCConfig
from kairode.config.serialize import to_dict
from kairode.errors import KairodeError, Stopped, resume_with
from kairode.files import save_json
from kairode.paper import table1
from kairode.paper.between import BetweenStudy, run_between_study
from kairode.paper.budget import Scope
from kairode.paper.plan import split_cell, work_item
from kairode.paper.schedule_study import ScheduleStudy, run_schedule_study
from kairode.paper.studies import Study, run_study
from kairode.paper.work import WorkItem
from kairode.runs.dyna import run_dyna
from kairode.runs.fit import run_fit
from kairode.runs.mpc import run_mpc
from kairode.runs.record import make_record


def run_work_item(
    name: str, scope: Scope, *, replace: bool = False, time_limit: float = math.inf, callback: Callback = no_callback
) -> WorkItem:
    """Run or resume a work item, and write its record.

    A record of the same config is kept unless `replace`. Training stops after `time_limit` seconds.
    """
    work = work_item(name, scope)
    if not work.words or name.startswith("fits/"):
        raise KairodeError(f"'{name}' belongs to table 1: use `kairode reproduce table1`.")
    missing = [need for need in work.needs if not work_item(need, scope, folder_used=True).done]
    if missing and not isinstance(work.config, BetweenStudy):
        raise KairodeError(
            f"'{name}' needs '{missing[0]}', which is not done: use `kairode reproduce`, which runs both in order."
        )
    if not isinstance(work.config, Study | ScheduleStudy) and time_limit < math.inf:
        raise KairodeError(f"--time-limit applies to studies of policies and schedules; '{name}' is neither.")
    keep = work.done and not replace
    try:
        for need in missing:  # fits of table 1, one after the other; `kairode reproduce` runs them side by side
            fit = work_item(need, scope)
            run_fit(fit.config, fit.folder, callback)
        record = _study_record(work, scope, time_limit, callback)
    except Stopped as stopped:
        raise resume_with(stopped) from None
    if not keep:
        save_json(work.record, record)
    return work


def _study_record(work: WorkItem, scope: Scope, time_limit: float, callback: Callback) -> dict[str, Any]:
    config, started = work.config, time.perf_counter()
    command = f"kairode study {work.name} --replace{_options(scope)}"
    command += f" --time-limit {time_limit:g}" * (time_limit < math.inf)
    if isinstance(config, Study | ScheduleStudy):
        limits: dict[str, Any] = {"callback": callback, "time_limit": time_limit}
        with locked(work.folder):
            if isinstance(config, Study):
                kind, figures = "study", run_study(config, scope.runs / "table1", folder=work.folder, **limits)
            else:
                kind, figures = "visits", run_schedule_study(config, scope.runs, work.folder, **limits)
        seconds = time.perf_counter() - started
        return make_record(kind, dataclasses.asdict(config), figures, command=command, seconds=seconds)
    if isinstance(config, BetweenStudy):
        with locked(work.folder):
            figures = run_between_study(config, scope.runs / "table1", callback)
        seconds = time.perf_counter() - started
        return make_record("between", to_dict(config), figures, command=command, seconds=seconds)
    if isinstance(config, DynaConfig):
        record = run_dyna(config, work.folder, callback)
    else:
        assert isinstance(config, MPCConfig)
        record = run_mpc(config, work.folder, callback)
    # The run's own command has no option for the quick budget.
    return {**record, "command": command} if scope.budget == "quick" else record


def _options(scope: Scope) -> str:
    return ("" if scope.seeds is None else f" --seeds {scope.seeds}") + " --budget quick" * (scope.budget == "quick")


def gather_table1(units: Iterable[WorkItem], scope: Scope) -> None:
    """Write the records of table 1 whose fits are complete."""
    options = _options(dataclasses.replace(scope, seeds=None))
    for work in units:
        kind, _, cell = work.name.partition("/")
        if kind != "table1" or work.done:
            continue
        if all(work_item(need, scope, since=work.since).done for need in work.needs):
            row, model = split_cell(cell)
            table1.gather(row, model, range(work.seeds), scope.runs / "table1", work.record.parent, options)
