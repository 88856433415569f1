"""`kairode fit`: data, a model fitted with several seeds, its test errors, a record."""

from pathlib import Path
from typing import Any, NamedTuple

from kairode.algorithms.fit import Splits, check_fit, evaluate_fit, fit_models, load_data
from kairode.callbacks import Callback, no_callback
from kairode.config.algorithms import FitConfig
from kairode.config.commands import command_of
from kairode.data.checks import warn
from kairode.errors import MALFORMED
from kairode.runs.folder import RunFolder
from kairode.runs.record import make_record
from kairode.training.loop import FitResult
from kairode.training.model_files import load_models, save_models

KIND = "fit"


def _fitted(path: Path, record: dict[str, Any]) -> FitResult | None:
    """The result of a finished fit; None if its models are damaged, which the checkpoint restores."""
    try:
        figures = record["figures"]
        validation, iterations, skipped = (figures[name] for name in ("validation_best", "iterations", "skipped"))
        return FitResult(load_models(path), validation, iterations, skipped, record["seconds"])
    except MALFORMED:  # also KairodeError
        return None


class FitRun(NamedTuple):
    """A finished fit."""

    result: FitResult
    data: Splits
    record: dict[str, Any]


def run_fit(config: FitConfig, path: Path, callback: Callback = no_callback, *, streamed: bool = False) -> FitRun:
    """Collect or read the data, fit, save and test the models; resumes an interrupted fit.

    If `streamed`, the batches are read from disk during the fit (otherwise only those of a ragged file).
    """
    config = check_fit(config, streamed=streamed)
    command = command_of(config, path) + " --stream" * streamed
    with RunFolder.open(path, KIND, config, command) as folder:
        with folder.stage("data"):
            data = load_data(config, callback, streamed=streamed)
            warn(data.warnings)
        record = folder.record or {}
        if folder.finished and (result := _fitted(path, record)) is not None:
            return FitRun(result, data, record)
        result = fit_models(config, data.train, data.valid, folder=path, callback=callback)
        save_models(path, config.model, config.sizes, result.models)
        with folder.stage("evaluation"):
            figures = evaluate_fit(result, data.test, callback, valid=data.valid)
            figures["warnings"] = list(data.warnings)
        seconds = folder.total_seconds + result.seconds
        record = make_record(KIND, config, figures, command=command, seconds=seconds)
        record = folder.finish(record)
    return FitRun(result, data, record)
