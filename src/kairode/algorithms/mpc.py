"""`kairode run hopper`: planning with the learned model inside the loop, the paper's algorithm 3."""

import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from kairode._xla import make_room
from kairode.agents.evaluate import evaluate
from kairode.algorithms.fit import same_config, same_system
from kairode.algorithms.mpc_agent import FREE, FinishedEpisode
from kairode.algorithms.mpc_loop import MPCLoop
from kairode.config.mpc import MPCConfig, command, with_options
from kairode.data.policy import Policy
from kairode.envs import make
from kairode.envs.core import Continuous, Environment, Spec
from kairode.envs.host import HostEnvironment
from kairode.envs.zoo import own_fields
from kairode.errors import KairodeError, Stopped
from kairode.files import atomic_write, check_target, save_json
from kairode.planning.mpc import Planner
from kairode.runs.record import record
from kairode.seeds import Purpose, derive_many
from kairode.stats import mean, std
from kairode.training import checkpoint
from kairode.training.loop import interrupts
from kairode.trees import stack

SAVE_SECONDS = 60.0
"""Least time between two checkpoints; more where one takes long."""


@dataclasses.dataclass(frozen=True)
class MPCProgress:
    """What the loop tells whoever watches it."""

    decisions: int
    wanted: int
    phase: str
    """random, fitting, acting or testing."""
    returns: list[float]
    """Mean of each seed's latest episodes (NaN before the first)."""
    plan_ms: float
    """Milliseconds to decide, all seeds together, lately."""
    rate: float
    """Decisions a second, all seeds together, lately."""
    model_error: list[float]


Tell = Callable[[MPCProgress], None]


def run_mpc(config: MPCConfig, folder: Path, callback: Tell = lambda report: None) -> dict[str, Any]:
    """Do what the config says in a folder of its own, or go on with what is there."""
    env = make(config.env, setting=config.setting, **config.fields)
    _check_controls(env.task.spec)
    check_target(folder / "config.json")
    path = folder / "record.json"
    if (
        checkpoint.exists(folder) or path.exists()
    ):  # what stopped before its first checkpoint left nothing to go on from
        same_config(config, folder, free=("decisions", "test"))  # more decisions go on from where fewer ended
        _not_fewer(config, folder)
    if path.exists():
        made = json.loads(path.read_text())
        if made["config"] == json.loads(json.dumps(dataclasses.asdict(config))):
            return made
    run = _Run(config, env, folder, callback)
    save_json(folder / "config.json", dataclasses.asdict(config))
    try:
        run.go()
        return run.finish()
    finally:
        run.loop.close()


def train_mpc(
    env: Any,
    model: str = "latent-ode",
    *,
    decisions: int | None = None,
    agent: str | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    callback: Tell = lambda report: None,
    **options: Any,
) -> Policy:
    """Learn to steer a system with controls: `policy = kairode.steer(kairode.make("pendulum"))`.

    Args:
        env: the system, one of ours (or its name) or your own.
        model: name of the dynamics model to plan with, refitted as experience grows; "free" for none.
        decisions: real decisions, random ones first; None for what is usual.
        agent: ddpg, td3 or sac.
        seed: fixes everything random.
        folder: keep checkpoints there, and go on from them.
        tell: is told how far it is.
        options: sequences, rounds, noise (of a plan), solver (of an ODE), places (see where a robot is).
    """
    env = make(env) if isinstance(env, str) else env
    if not isinstance(env, Environment | HostEnvironment):
        raise KairodeError(f"a system is needed, such as kairode.make('pendulum'), got a {type(env).__name__}.")
    spec = env.task.spec
    _check_controls(spec)
    config = with_options(spec.name, model, decisions=decisions, agent=agent, seed=seed, **options)
    config = dataclasses.replace(config, fields=own_fields(env))
    with tempfile.TemporaryDirectory() if folder is None else contextlib.nullcontext(folder) as place:
        same_config(config, Path(place), free=("decisions", "test"))
        same_system(spec, Path(place))
        run = _Run(config, env, Path(place), callback)
        save_json(Path(place) / "config.json", dataclasses.asdict(config))
        try:
            run.go()
            run.loop.settle()
            return run.loop.policies()[0]
        finally:
            run.loop.close()


