"""The stages of `kairode run` with discrete actions: data and models, policy, tests, decision times.

Each stage passes its results to the next as objects. The run folder keeps the artefacts, so that the same command
resumes an interrupted run.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kairode._xla import free_programs
from kairode.agents.policy_files import save_policy
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_step import with_reward_scale
from kairode.algorithms.dyna import run_rounds
from kairode.algorithms.fit import check_fit
from kairode.algorithms.learn import LearnResult, learn_policy
from kairode.algorithms.schedule import split_ensemble
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.agents import DQNConfig
from kairode.config.algorithms import FitConfig, ScheduleConfig
from kairode.config.commands import command_of
from kairode.config.presets import dyna_of_run, fit_preset, learn_preset
from kairode.config.run import RunConfig
from kairode.data import Trajectory, write
from kairode.data.describe import spec_to_dict
from kairode.envs import make
from kairode.envs.consistency import check_course
from kairode.envs.core import Environment
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import as_schedule
from kairode.errors import KairodeError
from kairode.files import JSON_DIGEST, has_digest, with_digest
from kairode.runs.course import course
from kairode.runs.findings import evaluate_on_system, example_courses, policy_map
from kairode.runs.fit import run_fit
from kairode.runs.folder import RunFolder
from kairode.runs.load import DYNA, ModelledSystem
from kairode.runs.migrate import migrate_figures
from kairode.runs.record import make_record
from kairode.runs.schedule import check_schedule_config, choose_and_test, fixed_rows
from kairode.seeds import Purpose, derive

System = Environment | HostEnvironment
KIND = "run"
IMAGINATION = "learning in imagination"
MODEL_FREE = "learning without a model"


class Trained(NamedTuple):
    """Models and a policy learned in them."""

    system: ModelledSystem
    policy: QPolicy
    figures: dict[str, Any]


def run_pipeline(config: RunConfig, path: Path, callback: Callback = no_callback) -> dict[str, Any]:
    """The main job with discrete actions, all stages in a run folder; resumes if interrupted, returns the record."""
    env = make(config.env, setting=config.setting, **config.env_fields)
    check_run(config, env)
    command = command_of(config, path)
    with RunFolder.open(path, KIND, config, command) as folder:
        if folder.finished:
            callback(Progress("run", message=f"This run is finished: see {path}, or remove it to start again."))
            return folder.record or {}
        state = "resuming in" if folder.resumed else "in"
        callback(
            Progress("run", message=f"{command_of(config)}, {state} {path}. Safe to interrupt: run it again to resume.")
        )
        figures = _stages(config, env, folder, callback)
        # A stage may have been finished by an older version.
        figures = migrate_figures(KIND, figures, {"env": config.env})
        record = make_record(KIND, config, figures, command=command, seconds=folder.total_seconds)
        return folder.finish({**record, "stages": folder.manifest.seconds})


def check_run(config: RunConfig, env: System) -> None:
    """Refuse what cannot be run, before any work is done."""
    as_schedule(config.schedule, env.task.spec)
    if config.schedule_episodes:
        check_schedule_config(schedule_config(config), env.task.spec)
        if isinstance(env, Environment):
            check_course(env)
    if not config.rounds:
        check_fit(fit_config(config))
        return
    for name in ("rollout_length", "obs_margin"):
        if getattr(config.learn, name) is None:
            raise KairodeError(
                f"--learn.{name.replace('_', '-')} None works without Dyna rounds only: give a number, or --rounds 0."
            )


def _stages(config: RunConfig, env: System, folder: RunFolder, callback: Callback) -> dict[str, Any]:
    with _stage(folder, "data, models and policy"):
        trained = (train_with_dyna if config.rounds else train_without_rounds)(config, env, folder.path, callback)
        save_policy(folder.path, trained.policy, about(config))
        write(folder.path / "experience.parquet", trained.system.data)
    data = trained.system.data
    figures: dict[str, Any] = {
        "spec": spec_to_dict(env.task.spec),
        "real_episodes": {"imagination": len(data)},
        "real_decisions": {"imagination": data.decisions},
        **trained.figures,
    }
    policies: dict[str, Any] = {"imagination": trained.policy}
    if config.model_free_episodes != 0:
        count = len(data) if config.model_free_episodes is None else config.model_free_episodes
        with _stage(folder, "model-free policy"):
            # Where rounds are counted in decisions, the two have as many of these, not of episodes.
            budget = data.decisions if config.decisions_per_round and config.model_free_episodes is None else None
            free = train_model_free(config, env, count, folder.path, callback, data, budget)
            count = int(np.isfinite(free.training.returns[0, :, 0]).sum())
        policies["model-free"], figures["free_curve"] = free.policy, free.training.curve
        figures["real_episodes"]["model-free"] = count
        figures["real_decisions"]["model-free"] = free.training.decisions[0]
    with _stage(folder, "tests"):
        figures |= _kept(folder, "tests.json", lambda: evaluate_policies(config, env, trained, policies, callback))
    if config.schedule_episodes:
        with _stage(folder, "decision times"):
            figures["visits"] = _kept(folder, "visits.json", lambda: choose_times(config, trained, callback))
    return figures


def _stage(folder: RunFolder, name: str) -> Any:
    free_programs()
    return folder.stage(name)


def _kept(folder: RunFolder, file: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Results of a finished stage, from its file; otherwise computed, and saved there."""
    path = folder.path / file
    if not path.exists():
        folder.save_json(file, with_digest(make()))
    found = folder.load_json(file)
    if not isinstance(found, dict) or (JSON_DIGEST in found and not has_digest(found)):  # older versions wrote none
        raise KairodeError(f"{path} was changed after it was written: remove it, and run the command again.")
    return {name: value for name, value in found.items() if name != JSON_DIGEST}


