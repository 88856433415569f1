"""Results of a fit: a table of errors, sentences on timer and solver, the calibration of an ensemble."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from kairode.config.algorithms import is_file
from kairode.envs.core import Spec
from kairode.report.figures import EXPECTED, FIXED, LINE, finish_axes, save_figure
from kairode.report.table import Row, Table, print_table
from kairode.stats import mean, std
from kairode.text import MOST, listed, say, short_name

NO_BETTER = 0.95
"""Fraction of the error of predicting the mean from which on a model is no better than that."""
FEW = 10
"""Test episodes below which an error is a rough estimate."""
KINDS = {"open_loop": ("open loop", LINE, "o"), "one_interval": ("one interval ahead", EXPECTED, "s")}
"""Kinds of prediction: name, colour and marker."""
FAR = 2.0
"""Factor between spread and error, either way, from which on a warning is given."""


def fit_table(record: dict[str, Any], spec: Spec) -> Table:
    """Test error of every seed: total, by variable (of more than `MOST` the worst) and by prediction time."""
    figures = record["figures"]
    by_variable = figures["by_dimension"]
    shown, caption = [*by_variable], ""
    if len(by_variable) > MOST:
        shown = sorted(by_variable, key=lambda name: -_mean_error(by_variable[name]))[:MOST]
        caption = f"{MOST} of {len(by_variable):,} variables: those predicted worst. The record has all of them."
    errors, edges = figures["test_error"], figures["time_edges"]
    seeds = [f"seed {record['config']['seed'] + i}" for i in range(len(errors))]
    over_seeds = ["mean", "std"] if len(errors) > 1 else []

    def row(name: str, values: list[float | None], marked: bool = False) -> Row:
        known = [value for value in values if value is not None]
        cells = ["" if value is None else f"{value:.4f}" for value in values]
        spread = [f"{mean(known):.4f}", f"{std(known):.4f}"] if known else ["", ""]
        return Row.of([name, *cells, *spread[: len(over_seeds)]], marked)

    sections = [
        [row("all", errors, marked=True)],
        [row(short_name(name), by_variable[name]) for name in shown],
        [
            row(f"up to {edge:.4g} {spec.time_unit}s", list(values))
            for edge, values in zip(edges[1:], zip(*figures["by_time"], strict=True), strict=True)
            if any(value is not None for value in values)
        ],
    ]
    return Table.in_sections(["test error", *seeds, *over_seeds], sections, caption)


def _mean_error(errors: list[float | None]) -> float:
    """-1 if it is unknown, because the variable was never measured."""
    return mean([-1.0 if error is None else error for error in errors])


def print_fit(record: dict[str, Any], spec: Spec) -> None:
    figures = record["figures"]
    errors = figures["test_error"]
    if is_file(record["config"]["source"]):
        say(f"Observations in {record['config']['source']}: {listed(figures['by_dimension'])}.", *spec.notes)
    table = fit_table(record, spec)
    print_table(dataclasses.replace(table, caption=""))  # it would be wrapped to the width of the table
    say(*filter(None, [table.caption]))
    error, around = figures["mean"], figures["std"]
    spread = f" (std {around:.2g} over {len(errors)} seeds)" if len(errors) > 1 else ""
    unit = " (standardised variables)" if record["config"]["standardize"] else ""
    name, most = record["config"]["model"], spec.max_decisions
    what = f"test episodes of up to {most} decisions" if most else "whole test episodes"
    say(f"{name} predicts {what} from their first observation with mean squared error {error:.4g}{unit}{spread}.")
    episodes, variance = record["config"]["test_episodes"], figures.get("variance", math.inf)
    if error >= NO_BETTER * variance:
        say(
            f"Predicting the mean of each variable has an error of {variance:.4g}: the model is no better. Fit it "
            "longer, or to more episodes; it may also be that nothing better can be predicted."
        )
    if episodes < FEW:
        say(f"With {episodes} test episode{'s' * (episodes > 1)} this error is a rough estimate.")
    median, share = mean(figures["median_episode"]), 100 * mean(figures["worst_share"])
    worst = "worst 1 % of the episodes" if episodes >= 100 else "worst episode"
    say(f"Median over episodes: {median:.4g}; the {worst} accounts for {share:.0f} % of the total error.")
    if figures["timer_hits"]:
        hits = 100 * mean(figures["timer_hits"])
        say(f"The timer's most likely interval is correct for {hits:.0f} % of the decisions.")
    if figures.get("intervals"):
        say(*_about_intervals(figures["intervals"], spec.time_unit))
    if figures["solver"]:
        say(_about_solver(record["config"]["sizes"]["solver"], figures["solver"], error))
    if figures.get("calibration"):
        say(calibration_sentence(figures["calibration"]))
    if any(figures["skipped"]):
        say(f"{sum(figures['skipped'])} batches were skipped because their loss was not finite.")


def _about_intervals(checks: list[dict[str, Any]], unit: str) -> list[str]:
    names = ("mean", "drawn_mean", "likely_mean", "drawn", "likely")
    true_mean, drawn_mean, likely_mean, drawn, likely = (mean([check[name] for check in checks]) for name in names)
    measures = {
        "total variation": "total variation distance to the data",
        "Wasserstein / mean": "1-Wasserstein distance to the data, relative to the mean",
    }
    found = (
        f"Mean interval: {drawn_mean:.4g} {unit}s sampled from the timer, {likely_mean:.4g} most likely, "
        f"{true_mean:.4g} in the test data ({measures[checks[0]['measure']]}: {drawn:.2g} sampled, "
        f"{likely:.2g} most likely)."
    )
    return [found]


def _about_solver(solver: str, checks: list[dict[str, Any]], error: float) -> str:
    if any(check["difference"] is None for check in checks):
        return f"Solver {solver}: a tight solver fails on the fitted field, so the model should not be read as an ODE."
    tight = mean([check["error_tight"] for check in checks])
    apart = mean([check["difference"] for check in checks])
    found = (
        f"Solver {solver}: with a tight solver the error is {tight:.4g} (root mean square difference of the "
        f"predictions: {apart:.2g})."
    )
    if tight <= 1.2 * error:
        return found
    return (
        f"{found} The model is a map between decisions rather than the flow of an ODE: use it with the solver "
        "it was fitted with, or fit with more steps (--solver rk4:4) or dopri5."
    )


def calibration_sentence(figures: Mapping[str, Any]) -> str:
    """What `figures["calibration"]` of a record says."""
    kinds = [figures[kind] for kind in KINDS]
    ratios = [f"{kind['ratio']:.2f}" for kind in kinds]
    alone, calibrated = (
        [f"{100 * kind['coverage'][name][-1]:.0f} %" for kind in kinds if name in kind["coverage"]]
        for name in ("spread", "calibrated")
    )
    level = f"{100 * figures['levels'][-1]:.0f} %"
    found = (
        f"Ensemble of {figures['members']}: the members' spread is {ratios[0]} of the error open loop and {ratios[1]} "
        "one interval ahead; "
    )
    if not calibrated:
        return f"{found}its {level} intervals cover {' and '.join(alone)} of the held-out values."
    return (
        f"{found}{level} intervals calibrated on the validation episodes cover {' and '.join(calibrated)} of the test "
        f"values, those of the spread alone {' and '.join(alone)}."
    )


def calibration_warning(figures: Mapping[str, Any] | None) -> str | None:
    """What to warn of if the spread is less than half or more than twice the error."""
    if figures is None:
        return None
    apart = [
        f"{figures[kind]['ratio']:.2f} {name}"
        for kind, (name, _, _) in KINDS.items()
        if not 1 / FAR <= figures[kind]["ratio"] <= FAR
    ]
    if not apart:
        return None
    return (
        f"the spread of the {figures['members']} models is not of the size of their errors (spread relative to error: "
        f"{', '.join(apart)}): do not read it as their uncertainty. Calibrated intervals take the errors into account "
        "(kairode.evaluate_ensemble)"
    )


def calibration_figure(figures: Mapping[str, Any], title: str) -> Figure:
    """Error against spread, and the coverage of intervals against their level; the diagonals are calibrated."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_errors(left, figures)
    _draw_coverage(right, figures)
    left.set_title(title, fontsize=11, loc="left")
    return figure


