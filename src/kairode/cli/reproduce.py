"""`kairode reproduce`: the paper's tables and figures."""

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from kairode.cli.common import Quiet
from kairode.errors import KairodeError


def reproduce_command(
    what: Positional[str | None] = None,
    rows: tuple[str, ...] = (),
    models: tuple[str, ...] = (),
    studies: tuple[str, ...] = (),
    seeds: int | None = None,
    budget: Literal["quick", "paper"] = "paper",
    results: Path | None = None,
    runs: Path = Path("runs"),
    out: Path | None = None,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    dry_run: bool = False,
    again: bool = False,
    json: bool = False,
    quiet: Quiet = False,
) -> None:
    """Print a table of the paper, ours beside the published numbers, or draw a figure.

    What has no record is run first, side by side, each piece in a process of its own that goes on where it was when the
    command is given again. In a clone nearly all have records. Fitted models serve every table and figure.

    Example: kairode reproduce table2a

    Example: kairode reproduce all --dry-run

    Example: kairode reproduce table1 --budget quick

    Example: kairode reproduce figure-curves --out curves.svg

    Args:
        what: table1 (state prediction errors), table2a, table2b, table3, table4 (returns), figure-values,
            figure-curves, figure-pomdp, figure-rounds, figure-schedule (return against visits), figure-mujoco
            (learning curves of the robots), or all.
        rows: rows of table1: gridworld, acrobot, hiv, hiv-whole by default; also gridworld-still (no noise),
            acrobot-fine (integrated finely), hiv-partial, and gridworld-cooled, acrobot-cooled, hiv-cooled,
            hiv-whole-cooled (fitted with a cooldown).
        models: of table1, only these; the paper's six by default.
        studies: of the tables of returns, of figure-schedule and of figure-mujoco, only run these (named as their
            records).
        seeds: how many of each; by default what belongs to each (five; robots three; some of HIV one). A record with
            more serves.
        budget: quick runs a twentieth of everything, in folders of its own: it shows that all works and reproduces
            nothing.
        results: folder of the records; results, of the quick budget RUNS/quick/results.
        runs: folder of the runs that make missing ones.
        out: file of a figure; of all, the folder of the figures.
        workers: how many pieces side by side; one for each core by default.
        engine: local (processes of this machine) or ray (a Ray cluster whose machines share this folder).
        address: of the Ray cluster; RAY_ADDRESS, or a new one on this machine, by default.
        dry_run: run nothing: list what would be run with the time it may take, then print what the records have.
        again: run everything anew, whatever records there are; interrupted, the same command goes on.
        json: print figures as JSON, nothing else.
        quiet: no progress bar.
    """
    from kairode.cli.pending import carried_out, listed, since_when
    from kairode.cli.show_result import View, show
    from kairode.config.models import check_model
    from kairode.paper.budget import Scope
    from kairode.paper.plan import ALL, plan

    if what is None:
        print(f"Which one? kairode reproduce {' | '.join((*ALL, 'all'))}; --dry-run says what it would take.")
        return None
    if budget == "quick" and results is not None:
        raise KairodeError("--budget quick keeps its records in RUNS/quick/results: leave out --results.")
    if address is not None and engine != "ray":
        raise KairodeError("--address has no effect: it is for --engine ray.")
    if results is not None and not results.is_dir():
        raise KairodeError(f"there is no folder {results} of records: make it first, or leave out --results.")
    scope = Scope.at(results, runs, seeds, budget)
    since, fresh = since_when(scope.runs / "reproduce" / f"{what}.again") if again and not dry_run else ("", False)
    chosen = tuple(map(check_model, models))
    units = plan(what, scope, rows=rows, models=chosen, only=studies, since=since)
    view = View(scope, rows, chosen, out, dry_run, json)
    if dry_run:
        listed(units, workers, json)
        return None if json else show(what, view, units)
    if fresh:
        for work in units:
            if work.words and not work.done:
                work.forget()
    failed = carried_out(units, scope, engine, address, workers, quiet or json)
    if again:
        (scope.runs / "reproduce" / f"{what}.again").unlink(missing_ok=True)
    show(what, view, units, skip_missing=bool(failed))
    if failed:
        raise KairodeError(failed)
    return None
