"""The pending work of `kairode reproduce`. Imports JAX: import it only inside the command's function."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kairode.files import atomic_write
from kairode.paper.engines import LocalEngine, run_work
from kairode.paper.ray_engine import RayEngine
from kairode.paper.run_work import gather_table1
from kairode.paper.work import WorkItem
from kairode.report.plan import estimated_seconds, pending_sentence, work_progress

LONG = 600.0
"""Seconds of work above which the user is told before it starts."""


def since_when(path: Path) -> tuple[str, bool]:
    """The time from which records count, and whether it is now: an interrupted `--again` keeps its own."""
    if path.exists():
        return path.read_text().strip(), False
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with atomic_write(path) as part:
        part.write_text(now)
    return now, True


def run_pending(
    units: Sequence[WorkItem], scope: Any, engine: str, address: str | None, workers: int | None, quiet: bool
) -> str:
    """Run pending work; returns a sentence about failures."""
    left = [work for work in units if work.words and not work.done]
    if not left:
        gather_table1(units, scope)
        return ""
    where = RayEngine(address, workers) if engine == "ray" else LocalEngine(workers)
    if not quiet and (estimated_seconds(left, where.workers) > LONG or any(work.seconds is None for work in left)):
        beside = "" if scope.published.is_dir() else " (a clone of the repository has most records in results/)"
        print(f"{pending_sentence(left, where.workers)[:-1]}{beside}; see --dry-run.", file=sys.stderr, flush=True)
    with work_progress(units, quiet) as callback:
        tally = run_work(units, where, callback)
    gather_table1(units, scope)
    if not quiet:
        print(tally, file=sys.stderr)
    if not tally.failed:
        return ""
    names = ", ".join(work.name for work in tally.failed)
    return f"{len(tally.failed)} failed ({names}); see {tally.failed[0].log}."
