"""Every table of the paper and of what goes past it, as heads and rows of text, from the records alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kairode.algorithms.mpc_agent import FREE
from kairode.envs.locomotion import ROBOTS
from kairode.models.zoo import PAPER_MODELS
from kairode.paper import returns, table1
from kairode.paper.published import RETURNS
from kairode.paper.studies import ORACLE, key
from kairode.report.compare import runs_listing
from kairode.report.listing import Listing, cells, spread
from kairode.report.mpc import mujoco_figure
from kairode.report.returns import curves_figure, rounds_figure, values_figure
from kairode.report.schedule import LABELS, gathered, visits_figure

MAIN = "run-hiv"
"""The one that is no table of the paper."""
UNITS = {"gridworld": 1.0, "acrobot": 1.0, "hiv": 1e7, "hiv-partial": 1e7}
"""Returns are shown in these units, as in the paper."""
SETTINGS = {"paper": "paper's settings", "ours": "our settings"}


def first_table(results: Path) -> Listing:
    """Table 1: state prediction errors."""
    rows = []
    for row in table1.USUAL:
        ours = {}
        for model in PAPER_MODELS:
            if (results / "table1" / f"{row}-{model}.json").exists():
                found = table1.read_cell(results / "table1", row, model)
                ours[model] = (found["mean"], found["std"], found["n"])
        beside = table1.ROWS[row].paper
        if beside is not None:
            published = {model: (*pair, None) for model, pair in table1.PAPER[beside].items()}
            rows.append([row, "paper", *cells(published, PAPER_MODELS, least=True)])
        rows.append(["" if beside else row, "ours", *cells(ours, PAPER_MODELS, least=True)])
    return Listing(
        ["", "", *PAPER_MODELS],
        rows,
        "State prediction error, mean ± std over five seeds (in brackets the number where it is another).",
    )


def returns_table(what: str, results: Path) -> Listing:
    """Tables 2a, 2b and 4: returns of every model in both settings, beside the published ones."""
    names = (*PAPER_MODELS, ORACLE)
    rows = []
    for env in returns.ENVS:
        taus = {"table2a": [0.0], "table2b": [returns.TRANSFER[env]], "table4": list(returns.REGULAR[env])}[what]
        for tau in taus:
            label = env if not tau else f"{env}, every {tau:g}"
            published = RETURNS["own"][env] if not tau else RETURNS["regular"][env][key(tau)]
            rows.append([label, "paper", *cells({m: (*pair, None) for m, pair in published.items()}, names)])
            for setting, words in SETTINGS.items():
                pairs = {model: _pair(results, setting, env, model, tau) for model in names}
                if any(pairs.values()):
                    rows.append(["", words, *cells(pairs, names)])
    caption = "Mean ± std over five seeds (in brackets the number where it is another); HIV discounted, in 1e7."
    return Listing(["", "", *names], rows, caption)


def _pair(results: Path, setting: str, env: str, model: str, tau: float, latent: bool = False) -> Any:
    found = returns.cell(results / "policies", setting, env, model, tau, latent=latent)
    return found and (found["mean"] / UNITS[env], found["std"] / UNITS[env], found["n"])


def partial_table(results: Path) -> Listing:
    """Table 3: HIV without the counts of infected cells."""
    rows = []
    for row, published in RETURNS["partial"].items():
        env, model, latent = returns.PARTIAL[row]
        pairs = [(*published, None), *(_pair(results, setting, env, model, 0.0, latent) for setting in SETTINGS)]
        rows.append([row, *("" if pair is None else spread(*pair) for pair in pairs)])
    return Listing(
        ["policy", "paper", *SETTINGS.values()],
        rows,
        "Discounted return (1e7), mean ± std over five seeds (in brackets the number where it is another).",
    )


def rounds_table(results: Path) -> Listing:
    """Return by real episodes, one row a seed."""
    found = [json.loads(path.read_text()) for path in sorted((results / "policies").glob("rounds-hiv-*.json"))]
    if not found:
        return Listing(["real episodes"], [])
    counts = [one["real_episodes"] for one in found[0]["figures"]["rounds"]]
    rows = [
        [f"seed {one['seed']}", *(f"{part['return'] / 1e7:.1f}" for part in one["figures"]["rounds"])] for one in found
    ]
    return Listing(
        ["real episodes", *map(str, counts)], rows, "Discounted return (1e7) on 20 episodes after each round."
    )


def visits_table(results: Path) -> Listing:
    """Return against visits: who says when to look again."""
    groups = gathered(results / "visits")
    daily = float(np.mean(groups["fixed"]["1"]["return"])) if "1" in groups["fixed"] else None
    rows = []
    for name, points in groups.items():
        for label, point in points.items():
            values = np.array(point["return"])
            share = "" if daily is None else f"{100 * values.mean() / daily:.0f} %"
            numbers = [
                f"{values.mean() / 1e7:.0f} ± {values.std() / 1e7:.0f}",
                share,
                f"{np.mean(point['visits']):.0f}",
            ]
            rows.append([LABELS[name][0], label, *numbers, str(len(values))])
    heads = ["who says when", "of what", "return (1e7)", "of daily", "visits", "seeds"]
    return Listing(heads, rows, "Discounted, every day counted; mean ± std over seeds.")


def robots_table(results: Path) -> Listing:
    """Returns of the robots at the end."""
    rows: list[list[str]] = []
    chance: list[str] = []
    for model in (*reversed(PAPER_MODELS), FREE):
        shown, decisions = [], ""
        for env in ROBOTS:
            path = results / "control" / f"{env}-{model}.json"
            if not path.exists():
                shown.append("")
                continue
            made = json.loads(path.read_text())
            decisions = f"{made['config']['decisions']:,}"
            mean, std = made["figures"]["return"], made["figures"]["return_std"]
            shown.append(spread(mean, std, made["config"]["seeds"], digits=1 if abs(mean) < 100 else 0, usual=3))
            if len(chance) < len(ROBOTS):
                chance.append(f"{made['figures']['random']['return']:.3g}")
        rows.append([f"{model} + MPC" if model != FREE else "DDPG, no model", decisions, *shown])
    rows.append(["random", "", *chance])
    return Listing(
        ["", "decisions", *ROBOTS],
        rows,
        "Return of an episode at the end, mean ± std over three seeds (in brackets the number where it is another).",
    )


def main_job(results: Path) -> Listing:
    """What `kairode run hiv` comes to, a row for each seed."""
    path = results / "run-hiv-seeds.json"
    return runs_listing(json.loads(path.read_text())) if path.exists() else Listing(["seed"], [])


LISTINGS: dict[str, Callable[[Path], Listing]] = {
    MAIN: main_job,
    "table1": first_table,
    "table2a": lambda results: returns_table("table2a", results),
    "table2b": lambda results: returns_table("table2b", results),
    "table3": partial_table,
    "table4": lambda results: returns_table("table4", results),
    "figure-rounds": rounds_table,
    "figure-schedule": visits_table,
    "figure-mujoco": robots_table,
}
"""By the name that `kairode reproduce` knows; the main job is `kairode run hiv`."""

FIGURES: dict[str, Callable[[Path], Figure]] = {
    "figure-values": lambda results: values_figure(results / "policies"),
    "figure-curves": lambda results: curves_figure(results / "policies"),
    "figure-pomdp": lambda results: curves_figure(results / "policies", partial=True),
    "figure-rounds": lambda results: rounds_figure(results / "policies"),
    "figure-schedule": lambda results: visits_figure(results / "visits"),
    "figure-mujoco": lambda results: mujoco_figure(results / "control"),
}
"""Those of the paper, and of the rounds that go past it."""
TITLES = {
    MAIN: "The main job on HIV, seed by seed",
    "table1": "Table 1: state prediction error",
    "table2a": "Table 2a: return on the environment's own schedule",
    "figure-values": "Figure: value functions over the gridworld",
    "figure-curves": "Figure: learning curves",
    "table2b": "Table 2b: return on a regular schedule, with models of the irregular one",
    "table3": "Table 3: HIV without the counts of infected cells",
    "figure-pomdp": "Figure: learning curves on HIV observed in part",
    "table4": "Table 4: return on every regular schedule",
    "figure-rounds": "Rounds: collect with the policy, refit, learn on",
    "figure-schedule": "Figure: return against visits",
    "figure-mujoco": "Figure: robots steered by planning in a model",
}
"""In the order of a page."""
