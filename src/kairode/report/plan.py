"""A list of work as people read it: what would be run, in what state it is, how long it may take; and a bar over it."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kairode.callbacks import Progress
from kairode.paper.work import WorkItem
from kairode.report.progress import display
from kairode.report.table import Table, print_table

WORDS = {"begun": "started", "run": "finished", "done": "finished by another process"}


def print_plan(units: Sequence[WorkItem], workers: int) -> None:
    """What would be run, after what, and how long it may take."""
    states = {work.name: work.state for work in units}
    rows = []
    left = [work for work in units if work.words and states[work.name] != "done"]
    for (_, state), same in itertools.groupby(left, key=lambda work: (_stem(work.name), states[work.name])):
        some = list(same)
        name = some[0].name + (f" to {some[-1].name.rpartition('-')[2]}" if len(some) > 1 else "")
        each = in_words(some[0].seconds) + (f" each of {len(some)}" if len(some) > 1 else "")
        rows.append([name, state, _needs(some[0], states), each])
    if rows:
        print_table(Table.of(["to run", "state", "needs", "estimated"], rows))
    runs = [work for work in units if work.words]
    done = len(runs) - len(left)
    before = f"{done} of {len(runs)} runs are done already. " if runs else ""
    print(before + left_in_words(units, workers))


def _stem(name: str) -> str:
    """What runs of several seeds have in common; a study has its name alone."""
    return name.rpartition("-")[0] if name.startswith(("fits/", "policies/rounds-")) else name


def _needs(work: WorkItem, states: dict[str, str]) -> str:
    """How many of each kind it needs, or which; and how many of them are done."""
    groups = [(kind, list(some)) for kind, some in itertools.groupby(work.needs, key=_kind)]
    said = ", ".join(some[0] if len(some) == 1 else f"{len(some)} {kind}" for kind, some in groups)
    done = sum(states.get(name, "done") == "done" for name in work.needs)
    return f"{said} ({done} done)" if done else said


def _kind(name: str) -> str:
    return "rounds" if "/rounds-hiv-" in name and name.startswith("policies") else name.partition("/")[0]


def left_in_words(units: Sequence[WorkItem], workers: int) -> str:
    """How much is left, in a sentence."""
    left = [work for work in units if work.words and not work.done]
    if not left:
        return "Nothing is left to run."
    unknown = sum(work.seconds is None for work in left)
    least, more = time_left(left, workers), f"; of {unknown} of them it is not known" if unknown else ""
    side = "one after the other" if workers == 1 else f"{workers} side by side"
    return f"To run: {len(left)}, about {in_words(least)} {side}{more}."


def time_left(units: Sequence[WorkItem], workers: int) -> float:
    """Seconds that a list of work takes at least: its sum over the workers, or its longest chain."""
    waits: dict[str, float] = {}
    for work in units:  # in an order in which they can be done
        waits[work.name] = (work.seconds or 0.0) + max((waits.get(need, 0.0) for need in work.needs), default=0.0)
    return max(sum(work.seconds or 0.0 for work in units) / workers, max(waits.values(), default=0.0))


def in_words(seconds: float | None) -> str:
    """A time, to what one can say of it."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{math.ceil(seconds / 10) * 10} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def plan_figures(units: Sequence[WorkItem]) -> list[dict[str, Any]]:
    """The same for other programs."""
    return [
        {"name": work.name, "state": work.state, "needs": list(work.needs), "seconds": work.seconds} for work in units
    ]


@contextlib.contextmanager
def watching_work(units: Sequence[WorkItem], quiet: bool) -> Iterator[Callable[[WorkItem, str], None]]:
    """One bar over all of them; without a terminal a line for each that began or ended."""
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
            said = f"{work.name}: {WORDS.get(event, event)}"
            said += f", see {work.log}" if event == "failed" else ""
            show.say(said)
            show.note(", ".join(running))
            show(Progress("running", done, total, {}, 0.0))

        yield callback
