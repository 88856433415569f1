"""`kairode reproduce`: the paper's tables and figures."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from kairode.cli.common import Quiet, loading, print_json
from kairode.errors import KairodeError


def reproduce_command(
    what: Annotated[Positional[str | None], arg(metavar="[TABLE|FIGURE|all]")] = None,
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
    """Print a table of the paper with Kairode's results, or draw a figure.

    Missing records are created first, in parallel, each in its own process. Safe to interrupt: run the same command
    again to resume. A clone has most records. Fitted models are shared by all tables and figures.

    Example: kairode reproduce table2a

    Example: kairode reproduce all --dry-run

    Example: kairode reproduce table1 --budget quick

    Example: kairode reproduce figure-curves --out curves.svg

    Args:
        what: table1 (state prediction errors), table-between (errors between decisions and at unseen intervals),
            table2a, table2b, table3, table4 (returns), figure-values, figure-curves, figure-pomdp, figure-rounds,
            figure-schedule (return against decisions), figure-mujoco (learning curves of the robots), figure-solvers
            (error against cost), or all.
        rows: rows of table1: gridworld, acrobot, hiv, hiv-whole by default; also gridworld-still (no noise),
            acrobot-fine (fine integration), acrobot-short (the same, 10 s), hiv-partial, pendulum, and
            gridworld-cooled, acrobot-cooled, hiv-cooled, hiv-whole-cooled (fitted with a cooldown).
        models: only these models of table1 and table-between; the paper's six by default.
        studies: only run these studies (named as their records) of table-between, the tables of returns,
            figure-schedule and figure-mujoco.
        seeds: number of seeds; by default five (robots three, some of HIV one). Records with more seeds are accepted.
        budget: quick runs a twentieth of everything in separate folders: a smoke test, not a reproduction.
        results: folder of the records; by default results, for the quick budget RUNS/quick/results.
        runs: folder of the runs.
        out: file of a figure; for `all`, the folder of the figures.
        workers: number of parallel processes; by default one per core.
        engine: local (processes on this machine) or ray (a Ray cluster whose machines share this folder).
        address: address of the Ray cluster; by default RAY_ADDRESS, or a new cluster on this machine.
        dry_run: run nothing: list what would be run with estimated times, then print what the records contain.
        again: run everything again, whatever records exist; safe to interrupt.
        json: print only the figures, as JSON.
        quiet: no progress bar.
    """
    with loading(quiet or json or dry_run or what is None):
        from kairode.cli.pending import run_pending, since_when
        from kairode.cli.show_result import View, show
        from kairode.config.models import check_model
        from kairode.paper.budget import Scope
        from kairode.paper.engines import LocalEngine
        from kairode.paper.plan import ALL, plan
        from kairode.report.plan import plan_figures, print_plan

    if what is None:
        print(f"usage: kairode reproduce {' | '.join((*ALL, 'all'))}; --dry-run estimates the time.")
        return
    if budget == "quick" and results is not None:
        raise KairodeError("--budget quick keeps its records in RUNS/quick/results: leave out --results.")
    if address is not None and engine != "ray":
        raise KairodeError("--address has no effect: it is for --engine ray.")
    if results is not None and not results.is_dir():
        raise KairodeError(f"the folder {results} does not exist: create it first, or leave out --results.")
    scope = Scope.at(results, runs, seeds, budget)
    since, fresh = since_when(scope.runs / "reproduce" / f"{what}.again") if again and not dry_run else ("", False)
    chosen = tuple(map(check_model, models))
    units = plan(what, scope, rows=rows, models=chosen, only=studies, since=since)
    view = View(scope, rows, chosen, out, dry_run, json)
    if dry_run:
        if json:
            print_json(plan_figures(units))
        else:
            print_plan(units, LocalEngine(workers).workers)
            show(what, view, units)
        return
    if fresh:
        for work in units:
            if work.words and not work.done:
                work.forget()
    failed = run_pending(units, scope, engine, address, workers, quiet or json)
    if again:
        (scope.runs / "reproduce" / f"{what}.again").unlink(missing_ok=True)
    show(what, view, units, skip_missing=bool(failed))
    if failed:
        raise KairodeError(failed)
