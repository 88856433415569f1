"""`kairode run`: collect, fit, learn in imagination, test beside other policies, choose visit times.

Every stage leaves what it came to in the run's folder, so that the same command goes on where it was; the record is
made of these alone.
"""

import dataclasses
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kairode._xla import make_room
from kairode.agents.policy_files import save_policy
from kairode.agents.q_policy import QPolicy
from kairode.algorithms.dyna import IMAGINATION, dyna_policy, load_dyna, run_dyna
from kairode.algorithms.fit import FitConfig, make_fit_config, run_fit, same_config
from kairode.algorithms.learn import LearnResult, learn_with_curve
from kairode.config.presets import preset
from kairode.config.run import RunConfig, command
from kairode.data import Trajectory, write
from kairode.data.describe import spec_to_dict
from kairode.envs.consistency import check_course
from kairode.envs.core import Environment
from kairode.envs.schedule import as_schedule
from kairode.errors import Stopped
from kairode.files import check_target, save_json
from kairode.models.dynamics import DynamicsModel
from kairode.runs.course import course
from kairode.runs.findings import on_the_system, policy_map, shown_courses
from kairode.runs.labels import upgraded
from kairode.runs.record import record
from kairode.runs.schedule import PRACTICE, ScheduleConfig, check_schedule_config, fixed_rows, run_schedule
from kairode.runs.watch import Watch
from kairode.seeds import Purpose, derive

IMAGINED = ("margin", "branch", "sample_intervals")
"""Options of learning that concern imagination alone."""

MODEL_FREE = "learning without a model"


class TrainedPolicy(NamedTuple):
    """What experience came to."""

    models: list[DynamicsModel]
    data: Trajectory
    """What the models were fitted to."""
    policy: QPolicy
    figures: dict[str, Any]
    """How it was come by."""


def run_pipeline(config: RunConfig, folder: Path, watch: Watch | None = None) -> dict[str, Any]:
    """Do what the config says in a folder of its own, or go on with what is there; the record."""
    watch = watch or Watch()
    env = config.make()
    as_schedule(config.schedule, env.task.spec)
    check_target(folder / "config.json")
    same_config(config, folder)
    path = folder / "record.json"
    if path.exists():
        watch.said(f"All of this is done already, and is in {folder}: remove it to begin anew.")
        return upgraded(json.loads(path.read_text()))
    if config.visits:
        check_schedule_config(_schedule_config(config), env.task.spec)
        check_course(env)
    if not config.rounds:
        _fit(config)
    begun = (folder / "config.json").exists()
    save_json(folder / "config.json", dataclasses.asdict(config))
    watch.said(
        f"{command(config)}, in {folder}{', which holds a part of it: going on' if begun else ''}. Stopped at any "
        "moment, the same command goes on from what is saved."
    )
    spent = StageTimer(folder / "stages.json")
    try:
        figures = _stages(config, env, folder, watch, spent)
    except (Stopped, KeyboardInterrupt) as stopped:
        said = re.split(r"[.;] [Tt]he same", str(stopped))[0].rstrip(".") or "interrupted"
        raise Stopped(f"{said}. The same command goes on from what is saved: {command(config, folder)}") from None
    made = record("run", config, figures, command=command(config, folder), seconds=sum(spent.seconds.values()))
    made["stages"] = spent.seconds
    made = upgraded(made)  # a stage of an older version may have been done before
    save_json(path, made)
    return made


class StageTimer:
    """Seconds of every stage, those of processes before this one included."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """What some work came to; how long it took is written down, also where it was interrupted."""
        make_room()
        started = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 1)
            save_json(self.path, self.seconds)


def _stages(config: RunConfig, env: Environment, folder: Path, watch: Watch, spent: StageTimer) -> dict[str, Any]:
    """One after the other; what each came to."""
    gain = in_rounds if config.rounds else at_once
    gained = spent.timed("experience, models and policy", lambda: gain(config, env, folder, watch))
    save_policy(folder, gained.policy, _about(config))
    write(folder / "experience.parquet", gained.data)
    figures: dict[str, Any] = {
        "spec": spec_to_dict(env.task.spec),
        "real_episodes": {"imagination": len(gained.data)},
        "real_decisions": {"imagination": gained.data.decisions},
        **gained.figures,
    }
    policies: dict[str, Any] = {"imagination": gained.policy}
    if config.model_free != 0:
        free = spent.timed("model-free", lambda: _model_free(config, env, folder, gained, watch))
        policies["model-free"], figures["free_curve"] = free.policy, free.training.curve
        figures["real_episodes"]["model-free"] = _free_episodes(config, gained)
        figures["real_decisions"]["model-free"] = free.training.decisions[0]
    figures |= spent.timed(
        "tests", lambda: kept(folder / "tests.json", lambda: _tests(config, env, gained, policies, watch))
    )
    number = figures["tests"]["imagination"]["episodes"]
    watch.said(f"Tested {len(figures['tests'])} policies on {number} new real episodes each.")
    if config.visits:
        figures["visits"] = spent.timed("visits", lambda: _visits(config, folder, gained, watch))
    return figures


def _about(config: RunConfig) -> dict[str, Any]:
    """What a policy remembers of where it belongs."""
    return {"env": config.env, "setting": config.setting, "fields": config.fields, "schedule": config.schedule}


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file holds; made and written first where it is not there."""
    if not path.exists():
        save_json(path, make())
    return dict(json.loads(path.read_text()))


