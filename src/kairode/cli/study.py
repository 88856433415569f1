"""`kairode study`: one piece of a reproduction."""

import math
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kairode.cli.common import Quiet


def study_command(
    name: Annotated[Positional[str], arg(metavar="NAME")],
    seeds: int | None = None,
    budget: str = "paper",
    results: Path | None = None,
    runs: Path = Path("runs"),
    replace: bool = False,
    time_limit: float | None = None,
    quiet: Quiet = False,
) -> None:
    """Run one study of the reproduction in this process: what `kairode reproduce` does for each without a record.

    Safe to interrupt: run the same command again to resume. What it needs (fits, other studies) must be there.

    Example: kairode study policies/paper-gridworld-oracle

    Args:
        name: of its record under results/: policies/.., visits/.. or control/.. ; `kairode reproduce all --dry-run` lists
            those without one.
        seeds: number of seeds; by default the study's own.
        budget: quick (a twentieth) or paper.
        results: folder of the records; by default results, for the quick budget RUNS/quick/results (its runs are then in
            RUNS/quick).
        runs: folder of the runs.
        replace: write the record even if there is one of the same config.
        time_limit: seconds after which training ends with what it has come to.
        quiet: print nothing but errors.
    """
    from kairode.paper.budget import Scope
    from kairode.paper.run_work import run_work_item
    from kairode.report.progress import display

    scope = Scope.at(results, runs, seeds, budget)
    limit = math.inf if time_limit is None else time_limit
    with display(quiet) as show:
        work = run_work_item(name, scope, replace=replace, time_limit=limit, callback=show)
    if not quiet:
        print(f"Run: {work.folder}. Record: {work.record}.")
