"""A list of work for the terminal: what would be run, its state and estimated time; and its progress."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kairode.callbacks import Progress
from kairode.paper.work import WorkItem
from kairode.report.progress import display
from kairode.report.table import Table, print_table
from kairode.text import say

WORDS = {"begun": "started", "run": "finished", "done": "finished by another process"}


def print_plan(units: Sequence[WorkItem], workers: int) -> None:
    states = {work.name: work.state for work in units}
    rows = []
    left = [work for work in units if work.words and states[work.name] != "done"]
    for (_, state), same in itertools.groupby(left, key=lambda work: (_stem(work.name), states[work.name])):
        some = list(same)
        name = some[0].name + (f" to {some[-1].name.rpartition('-')[2]}" if len(some) > 1 else "")
        each = approximate_time(some[0].seconds) + (f" each of {len(some)}" if len(some) > 1 else "")
        rows.append([name, state, _needs(some[0], states), each])
    if rows:
        print_table(Table.of(["to run", "state", "needs", "estimated"], rows))
    runs = [work for work in units if work.words]
    done = len(runs) - len(left)
    before = f"{done} of {len(runs)} runs are already done. " if runs else ""
    say(before + pending_sentence(units, workers))


def _stem(name: str) -> str:
    """Common part of the names of several seeds; a study has only its name."""
    return name.rpartition("-")[0] if name.startswith(("fits/", "policies/rounds-")) else name


def _needs(work: WorkItem, states: dict[str, str]) -> str:
    """What it needs, and how many of these are done."""
    groups = [(kind, list(some)) for kind, some in itertools.groupby(work.needs, key=_kind)]
    text = ", ".join(some[0] if len(some) == 1 else f"{len(some)} {kind}" for kind, some in groups)
    done = sum(states.get(name, "done") == "done" for name in work.needs)
    return f"{text} ({done} done)" if done else text


def _kind(name: str) -> str:
    return "rounds" if "/rounds-hiv-" in name and name.startswith("policies") else name.partition("/")[0]


def pending_sentence(units: Sequence[WorkItem], workers: int) -> str:
    left = [work for work in units if work.words and not work.done]
    if not left:
        return "Nothing to run."
    unknown = sum(work.seconds is None for work in left)
    least, more = estimated_seconds(left, workers), f"; {unknown} of them without an estimate" if unknown else ""
    side = "one after the other" if workers == 1 else f"with {workers} workers"
    return f"To run: {len(left)}, about {approximate_time(least)} {side}{more}."


def estimated_seconds(units: Sequence[WorkItem], workers: int) -> float:
    """Estimated seconds: total over the workers, or the longest chain of dependencies."""
    waits: dict[str, float] = {}
    for work in units:  # dependencies come first
        waits[work.name] = (work.seconds or 0.0) + max((waits.get(need, 0.0) for need in work.needs), default=0.0)
    return max(sum(work.seconds or 0.0 for work in units) / workers, max(waits.values(), default=0.0))


def approximate_time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{math.ceil(seconds / 10) * 10} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def plan_figures(units: Sequence[WorkItem]) -> list[dict[str, Any]]:
    names = ("name", "state", "needs", "seconds")
    return [{name: getattr(work, name) for name in names} for work in units]


@contextlib.contextmanager
def work_progress(units: Sequence[WorkItem], quiet: bool) -> Iterator[Callable[[WorkItem, str], None]]:
    total = sum(bool(work.words) and not work.done for work in units)
    running: list[str] = []
    done = 0
    with display(quiet) as show:
        show(Progress("running", 0, total, {}, 0.0))

        def callback(work: WorkItem, event: str) -> None:
            nonlocal done
            if event == "begun":
                running.append(work.name)
            else:
                running.remove(work.name) if work.name in running else None
                done += 1
            where = f", see {work.log}" if event == "failed" else ""
            show.say(f"{work.name}: {WORDS.get(event, event)}{where}")
            show.note(", ".join(running))
            show(Progress("running", done, total, {}, 0.0))

        yield callback