def about(config: RunConfig) -> dict[str, Any]:
    """What a saved policy must know of the system that it was learned on."""
    return {"env": config.env, "setting": config.setting, "fields": config.env_fields, "schedule": config.schedule}


def fit_config(config: RunConfig) -> FitConfig:
    """The fit of a run without Dyna rounds: the environment's preset with the run's numbers."""
    preset = fit_preset(config.env)
    weights = dataclasses.replace(preset.training.weights, consistency=config.consistency)
    return dataclasses.replace(
        preset,
        model=config.model,
        sizes=dataclasses.replace(preset.sizes, solver=config.solver),
        training=dataclasses.replace(preset.training, iterations=config.fit_iterations, weights=weights),
        episodes=config.episodes,
        seeds=config.ensemble_size,
        seed=derive(config.seed, Purpose.RUN_MODEL),
        data_seed=config.seed,
        setting=config.setting,
        env_fields={**preset.env_fields, **config.env_fields},
    )


def train_without_rounds(config: RunConfig, env: System, path: Path, callback: Callback) -> Trained:
    """Fit models to random actions, and learn a policy in them."""
    fitted = run_fit(fit_config(config), path / "fit", callback)
    models, data = fitted.result.models, fitted.data.train
    figures = {name: fitted.record["figures"][name] for name in ("test_error", "mean", "std", "by_dimension")}
    intervals = fitted.record["figures"]["intervals"]
    message = (
        f"Collected {len(data):,} episodes with random actions ({data.decisions:,} decisions) and fitted {len(models)} "
        f"{config.model} model{'s' * (len(models) > 1)}: open-loop test error {figures['mean']:.3g}."
    )
    callback(Progress("fitting", message=message))
    members, validation_model = split_ensemble(models)
    learned = learn_policy(
        members,
        env,
        config.learn,
        data=data,
        schedule=config.schedule,
        seed=config.seed,
        latent_policy=config.latent_policy,
        validation_model=validation_model,
        monitor=env,
        folder=path / "imagination",
        callback=callback,
        stage=IMAGINATION,
    )
    episodes = config.learn.episodes
    callback(Progress(IMAGINATION, episodes, episodes, message=f"Learned a policy in {episodes:,} imagined episodes."))
    learn = config.learn if config.paper else None
    system = ModelledSystem(path, env, models, data, config.seed, config.latent_policy, about(config), learn)
    return Trained(system, learned.policy, {"fit": figures, "curve": learned.training.curve, "intervals": intervals})