def _fit(config: RunConfig) -> FitConfig:
    """The fit to random experience."""
    chosen = preset(config.env)
    settings = dataclasses.replace(chosen.settings, iterations=config.iterations)
    return make_fit_config(
        config.env,
        config.model,
        dataclasses.replace(chosen, settings=settings, episodes=config.episodes),
        seeds=config.fits,
        seed=derive(config.seed, Purpose.RUN_MODEL),
        data_seed=config.seed,
        setting=config.setting,
        fields=config.fields,
    )


def at_once(config: RunConfig, env: Environment, folder: Path, watch: Watch) -> TrainedPolicy:
    """Models of random actions alone, and a policy learned in their imagination."""
    fit = _fit(config)
    watch.stage("collecting", fit.preset.episodes + fit.preset.valid + fit.preset.test)
    fitted, data, made = run_fit(
        fit, folder / "fit", fit_callback=watch.fitting, collected=watch.collecting, callback=watch.callback
    )
    figures = {name: made["figures"][name] for name in ("test_error", "mean", "std", "by_dimension")}
    watch.said(
        f"Collected {len(data.train):,} episodes under random actions ({data.train.decisions:,} decisions), and fitted "
        f"{config.fits} {config.model} model{'s' * (config.fits > 1)} to them: a mean squared error of "
        f"{figures['mean']:.3g} on episodes they have not seen, from the first observation alone."
    )
    watch.stage(IMAGINATION, config.imagined)
    learned = learn_with_curve(
        fitted.models,
        env,
        data=data.train,
        schedule=config.schedule,
        episodes=config.imagined,
        seed=config.seed,
        latent=config.latent,
        folder=folder / "imagination",
        callback=lambda report: watch.practice(IMAGINATION, report),
        watch=env,
        **config.learning,
    )
    watch.said(f"Learned a policy in {config.imagined:,} imagined episodes.")
    curve = learned.training.curve
    return TrainedPolicy(fitted.models, data.train, learned.policy, {"fit": figures, "curve": curve})


def in_rounds(config: RunConfig, env: Environment, folder: Path, watch: Watch) -> TrainedPolicy:
    """Taking turns: collect (first at random, then with the policy), refit, learn on in imagination."""
    place, unit = folder / "rounds", "discounted return" if env.task.spec.judged_discounted else "return"

    def callback(found: Any) -> None:
        watch.said(
            f"{'Random actions' if found.number == 0 else f'Round {found.number}'}: {found.real_episodes} real "
            f"episodes so far; {config.fits} models refitted, the policy learned on in imagination: {unit} "
            f"{found.tested.mean:.3g} on the real system."
        )

    made = run_dyna(config.in_turns, place, callback, watch, command(config, folder))
    state = load_dyna(place)
    policy = dyna_policy(config.in_turns, env, state)
    return TrainedPolicy(state.members, state.data, policy, {"rounds": made["figures"]["rounds"]})


def _free_episodes(config: RunConfig, gained: TrainedPolicy) -> int:
    """How many the model-free policy practises: as many as the other has seen, unless it is said."""
    return len(gained.data) if config.model_free is None else config.model_free


def _model_free(config: RunConfig, env: Environment, folder: Path, gained: TrainedPolicy, watch: Watch) -> LearnResult:
    """A policy that practised on the real system."""
    count = _free_episodes(config, gained)
    watch.stage(MODEL_FREE, count)
    found = learn_with_curve(
        None,
        env,
        schedule=config.schedule,
        episodes=count,
        seed=config.seed,
        folder=folder / "model-free",
        callback=lambda report: watch.practice(MODEL_FREE, report),
        watch=env,
        **{name: value for name, value in config.learning.items() if name not in IMAGINED},
    )
    save_policy(folder / "model-free", found.policy, _about(config))
    watch.said(f"Beside it, a policy without a model practised for {count:,} real episodes.")
    return found


def _tests(
    config: RunConfig, env: Environment, gained: TrainedPolicy, policies: dict[str, Any], watch: Watch
) -> dict[str, Any]:
    """Tests on episodes that nothing was learned from, and what there is to look at."""
    tests = on_the_system(env, policies, config.schedule, callback=watch.callback)
    watch.stage("simulating example episodes")
    return {
        "tests": tests,
        "courses": shown_courses(env, gained.policy, gained.models[0], config.schedule),
        "map": policy_map(env, gained.policy, gained.data),
    }


def _schedule_config(config: RunConfig) -> ScheduleConfig:
    prices = tuple(sorted(set(config.prices)))
    return ScheduleConfig(
        prices=prices,
        taus=config.candidates,
        imagined=config.visits,
        revisits=config.revisits,
        tolerance=config.tolerance,
        learning_seed=config.seed,
    )


def _visits(config: RunConfig, folder: Path, gained: TrainedPolicy, watch: Watch) -> dict[str, Any]:
    """Visit times chosen by the models, beside fixed ones."""
    schedule_config = _schedule_config(config)

    def make() -> dict[str, Any]:
        made, loaded, episodes = run_schedule(
            folder,
            schedule_config,
            callback=lambda report: watch.practice(PRACTICE, report),
            said=watch.stage,
            ended=watch.said,
            fitting=watch.fitting,
        )
        watch.stage("evaluating the other policy")
        usual = fixed_rows(loaded, gained.policy, schedule_config)
        shown = course(loaded.env, next(iter(episodes.values()))[0], loaded.models[0], points=3)
        return {**made["figures"], "usual": usual, "course": shown}

    found = kept(folder / "visits.json", make)
    watch.said(
        f"Let the models choose {gained.data.spec.decision_name} times ({', '.join(found['intervals'])}), and tested "
        f"them beside {len(found['usual']) - 1} fixed intervals."
    )
    return found
