"""Figure of one episode: observations between and at decisions, actions, and a model's predictions."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kairode.report.figures import DECISION, EXPECTED, LINE, save_figure
from kairode.runs.course import Course

LABELS = {"expected": "predicted from each decision", "predicted": "predicted from the first observation"}


def draw_course(course: Course, path: str | Path, title: str) -> None:
    save_figure(course_figure(course, title), path)


def course_figure(course: Course, title: str) -> Figure:
    """One panel per observed variable and a strip of actions; decisions are dots, predictions dashed lines."""
    variables = course["variables"]
    true, seen = (np.asarray(course[name]) for name in ("true", "seen"))
    count = len(variables)
    figure = Figure(figsize=(9, 1.25 * count + 1.9), layout="constrained")
    heights = [1.0] * count + [0.45]
    panels = figure.subplots(count + 1, 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for i, (axes, variable) in enumerate(zip(panels, variables, strict=False)):
        if variable["log"]:
            axes.set_yscale("log")
        axes.plot(course["time"], true[:, i], color=LINE, lw=1.1, zorder=1)
        if "model" in course:
            axes.plot(*_prediction(course, i), color=EXPECTED, lw=1.0, linestyle="--", zorder=3)
        axes.plot(course["decisions"], seen[:, i], "o", color=DECISION, ms=2.6, zorder=2)
        axes.set_ylabel(f"{variable['name']}\n{variable['unit']}", fontsize=8)
        axes.tick_params(which="both", labelsize=7)
    _draw_actions(panels[-1], course)
    panels[-1].set_xlabel(f"time, {course['spec']['time_unit']}s")
    panels[0].set_title(title, fontsize=11, loc="left")
    panels[0].plot([], [], "o", color=DECISION, ms=3, label="decision")
    if "model" in course:
        panels[0].plot([], [], color=LINE, lw=1.1, label="what happened")
        panels[0].plot([], [], color=EXPECTED, lw=1.0, linestyle="--", label=LABELS[course["kind"]])
    panels[0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, fontsize=7, frameon=False)
    figure.align_ylabels()
    return figure


def _prediction(course: Course, i: int) -> list[np.ndarray]:
    times, values = np.asarray(course["model_time"]), np.asarray(course["model"])[..., i]
    if course["kind"] == "predicted":
        return [times.ravel(), values.ravel()]
    gap = np.full((len(times), 1), np.nan)  # predictions restart at every decision
    return [np.concatenate([x, gap], axis=1).ravel() for x in (times, values)]


def _draw_actions(axes: Axes, course: Course) -> None:
    actions, widths = (np.asarray(course[name]) for name in ("actions", "intervals"))
    starts, kinds = np.asarray(course["decisions"])[:-1], course["spec"]["actions"]
    if kinds["kind"] == "discrete":
        names = kinds["names"]
        colours = colormaps["viridis"](np.linspace(0.95, 0.1, len(names)))
        for i, name in enumerate(names):
            held = actions == i
            spans: list[Any] = list(zip(starts[held], widths[held], strict=True))
            axes.broken_barh(spans, (0, 1), color=colours[i], label=name, lw=0)
        columns = min(len(names), 8)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.75), ncols=columns, fontsize=7, frameon=False)
        axes.set_ylim(0, 1.35)
    else:
        axes.step(starts, actions, where="post", lw=0.7)
        low, high = min(kinds["low"]), max(kinds["high"])
        axes.set_ylim(low, high + 0.35 * (high - low))
    bottom, top = axes.get_ylim()
    axes.plot(starts, np.full(len(starts), top - 0.1 * (top - bottom)), "|", color=DECISION, ms=4, mew=0.5)
    axes.set_yticks([])
    axes.set_ylabel("action", fontsize=8)
    axes.set_xlim(0, float(course["decisions"][-1]))
