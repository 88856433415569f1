"""From a table to a policy with estimates of its value: the stages of `kairode learn TABLE` and `kairode run TABLE`."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kairode._xla import free_programs
from kairode.agents.policy_files import save_policy
from kairode.algorithms.advisor_files import FIT, TIMED
from kairode.algorithms.evaluate_offline import OfflineEvaluation, evaluate_offline
from kairode.algorithms.fit import evaluate_fit, fit_models, rescale_ticks
from kairode.algorithms.learn import learn
from kairode.algorithms.learn_offline import OfflineResult, check_recipes, choose_offline, discounted, evenly_spaced
from kairode.algorithms.task import check_rewarded, learn_task
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.algorithms import FitConfig
from kairode.config.commands import command_of
from kairode.config.offline import OfflineRunConfig
from kairode.config.presets import fit_preset
from kairode.config.tables import unless_default
from kairode.data.checks import check_actions
from kairode.data.describe import spec_to_dict
from kairode.data.tables.inspect import inspect_table
from kairode.data.tables.load import LoadedTable, read_episodes
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete
from kairode.errors import KairodeError, KairodeWarning
from kairode.files import file_digest
from kairode.models.dynamics import DynamicsModel
from kairode.planning.optimize_schedule import schedule_for_learning
from kairode.planning.task_files import save_task
from kairode.result import rounded
from kairode.runs.advise import add_advisor, example_advice
from kairode.runs.differences import differences
from kairode.runs.folder import RunFolder
from kairode.runs.record import make_record
from kairode.training.model_files import save_models

KIND = "offline"
FEWEST, LEAST_LEARN = 10, 3
"""Episodes of the table, and of the part to learn from, at least."""
UNESTIMATED = (
    "with a price or a budget, advice is that of a second policy, which is learned for decision times chosen by the "
    "models, without penalties outside of the data; its return is not estimated, and the estimates are of the first one"
)


class Parts(NamedTuple):
    """The episodes of a table: to learn from, to choose by, to estimate with."""

    learn: Trajectory
    choose: Trajectory
    test: Trajectory


def run_offline(config: OfflineRunConfig, path: Path, callback: Callback = no_callback) -> dict[str, Any]:
    """All stages in a run folder; resumes if interrupted, returns the record."""
    config, loaded = _read(config)
    table = inspect_table(loaded, Path(config.source).name, robust=config.robust_scale)
    about = table["warnings"]
    for text in about:  # before anything is made, in case warnings are errors
        warnings.warn(text, KairodeWarning, stacklevel=2)
    command = command_of(config, path)
    with RunFolder.open(path, KIND, config, command) as folder:
        if folder.finished:
            callback(Progress("run", message=f"This run is finished: see {path}, or remove it to start again."))
            return folder.record or {}
        state = "resuming in" if folder.resumed else "in"
        callback(
            Progress("run", message=f"{command_of(config)}, {state} {path}. Safe to interrupt: run it again to resume.")
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", KairodeWarning)
            figures = {"table": table, **_stages(config, loaded, folder, callback)}
        said = list(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, KairodeWarning)))
        figures["warnings"] = [*about, *(text for text in said if text not in about)]
        record = make_record(KIND, config, rounded(figures, 6), command=command, seconds=folder.total_seconds)
        done = folder.finish({**record, "stages": folder.manifest.seconds})
        for text in figures["warnings"][len(about) :]:
            warnings.warn(text, KairodeWarning, stacklevel=2)
        return done


def _read(config: OfflineRunConfig) -> tuple[OfflineRunConfig, LoadedTable]:
    """The table, and the config with its digest; raises before any work is done."""
    path = Path(config.source)
    if not path.is_file():
        raise KairodeError(f"{path} does not exist.")
    table = unless_default(config.table)
    loaded = read_episodes(path, table, keep_missing=False)
    if len(loaded.data) < FEWEST:
        raise KairodeError(
            f"{path} has {len(loaded.data)} episodes: at least {FEWEST} are needed to learn a policy, to choose it and "
            "to estimate what it is worth, each from other ones; some hundreds are usual."
        )
    _check_parts(len(loaded.data), config)
    check_rewarded(loaded.data)
    check_recipes(config.offline, loaded.data.spec)
    timed = config.price is not None or config.budget is not None
    if timed and not isinstance(loaded.data.spec.actions, Discrete):
        raise KairodeError("decision times can be chosen only with named actions: leave out --price and --budget.")
    return dataclasses.replace(config, table=table, digest=file_digest(path)), loaded


def split_parts(data: Trajectory, config: OfflineRunConfig) -> Parts:
    """Evenly spaced episodes for each part, in the order of the table."""
    learn, choose, test = _part_masks(len(data), config)
    return Parts(data[learn], data[choose], data[test])


def _part_masks(episodes: int, config: OfflineRunConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    test = evenly_spaced(episodes, config.test_fraction)
    rest = np.flatnonzero(~test)
    choose = np.zeros(episodes, bool)
    choose[rest[evenly_spaced(len(rest), config.offline.held_out / (1 - config.test_fraction))]] = True
    return ~(test | choose), choose, test


def _check_parts(episodes: int, config: OfflineRunConfig) -> None:
    """Raise if a part would have too few episodes."""
    learn, choose, test = (int(mask.sum()) for mask in _part_masks(episodes, config))
    if learn < LEAST_LEARN:
        raise KairodeError(
            f"of {episodes} episodes, {learn} would be left to learn from ({choose} to choose the policy by, {test} to "
            f"estimate with), and {LEAST_LEARN} at least are needed: lower --held-out or --test-fraction."
        )


def ensemble_config(config: OfflineRunConfig) -> FitConfig:
    """The fit of the ensemble."""
    given = {"seeds": config.ensemble_size, "seed": config.seed, "robust_scale": config.robust_scale}
    preset = fit_preset(config.source, model=config.model, **given)
    training = dataclasses.replace(
        preset.training, iterations=config.fit_iterations, chunk_length=config.chunk_length, cooldown=0.4
    )
    return dataclasses.replace(preset, training=training, table=config.table, digest=config.digest)


def _stages(config: OfflineRunConfig, loaded: LoadedTable, folder: RunFolder, callback: Callback) -> dict[str, Any]:
    with folder.stage("data"):
        figures: dict[str, Any] = {}
        data = rescale_ticks(loaded.data)
        parts = split_parts(data, config)
        _warn(check_actions(parts.learn, {"selection": parts.choose, "test": parts.test}))
        figures["spec"] = spec_to_dict(data.spec)
        figures["episodes"] = {name: len(part) for name, part in parts._asdict().items()}
    with folder.stage("models"):
        free_programs()
        fit = ensemble_config(config)
        result = fit_models(fit, parts.learn, parts.choose, folder=folder.path / FIT, callback=callback)
        models = result.models
        save_models(folder.path / FIT, fit.model, fit.sizes, models)
        figures["fit"] = evaluate_fit(result, parts.test, callback, valid=parts.choose)
    with folder.stage("reward and termination"):
        callback(Progress("fitting rewards and terminations"))
        task = learn_task(parts.learn, models, seed=config.seed)
        save_task(folder.path, task)
        figures["reward"] = data.spec.reward_expression or "learned"
    with folder.stage("policy"):
        free_programs()
        found = choose_offline(
            models,
            parts.learn,
            config.offline,
            choose=parts.choose,
            task=task,
            seed=config.seed,
            folder=folder.path / "policy-training",
            callback=callback,
        )
        save_policy(folder.path, found.policy, {"env": data.spec.name, "setting": "records"})
        figures["candidates"] = _candidates(found)
    with folder.stage("estimates"):
        callback(Progress("estimating the policy from test episodes"))
        estimates = evaluate_offline(found.policy, parts.test, models, task=task, train=parts.learn, seed=config.seed)
        figures["estimates"] = _estimates(estimates)
        figures["differences"] = differences(found.policy, data)
    timed = _timed(config, models, task, parts.learn, folder, callback)
    with folder.stage("advice"):
        callback(Progress("preparing advice"))
        times = {"timed": timed, "price": config.price, "budget": config.budget}
        advisor = add_advisor(folder.path, models, found.policy, task, parts.learn, **times)
        figures["advice"] = example_advice(advisor, parts.test)
    return figures


def _timed(
    config: OfflineRunConfig,
    models: list[DynamicsModel],
    task: Any,
    data: Trajectory,
    folder: RunFolder,
    callback: Callback,
) -> Any:
    """A policy for decision times that the models choose; None if it is not asked for."""
    if config.price is None and config.budget is None:
        return None
    with folder.stage("decision times"):
        _warn([UNESTIMATED])
        data, task = discounted(data, task)
        schedule = schedule_for_learning(models, task, data=data, price=config.price or 0.0)
        place = folder.path / TIMED
        policy = learn(
            models,
            task,
            data=data,
            schedule=schedule,
            seed=config.seed,
            folder=place / "training",
            callback=callback,
            reward_scale=1.0 / (float(np.abs(data.discounted).mean()) or 1.0),
        )
        save_policy(place, policy, {"env": data.spec.name, "setting": "records", "schedule": "chosen"})
    return policy


def _warn(sentences: Any) -> None:
    for sentence in sentences:
        warnings.warn(f"{sentence}.", KairodeWarning, stacklevel=3)


def _estimates(found: OfflineEvaluation) -> dict[str, Any]:
    """For the record and `--json`; what has no value is null."""
    return {
        "policy": {name: _numbers(one) for name, one in found.estimates.items()},
        "behaviour": _numbers(found.behavior),
        "lower_bound": _known(found.lower_bound),
        "gain": None if found.gain is None else _numbers(found.gain),
        "effective_sample_size": _known(found.effective_sample_size),
        "supported": _known(found.supported),
        "warnings": list(found.warnings),
    }


def _numbers(one: Any) -> dict[str, float | None]:
    return {name: _known(getattr(one, name)) if one.known else None for name in ("mean", "low", "high")}


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _candidates(found: OfflineResult) -> list[dict[str, Any]]:
    """Every candidate's estimates, the chosen one first."""
    return [
        {"name": one.name, **({} if one.estimates is None else _estimates(one.estimates))} for one in found.candidates
    ]
