"""`kairode.train_mpc`: MPC with a learned model, the paper's algorithm 3."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kairode._xla import free_programs
from kairode.algorithms.mpc_agent import FinishedEpisode
from kairode.algorithms.mpc_loop import MPCLoop
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.algorithms import MODEL_FREE, MPCConfig
from kairode.config.keywords import field_names, with_options
from kairode.config.planning import PlanConfig
from kairode.config.presets import mpc_preset
from kairode.data.checks import check_rewards, warn
from kairode.data.describe import spec_identity
from kairode.data.policy import Policy
from kairode.envs import make
from kairode.envs.core import Continuous, Environment, Spec
from kairode.envs.host import HostEnvironment
from kairode.envs.zoo import own_fields
from kairode.errors import KairodeError
from kairode.files import atomic_write
from kairode.models.ode import parse_solver
from kairode.seeds import Purpose, derive_many
from kairode.training.session import Session

SAVE_SECONDS = float(os.environ.get("KAIRODE_SAVE_SECONDS", "60"))
"""Time between checkpoints."""
MUTABLE_FIELDS = ("decisions", "test_episodes")
"""Fields that a resumed run may change: more decisions continue where fewer ended."""


def train_mpc(
    env: Environment | HostEnvironment | str,
    model: str = "latent-ode",
    *,
    decisions: int | None = None,
    agent: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    callback: Callback = no_callback,
    **options: Any,
) -> Policy:
    """Learn to control a system: `policy = kairode.train_mpc(kairode.make("pendulum"))`.

    Args:
        env: a system with continuous actions: an environment, its name, or your own.
        model: dynamics model to plan with, refitted as data grow; "free" uses the actor without a model.
        decisions: real decisions, initially random; by default those of the environment's preset.
        agent: ddpg, td3 or sac, or a dictionary of fields of `ActorCriticConfig`: {"kind": "sac", "warmup": 1000}.
        seed: random seed.
        folder: keep checkpoints there, and resume from them.
        callback: called with a `kairode.callbacks.Progress`.
        options: fields of `PlanConfig` (candidates, horizon, noise, elites, iterations), `solver` (of an ODE) and other
            fields of `MPCConfig` (refit_every, relative_obs, ..), of which `sizes` and `training` take dictionaries.
    """
    env = make(env) if isinstance(env, str) else env
    if not isinstance(env, Environment | HostEnvironment):
        raise KairodeError(f"env must be an environment, such as kairode.make('pendulum'), got {type(env).__name__}.")
    spec = env.task.spec
    fields = {} if agent is None or isinstance(agent, str) else dict(agent)
    kind = agent if isinstance(agent, str) else fields.get("kind")
    config = with_plan(
        mpc_preset(spec.name, model, kind, seed=seed), {**options, "agent": fields} if fields else options
    )
    decisions = config.decisions if decisions is None else decisions
    config = dataclasses.replace(config, env_fields=own_fields(env), decisions=decisions)
    with MPCTraining(config, env, None if folder is None else Path(folder), callback) as training:
        training.run()
        return training.policies()[0]


def with_plan(config: MPCConfig, options: dict[str, Any]) -> MPCConfig:
    """Change fields of a config or of its plan; fewer candidates have fewer elites."""
    plan = field_names(PlanConfig)
    if "candidates" in options and "elites" not in options:
        options = {**options, "elites": max(1, min(config.plan.elites, options["candidates"] // 20))}
    if "solver" in options:
        config = dataclasses.replace(config, sizes=dataclasses.replace(config.sizes, solver=options["solver"]))
    for name in options:
        if name in (*plan, "solver"):
            _check_effect(config, "sizes.solver" if name == "solver" else f"plan.{name}")
    own = field_names(MPCConfig, but=("env", "model", "plan", "seed", "env_fields"))
    others = {name: value for name, value in options.items() if name != "solver"}
    return with_options(config, others, where="kairode.train_mpc", own=own, parts=("plan",))


def check_mpc(config: MPCConfig, spec: Spec) -> MPCConfig:
    """Raise for settings without effect and discrete actions, before any work is done."""
    if not isinstance(spec.actions, Continuous):
        raise KairodeError(f"MPC needs continuous actions; those of '{spec.name}' are discrete: use kairode.learn.")
    if config.model != MODEL_FREE:
        parse_solver(config.sizes.solver, 1.0)
    usual = mpc_preset(config.env, config.model)
    for field in dataclasses.fields(PlanConfig):
        if getattr(config.plan, field.name) != getattr(usual.plan, field.name):
            _check_effect(config, f"plan.{field.name}")
    if config.sizes.solver != usual.sizes.solver:
        _check_effect(config, "sizes.solver")
    if not any(variable.relative for variable in spec.observations):
        if not config.relative_obs:
            raise KairodeError(
                f"relative_obs=False (--no-relative-obs) has no effect: '{spec.name}' has no relative variables."
            )
    elif config.setting == "paper":
        return dataclasses.replace(config, relative_obs=False)
    return config


def _check_effect(config: MPCConfig, path: str) -> None:
    name = path.rpartition(".")[2]
    if config.model == MODEL_FREE:
        raise KairodeError(f"{name} (--{path}) has no effect: without a model there is no planning.")
    if name == "solver" and "ode" not in config.model:
        raise KairodeError(f"{name} (--{path}) has no effect: the model {config.model} has no ODE.")


class MPCTraining:
    """The loop around `MPCLoop`: refits, checkpoints, interrupts, curves. A context manager that closes simulations."""

    def __init__(self, config: MPCConfig, env: Any, folder: Path | None, callback: Callback = no_callback) -> None:
        self.config = check_mpc(config, env.task.spec)
        self.folder, self.callback = folder, callback
        fields = {name: value for name, value in dataclasses.asdict(self.config).items() if name not in MUTABLE_FIELDS}
        identity = {"config": fields, "system": spec_identity(env.task.spec)}
        self.session = Session(folder, identity, save_seconds=SAVE_SECONDS)
        self.episodes: list[FinishedEpisode] = []
        self.fits: list[dict[str, Any]] = []
        if self.session.resumable:
            self.session.restore_about()
            taken = self.session.earlier["decisions"]
            if taken > config.decisions:
                raise KairodeError(
                    f"the run in {folder} has already taken {taken:,} decisions, more than the "
                    f"{config.decisions:,} asked for (decisions): choose another folder, or more decisions."
                )
        seeds = derive_many(config.seed, Purpose.AGENT, config.seeds)
        self.loop = MPCLoop(env, self.config, seeds, config.decisions)

    def __enter__(self) -> "MPCTraining":
        return self

    def __exit__(self, *error: Any) -> None:
        self.loop.close()

    def run(self) -> None:
        """Run from the last checkpoint, or the start, to the last decision."""
        with self.session.locked():
            self._run()

    def _run(self) -> None:
        loop, config = self.loop, self.config
        if not self._restored():
            self.callback(Progress("random decisions", 0, config.agent.warmup))
            self.episodes += loop.warm_up(
                lambda done: self.callback(Progress("random decisions", done, config.agent.warmup))
            )
            sizes = [abs(one.earned) for one in self.episodes]
            warn(check_rewards(sum(sizes) / (config.agent.warmup * config.seeds), config.agent.reward_scale))
        self._mark()
        with self.session:
            self.session.complete = self.session.resumable and loop.decisions >= config.decisions
            while loop.decisions < config.decisions:
                self.refit_if_due()
                self.episodes += loop.step()
                stop = self.session.interrupted()
                if loop.decisions % 100 == 0:
                    self._report_progress()
                    if self.session.due() and not stop:
                        self._save()
                if stop and loop.decisions < config.decisions:
                    self._save()
                    raise self.session.stop(f"after {loop.decisions:,} decisions")
            if not self.session.complete:
                self._save()
        loop.update_learner()

    def policies(self) -> list[Policy]:
        """Policy of each seed, without exploration noise."""
        return self.loop.policies()

    def refit_if_due(self) -> None:
        """Refit the model every `refit_every` decisions."""
        loop, config = self.loop, self.config
        since = loop.decisions - config.agent.warmup
        if since % config.refit_every or since // config.refit_every != loop.epoch:
            return
        if config.model != MODEL_FREE:
            self.callback(Progress("fitting the model"))
        free_programs()
        if fitted := loop.begin_epoch():
            self.fits.append({"decisions": loop.decisions, **fitted})
        self._mark()

    def _restored(self) -> bool:
        """Restore the loop from a checkpoint; False if there is none."""
        if not self.session.resumable:
            return False
        self.session.restore_about()
        about = self.session.earlier
        template = self.loop.checkpoint_template(about["decisions"])
        arrays = self.session.restore(self.session.with_saved_shapes(template, "vector_env.physics"))
        if not self.loop.restore(arrays, about["decisions"], about["epoch"]):
            name = self.loop.spec.name
            message = f"The simulator of '{name}' cannot be continued: its last episode begins again."
            self.callback(Progress(f"{self.config.env}, {self.config.model}", message=message))
        self.loop.stage_seconds = about.get("stage_seconds") or about["spent"]  # the name in older checkpoints
        self.episodes, self.fits = [FinishedEpisode(*entry) for entry in about["ended"]], about["fits"]
        return True

    def _save(self) -> None:
        loop = self.loop
        if self.folder is not None:
            lived = [entry for entry in curve(self.config, self.episodes) if entry["decisions"] <= loop.decisions]
            with atomic_write(self.folder / "metrics.jsonl") as part:
                part.write_text("".join(json.dumps(line) + "\n" for line in (*self.fits, *lived)))
        about = {"decisions": loop.decisions, "epoch": loop.epoch, "ended": self.episodes, "fits": self.fits}
        self.session.save(loop.arrays(), stage_seconds=loop.stage_seconds, **about)

    def _mark(self) -> None:
        self.mark = (self.loop.decisions, self.loop.stage_seconds["planning"])

    def _report_progress(self) -> None:
        first, planning = self.mark
        latest = [[e.earned for e in self.episodes[-200:] if e.seed == i][-5:] for i in range(self.config.seeds)]
        metrics: dict[str, Any] = {"return": [float(np.mean(some)) if some else float("nan") for some in latest]}
        if self.loop.decisions > first:
            seconds = self.loop.stage_seconds["planning"] - planning
            metrics["ms_per_decision"] = 1e3 * seconds / (self.loop.decisions - first)
        if self.fits:
            errors = self.fits[-1].get("model_error", [])
            metrics["model_error"] = [float("nan") if error is None else error for error in errors]
        stage = f"{self.config.env}, {self.config.model}"
        self.callback(Progress(stage, self.loop.decisions, self.config.decisions, metrics, self.session.here))


def curve(config: MPCConfig, episodes: list[FinishedEpisode]) -> list[dict[str, Any]]:
    """Mean return of the episodes that ended between refits, for every seed (None if none did); random ones first."""
    warmup, found = config.agent.warmup, []
    marks = [warmup, *range(warmup + config.refit_every, config.decisions + config.refit_every, config.refit_every)]
    for low, high in zip([0, *marks[:-1]], marks, strict=True):
        mine = [[e for e in episodes if e.seed == i and low < e.decision <= high] for i in range(config.seeds)]
        found.append(
            {
                "decisions": min(high, config.decisions),
                "return": [float(np.mean([e.earned for e in some])) if some else None for some in mine],
                "length": [float(np.mean([e.length for e in some])) if some else None for some in mine],
                "episodes": [len(some) for some in mine],
            }
        )
    return found
