"""`kairode.fit`: fit a dynamics model to data."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from kairode._xla import jit_once
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.algorithms import FitConfig
from kairode.config.keywords import field_names, with_options
from kairode.config.models import ModelConfig, check_model
from kairode.config.presets import fit_preset
from kairode.config.tables import TableConfig, unless_default
from kairode.data import Trajectory, collect
from kairode.data.checks import check_actions, check_data, sample_rows, warn
from kairode.data.stream import EpisodeStream, episode_lengths, stream, stream_rows, stream_spec
from kairode.data.table import RAGGED, is_ragged, padded_bytes, row_width
from kairode.data.tables.load import in_own_format, load_flat, read_episodes
from kairode.devices import use_devices
from kairode.envs import make
from kairode.envs.core import Spec
from kairode.errors import KairodeError
from kairode.files import file_digest
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.ode import parse_solver
from kairode.models.transition import FlowTransition
from kairode.models.zoo import build
from kairode.seeds import Purpose, derive, derive_many
from kairode.stats import mean, std
from kairode.training.batches import LENGTHS
from kairode.training.calibration import evaluate_ensemble
from kairode.training.evaluate_model import check_solver, compare_intervals, evaluate_model
from kairode.training.loop import FitResult, train
from kairode.training.model_files import save_models
from kairode.training.sources import LONG

AnyData = TypeVar("AnyData", bound=Trajectory | EpisodeStream)
HELD_OUT = 1000
"""Validation and test episodes of a stream, at most: these are held in memory."""
HELD_OUT_BYTES = 2**25
"""Memory of these episodes, padded, from which on those of a ragged stream are cut into parts."""


class Splits(NamedTuple):
    """Episodes for training, validation and test."""

    train: Any
    """A trajectory, or a stream of episodes."""
    valid: Trajectory
    test: Trajectory
    warnings: tuple[str, ...] = ()
    """About the data."""


def fit(
    model: str,
    data: Trajectory | EpisodeStream,
    *,
    valid: Trajectory | None = None,
    seeds: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    devices: int | None = None,
    callback: Callback = no_callback,
    **options: Any,
) -> Any:
    """Fit a dynamics model: `kairode.fit("latent-ode", data, iterations=3000)`.

    Args:
        model: rnn, dt-rnn, decay-rnn, latent-rnn, ode-rnn, latent-ode or variational-ode-rnn.
        data: episodes, from `kairode.collect` or `kairode.read`; from `kairode.stream` if they do not fit into memory.
        valid: validation episodes; by default every tenth of the data (of a stream, at most 1000 of these).
        seeds: fit this many models with consecutive seeds: an ensemble, returned as a list.
        seed: seed of the first model.
        folder: keep a checkpoint there, and resume from it.
        devices: spread the fit over this many devices; by default those of `kairode.use_devices`, or one.
        callback: called with a `kairode.callbacks.Progress` during the fit.
        options: fields of `ModelConfig` and `TrainingConfig` (iterations, learning_rate, latent_size, solver, ..) that
            differ from the environment's preset; `weights` takes a dict. `standardize=False` leaves observations as
            they are, `robust_scale=True` scales them by median and interquartile range, for data with outliers.

    Returns:
        The fitted `DynamicsModel`; a list of them if `seeds` is given.
    """
    if not isinstance(data, Trajectory | EpisodeStream):
        raise KairodeError(
            "data must be episodes, from kairode.collect or kairode.read (or kairode.stream, if they do not fit into "
            f"memory), got {data!r}."
        )
    if not (valid is None or isinstance(valid, Trajectory)):
        raise KairodeError(
            f"valid must be episodes in memory, from kairode.collect or kairode.read (of a stream: stream[:100]), got "
            f"{type(valid).__name__}."
        )
    if len(data) < 2 and valid is None:
        raise KairodeError("a single episode cannot be split: pass validation episodes too, or cut it into several.")
    found = check_data(data, robust=bool(options.get("robust_scale")))
    if valid is None:
        validation = np.arange(len(data)) % 10 == min(9, len(data) - 1)
        data, valid = _split(data, validation)
    warn([*found, *check_actions(data, {"validation": valid})])
    data = rescale_ticks(data)
    valid = dataclasses.replace(valid, spec=data.spec)
    preset = fit_preset(data.spec.name, model=check_model(model), seeds=seeds or 1, seed=seed)
    if isinstance(options.get("weights"), dict):
        weights = preset.training.weights
        options["weights"] = with_options(
            weights, options["weights"], where="weights of kairode.fit", own=field_names(weights)
        )
    own = ("standardize", "robust_scale")
    config = with_options(preset, options, where="kairode.fit", own=own, parts=("sizes", "training"))
    config = dataclasses.replace(config, digest=digest(data, valid))
    place = None if folder is None else Path(folder)
    with contextlib.nullcontext() if devices is None else use_devices(devices):
        result = fit_models(config, data, valid, folder=place, callback=callback)
    if place is not None:
        save_models(place, config.model, config.sizes, result.models)
    warn(_timer_warnings(result.models[0], valid))
    return result.models if seeds is not None else result.models[0]


def _timer_warnings(model: DynamicsModel, valid: Trajectory) -> list[str]:
    check = compare_intervals(model, valid)
    if check is None or not check.far:
        return []
    return [
        f"the timer's intervals (mean {check.drawn_mean:.3g} {valid.spec.time_unit}s) differ from the validation "
        f"data's (mean {check.mean:.3g}), so a policy learned in imagination is trained on other intervals than the "
        "system's: fit longer (iterations=..), or increase the timer's weight (weights={'timer': 0.1})"
    ]


def _split(data: Trajectory | EpisodeStream, held_out: np.ndarray) -> tuple[Trajectory | EpisodeStream, Trajectory]:
    """The other episodes, and those held out."""
    if isinstance(data, Trajectory):
        return data[~held_out], data[held_out]
    return data.select(~held_out), _held_out(data, np.flatnonzero(held_out))


def _held_out(data: EpisodeStream, numbers: np.ndarray) -> Trajectory:
    """Validation or test episodes of a stream; long ones of a ragged stream are cut into parts."""
    numbers = numbers[:HELD_OUT]
    if not data.ragged:
        return data[numbers]
    length, width = data.length[numbers], row_width(data.spec)
    most, allowed = min(LONG, int(length.max())), max(HELD_OUT_BYTES, RAGGED * padded_bytes(length, width)[1])
    while most > LENGTHS and 4 * width * (most + 1) * int((-(-length // most)).sum()) > allowed:
        most = -(-most // 2)
    return data.cut(numbers, most)


def check_fit(config: FitConfig, *, streamed: bool = False) -> FitConfig:
    """Raise for invalid settings before any work is done; the config of a file gets its digest and split sizes."""
    parse_solver(config.sizes.solver, 1.0)
    if not config.is_file:
        if streamed:
            raise KairodeError(f"--stream reads a file, and {config.source} is an environment.")
        make(config.source, setting=config.setting, **config.env_fields)
        return config
    if config.env_fields:
        raise KairodeError(f"--set sets fields of an environment, but {config.source} is a file.")
    path, table = Path(config.source), unless_default(config.table)
    if not path.is_file():
        raise KairodeError(f"{path} does not exist.")
    count, streamed = _count_episodes(path, table, streamed)  # raises before the folder is made
    train, valid, test = split_sizes(path, count)
    if streamed:
        valid, test = min(valid, HELD_OUT), min(test, HELD_OUT)
    return dataclasses.replace(
        config,
        table=table,
        digest=file_digest(path),
        episodes=train,
        validation_episodes=valid,
        test_episodes=test,
    )


def _count_episodes(path: Path, table: TableConfig | None, streamed: bool) -> tuple[int, bool]:
    """The number of episodes of a file, and whether they are streamed."""
    if table is not None or not in_own_format(path):
        flat = load_flat(path, table or TableConfig())
        return len(flat.episodes.lengths), streamed or flat.ragged
    if not (streamed or _has_ragged(path)):
        return len(read_episodes(path).data), False
    stream_spec(path)
    return len(episode_lengths(path)), True


def _has_ragged(path: Path) -> bool:
    """Whether the episodes of a file in our format are not to be padded; False if it cannot be read, which reading it
    explains."""
    with contextlib.suppress(KairodeError):
        return is_ragged(episode_lengths(path), row_width(stream_spec(path)))
    return False


def load_data(config: FitConfig, callback: Callback = no_callback, *, streamed: bool = False) -> Splits:
    """Collect the data (determined by the seed), or read the file and split it by episode."""
    if not config.is_file:
        env = make(config.source, setting=config.setting, **config.env_fields)
        counts = (config.episodes, config.validation_episodes, config.test_episodes)
        parts: list[Trajectory] = []

        stage = "collecting {:,} training, {:,} validation and {:,} test episodes".format(*counts)

        def so_far(part: Progress) -> None:
            callback(dataclasses.replace(part, stage=stage, done=sum(map(len, parts)) + part.done, total=sum(counts)))

        for i, count in enumerate(counts):
            seed = derive(config.data_seed, Purpose.FIT_DATA, i)
            parts.append(collect(env, episodes=count, seed=seed, callback=so_far))
        return _with_warnings(parts, check_data(parts[0], robust=config.robust_scale))
    found, rows = _read_file(config, callback, streamed)
    about = check_data(found, Path(config.source).name, rows=rows, robust=config.robust_scale)
    train, valid, _ = split_sizes(config.source, len(found))
    order = np.random.default_rng(derive(config.data_seed, Purpose.FILE_SPLIT)).permutation(len(found))
    numbers = [np.sort(part) for part in np.split(order, (train, train + valid))]
    if isinstance(found, EpisodeStream):
        held_out = (_held_out(found, part) for part in numbers[1:])
        return _with_warnings([found.select(numbers[0]), *held_out], about)
    return _with_warnings([found[part] for part in numbers], about)


def _read_file(
    config: FitConfig, callback: Callback, streamed: bool
) -> tuple[Trajectory | EpisodeStream, np.ndarray | None]:
    """Episodes of a file, on disk if they are to be streamed or padding would take too much memory; with their rows in
    a table that Kairode did not write."""
    path, table = Path(config.source), unless_default(config.table)
    if streamed:
        callback(Progress(f"reading {path.name}"))
    if table is not None or not in_own_format(path):
        flat = load_flat(path, table or TableConfig())
        if not (streamed or flat.ragged):
            return rescale_ticks(flat.padded().data), flat.rows
        found, rows = stream_rows(flat), flat.rows
    elif streamed or _has_ragged(path):
        found, rows = stream(path), None
    else:
        return rescale_ticks(read_episodes(path).data), None
    if not streamed:
        callback(Progress(f"reading {path.name}", message=_about_ragged(path, found)))
    return rescale_ticks(found), rows


def _about_ragged(path: Path, found: EpisodeStream) -> str:
    padded, rows = (f"{size / 2**20:,.0f} MiB" for size in padded_bytes(found.length, row_width(found.spec)))
    return (
        f"{path.name}: padded to the longest of {found.longest:,} decisions, the {len(found):,} episodes would take "
        f"{padded}, and their rows take {rows}: batches are read from disk without that padding, as with --stream, and "
        f"validation and test use at most {HELD_OUT:,} episodes each."
    )


def _with_warnings(parts: Sequence[Any], about: Sequence[str]) -> Splits:
    """Episodes with the warnings about them, and about actions that only the held-out ones have."""
    train, valid, test = parts
    unseen = check_actions(train, {"validation": valid, "test": test})
    return Splits(train, valid, test, (*about, *unseen))


def split_sizes(source: str | Path, episodes: int) -> tuple[int, int, int]:
    """Numbers of training, validation (a tenth) and test episodes (a tenth) of a file."""
    if episodes < 3:
        count = f"{episodes} episode{'s' * (episodes != 1)}"
        raise KairodeError(
            f"{source} has {count}: at least 3 are needed for training, validation and test. Cut a long record into "
            "several episodes."
        )
    validation = max(1, round(episodes / 10))
    return episodes - 2 * validation, validation, validation


def rescale_ticks(data: AnyData) -> AnyData:
    """Set the tick to the size of an interval if the data's unit of time differs much from it; the discount, which is
    per tick, follows."""
    average = _mean_interval(data) / data.spec.tick
    if 0.1 <= average <= 30 or not np.isfinite(average):
        return data
    ticks = 10.0 ** round(np.log10(average))
    spec = dataclasses.replace(data.spec, tick=data.spec.tick * ticks, discount=data.spec.discount**ticks)
    return dataclasses.replace(data, spec=spec)


def _mean_interval(data: Trajectory | EpisodeStream) -> float:
    if isinstance(data, Trajectory):
        return float(np.asarray(data.interval)[data.mask].mean())
    return sum(float(block.interval.sum(dtype=np.float64)) for block in data.blocks()) / float(data.length.sum())


def _scale(data: Trajectory | EpisodeStream, robust: bool) -> Scale:
    """Mean and standard deviation of the observations at decisions, or their robust counterparts."""
    if robust:
        return Scale.robust(sample_rows(data)[:, : len(data.spec.observations)])
    if isinstance(data, Trajectory):
        return Scale.of(np.asarray(data.observation)[:, :-1][data.mask])
    return Scale.of_blocks(data.observations)


def new_models(config: FitConfig, data: Trajectory | EpisodeStream) -> DynamicsModel:
    """Models with random weights, one per seed, stacked."""
    scaled = config.standardize or config.robust_scale
    scale = _scale(data, config.robust_scale) if scaled else Scale.none(len(data.spec.observations))
    keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), 0) for seed in model_seeds(config)])
    return _random_models(config.model, data.spec, config.sizes, scale, _has_missing(data, scale), keys)


def _has_missing(data: Trajectory | EpisodeStream, scale: Scale) -> bool:
    """Whether there are observations that models are not fitted to: missing, or clipped by a robust scale."""
    blocks = (np.asarray(part.observation) for part in ([data] if isinstance(data, Trajectory) else data.blocks()))
    if scale.limit is None:
        return any(bool(np.isnan(block).any()) for block in blocks)
    return any(not scale.usable(scale.apply(block.astype(np.float32))).all() for block in blocks)


@jit_once
def _random_models(
    name: str, spec: Spec, sizes: ModelConfig, scale: Scale, masked: bool, keys: Key[Array, " seeds"]
) -> Any:
    return eqx.filter_vmap(lambda key: build(name, spec, sizes, scale, masked, key=key))(keys)


def model_seeds(config: FitConfig) -> list[int]:
    """Seeds of the models of a config."""
    return derive_many(config.seed, Purpose.MODEL, config.seeds)


def fit_models(
    config: FitConfig,
    data: Trajectory | EpisodeStream,
    valid: Trajectory,
    *,
    folder: Path | None = None,
    callback: Callback = no_callback,
) -> FitResult:
    """Fit the models of a config. With a folder, checkpoints are kept there and fitting resumes from them."""
    identity = {name: value for name, value in dataclasses.asdict(config).items() if name != "source"}
    return train(
        new_models(config, data),
        config.training,
        data,
        valid,
        seeds=model_seeds(config),
        folder=folder,
        identity=identity,
        callback=callback,
    )


def evaluate_fit(
    result: FitResult, test: Trajectory, callback: Callback = no_callback, *, valid: Trajectory | None = None
) -> dict[str, Any]:
    """Figures of a record: test errors of every seed, by dimension and prediction time; timer, solver and, of several
    seeds, the calibration of their spread (with intervals from the validation episodes)."""
    callback(Progress(f"evaluating on {len(test):,} test episode{'s' * (len(test) != 1)}"))
    evaluations = [evaluate_model(model, test) for model in result.models]
    if isinstance(result.models[0].transition, FlowTransition):
        callback(Progress("checking the solver"))
    checks = [check_solver(model, test) for model in result.models]
    calibration = _calibration(result, test, valid, callback)
    errors = [found.error for found in evaluations]
    names = [v.name for v in test.spec.observations]
    hits = [found.timer_hits for found in evaluations if found.timer_hits is not None]
    intervals = [found.intervals.figures() for found in evaluations if found.intervals is not None]
    return {
        "test_error": errors,
        "mean": mean(errors),
        "std": std(errors),
        "variance": evaluations[0].variance,
        "by_dimension": {name: [found.by_dimension[i] for found in evaluations] for i, name in enumerate(names)},
        "time_edges": evaluations[0].time_edges,
        "by_time": [found.by_time for found in evaluations],
        "median_episode": [found.median_episode for found in evaluations],
        "worst_share": [found.worst_share for found in evaluations],
        "timer_hits": hits or None,
        "intervals": intervals or None,
        "validation_best": result.validation,
        "iterations": result.iterations,
        "skipped": result.skipped,
        "test_decisions": test.decisions,
        "solver": [dataclasses.asdict(check) for check in checks if check is not None] or None,
        **calibration,
    }


def _calibration(result: FitResult, test: Trajectory, valid: Trajectory | None, callback: Callback) -> dict[str, Any]:
    """Nothing with a single seed."""
    if len(result.models) < 2:
        return {}
    callback(Progress("comparing the ensemble's spread with its errors"))
    try:
        return {"calibration": evaluate_ensemble(result.models, test, valid=valid).figures()}
    except KairodeError as error:  # too little was measured: the fit itself is finished
        warn([f"the ensemble was not compared with its errors: {str(error).rstrip('.')}"])
        return {"calibration": None}


def digest(*trees: Any) -> str:
    """SHA-256 of all arrays in data or models."""
    found = hashlib.sha256()
    for tree in trees:
        if isinstance(tree, EpisodeStream):
            found.update(tree.digest.encode() + tree.start.tobytes() + tree.length.tobytes())
    for array in jax.tree.leaves(eqx.filter(trees, eqx.is_array)):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
