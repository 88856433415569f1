"""`kairode schedule`: visit times chosen by the models of a run, beside fixed ones.

First a policy is learned in the models' imagination under the schedule that it chooses itself (the paper's algorithm 1
with imagined rewards and observations); then intervals are chosen by its values for any price or budget, and tested on
the real system, where rewards are collected on every finest step.
"""

import dataclasses
import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from kairode.agents.policy_files import describe_policy, load_policy, save_policy
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_loop import TrainProgress
from kairode.agents.train_step import TrainingBatch
from kairode.algorithms.fit import digest
from kairode.algorithms.learn import learn_with_curve
from kairode.config.run import TOLERANCES
from kairode.data import Trajectory, collect
from kairode.envs.accrual import AccruedRewards
from kairode.envs.consistency import check_course
from kairode.envs.core import Spec
from kairode.envs.schedule import FixedOrOwn, Schedule
from kairode.errors import KairodeError, Stopped
from kairode.files import save_json
from kairode.paper.schedule_study import SETTINGS, evaluate_policies, intervals_by_condition, objective_return
from kairode.planning.optimize_schedule import (
    TOLERANCE,
    check_candidates,
    check_limits,
    optimize_schedule,
    sweep_penalties,
    trial_env,
)
from kairode.runs import labels
from kairode.runs.load import LoadedRun, read_run
from kairode.runs.record import record
from kairode.runs.revisit import check_revisits, refit_at_visits
from kairode.seeds import Purpose, derive
from kairode.stats import bootstrap_interval
from kairode.training.loop import FitProgress
from kairode.trees import alone, stack

PRACTICE = "learning when to look again"
"""The stage in which the policy is learned."""


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """How visits are to be chosen."""

    prices: tuple[float, ...] = (0.0,)
    """Of a visit, in the unit of the reward: a schedule for each."""
    budgets: tuple[int, ...] = ()
    """Visits in an episode: a schedule for each."""
    taus: tuple[float, ...] = ()
    """Candidates; those of the environment by default."""
    continuous: bool = False
    quantile: float | None = None
    """Over the models of the run; None for their mean."""
    tolerance: float | None = None
    """Share of the rewards that may be lost in exchange for fewer visits (0 for the best interval);
    None for that of the run."""
    oracle: bool = False
    """Whether the true dynamics choose, not the models."""
    imagined: int | None = None
    """Episodes of practice in imagination; None for what belongs to the environment."""
    revisits: int | None = None
    """How often real episodes are collected at the visits that the models choose, and the models refitted."""
    episodes: int = 20
    """Of the test."""
    seed: int = 0
    """Of the test's episodes."""
    learning_seed: int | None = None
    """Of learning the policy; None for the seed of the run."""


def learned_policy(
    run: LoadedRun,
    config: ScheduleConfig,
    *,
    callback: Callable[[TrainProgress], None] = lambda report: None,
    said: Callable[[str], None] = lambda text: None,
) -> QPolicy:
    """The policy under its own chosen schedule, learned in imagination.

    A policy in the folder is reused if it has the same models, experience, candidates, imagined episodes and seed;
    otherwise one is learned.
    """
    folder = run.folder / "schedule"
    candidates = _candidates(run, config)
    seed = run.seed if config.learning_seed is None else config.learning_seed
    same = {
        "numbers": digest(*run.models, run.data),
        "candidates": list(candidates),
        "imagined": config.imagined,
        "learning_seed": seed,
    }
    if (folder / "policy.json").exists():
        before = {"learning_seed": 0, **describe_policy(folder)}  # older files do not have it: all were of seed 0
        if {name: before.get(name) for name in same} == same:
            return load_policy(folder, run.models[0] if run.latent else None)
    said(PRACTICE)
    # Under a name of its own, so that an interrupted practice goes on, whatever else was learned here before.
    practice = folder / f"practice-{hashlib.sha256(json.dumps(same).encode()).hexdigest()[:12]}"
    schedule = optimize_schedule(run.models, None, run.env, taus=candidates, tolerance=0, data=run.data)
    options: dict[str, Any] = {}
    if run.name in SETTINGS:
        options["reward_scale"] = SETTINGS[run.name].reward_scale
    found = learn_with_curve(
        run.models,
        run.env,
        data=run.data,
        schedule=schedule,
        episodes=config.imagined,
        seed=seed,
        latent=run.latent,
        folder=practice,
        callback=callback,
        watch=run.env,
        cooldown=0.3,
        **options,
    )
    where = {name: run.about[name] for name in ("env", "setting", "fields")}
    save_policy(folder, found.policy, {**where, "schedule": "chosen", **same})
    shutil.rmtree(practice, ignore_errors=True)
    return found.policy


