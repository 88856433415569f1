"""Policies: their learning curves, the tables of returns, value functions over the gridworld."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kairode.errors import KairodeError
from kairode.paper.published import RETURNS
from kairode.paper.returns import ENVS, STUDIES, TRANSFER
from kairode.paper.studies import ORACLE, key
from kairode.report.listing import cells as marked
from kairode.report.listing import for_terminal

UNITS = {"gridworld": 1.0, "acrobot": 1.0, "hiv": 1e7, "hiv-partial": 1e7}
"""Returns are shown in these units, as in the paper."""


TITLES = {
    "table2a": "Table 2a: return on the environment's own schedule",
    "table2b": "Table 2b: return on a regular schedule, models fitted on the irregular one",
    "table3": "Table 3: HIV without the counts of infected cells",
    "table4": "Table 4: return on every regular schedule",
}


def print_returns(what: str, found: dict[str, Any], records: Path) -> None:
    """A table of returns, ours beside the published numbers; the best model of a row in bold."""
    console = Console()
    console.width = max(console.width, 96)  # no number is cut off
    console.print(f"{TITLES[what]}, mean ± std over seeds (HIV in 1e7)")
    if what == "table3":
        _print_partial(console, found)
    else:
        _print_models(console, what, found)
    console.print(f"Records: {records}/STUDY.json; how the settings differ: docs/results.md.", highlight=False)


def _print_models(console: Console, what: str, found: dict[str, Any]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("", "every", "", "paper", "paper's settings", "our settings"):
        table.add_column(title, no_wrap=True, overflow="fold")
    for env in ENVS:
        rows = found["paper"][env] if what == "table4" else {_tau(what, env): found["paper"][env]}
        for tau in rows:
            table.add_section()
            published = RETURNS["own"][env] if tau == "own" else RETURNS["regular"][env][tau]
            here = {
                setting: found[setting][env][tau] if what == "table4" else found[setting][env]
                for setting in ("paper", "ours")
            }
            columns = [
                _column({model: (*pair, 5) for model, pair in published.items()}, 1.0),
                *(_column(_numbers(cells), UNITS[env]) for cells in here.values()),
            ]
            first = (env, "" if tau == "own" else tau)
            for model in published:
                table.add_row(*first, model, *(column[model] for column in columns))
                first = ("", "")
    console.print(table)


def _numbers(cells: dict[str, Any]) -> dict[str, Any]:
    return {model: cell and (cell["mean"], cell["std"], cell["n"]) for model, cell in cells.items()}


def _tau(what: str, env: str) -> str:
    return "own" if what == "table2a" else key(TRANSFER[env])


def _column(cells: dict[str, Any], unit: float) -> dict[str, str]:
    """A cell's text for each model: the best model in bold, the number of seeds where it is not five."""
    scaled = {model: cell and (cell[0] / unit, cell[1] / unit, cell[2]) for model, cell in cells.items()}
    return dict(zip(scaled, map(for_terminal, marked(scaled, list(scaled))), strict=True))


def _print_partial(console: Console, found: dict[str, Any]) -> None:
    table = Table("policy", "paper", "paper's settings", "our settings", box=SIMPLE_HEAD)
    for row, published in RETURNS["partial"].items():
        texts = [f"{published[0]:.2f} ± {published[1]:.2f}"]
        for setting in ("paper", "ours"):
            one = found[setting]["hiv-partial"][row]
            texts.append("-" if one is None else f"{one['mean'] / 1e7:.2f} ± {one['std'] / 1e7:.2f}")
        table.add_row(row, *texts)
    console.print(table)


