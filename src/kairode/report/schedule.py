"""Return against decisions: results of chosen schedules as a table and as the paper's figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kairode.envs.core import Spec
from kairode.errors import KairodeError
from kairode.report import figures
from kairode.report.summary import every_interval, kind_of_return, measured, percentages, with_interval
from kairode.report.table import Row, Table, print_table
from kairode.result import objective_name, objective_of, short_number
from kairode.runs import labels
from kairode.runs.labels import exact_number, of_kind
from kairode.runs.record import read_record
from kairode.stats import mean, std
from kairode.text import say


def print_schedule(record: dict[str, Any], spec: Spec) -> None:
    """Return and decisions of every schedule, the chosen intervals, and a sentence on each chosen schedule."""
    rows = record["figures"]["rows"]
    kind = "discounted accrued return" if spec.discounted_objective else "accrued return"
    names = ["schedule", f"{kind} (95 %)", "accrued return" if spec.discounted_objective else "discounted"]
    measures = measured(rows)
    heads, cells = [*names, f"{spec.decision_name}s", f"{spec.time_unit}s between", *measures], []
    other = objective_name(discounted=not spec.discounted_objective, accrued=True)
    for row in rows.values():
        numbers = [with_interval(row), short_number(row[other]), f"{row['decisions']:.4g}"]
        numbers += [f"{row['time'] / row['decisions']:.3g}", *percentages(row, measures)]
        cells.append(Row.of([_named(row), *numbers], marked=row["kind"] == "chosen"))
    caption = (
        "The same policy under every schedule; accrued returns, with rewards counted on every finest time "
        "step." + "".join(f" {sentence}" for name, sentence in spec.measures if name in measures)
    )
    print_table(Table.of(heads, cells, caption))
    _print_intervals(record["figures"]["intervals"], rows, spec)
    say(f"Models fitted to {record['figures']['real_episodes']:,} real episodes.")
    for row in of_kind(rows, "chosen").values():
        say(chosen_sentence(rows, row, spec))


def _named(row: dict[str, Any]) -> str:
    if row["kind"] == "own":
        return "the environment's own"
    if row["kind"] == "chosen":
        return "chosen" if row["price"] == 0 else f"chosen, {labels.label(row)}"
    return labels.label(row)


def _print_intervals(found: dict[str, Any], tests: dict[str, Any], spec: Spec) -> None:
    states = list(next(iter(found.values())))
    rows = []
    for name, counts in found.items():
        cells: list[str | None] = []
        for state in states:
            taus = np.repeat([float(tau) for tau in counts[state]], list(counts[state].values()))
            if len(taus):
                low, middle, high = np.quantile(taus, [0.25, 0.5, 0.75])
                cells.append(f"{taus.mean():.3g} ({low:.3g}, {middle:.3g}, {high:.3g}; n {len(taus)})")
            else:
                cells.append(None)
        rows.append([_named(tests[name]), *cells])
    what = spec.decision_name
    headers = [f"{spec.time_unit}s to the next {what}", *states]
    print_table(Table.of(headers, rows, f"mean (quartiles; number of {what}s)"))


def chosen_sentence(rows: dict[str, Any], mine: dict[str, Any], spec: Spec) -> str:
    fixed = list(of_kind(rows, "fixed").values())
    often = fixed[0]
    best = max((objective_of(row) for row in fixed if row["decisions"] <= mine["decisions"]), default=None)
    name, many = _named(mine), f"{spec.decision_name}s"
    text = (
        f"{name[0].upper()}{name[1:]}: return {short_number(objective_of(mine))} with {mine['decisions']:.0f} {many}; "
        f"{every_interval(often['interval'], spec.time_unit)}: {short_number(objective_of(often))} with "
        f"{often['decisions']:.0f}"
    )
    if best is None:
        return f"{text}; every fixed interval has more {many}."
    return f"{text}; best fixed interval with as few {many}: {short_number(best)}."


def draw_schedule(record: dict[str, Any], spec: Spec, path: Path) -> None:
    rows = record["figures"]["rows"]
    chosen = of_kind(rows, "chosen").values()
    figure, axes = figures.panel(7, 4)
    fixed = [(row["decisions"], objective_of(row), f"{row['interval']:g}") for row in of_kind(rows, "fixed").values()]
    _labelled(axes, fixed, figures.FIXED, "fixed intervals", "o-")
    own = (rows["own"]["decisions"], objective_of(rows["own"]), "own")
    _labelled(axes, [own], figures.OWN, "the environment's own", "s")
    for what, style, words in (("price", "D-", "chosen, by price"), ("budget", "x:", "chosen, by budget")):
        mine = sorted(
            (row["decisions"], objective_of(row), exact_number(row[what])) for row in chosen if row[what] is not None
        )
        if mine:
            _labelled(axes, mine, figures.CHOSEN, words, style)
    y = f"{kind_of_return(spec)}, accrued every {spec.finest:g} {spec.time_unit}{'s' * (spec.finest != 1)}"
    figures.finish_axes(axes, f"{spec.decision_name}s in {spec.horizon:g} {spec.time_unit}s", y, log=True)
    figures.save_figure(figure, path)


def _labelled(axes: Any, points: Sequence[tuple[float, float, str]], colour: str, label: str, kind: str) -> None:
    xs, ys, names = zip(*points, strict=True)
    axes.plot(xs, ys, kind, color=colour, label=label, ms=4, lw=0.9)
    figures.label_points(axes, xs, ys, names, fontsize=6, color=colour)


LABELS = {
    "fixed": ("fixed interval, best policies", figures.FIXED, "o-"),
    "own": ("the environment's own schedule", figures.OWN, "s"),
    "truth": ("true dynamics, one policy per price", figures.TRUTH, "D-"),
    "rounds": ("Latent-ODE, one policy per price", figures.CHOSEN, "D-"),
    "week-rounds": ("Latent-ODE, at most a week ahead", figures.CHOSEN, "*"),
    "random": ("Latent-ODE (1000 random episodes)", figures.RANDOM, "^-"),
    "once-truth price": ("true dynamics, one policy, by price", figures.TRUTH, "x--"),
    "once-truth budget": ("true dynamics, one policy, by budget", figures.TRUTH, "+:"),
    "once-rounds price": ("Latent-ODE, one policy, by price", figures.CHOSEN, "x--"),
    "once-rounds budget": ("Latent-ODE, one policy, by budget", figures.CHOSEN, "+:"),
}
"""Label, colour and style of each schedule."""


def read_points(results: Path, env: str = "hiv") -> dict[str, dict[str, Any]]:
    found = {record.stem: read_record(record) for record in sorted(results.glob(f"{env}-*.json"))}
    fixed: dict[str, Any] = {}
    parts = [record["figures"]["points"] for name, record in found.items() if name.startswith(f"{env}-fixed")]
    for label, point in (item for points in parts for item in points.items()):
        # Some intervals were studied twice, from scratch and from policies of chosen intervals: keep the better.
        if label not in fixed or mean(objective_of(point)) > mean(objective_of(fixed[label])):
            fixed[label] = point
    if not fixed:
        raise KairodeError(f"{results}/{env}-fixed*.json does not exist: run `kairode reproduce figure-schedule`.")
    groups = {"own": {"own": fixed.pop("own")}} if "own" in fixed else {}
    groups["fixed"] = {name: fixed[name] for name in sorted(fixed, key=float)}
    for name in LABELS:
        study, _, kind = name.partition(" ")
        if f"{env}-{study}" in found:
            record = found[f"{env}-{study}"]
            points, config = record["figures"]["points"], record["config"]
            planned = [labels.chosen(price=price) for price in config.get("prices", ()) if kind != "budget"]
            planned += [labels.chosen(budget=budget) for budget in config.get("budgets", ()) if kind != "price"]
            groups[name] = {labels.label(row): points[labels.label(row)] for row in planned}
    return {name: groups[name] for name in LABELS if name in groups}


def print_visits(results: Path) -> None:
    heads = ["schedule", "setting", "discounted return (1e7)", "return (1e7)", "visits", "seeds", "training cut short"]
    rows = []
    for name, points in read_points(results).items():
        for label, point in points.items():
            returns = [np.array(point[kind]) / 1e7 for kind in ("discounted_accrued_return", "accrued_return")]
            numbers = [f"{mean(values):.4g} ± {std(values):.3g}" for values in returns]
            planned = point.get("planned_episodes")
            cut = "" if planned is None else f"{min(point['training_episodes'])} of {planned}"
            rows.append([LABELS[name][0], label, *numbers, f"{mean(point['decisions']):.4g}", len(returns[0]), cut])
    caption = "mean ± std over seeds; cut short: training episodes before the time limit, of those planned"
    print_table(Table.of(heads, rows, f"accrued returns, {caption}"))


def visits_figure(results: Path) -> Figure:
    """The paper's figure: return against visits by schedule, mean and std over seeds."""
    figure, axes = figures.panel(8, 4.6)
    bars: dict[str, Any] = {"ms": 4, "lw": 0.9, "elinewidth": 0.6, "capsize": 2}
    for name, points in read_points(results).items():
        label, colour, style = LABELS[name]
        xs = [mean(point["decisions"]) for point in points.values()]
        ys, stds = ([f(objective_of(point)) / 1e7 for point in points.values()] for f in (mean, std))
        axes.errorbar(xs, ys, yerr=stds, fmt=style, color=colour, label=label, **bars)
        if name in ("fixed", "own"):  # prices and budgets are too close to label: see the table
            figures.label_points(axes, xs, ys, points, fontsize=6, color=colour)
    figures.finish_axes(axes, "visits in 1000 days", "discounted return, accrued daily (1e7)", log=True, legend=7)
    return figure