def _candidates(run: LoadedRun, config: ScheduleConfig) -> tuple[float, ...]:
    """Those that a policy is learned with: never continuous ones, which would be slow."""
    return check_candidates(None if config.continuous else config.taus or None, run.env.task.spec)


def as_before(config: ScheduleConfig, folder: Path) -> ScheduleConfig:
    """With the candidates, tolerance, practice and revisits of the run, where the wish does not say others."""
    path = folder / "config.json"
    about = json.loads(path.read_text()) if path.exists() else {}
    if config.tolerance is None:
        usual = TOLERANCES.get(about.get("env", ""), TOLERANCE)
        config = dataclasses.replace(config, tolerance=about.get("tolerance", usual))
    if not about.get("visits"):
        return config
    same = not (config.taus or config.continuous)
    return dataclasses.replace(
        config,
        taus=tuple(about["candidates"]) if same else config.taus,
        imagined=about["visits"] if config.imagined is None else config.imagined,
        revisits=(0 if config.oracle else about.get("revisits", 0)) if config.revisits is None else config.revisits,
    )


def check_schedule_config(config: ScheduleConfig, spec: Spec) -> None:
    """Refuse what cannot be before anything is learned."""
    ends = check_candidates(config.taus or None, spec, config.continuous)
    check_limits(spec, ends[-1], quantile=config.quantile, tolerance=config.tolerance or 0.0)
    for price in config.prices:
        check_limits(spec, ends[-1], price=price)
    for budget in config.budgets:
        check_limits(spec, ends[-1], budget=budget)
    if config.oracle and config.revisits:
        raise KairodeError(
            "--revisits teaches the models, and with --oracle they choose nothing: leave one of them out."
        )
    if not (config.prices or config.budgets):
        raise KairodeError("give at least one price (0 for none) or budget.")
    for name, least in (("episodes", 1), ("seed", 0), ("imagined", 1), ("revisits", 0), ("learning_seed", 0)):
        value = getattr(config, name)
        if value is not None and not (isinstance(value, int) and least <= value < 2**30):
            raise KairodeError(f"--{name.replace('_', '-')} must be a whole number of at least {least}, got {value}.")


def choose_schedules(run: LoadedRun, policy: QPolicy, config: ScheduleConfig) -> list[tuple[dict[str, Any], Schedule]]:
    """A schedule for each price and each budget, and what it is."""
    chooser: Any = run.env if config.oracle else run.models
    common: dict[str, Any] = {
        "taus": config.taus or None,
        "continuous": config.continuous,
        "quantile": config.quantile,
        "tolerance": TOLERANCE if config.tolerance is None else config.tolerance,
        "data": None if config.oracle else run.data,
    }
    tried = None
    if any(config.prices):
        free = optimize_schedule(chooser, policy, run.env, **common)
        tried = sweep_penalties(free, policy, trial_env(chooser, run.env, common["data"]))
    return [
        *(
            (
                labels.chosen(price=price),
                optimize_schedule(chooser, policy, run.env, price=price, tried=tried, **common),
            )
            for price in config.prices
        ),
        *(
            (labels.chosen(budget=budget), optimize_schedule(chooser, policy, run.env, budget=budget, **common))
            for budget in config.budgets
        ),
    ]


def chosen_of(folder: Path) -> tuple[LoadedRun, QPolicy, Schedule]:
    """The policy that `kairode schedule` left in a run, and the schedule it chooses without a price."""
    run = read_run(folder)
    place = folder / "schedule"
    if not (place / "policy.json").exists():
        raise KairodeError(f"no visits were chosen in {folder} yet: `kairode schedule {folder}` does that.")
    policy = load_policy(place, run.models[0] if run.latent else None)
    taus = tuple(describe_policy(place)["candidates"])
    made = place / "record.json"
    config = json.loads(made.read_text())["config"] if made.exists() else {}
    tolerance = config.get("tolerance", 0.0)  # older records do not have it: all were chosen without
    run = refit_at_visits(run, policy, taus, config.get("revisits") or 0, tolerance=tolerance)
    common: dict[str, Any] = {"taus": taus, "tolerance": tolerance, "data": run.data}
    return run, policy, optimize_schedule(run.models, policy, run.env, **common)