def values_figure(results: Path) -> Figure:
    """Value functions over the gridworld, each scaled to [0, 1]: the lighter, the higher."""
    grids: dict[str, Any] = {}
    for name in ("paper-gridworld", "paper-gridworld-oracle"):
        grids |= _figures(results, name)["values"]
    figure = Figure(figsize=(2.1 * len(grids), 2.2), layout="constrained")
    for axes, (model, grid) in zip(figure.subplots(1, len(grids)), grids.items(), strict=True):
        values = np.array(grid)
        values = (values - values.min()) / np.ptp(values)
        axes.imshow(values, origin="lower", extent=(-5, 5, -3.5, 3.5), cmap=colormaps["viridis"], aspect="equal")
        for (x_low, x_high), (y_low, y_high), letter in (
            ((-0.5, 0.5), (-5, -4), "S"),
            ((-0.5, 0.5), (1.5, 2.5), "G"),
        ):
            corners = [(y_low, x_low), (y_high, x_low), (y_high, x_high), (y_low, x_high), (y_low, x_low)]
            axes.plot(*zip(*corners, strict=True), color="white", linewidth=0.8)
            axes.text(np.mean((y_low, y_high)), 0, letter, color="white", ha="center", va="center", fontsize=7)
        axes.set_title(model, fontsize=9, color="#c53030" if "ode" in model else "black")
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def curves_figure(results: Path, *, partial: bool = False) -> Figure:
    """Return on the real system by episodes of practice, mean and std over seeds."""
    panels: dict[str, tuple[str, ...]] = (
        {"hiv-partial": ("hiv-partial", "hiv-partial-latent", "hiv-partial-oracle")}
        if partial
        else {env: (env, f"{env}-oracle") for env in ENVS}
    )
    # An environment without records is left out; without any, the first one's missing record is named.
    known = {
        env: names for env, names in panels.items() if all((results / f"paper-{name}.json").exists() for name in names)
    }
    panels = known or panels
    figure = Figure(figsize=(5 * len(panels), 3.6), layout="constrained")
    for axes, (env, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        colours = iter(colormaps["tab10"](range(10)))
        for name in names:
            study = STUDIES[f"paper-{name}"]
            for model, curve in _figures(results, f"paper-{name}")["curves"].items():
                label = f"{model}, s and z" if study.latent else model
                _band(axes, curve, UNITS[env], label, next(colours), partial or model == ORACLE)
        axes.set_title(env, fontsize=10)
        axes.set_xlabel("episodes of practice (imagined; real for the oracle)")
        axes.set_ylabel("return on the real system" + (" (1e7)" if "hiv" in env else ""))
        axes.legend(frameon=False, fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _band(axes: Any, curve: dict[str, Any], unit: float, label: str, colour: Any, thick: bool) -> None:
    """Each seed's looks on a common grid of episodes, then mean and std."""
    episodes = np.array(curve["episodes"], float)
    real = np.array([[np.nan if x is None else x for x in row] for row in curve["real"]], float) / unit
    grid = np.linspace(episodes[0].min(), episodes[-1].max(), 60)
    lines = np.stack([np.interp(grid, episodes[:, i], real[:, i]) for i in range(real.shape[1])])
    mean, std = lines.mean(0), lines.std(0)
    axes.plot(grid, mean, color=colour, label=label, linewidth=1.8 if thick else 1.2)
    axes.fill_between(grid, mean - std, mean + std, color=colour, alpha=0.12, linewidth=0)


def rounds_figure(results: Path) -> Figure:
    """Return by real episodes: rounds of collecting, refitting and imagining, beside the model-free agent."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    oracle = _figures(results, "ours-hiv-oracle")["curves"][ORACLE]
    _band(axes, oracle, 1e7, "model-free (five seeds)", "#2b6cb0", True)
    records = sorted(results.glob("rounds-hiv-*.json"))
    if not records:
        raise KairodeError(f"there is no record {results}/rounds-hiv-0.json: `kairode rounds hiv` makes one.")
    for i, record in enumerate(records):
        points = json.loads(record.read_text())["figures"]["rounds"]
        episodes, returns = ([point[name] for point in points] for name in ("real_episodes", "return"))
        label = f"rounds ({len(records)} seeds)" if i == 0 else None
        axes.plot(episodes, np.array(returns) / 1e7, color="#c53030", marker=".", linewidth=1, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("real episodes")
    axes.set_ylabel("return on HIV (1e7)")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _figures(results: Path, name: str) -> dict[str, Any]:
    path = results / f"{name}.json"
    if not path.exists():
        raise KairodeError(f"there is no record {path}: `kairode reproduce table2a --studies {name}` makes it.")
    return json.loads(path.read_text())["figures"]
