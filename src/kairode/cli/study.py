"""`kairode study`: one work item of a reproduction."""

import math
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kairode.cli.common import Quiet, loading, on_devices
from kairode.text import say


def study_command(
    name: Annotated[Positional[str], arg(metavar="NAME")],
    seeds: int | None = None,
    budget: str = "paper",
    results: Path | None = None,
    runs: Path = Path("runs"),
    replace: bool = False,
    time_limit: float | None = None,
    devices: int = 1,
    quiet: Quiet = False,
) -> None:
    """Run one study of the reproduction in this process, as `kairode reproduce` does for each missing record.

    Safe to interrupt: run the same command again to resume. Its requirements (fits, other studies) must be finished;
    only between/.. runs missing fits itself, one after the other.

    Example: kairode study policies/paper-gridworld-oracle

    Args:
        name: name of its record under results/: between/.., policies/.., visits/.. or control/.. ; `kairode
            reproduce all --dry-run` lists missing ones.
        seeds: number of seeds; by default the study's own.
        budget: quick (a twentieth) or paper.
        results: folder of the records; by default results, for the quick budget RUNS/quick/results (with runs in
            RUNS/quick).
        runs: folder of the runs.
        replace: write the record even if there is one of the same config.
        time_limit: seconds after which training stops.
        devices: spread the agents over this many devices.
        quiet: print nothing but warnings and errors.
    """
    with loading(quiet):
        from kairode.paper.budget import Scope
        from kairode.paper.run_work import run_work_item
        from kairode.report.progress import display

    scope = Scope.at(results, runs, seeds, budget)
    limit = math.inf if time_limit is None else time_limit
    with on_devices(devices), display(quiet) as show:
        work = run_work_item(name, scope, replace=replace, time_limit=limit, callback=show)
    if not quiet:
        say(f"Run: {work.folder}. Record: {work.record}.")
