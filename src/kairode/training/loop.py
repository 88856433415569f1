"""The loop around the compiled steps: looks, checkpoints, interrupts, non-finite batches."""

import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.data.trajectory import Trajectory
from kairode.errors import KairodeError, Stopped
from kairode.models.dynamics import DynamicsModel
from kairode.models.ode import Adaptive
from kairode.models.predict import Episodes, prepare
from kairode.models.transition import FlowTransition
from kairode.training import checkpoint
from kairode.training.batches import pad, pieces
from kairode.training.model_files import as_saved
from kairode.training.step import (
    FitState,
    TrainingConfig,
    batch_indices,
    init_fit_state,
    record_validation,
    run_iterations,
    validate,
)
from kairode.trees import choose

CHUNK = 50
"""Iterations in one compiled call."""
SAVE_SECONDS = float(os.environ.get("KAIRODE_SAVE_SECONDS", "10"))
"""Time between two checkpoints."""


@dataclasses.dataclass(frozen=True)
class FitProgress:
    """What the loop tells whoever watches it, after every compiled call."""

    iteration: int
    iterations: int
    terms: dict[str, list[float]]
    """Each seed's mean of each term of the objective."""
    validation: list[float] | None
    """Each seed's open-loop error on the validation episodes, when it was looked at."""
    skipped: list[int]
    seconds: float
    """Since the loop began in this process."""


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What came out of fitting several seeds."""

    models: list[DynamicsModel]
    validation: list[float]
    iterations: list[int]
    skipped: list[int]
    seconds: float
    """Spent in the loop, earlier processes included."""


def train(
    models: DynamicsModel,
    settings: TrainingConfig,
    data: Trajectory,
    valid: Trajectory,
    *,
    seeds: Sequence[int],
    folder: Path | None = None,
    callback: Callable[[FitProgress], None] = lambda report: None,
) -> FitResult:
    """Fit all seeds of a model; with a folder, go on from its checkpoint and keep one there."""
    if folder is not None and checkpoint.exists(folder):
        models = as_saved(folder, models)
    static = eqx.filter(models, eqx.is_array, inverse=True)
    train_data, valid_data, count = _device(models, settings, data, valid)
    fit_state = init_fit_state(models, settings, seeds)
    earlier = 0.0
    if folder is not None and checkpoint.exists(folder):
        fit_state = checkpoint.load(folder, fit_state)
        earlier = float(checkpoint.describe(folder).get("seconds", 0.0))
    metrics = Metrics(folder, int(fit_state.iteration.max()))
    started = saved = time.perf_counter()

    def spent() -> float:
        return earlier + time.perf_counter() - started

    def keep() -> None:
        if folder is not None:
            checkpoint.save(folder, fit_state, seconds=round(spent(), 2))

    with interrupts() as asked:
        while (done := int(fit_state.iteration.max())) < settings.iterations and bool(fit_state.active.any()):
            some = min(CHUNK, settings.iterations - done, settings.every - done % settings.every)
            batches = jnp.asarray(batch_indices(settings, seeds, count, done, some))
            fit_state, terms = run_iterations(fit_state, train_data, batches, static, settings)
            done += some
            error = None
            if done % settings.every == 0 or done == settings.iterations:
                found = validate(fit_state, valid_data, static)
                fit_state = record_validation(fit_state, found, settings.patience)
                error = np.asarray(found).tolist()
            passed = time.perf_counter() - started
            report = _report(fit_state, done, settings.iterations, terms, error, passed)
            metrics.write(report)
            callback(report)
            stop = asked()
            if stop or time.perf_counter() - saved > SAVE_SECONDS:
                keep()
                saved = time.perf_counter()
            if stop:
                raise Stopped("interrupted." if folder is None else f"interrupted at iteration {done:,}, saved.")
            if int(fit_state.longest_row.max()) >= settings.most_skipped:
                keep()
                raise _nonfinite(fit_state, seeds, folder, static, train_data)
        keep()
        if asked() and folder is not None:
            raise Stopped(f"interrupted after the last iteration, {settings.iterations:,}, saved.")
    return fit_result(fit_state, settings, static, spent())


def fit_result(fit_state: FitState, settings: TrainingConfig, static: Any, seconds: float) -> FitResult:
    """The fitted models: the last weights, or with early stopping the best (the last where none was ever finite)."""
    chosen = fit_state.params
    if settings.patience is not None:
        chosen = jax.vmap(choose)(jnp.isfinite(fit_state.best_error), fit_state.best, fit_state.params)
    seeds = range(len(fit_state.iteration))
    return FitResult(
        models=[eqx.combine(jax.tree.map(lambda x, i=i: x[i], chosen), static) for i in seeds],
        validation=np.asarray(fit_state.best_error).tolist(),
        iterations=np.asarray(fit_state.iteration).tolist(),
        skipped=np.asarray(fit_state.skipped).tolist(),
        seconds=seconds,
    )


def _device(
    models: DynamicsModel, settings: TrainingConfig, data: Trajectory, valid: Trajectory
) -> tuple[Episodes, Episodes, int]:
    """Training and validation episodes, padded, on the device; and how many of the first are real."""
    training, watched = prepare(models, data), prepare(models, valid)
    if settings.pieces is not None:
        training, watched = pieces(training, settings.pieces), pieces(watched, settings.pieces)
    return pad(training), pad(watched), len(training.tau)


def _report(
    fit_state: FitState, done: int, iterations: int, terms: Any, error: list[float] | None, passed: float
) -> FitProgress:
    shown = {name: np.asarray(value).tolist() for name, value in terms._asdict().items()}
    return FitProgress(done, iterations, shown, error, np.asarray(fit_state.skipped).tolist(), passed)


def _nonfinite(
    fit_state: FitState, seeds: Sequence[int], folder: Path | None, static: Any, data: Episodes
) -> KairodeError:
    """The error for too many batches in a row that were not finite."""
    row = np.asarray(fit_state.longest_row)
    i = int(row.argmax())
    model = eqx.combine(jax.tree.map(lambda x: x[i], fit_state.params), static)
    kept = "" if folder is None else f" The checkpoint in {folder} holds the last good weights."
    return KairodeError(
        f"{row[i]} batches in a row gave a loss or gradient that is not finite (seed {seeds[i]}, iteration "
        f"{int(fit_state.iteration[i]):,}).{_why(model, data)} Try a smaller learning rate.{kept}"
    )


def _why(model: DynamicsModel, data: Episodes) -> str:
    """Whether the adaptive solver ran out of steps."""
    transition = model.transition
    if not (isinstance(transition, FlowTransition) and isinstance(transition.solver, Adaptive)):
        return ""
    z = jax.random.normal(jax.random.key(0), (model.initial.size, 64))
    taus = jnp.full(64, data.tau.max())
    steps = int(transition.solver.count(transition.field, z, taus))
    if steps <= transition.solver.max_steps:
        return ""
    return (
        f" The ODE solver needs more than its {transition.solver.max_steps} steps for an interval of "
        f"{float(data.tau.max()):g} ticks: the field has become stiff. Take a fixed-step solver (--solver rk4:2), "
        "looser tolerances, or regularise the field (--weights.curvature 0.01)."
    )


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a question that the loop asks when it may stop."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:  # a second time: at once
            raise KeyboardInterrupt
        asked.append(number)
        if sys.stderr.isatty():
            print("\nStopping where it can go on from; Ctrl-C again stops at once.", file=sys.stderr, flush=True)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever owns it decides
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Metrics:
    """metrics.jsonl of a folder: a line for each look, none of what a resumed run will do again."""

    def __init__(self, folder: Path | None, iteration: int) -> None:
        self.path = None if folder is None else folder / "metrics.jsonl"
        if self.path is not None and self.path.exists():
            lines = [line for line in self.path.read_text().splitlines() if _iteration(line) <= iteration]
            self.path.write_text("".join(f"{line}\n" for line in lines))

    def write(self, report: FitProgress) -> None:
        """Add a line, if the validation error was looked at."""
        if self.path is None or report.validation is None:
            return
        figures = {"iteration": report.iteration, **report.terms, "validation": report.validation}
        figures |= {"skipped": report.skipped, "seconds": round(report.seconds, 3)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as file:
            file.write(json.dumps(_plain(figures)) + "\n")


def _iteration(line: str) -> float:
    try:
        return json.loads(line)["iteration"]
    except (ValueError, KeyError, TypeError):
        return math.inf  # a line that a kill cut short


def _plain(value: Any) -> Any:
    """Numbers that JSON can hold."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
