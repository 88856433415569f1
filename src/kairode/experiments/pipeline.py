"""`kairode run`: collect, fit, learn in imagination, test on the real system beside model-free and random policies."""

import dataclasses
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kairode.agents.evaluate import Evaluation, evaluate
from kairode.agents.learn import PracticeReport
from kairode.agents.store import describe_policy, load_policy, save_policy
from kairode.data import Trajectory, write
from kairode.data.files import check_target
from kairode.envs import make
from kairode.envs.core import Environment
from kairode.envs.schedule import as_schedule
from kairode.errors import KairodeError, Stopped
from kairode.experiments.fitting import plan, run_fit, same_config
from kairode.experiments.learning import Learned, imagined_episodes, learn_more, policy_preset
from kairode.experiments.pilots import evaluate_control, is_control
from kairode.experiments.presets import preset
from kairode.experiments.record import record, save
from kairode.experiments.scheduling import chosen_of
from kairode.training.loop import Report
from kairode.training.store import load_models


@dataclasses.dataclass(frozen=True)
class Run:
    """What to do."""

    env: str = "hiv"
    """Name of the environment."""
    model: str = "latent-ode"
    """Name of the dynamics model."""
    episodes: int = 1000
    """Real episodes under random actions, to fit the models to."""
    iterations: int = 12_000
    """Of fitting."""
    fits: int = 3
    """Models; from three on, one judges what the policy learns in the others."""
    imagined: int = 300
    """Episodes of practice in imagination."""
    model_free: int = 300
    """Episodes of practice of the model-free policy, on the real system; 0 for none."""
    latent: bool = False
    """Whether the policy sees the model's latent state too."""
    schedule: float | None = None
    """Learn for this interval; None for the environment's own schedule."""
    seed: int = 0
    """Fixes everything random."""
    setting: str = "ours"
    """Of the environment: ours or paper."""
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the environment that differ from its setting."""

    def __post_init__(self) -> None:
        for name, least in (("episodes", 1), ("iterations", 1), ("fits", 1), ("imagined", 1), ("model_free", 0)):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= least):
                option = name.replace("_", "-")
                raise KairodeError(f"--{option} must be a whole number of at least {least}, got {value}.")


@dataclasses.dataclass(frozen=True)
class Watch:
    """Who is told what goes on; every part may be ignored."""

    fitting: Callable[[Report], None] = lambda report: None
    collecting: Callable[[int], None] | None = None
    practice: Callable[[str, PracticeReport], None] = lambda what, report: None


def defaults(env: str, latent: bool) -> dict[str, int]:
    """How much practice belongs to an environment."""
    usual = policy_preset(env)
    return {"imagined": imagined_episodes(usual, branching=not latent), "model_free": usual.real}


def run(config: Run, folder: Path, watch: Watch | None = None) -> tuple[Trajectory, dict[str, Any]]:
    """Do what the config says in a folder of its own, or go on with what is there."""
    watch = watch or Watch()
    env = make(config.env, setting=config.setting, **config.fields)
    as_schedule(config.schedule, env.task.spec)
    check_target(folder / "config.json")
    same_config(config, folder)
    chosen = preset(config.env)
    settings = dataclasses.replace(chosen.settings, iterations=config.iterations)
    chosen = dataclasses.replace(chosen, settings=settings, episodes=config.episodes)
    fit = plan(
        config.env,
        config.model,
        chosen,
        seeds=config.fits,
        seed=100 * config.seed,  # so that runs of neighbouring seeds share no model
        data_seed=config.seed,
        setting=config.setting,
        fields=config.fields,
    )
    save(folder / "config.json", dataclasses.asdict(config))
    started = time.perf_counter()
    try:
        fitted, data, fit_record = run_fit(fit, folder / "fit", tell=watch.fitting, collected=watch.collecting)
        learned = _learned(config, env, folder, fitted.models, data.train, watch)
        free = _learned(config, env, folder, None, data.train, watch) if config.model_free else None
    except Stopped as stopped:
        said = str(stopped).split(" The same")[0]
        raise Stopped(f"{said} The same command goes on from there: {command(config, folder)}") from None
    write(folder / "experience.parquet", data.train)
    path = folder / "record.json"
    if path.exists():  # done before: the record of that stands
        return data.train, json.loads(path.read_text())
    figures = _figures(config, env, fit_record, learned, free)
    made = record("run", config, figures, command=command(config, folder), seconds=time.perf_counter() - started)
    save(path, made)
    return data.train, made


def _learned(config: Run, env: Environment, folder: Path, models: Any, data: Trajectory, watch: Watch) -> Learned:
    """A policy: in imagination, or where there are no models on the real system."""
    what, episodes = ("imagination", config.imagined) if models is not None else ("model-free", config.model_free)
    found = learn_more(
        models,
        env,
        data=data,
        schedule=config.schedule,
        episodes=episodes,
        seed=config.seed,
        latent=config.latent and models is not None,
        folder=folder / what,
        tell=lambda report: watch.practice(what, report),
        watch=env,
    )
    place = folder if models is not None else folder / what
    about = {"env": config.env, "setting": config.setting, "fields": config.fields, "schedule": config.schedule}
    save_policy(place, found.policy, about)
    return found


def _figures(
    config: Run, env: Environment, fit_record: dict[str, Any], learned: Learned, free: Learned | None
) -> dict[str, Any]:
    """Everything that came out."""
    policies: dict[str, Any] = {"imagination": learned.policy}
    if free is not None:
        policies["model-free"] = free.policy
    policies["random"] = None
    tests = {name: evaluate(env, policy, schedule=config.schedule).figures() for name, policy in policies.items()}
    curves = {"imagination": learned.practised.curve}
    if free is not None:
        curves["model-free"] = free.practised.curve
    return {
        "tests": tests,
        "curves": curves,
        "fit": {name: fit_record["figures"][name] for name in ("test_error", "mean", "std")},
        "practice_decisions": {
            name: one.practised.decisions[0]
            for name, one in (("imagination", learned), ("model-free", free))
            if one is not None
        },
    }


def command(config: Run, folder: Path | None = None) -> str:
    """The command that makes the run again."""
    usual = {**dataclasses.asdict(Run(config.env)), **defaults(config.env, config.latent)}
    words = ["kairode", "run", config.env]
    for name, value in dataclasses.asdict(config).items():
        if name in ("env", "fields") or value == usual[name]:
            continue
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    if config.fields:
        words += ["--set", *(f"{name}={json.dumps(value)}" for name, value in config.fields.items())]
    return shlex.join([*words, *([] if folder is None else ["--out", str(folder)])])


def evaluate_run(
    folder: Path, *, schedule: Any = None, episodes: int = 100, accrue: bool | None = None, seed: int = 0
) -> tuple[dict[str, Any], Evaluation]:
    """Test the policy of a folder on the real system: on its own schedule, any other, or at chosen times."""
    if is_control(folder):
        if isinstance(schedule, str):
            chosen_of(folder)  # says why not
        return evaluate_control(folder, schedule=schedule, episodes=episodes, accrue=accrue, seed=seed)
    if isinstance(schedule, str) and schedule == "chosen":
        source, policy, visits = chosen_of(folder)
        found = evaluate(source.env, policy, episodes=episodes, schedule=visits, seed=seed)
        return {**source.about, "schedule": "chosen"}, found
    about = describe_policy(folder)
    if about["schedule"] == "chosen":
        raise KairodeError(f"{folder} is of chosen visits: evaluate {folder.parent} with --schedule chosen.")
    model = load_models(folder / "fit")[0] if about["sees"] == "z" else None
    env = make(about["env"], setting=about["setting"], **about["fields"])
    timing = about["schedule"] if schedule is None else schedule
    found = evaluate(env, load_policy(folder, model), episodes=episodes, schedule=timing, accrue=accrue, seed=seed)
    return {**about, "schedule": timing}, found
