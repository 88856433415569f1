"""Progress events from the reports of the loops, for the display and for TensorBoard."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kairode.agents.train_loop import TrainProgress
from kairode.algorithms.mpc import MPCProgress
from kairode.callbacks import Callback, Progress
from kairode.errors import KairodeError
from kairode.report.progress import Display
from kairode.runs.watch import Watch
from kairode.training.loop import FitProgress

FITTING, COLLECTING = "fitting", "collecting"
PHASES = {"random": "random decisions", "fitting": "fitting the model", "acting": "", "testing": ""}
LOOKS = {"real": "real_return", "score": "validation_return"}


def fit_events(*callbacks: Callback) -> Callable[[FitProgress], None]:
    """From the reports of a fit."""

    def tell(report: FitProgress) -> None:
        metrics: dict[str, float | list[float]] = {}
        if report.validation is not None:
            metrics["validation"] = report.validation
        metrics |= {**report.terms, "skipped": float(sum(report.skipped))}
        event = Progress(FITTING, report.iteration, report.iterations, metrics, report.seconds)
        for callback in callbacks:
            callback(event)

    return tell


def practice_events(callback: Callback) -> Callable[[str, TrainProgress], None]:
    """From the reports of practice, with the name of the stage."""

    def tell(stage: str, report: TrainProgress) -> None:
        metrics: dict[str, float | list[float]] = {}
        for name, value in (report.figures or {}).items():
            if name in LOOKS:
                metrics[LOOKS[name]] = value
        if any(report.episodes):
            metrics = {"return": report.returns, **metrics}
        callback(Progress(stage, min(report.episodes), report.wanted, metrics, report.seconds))

    return tell


def control_events(stage: str, show: Display) -> Callable[[MPCProgress], None]:
    """From the reports of a run with controls."""

    def callback(report: MPCProgress) -> None:
        if report.phase == "testing":
            show(Progress("evaluating", 0, None, {}, 0.0))
            return
        metrics: dict[str, float | list[float]] = {}
        if report.phase == "acting":
            metrics["return"] = report.returns
            metrics["ms_per_decision"] = report.plan_ms
            metrics["model_error"] = [math.nan if error is None else error for error in report.model_error]
        show(Progress(stage, report.decisions, report.wanted, metrics, 0.0))
        show.note(PHASES[report.phase])

    return callback


def run_watch(show: Display) -> Watch:
    """For everything that a run tells."""
    collected = Progress(COLLECTING, 0, None, {}, 0.0)

    def callback(event: Progress) -> None:
        nonlocal collected
        collected = event if event.stage == COLLECTING else collected
        show(event)

    return Watch(
        fit_events(show),
        lambda count: callback(dataclasses.replace(collected, done=collected.done + count)),
        practice_events(show),
        show.say,
        callback,
    )


@contextlib.contextmanager
def tensorboard(folder: Path | None) -> Iterator[Callback]:
    """A callback that writes every metric of every seed for TensorBoard; one that does nothing without a folder."""
    if folder is None:
        yield lambda event: None
        return
    writer_class = _writer_class()
    with contextlib.ExitStack() as stack:
        writers: list[Any] = []

        def write(event: Progress) -> None:
            if not writers:  # nothing is written where the work never begins
                writers.append(stack.enter_context(contextlib.closing(writer_class(str(folder / "tensorboard")))))
            for name, value in event.metrics.items():
                for seed, number in enumerate(value if isinstance(value, list) else [value]):
                    writers[0].add_scalar(f"{name}/seed{seed}", number, event.done)

        yield write


def _writer_class() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise KairodeError("--tensorboard needs tensorboardX: pip install 'kairode[tensorboard]'.") from error
    return SummaryWriter