def draw_calibration(figures: Mapping[str, Any], path: str | Path, title: str) -> None:
    save_figure(calibration_figure(figures, title), path)


def _draw_errors(axes: Axes, figures: Mapping[str, Any]) -> None:
    points = [value for kind in KINDS for pair in figures[kind]["by_spread"] for value in pair if value > 0]
    low, high = (min(points) / 1.3, max(points) * 1.3) if points else (0.1, 1.0)
    axes.plot([low, high], [low, high], color=FIXED, lw=0.9, label="spread = error", zorder=1)
    band = [low / FAR, high / FAR], [low * FAR, high * FAR]
    axes.fill_between([low, high], *band, color=FIXED, alpha=0.12, lw=0, label=f"within a factor of {FAR:g}")
    for kind, (name, colour, marker) in KINDS.items():
        pairs = np.array([pair for pair in figures[kind]["by_spread"] if min(pair) > 0]).reshape(-1, 2)
        label = f"{name} (ratio {figures[kind]['ratio']:.2f})"
        axes.plot(*pairs.T, marker=marker, ms=4.5, lw=1.0, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    finish_axes(axes, "spread of the members (tenths of the test values)", "error of their mean")


def _draw_coverage(axes: Axes, figures: Mapping[str, Any]) -> None:
    levels = [100 * level for level in figures["levels"]]
    axes.plot([0, 100], [0, 100], color=FIXED, lw=0.9, zorder=1)
    for kind, (name, colour, marker) in KINDS.items():
        for intervals, style, fill in (("spread", ":", "white"), ("calibrated", "-", colour)):
            if intervals in figures[kind]["coverage"]:
                shares = [100 * share for share in figures[kind]["coverage"][intervals]]
                label = f"{name}, {'spread alone' if intervals == 'spread' else intervals}"
                axes.plot(levels, shares, style, marker=marker, ms=4.5, lw=1.2, color=colour, mfc=fill, label=label)
    axes.set(xlim=(40, 100), ylim=(0, 102), xticks=levels)
    finish_axes(axes, "level of the interval, %", "test values inside, %")