def run_schedule(
    folder: Path,
    config: ScheduleConfig,
    *,
    callback: Callable[[TrainProgress], None] = lambda report: None,
    said: Callable[[str], None] = lambda text: None,
    ended: Callable[[str], None] = lambda text: None,
    fitting: Callable[[FitProgress], None] = lambda report: None,
) -> tuple[dict[str, Any], LoadedRun, dict[str, Trajectory]]:
    """Learn (once), revisit, choose, test; the record, and the episodes of each choice.

    What the wish leaves open is as in the visits of the run, where it has chosen some.
    """
    started = time.perf_counter()
    run = read_run(folder)
    config = as_before(config, folder)
    check_schedule_config(config, run.env.task.spec)
    check_course(run.env)
    check_revisits(folder, config.revisits or 0)
    command = shlex.join(["kairode", "schedule", str(folder), *_options(config)])
    try:
        policy = learned_policy(run, config, callback=callback, said=said)
        tell_of: dict[str, Any] = {"fitting": fitting, "said": said, "ended": ended}
        candidates = _candidates(run, config)
        run = refit_at_visits(
            run, policy, candidates, config.revisits or 0, tolerance=config.tolerance or 0.0, **tell_of
        )
    except Stopped:
        raise Stopped(f"interrupted; the same command goes on from there: {command}") from None
    said("evaluating fixed intervals")
    rows = fixed_rows(run, policy, config)
    if any(config.prices) or config.budgets:
        said("choosing prices and budgets")
    histograms: dict[str, Any] = {}
    episodes: dict[str, Trajectory] = {}
    for about, schedule in choose_schedules(run, policy, config):
        label = labels.label(about)
        said(f"evaluating {label}")
        rows[label] = about | chosen_row(run, policy, schedule, config)
        place = AccruedRewards.of(run.env, schedule.longest(run.env.task.spec))
        episodes[label] = collect(
            place, policy, episodes=config.episodes, seed=derive(config.seed, Purpose.TEST), schedule=schedule
        )
        histograms[label] = intervals_by_condition(run.env.task, episodes[label])
    figures = {"rows": rows, "intervals": histograms, "real_episodes": len(run.data)}
    made = record("schedule", config, figures, command=command, seconds=time.perf_counter() - started)
    save_json(folder / "schedule" / "record.json", made)
    return made, run, episodes


def _options(config: ScheduleConfig) -> list[str]:
    words: list[str] = []
    for name, value in dataclasses.asdict(config).items():
        if value == getattr(ScheduleConfig(tolerance=TOLERANCE), name) or value == ():
            continue
        option = {"prices": "price", "budgets": "budget", "taus": "candidates"}.get(name, name.replace("_", "-"))
        values = (
            [] if value is True else list(map(labels.short_number, value)) if isinstance(value, tuple) else [str(value)]
        )
        words += [f"--{option}", *values]
    return words


def fixed_rows(run: LoadedRun, policy: QPolicy, config: ScheduleConfig) -> dict[str, Any]:
    """The same policy at every fixed interval of the environment, and on its own schedule."""
    spec = run.env.task.spec
    taus = (0.0, *check_candidates(None, spec))
    least = min(tau or spec.intervals.low for tau in taus)
    many = stack([policy] * len(taus))
    batch = TrainingBatch(run.env, FixedOrOwn(jnp.array(taus, jnp.float32), least), many.encoder, len(taus))
    found = evaluate_policies(run.env, batch, many, derive(config.seed, Purpose.TEST), config.episodes)
    what = [labels.fixed(tau) if tau else labels.own() for tau in taus]
    return {
        labels.label(about): about | _row(run, {name: x[i] for name, x in found.items()})
        for i, about in enumerate(what)
    }


def chosen_row(run: LoadedRun, policy: QPolicy, schedule: Schedule, config: ScheduleConfig) -> dict[str, Any]:
    """The policy under a chosen schedule."""
    batch = TrainingBatch(run.env, alone(schedule), alone(policy.encoder), 1)
    found = evaluate_policies(run.env, batch, alone(policy), derive(config.seed, Purpose.TEST), config.episodes)
    visit_penalty = float(getattr(schedule, "visit_penalty", 0.0))
    return {**_row(run, {name: x[0] for name, x in found.items()}), "shadow_price": visit_penalty}


def _row(run: LoadedRun, found: dict[str, np.ndarray]) -> dict[str, Any]:
    low, high = bootstrap_interval(objective_return(run.env.task, found))
    means = {name: float(values.mean()) for name, values in found.items()}
    healthy = None if np.isnan(means["healthy"]) else means["healthy"]
    return {**means, "low": low, "high": high, "healthy": healthy}
