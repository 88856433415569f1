"""Return against real decisions on Gymnasium's environments, with a model and without, and transfer to other intervals.

    python tools/gymnasium_study.py run FOLDER cart-pole --seed 0          # Dyna rounds (or MPC), the default settings
    python tools/gymnasium_study.py run FOLDER cart-pole --seed 0 --free   # the agent without a model
    python tools/gymnasium_study.py transfer FOLDER cart-pole --seed 0     # after its run: other intervals, no new data
    python tools/gymnasium_study.py record FOLDER                          # writes results/gymnasium.json
    python tools/gymnasium_study.py figure                                 # docs/gymnasium.svg, from the record

Each step skips what is already in the folder. The returns of a curve are those of 20 episodes on the simulator after a
round (with a model) or every so many decisions (without), of a policy without exploration; the decisions of these
episodes are not counted, and nothing was learned from them. The last policies are tested on 100 other episodes.
"""

import argparse
import dataclasses
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import kairode
from kairode.algorithms.learn import learn_policy
from kairode.algorithms.mpc import MPCTraining
from kairode.config.presets import dyna_preset, learn_preset, mpc_preset
from kairode.envs.core import Discrete, Spec, Task
from kairode.files import load_json, save_json
from kairode.report.figures import CHOSEN, FIXED, RANDOM, finish_axes, save_figure
from kairode.result import rounded
from kairode.runs.record import make_record, read_record

ROOT = Path(__file__).parents[1]
RECORD, PICTURE = ROOT / "results" / "gymnasium.json", ROOT / "docs" / "gymnasium.svg"
TEST_EPISODES, TEST_SEED = 100, 10
CURVE_EPISODES = 10
"""With continuous actions, for each point of a curve."""
TRANSFER = (1, 2, 5, 8)
"""Intervals, in steps, that policies are tested at."""


@dataclasses.dataclass(frozen=True)
class System:
    """An environment of Gymnasium, how long actions are held, and how much is learned from."""

    gym_id: str
    intervals: tuple[int, int] = (1, 5)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of `kairode.train_dyna`, or of the config of MPC, where they are not the defaults."""
    rounds: int = 10
    decisions: int = 1500
    """With continuous actions."""
    free_decisions: int = 30_000
    """Of the agent without a model."""
    task: Any = None


class Height(Task):
    """The acrobot's task of this package, on Gymnasium's observations: the tip's height; above 1 it terminates."""

    spec: Spec = dataclasses.field(metadata={"static": True})

    def reward(self, obs: Any, action: Any, next_obs: Any, tau: Any) -> Any:
        """R = -cos(theta1') - cos(theta1' + theta2')."""
        return height(next_obs)

    def terminal(self, obs: Any) -> Any:
        """Above the line."""
        return height(obs) > 1.0


def height(obs: Any) -> Any:
    """Of the tip, from the cosines and sines of both angles."""
    cos1, sin1, cos2, sin2 = obs[0], obs[1], obs[2], obs[3]
    return -cos1 - (cos1 * cos2 - sin1 * sin2)


SYSTEMS = {
    "cart-pole": System("CartPole-v1", rounds=8),
    "mountain-car": System("MountainCar-v0", (1, 10)),
    "acrobot": System("Acrobot-v1", rounds=6, task=Height),
    "lunar-lander": System("LunarLander-v3"),
    "pendulum": System("Pendulum-v1", free_decisions=9000),
    "walker": System("Walker2d-v5", decisions=5000),
}


def made(name: str) -> Any:
    system = SYSTEMS[name]
    return kairode.from_gymnasium(system.gym_id, intervals=system.intervals, task=system.task)


def run(folder: Path, name: str, seed: int, free: bool, options: dict[str, Any]) -> None:
    """Train one seed, with a model or without."""
    path = folder / f"{name}-{'free' if free else 'model'}-{seed}.json"
    if path.exists():
        return
    env, system, started = made(name), SYSTEMS[name], time.perf_counter()
    if not isinstance(env.task.spec.actions, Discrete):
        curve, policy, config = control(env, system, seed, free, options)
    elif free:
        curve, policy, config = without_model(env, system, seed, options)
    else:
        curve, policy, config = with_model(env, system, seed, options, folder / f"{name}-{seed}")
    found = kairode.evaluate(env, policy, episodes=TEST_EPISODES, seed=TEST_SEED)
    chance = kairode.evaluate(env, None, episodes=TEST_EPISODES, seed=TEST_SEED)
    seconds = round(time.perf_counter() - started, 1)
    save_json(
        path,
        {
            "curve": curve,
            "test": found.figures(),
            "random": chance.figures(),
            "config": config,
            "options": options,
            "seconds": seconds,
        },
    )
    print(f"{path.stem}: {found}, {seconds:g} s; {[(p['decisions'], round(p['return'])) for p in curve]}", flush=True)


