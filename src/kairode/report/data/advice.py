"""Advice for an episode, drawn: what was measured and done, and the predicted course until the next visit."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kairode.report.figures import BESIDE, DECISION, EXPECTED, LINE, label, legend_columns, save_figure
from kairode.text import MOST, short_name

COLUMNS_FROM = 4
"""Variables from which on there are two columns of panels."""
LONGEST_HISTORY = 10.0
"""Of what is drawn, the past is at most this many times as long as the predicted course."""


def draw_advice(found: dict[str, Any], path: str | Path) -> None:
    save_figure(advice_figure(found), path)


def advice_figure(found: dict[str, Any]) -> Figure:
    """One panel for each of at most `MOST` variables, and a strip of the actions; bands are those of the ensemble."""
    shown, rule = varying_variables(found)
    columns = 2 if len(shown) >= COLUMNS_FROM else 1
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(9, 1.5 * rows + 2.0), layout="constrained")
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[1.0] * rows + [0.4])
    panels: list[Axes] = []
    for place, name in enumerate(shown):
        axes = figure.add_subplot(grid[place // columns, place % columns], sharex=panels[0] if panels else None)
        _draw_variable(axes, found, name)
        panels.append(axes)
    strip = figure.add_subplot(grid[rows, :], sharex=None if columns > 1 else panels[0])
    _draw_actions(strip, found)
    _draw_legend(figure, panels[0])
    start, end = _limits(found)
    for axes in (*panels, strip):
        axes.set_xlim(start, end)
    for axes in panels[:-columns]:
        axes.tick_params(labelbottom=False)
    title = f"Advice for '{short_name(found['episode'])}'" if "episode" in found else "Advice"
    figure.suptitle("\n".join([f"{title}: {_headline(found)}", *filter(None, [rule])]), fontsize=10, x=0.01, ha="left")
    figure.align_ylabels()
    return figure


def varying_variables(found: dict[str, Any]) -> tuple[list[str], str]:
    """The variables with a panel, and the rule that they were chosen by: those that varied, in their order."""
    names = list(found["course"]["variables"])
    if len(names) <= MOST:
        return names, ""
    seen = found["history"]["observations"]
    still = [len({x for x in seen[name] if x is not None}) < 2 for name in names]
    first = np.argsort(still, kind="stable")[:MOST]
    return [names[i] for i in sorted(first)], f"{MOST} of {len(names):,} variables: the first of those that varied"


def _headline(found: dict[str, Any]) -> str:
    action = found["action"]
    if not isinstance(action, str):
        action = ", ".join(f"{short_name(name, BESIDE)} {value:.3g}" for name, value in list(action.items())[:3])
    unlike = "; unlike the data" if found["out_of_distribution"] else ""
    when = found.get("next_date") or f"in {found['next_visit']:.4g} {short_name(found['time_unit'], BESIDE)}s"
    return f"{short_name(action, 40)}, next visit {when}{unlike}"


def _limits(found: dict[str, Any]) -> tuple[float, float]:
    end, now = found["course"]["times"][-1], found["time"]
    ahead = end - now
    start = max(found["history"]["times"][0], now - LONGEST_HISTORY * ahead)
    return start - 0.02 * (end - start), end + 0.01 * (end - start)


def _draw_variable(axes: Axes, found: dict[str, Any], name: str) -> None:
    times = np.asarray(found["history"]["times"])
    seen = np.array([np.nan if x is None else x for x in found["history"]["observations"][name]], np.float64)
    known = ~np.isnan(seen)
    axes.plot(times[known], seen[known], "o-", color=LINE, ms=3.5, lw=1.0, zorder=3)
    course = found["course"]["variables"][name]
    ahead = np.asarray(found["course"]["times"])
    rows = {key: np.array([np.nan if x is None else x for x in row]) for key, row in course.items()}
    if known[-1]:  # bands begin at what was measured
        ahead = np.append(times[-1], ahead)
        rows = {key: np.append(seen[-1], row) for key, row in rows.items()}
    axes.fill_between(ahead, rows["0.05"], rows["0.95"], color=EXPECTED, alpha=0.18, lw=0)
    axes.fill_between(ahead, rows["0.25"], rows["0.75"], color=EXPECTED, alpha=0.3, lw=0)
    axes.plot(ahead, rows["mean"], color=EXPECTED, lw=1.3, zorder=2)
    axes.axvline(found["time"], color=LINE, lw=0.7, alpha=0.5)
    axes.axvline(found["next_time"], color=DECISION, lw=1.0, ls="--")
    axes.set_ylabel(short_name(name, BESIDE), fontsize=8)
    axes.tick_params(labelsize=7)
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_legend(figure: Figure, axes: Axes) -> None:
    axes.plot([], [], "o-", color=LINE, ms=3.5, lw=1.0, label="measured")
    axes.plot([], [], color=EXPECTED, lw=1.3, label="predicted, mean")
    axes.fill_between([], [], [], color=EXPECTED, alpha=0.45, lw=0, label="50 % of the models")
    axes.fill_between([], [], [], color=EXPECTED, alpha=0.18, lw=0, label="90 %")
    axes.plot([], [], color=DECISION, lw=1.0, ls="--", label="next visit")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=7, frameon=False)


def _draw_actions(axes: Axes, found: dict[str, Any]) -> None:
    """Past actions, and the advised one until the next visit, hatched; a line for each control."""
    times, past = found["history"]["times"], found["history"]["actions"]
    edges = [*times, found["next_time"]]
    taken = [*past, found["action"]]
    axes.axvline(found["next_time"], color=DECISION, lw=1.0, ls="--")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(f"time, {short_name(found['time_unit'], BESIDE)}s", fontsize=8)
    axes.set_ylabel("action", fontsize=8)
    axes.tick_params(labelsize=7)
    if not isinstance(found["action"], str):
        for name in list(found["action"])[:MOST]:
            values = [one[name] for one in taken]
            axes.stairs(values, edges, baseline=None, label=label(name), lw=1.0)
        _legend_beside(axes)
        return
    names = list(found["values"])
    colours = dict(zip(names, colormaps["viridis"](np.linspace(0.95, 0.1, len(names))), strict=True))
    drawn = list(dict.fromkeys(reversed(taken)))  # the latest first
    for name in drawn:
        spans: list[Any] = [(edges[i], edges[i + 1] - edges[i]) for i, one in enumerate(past) if one == name]
        text = label(name) if name in drawn[:MOST] else None
        axes.broken_barh(spans, (0, 1), color=colours[name], label=text, lw=0)
    ahead = [(edges[-2], edges[-1] - edges[-2])]
    axes.broken_barh(ahead, (0, 1), facecolor=colours[found["action"]], hatch="///", edgecolor="white", lw=0)
    axes.set_ylim(0, 1.2)
    axes.set_yticks([])
    _legend_beside(axes)


def _legend_beside(axes: Axes) -> None:
    labels = axes.get_legend_handles_labels()[1]
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
    axes.legend(ncols=legend_columns(labels), fontsize=7, frameon=False, handlelength=1.2, **place)
