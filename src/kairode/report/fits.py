"""Results of a fit: a table of errors, and sentences on timer and solver."""

import dataclasses
import math
from typing import Any

from kairode.config.algorithms import is_file
from kairode.envs.core import Spec
from kairode.report.table import Row, Table, print_table
from kairode.stats import mean, std
from kairode.text import MOST, listed, say, short_name

NO_BETTER = 0.95
"""Fraction of the error of predicting the mean from which on a model is no better than that."""
FEW = 10
"""Test episodes below which an error is a rough estimate."""


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
