"""Figure of one episode: observations between and at decisions, actions, and a model's predictions."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kairode.report.figures import DECISION, EXPECTED, LINE, label, legend_columns, save_figure, variable_label
from kairode.runs.course import Course, prediction_errors
from kairode.text import MOST, short_name, width

LABELS = {"expected": "predicted from each decision", "predicted": "predicted from the first observation"}

SHORT = 40
"""Longest title beside the legend."""


def draw_course(course: Course, path: str | Path, title: str) -> None:
    save_figure(course_figure(course, title), path)


def course_figure(course: Course, title: str) -> Figure:
    """One panel per observed variable and a strip of actions; decisions are dots, predictions dashed lines.

    Of more than `MOST` variables those that the model predicts worst, or the first ones if there is no model.
    """
    variables = course["variables"]
    true, seen = (np.asarray(course[name]) for name in ("true", "seen"))
    shown, rule = shown_variables(course)
    figure = Figure(figsize=(9, 1.25 * len(shown) + 1.9), layout="constrained")
    heights = [1.0] * len(shown) + [0.45]
    panels = figure.subplots(len(shown) + 1, 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, i in zip(panels, shown, strict=False):
        if variables[i]["log"]:
            axes.set_yscale("log")
        known = ~np.isnan(true[:, i])  # a line from each measurement to the next
        axes.plot(np.asarray(course["time"])[known], true[known, i], color=LINE, lw=1.1, zorder=1)
        if "model" in course:
            axes.plot(*_prediction(course, i), color=EXPECTED, lw=1.0, linestyle="--", zorder=3)
        axes.plot(course["decisions"], seen[:, i], "o", color=DECISION, ms=2.6, zorder=2)
        axes.set_ylabel(variable_label(variables[i], "\n"), fontsize=8)
        axes.tick_params(which="both", labelsize=7)
    _draw_actions(panels[-1], course)
    panels[-1].set_xlabel(f"time, {course['spec']['time_unit']}s")
    panels[0].set_title(_above_legend(title, rule), fontsize=11, loc="left")
    panels[0].plot([], [], "o", color=DECISION, ms=3, label="decision")
    if "model" in course:
        panels[0].plot([], [], color=LINE, lw=1.1, label="what happened")
        panels[0].plot([], [], color=EXPECTED, lw=1.0, linestyle="--", label=LABELS[course["kind"]])
    panels[0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, fontsize=7, frameon=False)
    figure.align_ylabels()
    return figure


def shown_variables(course: Course) -> tuple[list[int], str]:
    """The variables with a panel, and the rule that they were chosen by; no rule if all are shown."""
    count = len(course["variables"])
    if count <= MOST:
        return list(range(count)), ""
    if "model" not in course:
        return list(range(MOST)), f"{MOST} of {count:,} variables: the first"
    worst = np.argsort(-prediction_errors(course), kind="stable")[:MOST]
    return worst.tolist(), f"{MOST} of {count:,} variables: those predicted worst, relative to their spread"


def _above_legend(title: str, rule: str) -> str:
    """A short title stands beside the legend, anything longer above it."""
    lines = [short_name(title), *filter(None, [rule])]
    return "\n".join([*lines, ""] if rule or width(lines[0]) > SHORT else lines)


def _prediction(course: Course, i: int) -> list[np.ndarray]:
    times, values = np.asarray(course["model_time"]), np.asarray(course["model"])[..., i]
    if course["kind"] == "predicted":
        return [times.ravel(), values.ravel()]
    gap = np.full((len(times), 1), np.nan)  # predictions restart at every decision
    return [np.concatenate([x, gap], axis=1).ravel() for x in (times, values)]


def _draw_actions(axes: Axes, course: Course) -> None:
    """A bar in the colour of each discrete action, or a line for each continuous one."""
    actions, widths = (np.asarray(course[name]) for name in ("actions", "intervals"))
    starts, kinds = np.asarray(course["decisions"])[:-1], course["spec"]["actions"]
    rule = ""
    if kinds["kind"] == "discrete":
        names = kinds["names"]
        colours = colormaps["viridis"](np.linspace(0.95, 0.1, len(names)))
        held = np.bincount(actions, widths, len(names))
        named = sorted(np.argsort(-held, kind="stable")[:MOST].tolist())
        for i in sorted({*named, *actions.tolist()}):
            spans: list[Any] = list(zip(starts[actions == i], widths[actions == i], strict=True))
            name = label(names[i]) if i in named else None
            axes.broken_barh(spans, (0, 1), color=colours[i], label=name, lw=0)
        if len(names) > MOST:
            rule = f"{MOST} of {len(names):,} actions: those held longest"
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.75),
            ncols=legend_columns([label(names[i]) for i in named]),
            fontsize=7,
            frameon=False,
            title=rule or None,
            title_fontsize=7,
        )
        axes.set_ylim(0, 1.35)
    else:
        axes.step(starts, actions[:, :MOST], where="post", lw=0.7)
        low, high = min(kinds["low"]), max(kinds["high"])
        axes.set_ylim(low, high + 0.35 * ((high - low) or 1.0))
        if len(kinds["names"]) > MOST:
            rule = f"{MOST} of {len(kinds['names']):,} actions: the first"
            axes.set_title(rule, fontsize=7, loc="left")
    bottom, top = axes.get_ylim()
    axes.plot(starts, np.full(len(starts), top - 0.1 * (top - bottom)), "|", color=DECISION, ms=4, mew=0.5)
    axes.set_yticks([])
    axes.set_ylabel("action", fontsize=8)
    axes.set_xlim(0, float(course["decisions"][-1]))
