"""`kairode fit`: experience, a model fitted with several seeds, its errors on episodes it has not seen, a record."""

import dataclasses
import hashlib
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.callbacks import Callback, Progress
from kairode.config.options import FitOptions, WeightOptions
from kairode.config.presets import FitPreset, changed, preset
from kairode.data import Trajectory, collect, read
from kairode.data.describe import spec_to_dict
from kairode.envs import make
from kairode.envs.core import Spec
from kairode.errors import KairodeError, Stopped, unknown
from kairode.files import check_target, save_json
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.ode import parse_solver
from kairode.models.zoo import build, check_model
from kairode.runs.record import completed, plain, record
from kairode.seeds import Purpose, derive, derive_many
from kairode.stats import mean, std
from kairode.training.evaluate_model import IntervalCheck, check_solver, evaluate_model
from kairode.training.loop import FitProgress, FitResult, train
from kairode.training.model_files import save_models


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """What to fit, to what."""

    source: str
    """Name of an environment, or a Parquet file."""
    model: str
    """Name of the model."""
    preset: FitPreset
    """Sizes, settings, how many episodes."""
    seeds: int = 1
    """How many, counted from `seed`."""
    seed: int = 0
    """The first seed of the models."""
    data_seed: int = 0
    """Fixes the experience, which all seeds share."""
    setting: str = "ours"
    """Of the environment: ours or paper."""
    digest: str | None = None
    """Of the file."""

    @property
    def is_file(self) -> bool:
        """Whether the experience is read from a file."""
        return is_file(self.source)


class Experience(NamedTuple):
    """Episodes for three purposes."""

    train: Trajectory
    valid: Trajectory
    test: Trajectory


def is_file(source: str) -> bool:
    """Whether this names a file rather than an environment."""
    return source.endswith((".parquet", ".pq")) or "/" in source


def make_fit_config(
    source: str, model: str, preset: FitPreset, *, seeds: int, seed: int, data_seed: int, setting: str, fields: dict
) -> FitConfig:
    """The config of a run, checked before any work is done."""
    check_model(model)
    parse_solver(preset.sizes.solver, 1.0)
    if not (isinstance(seeds, int) and seeds >= 1):
        raise KairodeError(f"seeds must be a whole number of at least 1, got {seeds}.")
    for name, value in (("seed", seed), ("data_seed", data_seed)):
        if not (isinstance(value, int) and 0 <= value < 2**30):
            raise KairodeError(f"{name} must be a whole number between 0 and 2^30, got {value}.")
    preset = dataclasses.replace(preset, fields={**preset.fields, **fields})
    if not is_file(source):
        make(source, setting=setting, **preset.fields)
        return FitConfig(source, model, preset, seeds, seed, data_seed, setting)
    if fields:
        raise KairodeError(f"--set names fields of an environment, and {source} is a file.")
    path = Path(source)
    if not path.is_file():
        raise KairodeError(f"there is no file {path}.")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    train, valid, test = split_sizes(path, len(read(path)))
    preset = dataclasses.replace(preset, episodes=train, valid=valid, test=test)
    return FitConfig(source, model, preset, seeds, seed, data_seed, setting, digest)


def experience(config: FitConfig, progress: Callable[[int], None] | None = None) -> Experience:
    """Collected anew, always the same; or read from the file and split by episode."""
    preset = config.preset
    if not config.is_file:
        env = make(config.source, setting=config.setting, **preset.fields)
        counts = (preset.episodes, preset.valid, preset.test)
        parts = [
            collect(env, episodes=count, seed=derive(config.data_seed, Purpose.FIT_DATA, i), progress=progress)
            for i, count in enumerate(counts)
        ]
        return Experience(*parts)
    found = _in_ticks(read(config.source))
    train, valid, _ = split_sizes(config.source, len(found))
    order = np.random.default_rng(derive(config.data_seed, Purpose.FILE_SPLIT)).permutation(len(found))
    return Experience(*(found[np.sort(part)] for part in np.split(order, (train, train + valid))))


def split_sizes(source: str | Path, episodes: int) -> tuple[int, int, int]:
    """How many episodes of a file are for training, validation (a tenth) and test (a tenth)."""
    if episodes < 3:
        raise KairodeError(f"{source} has {episodes} episodes: at least 3 are needed, to train and to test.")
    held = max(1, round(episodes / 10))
    return episodes - 2 * held, held, held


def _in_ticks(found: Trajectory) -> Trajectory:
    """With a tick of the size of an interval, where the file's unit of time is far from it."""
    usual = float(np.asarray(found.interval)[found.mask].mean()) / found.spec.tick
    if 0.1 <= usual <= 30:
        return found
    tick = found.spec.tick * 10.0 ** round(np.log10(usual))
    return dataclasses.replace(found, spec=dataclasses.replace(found.spec, tick=tick))


