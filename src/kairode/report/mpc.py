"""Runs with continuous actions: results, learning curves, and the paper's figure of three robots."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from kairode.config.algorithms import MODEL_FREE
from kairode.config.models import PAPER_MODELS
from kairode.envs.core import Spec
from kairode.envs.locomotion import ROBOTS
from kairode.errors import KairodeError
from kairode.report.figures import label, panel
from kairode.report.summary import no_better, scale_suggestion
from kairode.report.table import Table, print_table
from kairode.result import objective_of
from kairode.runs.record import read_record
from kairode.stats import mean, std
from kairode.text import say

LEAST = 5
"""Minimum number of test episodes for a comparison."""


def control_table(record: dict[str, Any], time: str = "time", caption: str = "") -> Table:
    """Test results of a run: each seed's policy, its actor without planning, random and constant actions."""
    figures, first = record["figures"], record["config"]["seed"]
    tests = {f"seed {first + i}": test for i, test in enumerate(figures["tests"])}
    tests |= {f"seed {first + i}, no planning": test for i, test in enumerate(figures.get("actors", ()))}
    rows = []
    for name, test in {**tests, **simple_policies(record)}.items():
        interval, spent = f"{test['low']:.4g} to {test['high']:.4g}", f"{test['time']:,.6g}"
        rows.append([name, f"{objective_of(test):.4g}", interval, f"{test['decisions']:,.4g}", spent])
    return Table.of(["policy", "return", "95 %", "decisions", time], rows, caption)


def simple_policies(record: dict[str, Any]) -> dict[str, Any]:
    """Tests of random actions and, except in older records, of constant ones."""
    return {"random actions": record["figures"]["random"], **record["figures"].get("constant", {})}


def return_over_seeds(record: dict[str, Any]) -> tuple[float, float]:
    scores = [objective_of(test) for test in record["figures"]["tests"]]
    return mean(scores), std(scores)


def print_control(record: dict[str, Any], spec: Spec) -> None:
    if warning := mpc_warning(record):
        say(warning)
    print_table(control_table(record, f"{spec.time_unit}s"))
    say(mpc_sentence(record))


def mpc_warning(record: dict[str, Any]) -> str | None:
    """A warning with suggestions if no seed is better than random and constant actions; otherwise None."""
    config, best = record["config"], max(record["figures"]["tests"], key=objective_of)
    suggested = [f"more decisions (--decisions {2 * config['decisions']})"]
    if config["agent"]["kind"] == "ddpg":
        suggested.append("another learner (--agent.kind sac)")
    suggested += scale_suggestion(record["figures"]["random"], config["agent"]["reward_scale"], "--agent.reward-scale")
    return no_better(best, simple_policies(record), suggested)


def mpc_sentence(record: dict[str, Any]) -> str:
    figures, config = record["figures"], record["config"]
    count, (middle, _) = len(figures["tests"]), return_over_seeds(record)
    name, chance = max(simple_policies(record).items(), key=lambda item: float(objective_of(item[1])))
    how = f"{config['agent']['kind'].upper()} alone"
    if (model := config["model"]) != MODEL_FREE:
        how = f"planning with {'an' if model[0] in 'aeio' or model.startswith('rnn') else 'a'} {model} model"
    clear = sum(test["low"] > chance["high"] and test["episodes"] >= LEAST for test in figures["tests"])
    if count > 1:
        verdict = f"{clear} of {count} seeds {'is' if clear == 1 else 'are'} clearly better than"
    elif clear:
        verdict = "that is clearly better than"
    else:
        verdict = f"that is {'not clearly better' if middle > objective_of(chance) else 'no better'} than"
    alone = [objective_of(test) for test in figures.get("actors", ())]
    added = f" The actor{'s' * (count > 1)} without planning: {mean(alone):.4g}." if alone else ""
    return (
        f"After {config['decisions']:,} decisions {how} has a mean return of {middle:.4g} on "
        f"'{config['env']}'; {verdict} {name} ({objective_of(chance):.4g}).{added}"
    )


