"""Decision times chosen by the models of a run, compared with fixed intervals: `kairode schedule`, a stage of `kairode
run`.

First a policy is learned in imagination together with its schedule (the paper's algorithm 1 with imagined rewards and
observations); then intervals are chosen by its values for any price or budget, and tested on the real system with
accrued rewards.
"""

import dataclasses
import functools
import hashlib
import json
import operator
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from kairode._lock import locked
from kairode.agents.evaluate import evaluate, score_accrued, to_result
from kairode.agents.policy_files import describe_policy, read_policy, save_policy
from kairode.agents.q_policy import QPolicy
from kairode.algorithms.dyna import DATA, DynaState, collect_enough, read_state, refit_ensemble
from kairode.algorithms.fit import digest
from kairode.algorithms.schedule import intervals_by_regime, learn_schedule_policy, schedule_learn_config
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.algorithms import ScheduleConfig
from kairode.config.commands import command_of_schedule
from kairode.config.planning import TOLERANCE
from kairode.config.presets import run_preset
from kairode.config.run import RunConfig
from kairode.config.serialize import from_dict
from kairode.data import Trajectory, collect, write
from kairode.data.trajectory import join
from kairode.envs.accrual import AccruedRewards
from kairode.envs.consistency import check_course
from kairode.envs.core import Environment, Spec
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import FixedOrOwn, Schedule
from kairode.errors import KairodeError, Stopped, resume_with
from kairode.files import save_json
from kairode.models.dynamics import DynamicsModel
from kairode.planning.calibrate import calibrate_model
from kairode.planning.optimize_schedule import check_candidates, check_limits, optimize_schedule, trial_env
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.planning.penalties import sweep_penalties
from kairode.runs import labels
from kairode.runs.folder import RunFolder
from kairode.runs.load import ModelledSystem, read_run
from kairode.runs.migrate import FORMAT
from kairode.runs.record import make_record, read_record
from kairode.seeds import Purpose, derive
from kairode.training import checkpoint
from kairode.training.session import Session
from kairode.trees import alone, one, stack

PLACE = "schedule"
"""Folder of the chosen decision times inside a run folder."""
REFITS = "revisits"


class ScheduleRun(NamedTuple):
    """Chosen decision times with their tests."""

    record: dict[str, Any]
    system: ModelledSystem
    """With the models that chose the final schedules."""
    episodes: dict[str, Trajectory]
    """Test episodes of every chosen schedule, by label."""


def check_schedule_config(config: ScheduleConfig, spec: Spec) -> None:
    """Refuse candidates, prices, budgets and other limits that do not suit the system's intervals."""
    ends = check_candidates(config.candidates or None, spec, config.continuous)
    check_limits(spec, ends[-1], quantile=config.quantile, tolerance=config.tolerance or 0.0)
    for price in config.prices:
        check_limits(spec, ends[-1], price=price)
    for budget in config.budgets:
        check_limits(spec, ends[-1], budget=budget)


def check_refits(dyna: Any, count: int | None) -> None:
    """Refuse refits of a run without Dyna rounds, which has no state to continue from."""
    if count and dyna is None:
        raise KairodeError(
            "--refits continues from Dyna rounds, but this run has none: leave it out, or run `kairode run ENV "
            "--rounds 5` first."
        )


def with_defaults_of_run(config: ScheduleConfig, folder: Path, env: str) -> ScheduleConfig:
    """Fill unset fields from the decision times that the run has chosen, if any."""
    found = RunFolder(folder)
    run = found.config(RunConfig) if found.exists and found.manifest.kind == "run" else None
    if config.tolerance is None:
        tolerance = run_preset(env).tolerance if run is None else run.tolerance
        config = dataclasses.replace(config, tolerance=tolerance)
    if run is None or not run.schedule_episodes:
        return config
    own = bool(config.candidates or config.continuous)
    episodes = config.imagined_episodes
    refits = 0 if config.oracle else run.schedule_refits
    return dataclasses.replace(
        config,
        candidates=config.candidates if own else run.candidates,
        imagined_episodes=run.schedule_episodes if episodes is None else episodes,
        refits=refits if config.refits is None else config.refits,
    )


def run_schedule(folder: Path, config: ScheduleConfig, callback: Callback = no_callback) -> ScheduleRun:
    """Choose and test decision times with the models of a run; writes to its subfolder `schedule`."""
    system = read_run(folder)
    config = with_defaults_of_run(config, folder, system.about["env"])
    with locked(folder):
        return choose_and_test(system, config, callback)