def new_models(config: FitConfig, data: Trajectory) -> DynamicsModel:
    """Random weights for every seed, seeds in front."""
    preset, count = config.preset, len(data.spec.observations)
    rows = np.asarray(data.observation)[:, :-1][data.mask]
    scale = Scale.of(rows) if preset.standardise else Scale.none(count)
    keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), 0) for seed in seed_numbers(config)])
    return eqx.filter_vmap(lambda key: build(config.model, data.spec, preset.sizes, scale, key=key))(keys)


def seed_numbers(config: FitConfig) -> list[int]:
    """The seeds of the models."""
    return derive_many(config.seed, Purpose.MODEL, config.seeds)


def run_fit(
    config: FitConfig,
    folder: Path,
    *,
    fit_callback: Callable[[FitProgress], None] = lambda report: None,
    collected: Callable[[int], None] | None = None,
    callback: Callback = lambda event: None,
) -> tuple[FitResult, Experience, dict[str, Any]]:
    """Do what the config says in a folder of its own, or go on with what is there."""
    check_target(folder / "config.json")
    same_config(config, folder)
    started = time.perf_counter()
    data = experience(config, collected)
    save_json(folder / "config.json", dataclasses.asdict(config))
    begun = time.perf_counter()
    callback(Progress("fitting", 0, config.preset.settings.iterations, {}, 0.0))
    try:
        fitted = train(
            new_models(config, data.train),
            config.preset.settings,
            data.train,
            data.valid,
            seeds=seed_numbers(config),
            folder=folder,
            callback=fit_callback,
        )
    except Stopped as stopped:
        raise Stopped(f"{stopped} The same command goes on from there: {command(config, folder)}") from None
    fitting = time.perf_counter() - begun
    save_models(folder, config.model, config.preset.sizes, fitted.models)
    path = folder / "record.json"
    if path.exists():  # done before: the record of that stands
        return fitted, data, json.loads(path.read_text())
    figures = summary(config, fitted, data.test, callback)
    here = time.perf_counter() - started - fitting
    made = record("fit", config, figures, command=command(config, folder), seconds=here + fitted.seconds)
    save_json(folder / "record.json", made)
    return fitted, data, made


def same_config(config: Any, folder: Path, free: tuple[str, ...] = ()) -> None:
    """Refuse a folder that holds another run; the fields that are free may differ."""
    path = folder / "config.json"
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text())
    except ValueError as error:
        raise KairodeError(f"{path} is damaged: remove {folder}, or choose another with --out.") from error
    now = plain(config)
    before = {**completed(before, config), **{name: now[name] for name in free}}
    if before != now:
        raise KairodeError(
            f"{folder} holds another run ({_first_difference(before, now)}): choose another folder with --out, or "
            "remove it."
        )


def same_system(spec: Spec, folder: Path) -> None:
    """Refuse a folder that holds a run on another system; otherwise write down which one it is."""
    path, now = folder / "system.json", json.loads(json.dumps(spec_to_dict(spec), default=str))
    if path.exists():
        before = json.loads(path.read_text())
        if before != now:
            raise KairodeError(
                f"{folder} holds a run on another system ({_first_difference(before, now)}): choose another folder."
            )
    save_json(path, now)


def _first_difference(before: Any, now: Any, at: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                return _first_difference(before.get(key), now.get(key), f"{at}.{key}" if at else key)
    return f"{at}: {before} there, {now} here"


def summary(
    config: FitConfig, fitted: FitResult, test: Trajectory, callback: Callback = lambda event: None
) -> dict[str, Any]:
    """The figures: test errors of every seed, by dimension and by time ahead, and the check of the solver."""
    callback(Progress(f"evaluating on {len(test):,} test episodes", 0, None, {}, 0.0))
    judged = [evaluate_model(model, test) for model in fitted.models]
    callback(Progress("checking the solver", 0, None, {}, 0.0))
    checks = [check_solver(model, test) for model in fitted.models]
    errors = [j.error for j in judged]
    names = [v.name for v in test.spec.observations]
    hits = [j.timer_hits for j in judged if j.timer_hits is not None]
    figures: dict[str, Any] = {
        "test_error": errors,
        "mean": mean(errors),
        "std": std(errors),
        "by_dimension": {name: [j.by_dimension[i] for j in judged] for i, name in enumerate(names)},
        "time_edges": judged[0].time_edges,
        "by_time": [j.by_time for j in judged],
        "median_episode": [j.median_episode for j in judged],
        "worst_share": [j.worst_share for j in judged],
        "timer_hits": hits or None,
        "intervals": [_interval_figures(j.intervals) for j in judged if j.intervals is not None] or None,
        "validation_best": fitted.validation,
        "iterations": fitted.iterations,
        "skipped": fitted.skipped,
        "test_decisions": test.decisions,
        "solver": [dataclasses.asdict(check) for check in checks if check is not None] or None,
    }
    return figures


def _interval_figures(found: IntervalCheck) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "far": found.far}