def _check_controls(spec: Spec) -> None:
    if not isinstance(spec.actions, Continuous):
        raise KairodeError(f"actor-critics are for controls; the actions of '{spec.name}' have names.")


def _not_fewer(config: MPCConfig, folder: Path) -> None:
    """Refuse fewer decisions than were taken: what was learned from the others cannot be taken back."""
    taken = checkpoint.describe(folder)["decisions"] if checkpoint.exists(folder) else 0
    if taken > config.decisions:
        raise KairodeError(
            f"the run in {folder} has taken {taken:,} decisions already, --decisions asks for {config.decisions:,}: "
            "choose another folder with --out."
        )


class _Run:
    """The loop around a crew: epochs, checkpoints, interrupts, figures."""

    def __init__(self, config: MPCConfig, env: Any, folder: Path, callback: Tell) -> None:
        self.config, self.env, self.folder, self.callback = config, env, folder, callback
        seeds = derive_many(config.seed, Purpose.AGENT, config.seeds)
        self.loop = MPCLoop(env, config.config, seeds, config.decisions)
        self.ended: list[FinishedEpisode] = []
        self.fits: list[dict[str, Any]] = []
        self.earlier = 0.0
        self.started = self.saved = time.perf_counter()
        self.save_takes = 0.0
        self.errors: list[float] = []

    @property
    def seconds(self) -> float:
        """Spent so far, earlier processes included."""
        return self.earlier + time.perf_counter() - self.started

    def go(self) -> None:
        """From the last checkpoint, or the beginning, to the last decision."""
        loop, config = self.loop, self.config
        if not self._resumed():
            self.ended += loop.warm_up(lambda done: self._say("random", done))
        with interrupts() as asked:
            while loop.decisions < config.decisions:
                since = loop.decisions - config.agent.warmup
                if since % config.epoch == 0 and since // config.epoch == loop.epoch:
                    if config.model != FREE:
                        self._say("fitting", loop.decisions)
                    make_room()
                    fitted = loop.begin_epoch()
                    if fitted:
                        self.fits.append({"decisions": loop.decisions, **fitted})
                        self.errors = fitted["model_error"]
                    self._mark()
                self.ended += loop.turn()
                stop = asked()
                if loop.decisions % 100 == 0:
                    self._say("acting", loop.decisions)
                    due = time.perf_counter() - self.saved > max(SAVE_SECONDS, 20 * self.save_takes)
                    if due and not stop:
                        self._keep()
                if stop and loop.decisions < config.decisions:
                    self._keep()
                    raise Stopped(
                        f"interrupted after {loop.decisions:,} decisions, saved. The same command goes on from there: "
                        f"{command(config, self.folder)}"
                    )
            self._keep()

    def finish(self) -> dict[str, Any]:
        """Test, and write down what came out."""
        config = self.config
        self.loop.settle()
        self._say("testing", config.decisions)
        policies = self.loop.policies()
        save_policies(self.folder, policies)
        tests = [evaluate(self.env, policy, episodes=config.test).figures() for policy in policies]
        chance = evaluate(self.env, None, episodes=100).figures()
        figures = {
            "tests": tests,
            "actors": actors_alone(self.env, policies, config.test),
            "return": mean([test["return"] for test in tests]),
            "return_std": std([test["return"] for test in tests]),
            "random": chance,
            "curve": curve(config, self.ended),
            "fits": self.fits,
            "skipped": np.asarray(self.loop.learner.skipped).tolist(),
            "spent": {name: round(seconds, 1) for name, seconds in self.loop.spent.items()},
        }
        made = record("control", config, figures, command=command(config), seconds=self.seconds)
        save_json(self.folder / "record.json", made)
        return json.loads(json.dumps(made))

    def _resumed(self) -> bool:
        """Whether there was a checkpoint, which the crew then stands at."""
        if not checkpoint.exists(self.folder):
            return False
        about = checkpoint.describe(self.folder)
        arrays = checkpoint.load(self.folder, self.loop.like(about["decisions"]))
        self.loop.restore(arrays, about["decisions"], about["epoch"])
        self.loop.spent = about["spent"]
        self.ended, self.fits = [FinishedEpisode(*entry) for entry in about["ended"]], about["fits"]
        self.errors = self.fits[-1].get("model_error", []) if self.fits else []
        self.earlier = about["seconds"]
        self._mark()
        return True

    def _keep(self) -> None:
        """Write a checkpoint."""
        begun, loop = time.perf_counter(), self.loop
        lived = [entry for entry in curve(self.config, self.ended) if entry["decisions"] <= loop.decisions]
        lines = [*self.fits, *lived]
        with atomic_write(self.folder / "metrics.jsonl") as part:
            part.write_text("".join(json.dumps(line) + "\n" for line in lines))
        checkpoint.save(
            self.folder,
            loop.arrays(),
            decisions=loop.decisions,
            epoch=loop.epoch,
            ended=self.ended,
            fits=self.fits,
            seconds=round(self.seconds, 2),
            spent=loop.spent,
        )
        self.saved = time.perf_counter()
        self.save_takes = self.saved - begun

    def _mark(self) -> None:
        """From here on rates are measured."""
        self.mark = (time.perf_counter(), self.loop.decisions, self.loop.spent["planning"])

    def _say(self, phase: str, done: int) -> None:
        count = self.config.seeds
        if phase == "random":
            self.callback(MPCProgress(done, self.config.decisions, phase, [], 0.0, 0.0, []))
            return
        latest = [[e.earned for e in self.ended[-200:] if e.seed == i][-5:] for i in range(count)]
        returns = [float(np.mean(some)) if some else float("nan") for some in latest]
        plan = rate = 0.0
        if phase == "acting" and done > self.mark[1]:
            turns = done - self.mark[1]
            plan = 1e3 * (self.loop.spent["planning"] - self.mark[2]) / turns
            rate = count * turns / (time.perf_counter() - self.mark[0])
        self.callback(MPCProgress(done, self.config.decisions, phase, returns, plan, rate, self.errors))


