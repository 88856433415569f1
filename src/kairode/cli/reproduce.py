"""`kairode reproduce`: the paper's tables and figures."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from kairode.cli.common import Quiet, print_json
from kairode.errors import KairodeError
from kairode.files import atomic_write
from kairode.paper.work import WorkItem

LONG = 600.0
"""Seconds of work about which one is told before it begins."""


def reproduce(
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
    from kairode.cli.show_result import View, show
    from kairode.models.zoo import check_model
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
    since, fresh = _since(scope.runs / "reproduce" / f"{what}.again") if again and not dry_run else ("", False)
    chosen = tuple(map(check_model, models))
    units = plan(what, scope, rows=rows, models=chosen, only=studies, since=since)
    view = View(scope, rows, chosen, out, dry_run, json)
    if dry_run:
        _listed(units, workers, json)
        return None if json else show(what, view, units)
    if fresh:
        for work in units:
            if work.words and not work.done:
                work.forget()
    failed = _carried_out(units, scope, engine, address, workers, quiet or json)
    if again:
        (scope.runs / "reproduce" / f"{what}.again").unlink(missing_ok=True)
    show(what, view, units, patient=bool(failed))
    if failed:
        raise KairodeError(failed)
    return None


def _since(path: Path) -> tuple[str, bool]:
    """The moment from which records count, and whether it is now: an interrupted `--again` goes on with its own."""
    if path.exists():
        return path.read_text().strip(), False
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with atomic_write(path) as part:
        part.write_text(now)
    return now, True


def _listed(units: Sequence[WorkItem], workers: int | None, json: bool) -> None:
    """The dry run."""
    from kairode.paper.engines import LocalEngine
    from kairode.report.plan import plan_figures, print_plan

    print_json(plan_figures(units)) if json else print_plan(units, LocalEngine(workers).workers)


def _carried_out(
    units: Sequence[WorkItem], scope: Any, engine: str, address: str | None, workers: int | None, quiet: bool
) -> str:
    """Run what is not done; what failed, in a sentence."""
    from kairode.paper.engines import LocalEngine, run_work
    from kairode.paper.ray_engine import RayEngine
    from kairode.paper.run_work import gather_table1
    from kairode.report.plan import left_in_words, time_left, watching_work

    left = [work for work in units if work.words and not work.done]
    if not left:
        gather_table1(units, scope)
        return ""
    where = RayEngine(address, workers) if engine == "ray" else LocalEngine(workers)
    if not quiet and (time_left(left, where.workers) > LONG or any(work.seconds is None for work in left)):
        beside = (
            "" if scope.published.is_dir() else " (a clone of the repository has records of nearly all in results/)"
        )
        print(f"{left_in_words(left, where.workers)[:-1]}{beside}; --dry-run lists it.", file=sys.stderr, flush=True)
    with watching_work(units, quiet) as callback:
        tally = run_work(units, where, callback)
    gather_table1(units, scope)
    if not quiet:
        print(tally, file=sys.stderr)
    if not tally.failed:
        return ""
    names = ", ".join(work.name for work in tally.failed)
    return f"{len(tally.failed)} failed ({names}); the first one's words are in {tally.failed[0].log}."