def command(config: FitConfig, folder: Path | None = None) -> str:
    """The command that makes the run again."""
    words = ["kairode", "fit", config.source, "--model", config.model, "--seeds", str(config.seeds)]
    options: dict[str, Any] = {"--seed": config.seed, "--data-seed": config.data_seed}
    words += [word for name, value in options.items() if value for word in (name, str(value))]
    if config.setting != "ours":
        words += ["--setting", config.setting]
    words += changes(config)
    if folder is not None:
        words += ["--out", str(folder)]
    return shlex.join(words)


def changes(config: FitConfig) -> list[str]:
    """Options for what differs from the preset of the source."""
    usual, given = preset(config.source), config.preset
    words: list[str] = []
    for name in () if config.is_file else ("episodes", "valid", "test"):
        if getattr(given, name) != getattr(usual, name):
            words += [f"--{name}", str(getattr(given, name))]
    for part in ("sizes", "settings"):
        for field in dataclasses.fields(getattr(usual, part)):
            value = getattr(getattr(given, part), field.name)
            if field.name != "weights" and value != getattr(getattr(usual, part), field.name):
                words += [f"--{field.name.replace('_', '-')}", str(value)]
    for field in dataclasses.fields(usual.settings.weights):
        value = getattr(given.settings.weights, field.name)
        if value != getattr(usual.settings.weights, field.name):
            words += [f"--weights.{field.name.replace('_', '-')}", str(value)]
    changed = {name: value for name, value in given.fields.items() if usual.fields.get(name, ...) != value}
    if changed:
        words += ["--set", *(f"{name}={json.dumps(value)}" for name, value in changed.items())]
    return words


def fit(
    model: str,
    data: Trajectory,
    *,
    valid: Trajectory | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    callback: Callable[[FitProgress], None] = lambda report: None,
    **options: Any,
) -> DynamicsModel:
    """Fit a dynamics model: `kairode.fit("latent-ode", data, iterations=3000)`.

    Args:
        model: rnn, dt-rnn, decay-rnn, latent-rnn, ode-rnn, latent-ode or variational-ode-rnn.
        data: experience, from `kairode.collect` or `kairode.read`.
        valid: other episodes to watch the error on; every tenth of the data by default.
        seed: fixes everything random.
        folder: keep a checkpoint there, and go on from it.
        tell: called with a `Report` as fitting goes on.
        options: what differs from the settings that belong to the environment, named as in `kairode fit --help`
            (iterations, learning_rate, latent, solver, ..); `weights` takes a dict.
    """
    known = {field.name for field in dataclasses.fields(FitOptions)} - {"episodes", "valid", "test"}
    if not isinstance(data, Trajectory):
        raise KairodeError(
            f"kairode.fit needs experience, got {data!r}: give what kairode.collect or kairode.read returned."
        )
    for name in options:
        if name == "seeds":
            raise KairodeError("kairode.fit fits one model: give seed=..., or use `kairode fit --seeds 5` for several.")
        if name not in known:
            raise unknown("option", name, sorted(known), where="of kairode.fit")
    if isinstance(options.get("weights"), dict):
        terms = {field.name for field in dataclasses.fields(WeightOptions)}
        for name in options["weights"]:
            if name not in terms:
                raise unknown("weight", name, terms, where="of kairode.fit")
        options["weights"] = WeightOptions(**options["weights"])
    chosen = changed(preset(data.spec.name), FitOptions(**options))
    if len(data) < 2 and valid is None:
        raise KairodeError("one episode cannot be split: give validation episodes too.")
    if valid is None:
        held = np.arange(len(data)) % 10 == min(9, len(data) - 1)
        data, valid = data[~held], data[held]
    data, valid = _in_ticks(data), dataclasses.replace(valid, spec=_in_ticks(data).spec)
    config = FitConfig(data.spec.name, check_model(model), chosen, seed=seed, digest=digest(data, valid))
    place = None if folder is None else Path(folder)
    if place is not None:
        same_config(config, place)
        save_json(place / "config.json", dataclasses.asdict(config))
    fitted = train(
        new_models(config, data), chosen.settings, data, valid, seeds=[seed], folder=place, callback=callback
    )
    return fitted.models[0]


def digest(*trees: Any) -> str:
    """Of all numbers of some experience or models."""
    found = hashlib.sha256()
    for array in jax.tree.leaves(eqx.filter(trees, eqx.is_array)):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