def train_with_dyna(config: RunConfig, env: System, path: Path, callback: Callback) -> Trained:
    """Dyna rounds: collect (first with random actions, then with the policy), refit, learn in imagination."""
    dyna = dyna_of_run(config)
    result = run_rounds(dyna, env, folder=path / DYNA, callback=callback)
    system = ModelledSystem(
        path, env, result.models, result.data, config.seed, about=about(config), dyna=(dyna, result.state)
    )
    intervals = None if result.intervals is None else [result.intervals.figures()]
    return Trained(system, result.policy, {"rounds": result.rounds, "intervals": intervals})


def train_model_free(
    config: RunConfig,
    env: System,
    episodes: int,
    path: Path,
    callback: Callback,
    data: Trajectory,
    decisions: int | None = None,
) -> LearnResult:
    """DQN on the real environment, with the settings of the run's policy."""
    preset = learn_preset(config.env, model_free=True)
    dqn = with_reward_scale(config.learn.dqn, data)
    dqn = dataclasses.replace(dqn, target_period=DQNConfig.target_period)
    if decisions is not None:
        episodes, dqn = decisions, dataclasses.replace(dqn, cooldown=0.0)  # no episode is shorter than a decision
    found = learn_policy(
        None,
        env,
        dataclasses.replace(preset, episodes=episodes, dqn=dqn, validate_every=config.learn.validate_every),
        schedule=config.schedule,
        seed=config.seed,
        monitor=env,
        folder=path / "model-free",
        callback=callback,
        stage=MODEL_FREE,
        decisions=decisions,
    )
    episodes = int(np.isfinite(found.training.returns[0, :, 0]).sum())
    save_policy(path / "model-free", found.policy, about(config))
    message = f"Learned a policy without a model in {episodes:,} real episodes."
    callback(Progress(MODEL_FREE, episodes, episodes, message=message))
    return found


def evaluate_policies(
    config: RunConfig, env: System, trained: Trained, policies: dict[str, Any], callback: Callback
) -> dict[str, Any]:
    """Figures of the tests, with example episodes and a map of the policy, for the record."""
    tests = evaluate_on_system(env, policies, config.schedule, callback=callback)
    callback(Progress("simulating example episodes", message=f"Tested {len(tests)} policies on 100 episodes each."))
    return {
        "tests": tests,
        "courses": example_courses(env, trained.policy, trained.system.models[0], config.schedule),
        "map": policy_map(env, trained.policy, trained.system.data),
    }


def schedule_config(config: RunConfig) -> ScheduleConfig:
    """The choice of decision times as a stage of the main job."""
    return ScheduleConfig(
        prices=tuple(sorted(set(config.prices))),
        candidates=config.candidates,
        imagined_episodes=config.schedule_episodes,
        refits=config.schedule_refits,
        tolerance=config.tolerance,
        seed=config.seed,
    )


def choose_times(config: RunConfig, trained: Trained, callback: Callback) -> dict[str, Any]:
    """Decision times chosen by the models, compared with fixed intervals."""
    chosen = schedule_config(config)
    found = choose_and_test(trained.system, chosen, callback)
    callback(Progress("evaluating the run's main policy at fixed intervals"))
    usual = fixed_rows(found.system, trained.policy, chosen)
    shown = course(found.system.env, next(iter(found.episodes.values()))[0], found.system.models[0], points=3)
    name = trained.system.env.task.spec.decision_name
    message = f"Chose {name} times ({', '.join(found.record['figures']['intervals'])}), tested with fixed intervals."
    callback(Progress("decision times", message=message))
    return {**found.record["figures"], "usual": usual, "course": shown}
