"""`kairode study`: one piece of a reproduction."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kairode.cli.common import Quiet


def study(
    name: Annotated[Positional[str], arg(metavar="NAME")],
    seeds: int | None = None,
    budget: str = "paper",
    results: Path | None = None,
    runs: Path = Path("runs"),
    replace: bool = False,
    quiet: Quiet = False,
) -> None:
    """Run one study of a reproduction in this process: what `kairode reproduce` does for each that has no record.

    Stopped at any moment, the same command goes on from the last checkpoint. What it needs (fits, other studies) must
    be there.

    Example: kairode study policies/paper-gridworld-oracle

    Args:
        name: named as its record under results/: policies/.., visits/.. or control/.. ; `kairode reproduce all
            --dry-run` lists those without one.
        seeds: how many; what belongs to the study by default.
        budget: quick (a twentieth) or paper.
        results: folder of the records; results, of the quick budget RUNS/quick/results (its runs then in RUNS/quick).
        runs: folder of the runs.
        replace: write the record even where there is one of the same config.
        quiet: no progress bar.
    """
    from kairode.paper.budget import Scope
    from kairode.paper.run_work import run_work_item
    from kairode.report.events import control_events, practice_events
    from kairode.report.progress import display

    scope = Scope.at(results, runs, seeds, budget)
    with display(quiet) as show:
        callback = practice_events(show)
        work = run_work_item(
            name,
            scope,
            replace=replace,
            practice=lambda report: callback(name, report),
            control=control_events(name, show),
        )
    if not quiet:
        print(f"Run: {work.folder}. Record: {work.record}.")
