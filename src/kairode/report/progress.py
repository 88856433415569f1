"""Watching work go on: bars with the numbers that matter, a sentence as a stage ends, TensorBoard if wanted."""

import contextlib
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from kairode.agents.train_loop import TrainProgress
from kairode.errors import KairodeError
from kairode.runs.watch import Watch
from kairode.training.loop import FitProgress

SHOWN = ("state", "kl", "timer")


def bars_with_figures(quiet: bool) -> Progress:
    """Bars with a count, the time left and the numbers that matter; none without a terminal."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(finished_text=" "),  # also while JAX compiles, when nothing is counted
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )
    return Progress(*columns, console=console, disable=quiet or not console.is_terminal)


@contextlib.contextmanager
def watching(
    what: str, board: Path | None, quiet: bool, bars: Progress | None = None, begun: bool = True
) -> Iterator[tuple[Callable[[FitProgress], None], Callable[[int], None]]]:
    """What the loop and the collection tell, shown as one line (among others, where there are bars already).

    One that has not begun is shown from the first thing on that it is told.
    """
    if board is not None:
        _board_class()
    with (
        contextlib.ExitStack() as stack,
        bars_with_figures(quiet) if bars is None else contextlib.nullcontext(bars) as bar,
    ):
        task = bar.add_task(f"{what}: collecting", total=None, figures="", visible=begun)
        validation: list[str] = []
        first: list[FitProgress] = []
        boards: list[Any] = []

        def open_board() -> Any:
            if not boards:
                boards.append(stack.enter_context(contextlib.closing(_writer(board))))
            return boards[0]

        def callback(report: FitProgress) -> None:
            first.append(report) if not first else None
            if report.validation is not None:
                validation[:] = [f"validation {_mean(report.validation):.4f}"]
            figures = [f"{name} {_mean(report.terms[name]):.4g}" for name in SHOWN if any(report.terms[name])]
            passed, done = report.seconds - first[0].seconds, report.iteration - first[0].iteration
            rate = [f"{done / passed:.0f} a second"] if passed > 0 else []
            skipped = [f"{sum(report.skipped)} batches skipped"] if any(report.skipped) else []
            shown = ", ".join([*validation, *skipped, *figures, *rate])
            bar.update(
                task,
                description=what,
                total=report.iterations,
                completed=report.iteration,
                figures=shown,
                visible=True,
                refresh=True,
            )
            if board is not None:
                _write(open_board(), report)

        yield callback, lambda ended: bar.advance(task, ended)


@contextlib.contextmanager
def watching_practice(quiet: bool, bars: Progress | None = None) -> Iterator[Callable[[str, TrainProgress], None]]:
    """A bar for each practice: episodes, the latest return, the last look."""
    with bars_with_figures(quiet) if bars is None else contextlib.nullcontext(bars) as bar:
        tasks: dict[str, Any] = {}
        looks: dict[str, str] = {}

        def callback(what: str, report: TrainProgress) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=report.wanted, figures="")
            if report.figures:
                names = {"real": "on the real system", "score": "says the judge"}
                said = [
                    f"{statistics.fmean(report.figures[n]):.3g} {words}"
                    for n, words in names.items()
                    if n in report.figures
                ]
                looks[what] = ", ".join(said)
            latest = f"return of practice {_mean(report.returns):.3g}" if any(report.episodes) else ""
            shown = "; ".join(filter(None, (latest, looks.get(what, ""))))
            bar.update(tasks[what], completed=min(report.episodes), figures=shown, refresh=True)

        yield callback


@contextlib.contextmanager
def watching_run(quiet: bool) -> Iterator[Watch]:
    """Bars for what goes on, and every stage's sentence as it ends; without a terminal the sentences alone."""
    with (
        bars_with_figures(quiet) as bars,
        watching_practice(quiet, bars) as practice,
        watching("fitting", None, quiet, bars) as (fitting, collecting),
    ):

        def said(sentence: str) -> None:
            if quiet:
                return
            if bars.console.is_terminal and sys.stdout.isatty():
                bars.console.print(sentence, highlight=False, markup=False)
            else:
                print(sentence, flush=True)

        yield Watch(fitting, collecting, practice, said)


def _mean(values: list[float]) -> float:
    """Over the seeds that are still going."""
    known = [value for value in values if math.isfinite(value)]
    return statistics.fmean(known) if known else math.nan


def _board_class() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise KairodeError("--tensorboard needs tensorboardX: pip install 'kairode[tensorboard]'.") from error
    return SummaryWriter


def _writer(board: Path | None) -> Any:
    return _board_class()(str(Path(board or ".") / "tensorboard"))


def _write(writer: Any, report: FitProgress) -> None:
    groups = {**report.terms, **({"validation": report.validation} if report.validation is not None else {})}
    for name, values in groups.items():
        for seed, value in enumerate(values):
            writer.add_scalar(f"{name}/seed{seed}", value, report.iteration)