def curve_points(record: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Decisions and returns [seed, epoch]; an epoch in which no episode ended repeats the previous return."""
    entries = record["figures"]["curve"]
    decisions = np.array([entry["decisions"] for entry in entries])
    returns = np.array([[np.nan if x is None else x for x in entry["return"]] for entry in entries]).T
    for i in range(1, returns.shape[1]):
        returns[:, i] = np.where(np.isnan(returns[:, i]), returns[:, i - 1], returns[:, i])
    return decisions, returns


def mpc_learning_figure(records: dict[str, dict[str, Any]]) -> Figure:
    figure, axes = panel(6, 3.6)
    _curves(axes, records)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _curves(axes: Any, records: dict[str, dict[str, Any]]) -> None:
    colours = iter(colormaps["tab10"](range(10)))
    for name, record in records.items():
        decisions, returns = curve_points(record)
        middle, around, colour = np.nanmean(returns, 0), np.nanstd(returns, 0), next(colours)
        axes.plot(decisions, middle, label=label(name), color=colour, lw=1.6)
        axes.fill_between(decisions, middle - around, middle + around, color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="decisions (initially random)", ylabel="return of training episodes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")


ORDER = (*reversed(PAPER_MODELS), MODEL_FREE)


def read_records(results: Path) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {env: {} for env in ROBOTS}
    for env, model in itertools.product(ROBOTS, ORDER):
        if (path := results / f"{env}-{model}.json").exists():
            found[env][model] = read_record(path)
    if not any(found.values()):
        raise KairodeError(f"there are no records of robots in {results}: set --results (in a clone: results/).")
    return found


def mujoco_figure(results: Path) -> Figure:
    """The paper's figure: learning curves of the robots up to 100,000 decisions, and the final model-free return."""
    found = read_records(results)
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axes, env in zip(figure.subplots(1, 3), ROBOTS, strict=True):
        _curves(axes, {model_label(model): record for model, record in found[env].items()})
        axes.set_title(env, fontsize=10)
        axes.set_xlim(0, 105_000)
        if MODEL_FREE in found[env]:
            last, _ = return_over_seeds(found[env][MODEL_FREE])
            decisions = found[env][MODEL_FREE]["config"]["decisions"]
            axes.axhline(last, color="#52606d", ls="--", lw=1)
            axes.text(2000, last, f"DDPG at {decisions // 1000}k", fontsize=7, va="bottom", color="#52606d")
    figure.axes[0].legend(frameon=False, fontsize=7)
    return figure


def model_label(model: str) -> str:
    return "DDPG, no model" if model == MODEL_FREE else f"{model} + MPC"


def mujoco_table(results: Path) -> dict[str, dict[str, Any]]:
    """Final test returns by model and robot: decisions, mean and standard deviation over seeds."""
    table: dict[str, dict[str, Any]] = {}
    found = read_records(results)
    for model, env in itertools.product(ORDER, ROBOTS):
        if record := found[env].get(model):
            config, (middle, around) = record["config"], return_over_seeds(record)
            cell = {"decisions": config["decisions"], "seeds": config["seeds"], "mean": middle, "std": around}
            table.setdefault(model, {})[env] = cell
    return table


def print_mujoco(results: Path) -> None:
    rows = []
    for model, cells in mujoco_table(results).items():
        decisions = sorted({cell["decisions"] for cell in cells.values()})
        shown = [f"{c['mean']:.4g} ± {c['std']:.3g}" if (c := cells.get(env)) else None for env in ROBOTS]
        rows.append([model_label(model), ", ".join(f"{n:,}" for n in decisions), *shown])
    print_table(Table.of(["final return", "decisions", *ROBOTS], rows))
    say(
        "The paper shows curves without numbers: on swimmer and hopper Latent-ODE at 100,000 decisions "
        "matches DDPG at 400,000, on half-cheetah it is ahead of all others. See docs/results.md for the "
        "differences."
    )