def with_model(env: Any, system: System, seed: int, options: dict[str, Any], folder: Path) -> Any:
    """Dyna rounds: the return after every round."""
    given = {"rounds": system.rounds, **system.options, **options}
    found = kairode.train_dyna(env, seed=seed, folder=folder, **given)
    curve = [{"decisions": one["real_decisions"], "return": mean_of(one)} for one in found.rounds]
    return curve, found.policy, {**given, "dqn": dataclasses.asdict(dyna_preset(env.task.spec.name).dqn)}


def mean_of(figures: dict[str, Any]) -> float:
    """The mean return of an evaluation."""
    found = figures["return"]
    return float(found["mean"] if isinstance(found, dict) else found)


def without_model(env: Any, system: System, seed: int, options: dict[str, Any]) -> Any:
    """DQN on the simulator: the return at every validation, up to so many decisions."""
    preset = learn_preset(env.task.spec.name, model_free=True)
    every = max(system.free_decisions // 30, 250)
    dqn = dataclasses.replace(preset.dqn, **options.get("dqn", {}))
    config = dataclasses.replace(preset, episodes=100_000, validate_every=every, dqn=dqn)
    found = learn_policy(None, env, config, seed=seed, monitor=env, decisions=system.free_decisions)
    curve = [{"decisions": one["decisions"][0], "return": one["real"][0]} for one in found.training.curve]
    return curve, found.policy, dataclasses.asdict(config.dqn)


def control(env: Any, system: System, seed: int, free: bool, options: dict[str, Any]) -> Any:
    """MPC, or its actor alone: the return after every so many decisions, without exploration."""
    config = mpc_preset(env.task.spec.name, "free" if free else "latent-ode", seed=seed)
    agent = dataclasses.replace(config.agent, **options.get("agent", {}))
    plan = dataclasses.replace(config.plan, **({} if free else options.get("plan", {})))
    decisions = system.free_decisions if free else system.decisions
    others = {key: value for key, value in options.items() if key not in ("agent", "plan")}
    config = dataclasses.replace(config, agent=agent, plan=plan, decisions=decisions, **others)
    curve = []
    every = 500 if free else config.refit_every
    with MPCTraining(config, env, None) as training:
        loop = training.loop
        loop.warm_up()
        while loop.decisions < decisions:
            training.refit_if_due()
            loop.step()
            if loop.decisions % every == 0 or loop.decisions == decisions:
                loop.update_learner()
                policy = training.policies()[0]
                found = kairode.evaluate(env, policy, episodes=CURVE_EPISODES, seed=TEST_SEED + 1)
                curve.append({"decisions": loop.decisions, "return": found.score})
    return curve, policy, dataclasses.asdict(config)


def transfer(folder: Path, name: str, seed: int) -> None:
    """Tests at other intervals: the same policy, one learned for the interval in the models, one without a model."""
    path = folder / f"{name}-transfer-{seed}.json"
    if path.exists():
        return
    env, system = made(name), SYSTEMS[name]
    given = {"rounds": system.rounds, **system.options}
    found = kairode.train_dyna(env, seed=seed, folder=folder / f"{name}-{seed}", **given)
    rows: dict[str, Any] = {"decisions": found.data.decisions}
    for tau in TRANSFER:
        test: dict[str, Any] = {"schedule": tau, "episodes": TEST_EPISODES, "seed": TEST_SEED}
        learned = kairode.learn(
            found.models,
            env,
            data=found.data,
            schedule=tau,
            seed=seed,
            rollout_length=10,
            episodes=2000,
            obs_margin=0.2,
        )
        preset = learn_preset(env.task.spec.name, model_free=True)
        config = dataclasses.replace(preset, episodes=100_000)
        own = learn_policy(None, env, config, schedule=tau, seed=seed, decisions=found.data.decisions)
        rows[str(tau)] = {
            "same policy": kairode.evaluate(env, found.policy, **test).figures(),
            "learned in the models": kairode.evaluate(env, learned, **test).figures(),
            "model-free, trained at it": kairode.evaluate(env, own.policy, **test).figures(),
        }
        print(name, seed, tau, {kind: round(mean_of(one), 1) for kind, one in rows[str(tau)].items()}, flush=True)
    save_json(path, rows)


def make_the_record(folder: Path) -> None:
    """Join what is in the folder."""
    figures: dict[str, Any] = {}
    seconds = 0.0
    for name in SYSTEMS:
        found: dict[str, Any] = {}
        for kind in ("model", "free"):
            runs = [load_json(path) for path in sorted(folder.glob(f"{name}-{kind}-*.json"))]
            if runs:
                found[kind] = {
                    "tests": [mean_of(one["test"]) for one in runs],
                    "random": mean_of(runs[0]["random"]),
                    "curves": [[[p["decisions"], round(p["return"], 1)] for p in one["curve"]] for one in runs],
                    "seconds": [one["seconds"] for one in runs],
                    "config": runs[0]["config"],
                }
                seconds += sum(one["seconds"] for one in runs)
        moved = [load_json(path) for path in sorted(folder.glob(f"{name}-transfer-*.json"))]
        if moved:
            found["transfer"] = {
                str(tau): {kind: [mean_of(one[str(tau)][kind]) for one in moved] for kind in moved[0][str(tau)]}
                for tau in TRANSFER
            }
        if found:
            figures[name] = {"gym_id": SYSTEMS[name].gym_id, "intervals": SYSTEMS[name].intervals, **found}
        if {"model", "free"} <= set(found):
            figures[name]["fewer"] = fewer(found)
    command = "python tools/gymnasium_study.py record FOLDER"
    config = {"test_episodes": TEST_EPISODES, "test_seed": TEST_SEED, "transfer": TRANSFER}
    save_json(RECORD, make_record("gymnasium", config, rounded(figures), command=command, seconds=seconds))


def fewer(found: dict[str, Any]) -> list[dict[str, float]]:
    """Decisions with and without a model until the mean curve over the seeds first reaches a return: that with a model
    at its last point, and the means of it and random actions."""
    curves = {kind: mean_curve(found[kind]["curves"]) for kind in ("model", "free")}
    chance, last = found["model"]["random"], curves["model"][1].max()
    rows = []
    for part in (0.5, 0.75, 1.0):
        level = chance + part * (last - chance)
        reached = {kind: first_at(*curve, level) for kind, curve in curves.items()}
        rows.append({"return": level, **reached})
    return rows


def mean_curve(curves: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Mean return over the seeds, at the points of all of them up to the last one that every seed has."""
    places = sorted({int(at) for curve in curves for at, _ in curve})
    places = [at for at in places if at <= min(curve[-1][0] for curve in curves)]
    each = [np.interp(places, *np.array(curve).T) for curve in curves]
    return np.array(places), np.mean(each, axis=0)


def first_at(places: np.ndarray, values: np.ndarray, level: float) -> float:
    """Decisions at which a curve first reaches a level; infinite if it does not."""
    where = np.flatnonzero(values >= level)
    return float(places[where[0]]) if where.size else math.inf


def study_figure(figures: dict[str, Any]) -> Figure:
    """Return against real decisions, mean and range over the seeds, with a model and without."""
    figure = Figure(figsize=(10.5, 2.9 * math.ceil(len(figures) / 3)), layout="constrained")
    axes = figure.subplots(math.ceil(len(figures) / 3), 3, squeeze=False)
    for place, found in zip(axes.ravel(), figures.values(), strict=False):
        for kind, colour, words in (("model", CHOSEN, "with a model"), ("free", FIXED, "without")):
            if kind not in found:
                continue
            curves = found[kind]["curves"]
            at, mean = mean_curve(curves)
            each = [np.interp(at, *np.array(curve).T) for curve in curves]
            place.plot(at, mean, color=colour, lw=1.6, label=words)
            place.fill_between(at, np.min(each, 0), np.max(each, 0), color=colour, alpha=0.15, lw=0)
        place.axhline(found["model"]["random"], color=RANDOM, lw=1, ls=":", label="random actions")
        place.set_title(found["gym_id"], fontsize=10)
        finish_axes(place, "real decisions", "return", log=True, legend=7)
        place.xaxis.set_minor_formatter(NullFormatter())
    for place in axes.ravel()[len(figures) :]:
        place.axis("off")
    return figure


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("run", "transfer", "record", "figure"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("name", choices=SYSTEMS, nargs="?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--options", type=json.loads, default={})
    given = parser.parse_args()
    warnings.simplefilter("ignore", kairode.KairodeWarning)
    if given.step in ("run", "transfer"):
        given.folder.mkdir(parents=True, exist_ok=True)
    if given.step == "run":
        run(given.folder, given.name, given.seed, given.free, given.options)
    elif given.step == "transfer":
        transfer(given.folder, given.name, given.seed)
    elif given.step == "record":
        make_the_record(given.folder)
    else:
        save_figure(study_figure(read_record(RECORD)["figures"]), PICTURE)


if __name__ == "__main__":
    main()