def actors_alone(env: Any, policies: list[Policy], episodes: int) -> list[dict[str, Any]]:
    """The same tests of the planners' actors without any planning: what a plan adds."""
    planners = [policy for policy in policies if isinstance(policy, Planner)]
    return [evaluate(env, one.without_planning(), episodes=episodes).figures() for one in planners]


def curve(config: MPCConfig, ended: list[FinishedEpisode]) -> list[dict[str, Any]]:
    """Mean return of the episodes that ended in each epoch, for every seed (None where none did); first the random."""
    warmup, found = config.agent.warmup, []
    marks = [warmup, *range(warmup + config.epoch, config.decisions + config.epoch, config.epoch)]
    for low, high in zip([0, *marks[:-1]], marks, strict=True):
        mine = [[e for e in ended if e.seed == i and low < e.decision <= high] for i in range(config.seeds)]
        found.append(
            {
                "decisions": min(high, config.decisions),
                "return": [float(np.mean([e.earned for e in some])) if some else None for some in mine],
                "length": [float(np.mean([e.length for e in some])) if some else None for some in mine],
                "episodes": [len(some) for some in mine],
            }
        )
    return found


NAME = "pilots"


def save_policies(folder: Path, policies: list[Policy]) -> None:
    """Every seed's policy: networks, statistics, model."""
    checkpoint.save(folder, eqx.filter(stack(policies), eqx.is_array), NAME, seeds=len(policies))


def best_seed(made: dict[str, Any]) -> int:
    """Which of the seeds of a record had the highest test return, from 0."""
    return int(np.argmax([test["return"] for test in made["figures"]["tests"]]))
