"""Figures of policies: learning curves, value functions over the gridworld."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from kairode.errors import KairodeError
from kairode.paper.returns import ENVS, STUDIES
from kairode.paper.studies import ORACLE
from kairode.report.figures import finish_axes, label, panel
from kairode.result import objective_of
from kairode.runs.record import read_record
from kairode.stats import mean, std

UNITS = {"gridworld": 1.0, "acrobot": 1.0, "hiv": 1e7, "hiv-partial": 1e7}
"""Units of the returns, as in the paper."""


def values_figure(results: Path) -> Figure:
    """Value functions over the gridworld, each scaled to [0, 1]; brighter is higher."""
    grids: dict[str, Any] = {}
    for name in ("paper-gridworld", "paper-gridworld-oracle"):
        grids |= _figures(results, name)["values"]
    figure = Figure(figsize=(2.1 * len(grids), 2.2), layout="constrained")
    for axes, (model, grid) in zip(figure.subplots(1, len(grids)), grids.items(), strict=True):
        values = np.array(grid)
        values = (values - values.min()) / np.ptp(values)
        axes.imshow(values, origin="lower", extent=(-5, 5, -3.5, 3.5), cmap=colormaps["viridis"], aspect="equal")
        for low, high, letter in ((-5, -4, "S"), (1.5, 2.5, "G")):  # squares of start and goal
            axes.plot([low, high, high, low, low], [-0.5, -0.5, 0.5, 0.5, -0.5], color="white", linewidth=0.8)
            axes.text((low + high) / 2, 0, letter, color="white", ha="center", va="center", fontsize=7)
        axes.set_title(model, fontsize=9, color="#c53030" if "ode" in model else "black")
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def curves_figure(results: Path, *, partial: bool = False) -> Figure:
    panels: dict[str, tuple[str, ...]] = (
        {"hiv-partial": ("hiv-partial", "hiv-partial-latent", "hiv-partial-oracle")}
        if partial
        else {env: (env, f"{env}-oracle") for env in ENVS}
    )
    # Environments without records are left out; if there are none at all, the error names the first.
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
                name = f"{model}, s and z" if study.latent_policy else model
                _band(axes, curve, UNITS[env], label(name), next(colours), partial or model == ORACLE)
        axes.set_title(env, fontsize=10)
        y = "return on the real system" + (" (1e7)" if "hiv" in env else "")
        finish_axes(axes, "training episodes (imagined; real for the oracle)", y, legend=7)
    return figure


def _band(axes: Any, curve: dict[str, Any], unit: float, name: str, colour: Any, thick: bool) -> None:
    """Interpolate each seed's curve to a common grid of episodes, then plot mean and std."""
    episodes = np.array(curve["episodes"], float)
    real = np.array([[np.nan if x is None else x for x in row] for row in curve["real"]], float) / unit
    grid = np.linspace(episodes[0].min(), episodes[-1].max(), 60)
    lines = np.stack([np.interp(grid, episodes[:, i], real[:, i]) for i in range(real.shape[1])])
    middle, around = mean(lines, 0), std(lines, 0)
    axes.plot(grid, middle, color=colour, label=name, linewidth=1.8 if thick else 1.2)
    axes.fill_between(grid, middle - around, middle + around, color=colour, alpha=0.12, linewidth=0)


def rounds_figure(results: Path) -> Figure:
    figure, axes = panel(7, 3.6)
    oracle = _figures(results, "ours-hiv-oracle")["curves"][ORACLE]
    _band(axes, oracle, 1e7, "model-free (five seeds)", "#2b6cb0", True)
    records = sorted(results.glob("rounds-hiv-*.json"))
    if not records:
        raise KairodeError(f"{results}/rounds-hiv-0.json does not exist: run `kairode dyna hiv`.")
    for i, record in enumerate(records):
        points = read_record(record)["figures"]["rounds"]
        episodes, returns = [point["real_episodes"] for point in points], list(map(objective_of, points))
        name = f"Dyna rounds ({len(records)} seeds)" if i == 0 else None
        axes.plot(episodes, np.array(returns) / 1e7, color="#c53030", marker=".", linewidth=1, label=name)
    finish_axes(axes, "real episodes", "return on HIV (1e7)", log=True)
    return figure


def _figures(results: Path, name: str) -> dict[str, Any]:
    path = results / f"{name}.json"
    if not path.exists():
        raise KairodeError(f"{path} does not exist: run `kairode reproduce table2a --studies {name}`.")
    return read_record(path)["figures"]
