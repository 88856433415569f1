"""The loop around the compiled iterations: validation, checkpoints, interrupts, non-finite batches."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.training import TrainingConfig
from kairode.data.stream import EpisodeStream
from kairode.data.trajectory import Trajectory
from kairode.devices import FitDevices
from kairode.errors import MALFORMED, KairodeError
from kairode.files import atomic_write, read_bytes
from kairode.models.dynamics import DynamicsModel
from kairode.models.ode import Adaptive
from kairode.models.predict import Episodes
from kairode.models.transition import FlowTransition
from kairode.result import rounded
from kairode.training.model_files import as_saved
from kairode.training.session import Session
from kairode.training.sources import LONG, batch_source, cut_long, longest, prepare_padded
from kairode.training.step import (
    FitState,
    compiled_settings,
    cooldown_of,
    init_fit_state,
    record_validation,
    validate,
)
from kairode.training.threads import run_on_cores
from kairode.trees import choose, one

STAGE = "fitting"


@dataclasses.dataclass(frozen=True)
class FitResult:
    """Fitted models of several seeds."""

    models: list[DynamicsModel]
    validation: list[float]
    iterations: list[int]
    skipped: list[int]
    seconds: float
    """Time in the loop, including earlier processes."""


CUT = "chunk_length"
"""Entry of checkpoints: the chunk length that the fit was begun with."""


def train(
    models: DynamicsModel,
    settings: TrainingConfig,
    data: Trajectory | EpisodeStream,
    valid: Trajectory,
    *,
    seeds: Sequence[int],
    folder: Path | None = None,
    identity: Any = None,
    callback: Callback = no_callback,
) -> FitResult:
    """Fit a model for all seeds. With a folder, checkpoints are kept there and fitting resumes from them."""
    with Session(folder, identity) as session, contextlib.ExitStack() as stack:
        whole = session.resumable and CUT not in session.describe()  # a version that did not cut long episodes began it
        settings = settings if whole else cut_long(settings, data)
        if folder is not None and session.resumable:
            models = as_saved(folder, models)
        static = eqx.filter(models, eqx.is_array, inverse=True)
        devices = FitDevices.of(len(seeds), settings.batch_size)
        source = stack.enter_context(contextlib.closing(batch_source(models, settings, data, seeds)))
        valid_data = devices.everywhere(prepare_padded(models, settings, valid)[0])
        compiled, cooling = compiled_settings(settings), cooldown_of(settings)
        fit_state = devices.by_seed(session.restore(init_fit_state(models, settings, seeds)))
        metrics = MetricsFile(folder, int(fit_state.iteration.max()))
        session.complete = session.resumable and not _going_on(fit_state, settings)
        cut = ""
        if settings.chunk_length is not None and longest(data) > LONG:
            cut = f"Episodes of up to {longest(data):,} decisions are cut into chunks of {settings.chunk_length:,}."
        callback(Progress(STAGE, int(fit_state.iteration.max()), settings.iterations, message=cut))
        while _going_on(fit_state, settings):
            done = int(fit_state.iteration.max())
            train_data, batches = source.batches(done)
            train_data = devices.everywhere(train_data)
            fit_state, terms = run_on_cores(
                fit_state, train_data, devices.batches(batches), static, compiled, cooling=cooling
            )
            fit_state = devices.by_seed(fit_state)
            done += len(batches)
            figures = {name: np.asarray(value).tolist() for name, value in terms._asdict().items()}
            figures["skipped"] = np.asarray(fit_state.skipped).tolist()
            if done % settings.validate_every == 0 or done == settings.iterations:
                error = validate(fit_state, valid_data, static)
                fit_state = devices.by_seed(record_validation(fit_state, error, settings.patience))
                figures["validation"] = np.asarray(error).tolist()
                metrics.write(done, figures, session.here)
            callback(Progress(STAGE, done, settings.iterations, figures, session.here))
            failed = int(fit_state.longest_row.max()) >= settings.max_skipped
            stop = session.interrupted()
            if session.due() or failed:
                session.save(fit_state, **{CUT: settings.chunk_length})
            if stop:
                raise session.stop(f"at iteration {done:,}")
            if failed:
                raise _nonfinite(devices.together(fit_state), seeds, folder, static, devices.together(train_data))
        if not session.complete:
            session.save(fit_state, **{CUT: settings.chunk_length})
        if session.interrupted() and folder is not None:
            raise session.stop(f"after the last iteration, {settings.iterations:,}")
    return fit_result(devices.together(fit_state), settings, static, session.seconds)


def _going_on(fit_state: FitState, settings: TrainingConfig) -> bool:
    return int(fit_state.iteration.max()) < settings.iterations and bool(fit_state.active.any())


def fit_result(fit_state: FitState, settings: TrainingConfig, static: Any, seconds: float) -> FitResult:
    """Fitted models: the last weights, or with early stopping the best (the last if none was finite)."""
    chosen = fit_state.params
    if settings.patience is not None:
        chosen = jax.vmap(choose)(jnp.isfinite(fit_state.best_error), fit_state.best, fit_state.params)
    seeds = range(len(fit_state.iteration))
    return FitResult(
        models=[eqx.combine(one(chosen, i), static) for i in seeds],
        validation=np.asarray(fit_state.best_error).tolist(),
        iterations=np.asarray(fit_state.iteration).tolist(),
        skipped=np.asarray(fit_state.skipped).tolist(),
        seconds=seconds,
    )


def _nonfinite(
    fit_state: FitState, seeds: Sequence[int], folder: Path | None, static: Any, data: Episodes
) -> KairodeError:
    row = np.asarray(fit_state.longest_row)
    i = int(row.argmax())
    model = eqx.combine(one(fit_state.params, i), static)
    kept = "" if folder is None else f" The checkpoint in {folder} holds the last good weights."
    return KairodeError(
        f"{row[i]} batches in a row gave a loss or gradient that is not finite (seed {seeds[i]}, iteration "
        f"{int(fit_state.iteration[i]):,}).{_why(model, data)} Try a smaller learning rate.{kept}"
    )


def _why(model: DynamicsModel, data: Episodes) -> str:
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
        f"{float(data.tau.max()):g} ticks: the field has become stiff. Use a fixed-step solver "
        "(solver rk4:2), looser tolerances, or regularise the field (weights.curvature 0.01)."
    )


MOST_METRICS = 2**28
"""Bytes of the largest file of metrics that is read."""


class MetricsFile:
    """metrics.jsonl of a folder: one line per validation; lines after the resumed iteration are dropped."""

    def __init__(self, folder: Path | None, iteration: int) -> None:
        self.path = None if folder is None else folder / "metrics.jsonl"
        if self.path is not None and self.path.exists():
            text = read_bytes(self.path, MOST_METRICS).decode("utf-8", "replace")
            lines = [line for line in text.splitlines() if _iteration(line) <= iteration]
            with atomic_write(self.path) as part:
                part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def write(self, iteration: int, figures: dict[str, Any], seconds: float) -> None:
        if self.path is None:
            return
        line = {"iteration": iteration, **figures, "seconds": round(seconds, 3)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as file:
            file.write(json.dumps(rounded(line, 6)) + "\n")


def _iteration(line: str) -> float:
    try:
        return float(json.loads(line)["iteration"])
    except MALFORMED:
        return math.inf  # truncated by a kill, or damaged