def choose_and_test(system: ModelledSystem, config: ScheduleConfig, callback: Callback = no_callback) -> ScheduleRun:
    """Learn a policy (once), refit, choose schedules, test them."""
    started = time.perf_counter()
    if config.tolerance is None:
        config = dataclasses.replace(config, tolerance=TOLERANCE)
    check_schedule_config(config, system.env.task.spec)
    if isinstance(system.env, Environment):
        check_course(system.env)
    elif config.oracle:
        raise KairodeError(
            f"'{system.env.task.spec.name}' runs on the host, where its true dynamics cannot be asked ahead: leave out "
            "--oracle."
        )
    check_refits(system.dyna, config.refits)
    command = command_of_schedule(config, system.folder)
    try:
        policy = learned_policy(system, config, callback)
        system = refit_at_chosen_times(system, policy, config, callback)
    except Stopped as stopped:
        raise resume_with(stopped, command) from None
    callback(Progress("evaluating fixed intervals"))
    rows = fixed_rows(system, policy, config)
    callback(Progress("choosing schedules"))
    histograms: dict[str, Any] = {}
    episodes: dict[str, Trajectory] = {}
    for about, schedule in choose_schedules(system, policy, config):
        label = labels.label(about)
        callback(Progress(f"evaluating {label}"))
        rows[label] = about | chosen_row(system, policy, schedule, config)
        place = system.env
        if isinstance(place, Environment):
            place = AccruedRewards.of(place, schedule.longest(place.task.spec))
        seed = derive(config.test_seed, Purpose.TEST)
        episodes[label] = collect(place, policy, episodes=config.test_episodes, seed=seed, schedule=schedule)
        histograms[label] = intervals_by_regime(system.env.task, episodes[label])
    figures = {"rows": rows, "intervals": histograms, "real_episodes": len(system.data)}
    record = make_record("schedule", config, figures, command=command, seconds=time.perf_counter() - started)
    save_json(system.folder / PLACE / "record.json", {"format": FORMAT, **record})
    return ScheduleRun(record, system, episodes)


def learned_policy(system: ModelledSystem, config: ScheduleConfig, callback: Callback = no_callback) -> QPolicy:
    """The policy for chosen decision times; one in the folder is reused if its settings are the same."""
    folder = system.folder / PLACE
    candidates = _candidates(system, config)
    seed = system.seed if config.seed is None else config.seed
    same = {
        "numbers": digest(*system.models, system.data),
        "candidates": list(candidates),
        "imagined": config.imagined_episodes,
        "learning_seed": seed,
        **({} if config.tolerance == 0 else {"calibrated": True}),
    }
    if (folder / "policy.json").exists():
        before = {"learning_seed": 0, **describe_policy(folder)}  # absent in older files, which all used seed 0
        if {name: before.get(name) for name in (*same, "calibrated")} == {"calibrated": None, **same}:
            return read_policy(folder, system.policy_model)
    # The folder name identifies the settings, so that interrupted training resumes.
    training = folder / f"training-{_short_digest(same)}"
    found = learn_schedule_policy(
        planning_models(system, config),
        system.env,
        schedule_learn_config(system.about["env"], config.imagined_episodes, system.latent_policy, system.learn),
        candidates=candidates,
        data=system.data,
        seed=seed,
        latent_policy=system.latent_policy,
        calibrated=config.tolerance != 0,
        folder=training,
        callback=callback,
    )
    save_policy(folder, found.policy, {**system.about, "schedule": "chosen", **same})
    shutil.rmtree(training, ignore_errors=True)
    return found.policy


def planning_models(system: ModelledSystem, config: ScheduleConfig) -> list[DynamicsModel]:
    """The models, calibrated on their data; unchanged for a tolerance of 0 (the paper's equation)."""
    if config.tolerance == 0:
        return system.models
    return [calibrate_model(model, system.data) for model in system.models]


def _candidates(system: ModelledSystem, config: ScheduleConfig) -> tuple[float, ...]:
    """Candidates for learning; never continuous ones, which would be slow."""
    return check_candidates(None if config.continuous else config.candidates or None, system.env.task.spec)


def refit_at_chosen_times(
    system: ModelledSystem,
    policy: QPolicy,
    config: ScheduleConfig,
    callback: Callback = no_callback,
    *,
    collect_missing: bool = True,
) -> ModelledSystem:
    """Collect real episodes at the times that the models choose for this policy, and refit the models, `refits` times.

    A model is worst where there are no data, and its own schedule leads there: it waits where it wrongly predicts that
    nothing happens. Each refit is kept in its own folder, and not repeated. Without `collect_missing` they are only
    loaded.
    """
    count = config.refits or 0
    if not count:
        return system
    assert system.dyna is not None
    dyna, state = system.dyna
    candidates = _candidates(system, config)
    same: dict[str, Any] = {"of": digest(policy.q, *system.models, system.data), "candidates": list(candidates)}
    if config.tolerance:
        same["tolerance"] = config.tolerance
    name = f"{REFITS}-{_short_digest(same)}"
    places = [system.folder / PLACE / name / str(number) for number in range(1, count + 1)]
    done = sum(checkpoint.exists(place) for place in places)
    if done < count and not collect_missing:
        raise KairodeError(
            f"{system.folder / PLACE} lacks the models that were refitted at the chosen times: run `kairode schedule "
            f"{system.folder}` again."
        )
    for other in (system.folder / PLACE).glob(f"{REFITS}-*") if collect_missing else ():  # refits of another policy
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)
    if done:
        state = read_state(dyna, system.env, places[done - 1])
    for place in places[done:]:
        callback(Progress(f"collecting {dyna.episodes_per_round} episodes at chosen times"))
        schedule = optimize_schedule(
            state.members,
            policy,
            system.imagined,
            candidates=candidates,
            tolerance=config.tolerance or 0.0,
            data=state.data,
        )
        number = state.number + 1
        seed = derive(dyna.seed, Purpose.DYNA_EPISODES, number)
        new = collect_enough(
            system.env, policy, dyna.episodes_per_round, dyna.decisions_per_round, seed, schedule=schedule
        )
        data = join([state.data, new])
        models, _ = refit_ensemble(dyna, data, state.models, number, callback)
        message = f"Collected {len(new)} real episodes at chosen times, and refitted the models to all {len(data)}."
        callback(Progress("refitting", message=message))
        state = DynaState(number, data, models, state.network)
        write(place / DATA, data)
        arrays = (state.network, eqx.filter(models, eqx.is_array))
        Session(place).save(arrays, number=number, episodes=len(data))
    return dataclasses.replace(system, models=state.members, data=state.data)


def _short_digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def choose_schedules(
    system: ModelledSystem, policy: QPolicy, config: ScheduleConfig
) -> list[tuple[dict[str, Any], OptimizedSchedule]]:
    """A schedule for each price and each budget, with its description."""
    chooser: Any = system.env if config.oracle else planning_models(system, config)
    data = None if config.oracle else system.data
    choose = functools.partial(
        optimize_schedule,
        chooser,
        policy,
        system.imagined,
        candidates=config.candidates or None,
        continuous=config.continuous,
        quantile=config.quantile,
        tolerance=config.tolerance or 0.0,
        data=data,
    )
    tried = sweep_penalties(choose(), policy, trial_env(chooser, system.imagined, data)) if any(config.prices) else None
    return [
        *((labels.chosen(price=price), choose(price=price, tried=tried)) for price in config.prices),
        *((labels.chosen(budget=budget), choose(budget=budget)) for budget in config.budgets),
    ]


def load_chosen(folder: Path) -> tuple[ModelledSystem, QPolicy, Schedule]:
    """The policy of `kairode schedule` in a run, and the schedule it chooses without a price."""
    system = read_run(folder)
    place = folder / PLACE
    if not (place / "policy.json").exists():
        raise KairodeError(f"no decision times were chosen in {folder} yet: run `kairode schedule {folder}`.")
    policy = read_policy(place, system.policy_model)
    candidates = tuple(describe_policy(place)["candidates"])
    path = place / "record.json"
    recorded = read_record(path)["config"] if path.exists() else {}
    config = from_dict(ScheduleConfig, recorded, file=path)
    tolerance = config.tolerance or 0.0  # absent in older records, which had no tolerance
    chosen = dataclasses.replace(config, candidates=candidates, continuous=False, tolerance=tolerance)
    system = refit_at_chosen_times(system, policy, chosen, collect_missing=False)
    schedule = optimize_schedule(
        system.models, policy, system.imagined, candidates=candidates, tolerance=tolerance, data=system.data
    )
    return system, policy, schedule


def fixed_rows(system: ModelledSystem, policy: QPolicy, config: ScheduleConfig) -> dict[str, Any]:
    """Tests of the policy at every fixed interval and on the environment's own schedule, by label."""
    spec = system.env.task.spec
    taus = (0.0, *check_candidates(None, spec))
    least = min(tau or spec.intervals.low for tau in taus)
    schedules = FixedOrOwn(jnp.array(taus, jnp.float32), least)
    figures = _tests(system, stack([policy] * len(taus)), schedules, config, len(taus))
    what = [labels.fixed(tau) if tau else labels.own() for tau in taus]
    return {labels.label(about): about | test for about, test in zip(what, figures, strict=True)}


def chosen_row(
    system: ModelledSystem, policy: QPolicy, schedule: OptimizedSchedule, config: ScheduleConfig
) -> dict[str, Any]:
    """Test of the policy at the times that a schedule chooses."""
    (figures,) = _tests(system, alone(policy), alone(schedule), config, 1)
    return {**figures, "decision_penalty": float(schedule.decision_penalty)}


def _tests(
    system: ModelledSystem, policies: QPolicy, schedules: Schedule, config: ScheduleConfig, agents: int
) -> list[dict[str, Any]]:
    """Test every policy at the times of its schedule, on the same episodes."""
    # Neither matters here, and policies that differ in them share a compiled program.
    policies = dataclasses.replace(policies, scale=1.0, accrues=True)
    if isinstance(system.env, HostEnvironment):
        found = []
        for i in range(agents):
            policy, schedule = one(policies, i), one(schedules, i)
            schedule = schedule.with_q(policy.q)
            episodes, seed = config.test_episodes, config.test_seed
            tested = evaluate(system.env, policy, accrue=True, episodes=episodes, schedule=schedule, seed=seed)
            found.append(tested.figures())
        return found
    seed, spec = derive(config.test_seed, Purpose.TEST), system.env.task.spec
    scores = score_accrued(system.env, policies, schedules, seed, config.test_episodes, agents)
    return [
        to_result(spec, jax.tree.map(operator.itemgetter(i), scores), accrued=True).figures() for i in range(agents)
    ]
