"""Results of a run: a table and sentences on the terminal, and the figures of its page."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from kairode.report.figures import CHOSEN, FIXED, LINE, OWN, finish_axes, label, label_points, panel, variable_label
from kairode.report.summary import (
    fixed_rivals,
    kind_of_return,
    measured,
    no_better_sentence,
    percentages,
    spec_of,
    summary_sentences,
)
from kairode.report.table import Row, Table, print_table
from kairode.result import objective_of, short_number
from kairode.runs.labels import best_constant, exact_number, of_kind
from kairode.text import MOST, say

NAMES = {"imagination": "learned in imagination", "model-free": "model-free", "random": "random actions"}


def policy_table(record: dict[str, Any]) -> Table:
    """Test results: each policy's return with its interval, and the real data it learned from.

    Of more than `MOST` constant policies, the best.
    """
    spec, figures = spec_of(record), record["figures"]
    measures, left_out = measured(figures["tests"]), left_out_constants(figures["tests"])
    headers = ["policy", kind_of_return(spec), "95 %", "decisions", *measures]
    rows = []
    for i, (name, test) in enumerate(figures["tests"].items()):
        if name in left_out:
            continue
        interval = f"{short_number(test['low'], 3)} to {short_number(test['high'], 3)}"
        cells = [NAMES.get(name, name), short_number(objective_of(test)), interval, f"{test['decisions']:.3g}"]
        seen = [figures[what].get(name) for what in ("real_episodes", "real_decisions")]
        counts = ["-" if number is None else f"{number:,}" for number in seen]
        rows.append(Row.of([*cells, *percentages(test, measures), *counts], marked=i == 0))
    return Table.of([*headers, "real episodes", "real decisions"], rows)


def left_out_constants(tests: dict[str, Any]) -> set[str]:
    """The constant policies that a table leaves out: all but the best ones."""
    constants = of_kind(tests, "constant")
    return {*sorted(constants, key=lambda name: -float(objective_of(constants[name])))[MOST:]}


def print_run(record: dict[str, Any]) -> None:
    """Print a warning if the policy is no better than simple ones, the tests (in 80 columns), and the summary."""
    failed = no_better_sentence(record)
    if failed:
        say(failed)
    print_table(_short_table(policy_table(record), record["figures"]["tests"]))
    for sentence in summary_sentences(record):
        if sentence != failed:
            say(sentence)


def _short_table(table: Table, tests: dict[str, Any]) -> Table:
    """Keep only the best constant policy, and the columns that fit into 80 characters."""
    columns = [i for i, head in enumerate(table.headers) if head not in ("decisions", "real decisions")]
    others = of_kind(tests, "constant").keys() - {best_constant(tests)}
    rows = []
    for row in table.rows:
        name, *texts = (row.cells[i].text or "" for i in columns)
        if name not in others:
            rows.append([name.removeprefix("learned "), *texts])
    return Table.of([table.headers[i] if i != 1 else "return" for i in columns], rows)


def learning_figure(record: dict[str, Any]) -> Figure:
    """Return on the real system: by real episodes for Dyna rounds, otherwise by training episodes."""
    figures, spec = record["figures"], spec_of(record)
    figure, axes = panel(7.5, 3.8)
    if "rounds" in figures:
        rounds = figures["rounds"]
        seen, low, high = ([one[name] for one in rounds] for name in ("real_episodes", "low", "high"))
        mean = [objective_of(one) for one in rounds]
        axes.fill_between(seen, low, high, color=CHOSEN, alpha=0.15, lw=0)
        axes.plot(seen, mean, "o-", color=CHOSEN, ms=4, label="Dyna rounds")
        axes.set_xlabel("real episodes so far")
    elif curve := figures["curve"]:
        axes.plot(*_curve(curve, "real"), "o-", ms=3, color=CHOSEN, label="learned in imagination")
        if "score" in curve[0]:
            axes.plot(*_curve(curve, "score"), "x:", ms=3, color=CHOSEN, label="return in the validation model")
        axes.set_xlabel("training episodes (imagined or real)")
    if free := figures.get("free_curve"):
        axes.plot(*_curve(free, "real"), "s-", ms=3, color=LINE, label="model-free")
    tests = figures["tests"]
    constant = best_constant(tests)
    axes.axhline(objective_of(tests[constant]), color=OWN, lw=1, ls="-.", label=label(constant))
    axes.axhline(objective_of(tests["random"]), color=FIXED, lw=1, ls="--", label="random actions")
    axes.set_ylabel(kind_of_return(spec))
    shown = [y for line in axes.lines for y in np.ravel(line.get_ydata()) if np.isfinite(y)]
    if min(shown) > 0 and max(shown) > 50 * min(shown):
        axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _curve(points: list[dict[str, Any]], what: str) -> tuple[list[float], list[float]]:
    return [point["episodes"][0] for point in points], [point[what][0] for point in points]


def map_figure(found: dict[str, Any]) -> Figure:
    x, y = found["axes"]
    figure = Figure(figsize=(8.4, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = found["names"]
    grids = (np.asarray(found[name], float).T for name in ("actions", "values"))
    edges = {"vmin": -0.5, "vmax": len(names) - 0.5}
    for axes, grid, options in zip((left, right), grids, (edges, {}), strict=True):
        colours = colormaps["viridis_r"].resampled(len(names)) if axes is left else "magma"
        drawn = axes.pcolormesh(x["at"], y["at"], grid, cmap=colours, shading="nearest", rasterized=True, **options)
        bar = figure.colorbar(drawn, ax=axes)
        bar.ax.tick_params(labelsize=7)
        title = "value"
        if axes is left:
            named, title = list(range(len(names))), "action"
            if len(names) > MOST:
                often = np.bincount(grid.astype(int).ravel(), minlength=len(names))
                named = np.argsort(-often, kind="stable")[:MOST].tolist()
                title = f"action ({MOST} of {len(names):,} named: the most frequent)"
            # Not a formula: Matplotlib takes what is between two dollar signs for one.
            bar.set_ticks(named, labels=[label(names[i]).replace("$", r"\$") for i in named])
        axes.set_title(title, fontsize=9, loc="left")
        for side, axis in (("x", x), ("y", y)):
            getattr(axes, f"set_{side}scale")("log" if axis["log"] else "linear")
        axes.set_xlabel(variable_label(x, ", "), fontsize=8)
        axes.tick_params(which="both", labelsize=7)
    left.set_ylabel(variable_label(y, ", "), fontsize=8)
    return figure


def tradeoff_figure(record: dict[str, Any]) -> Figure:
    """Return against decisions: fixed intervals, the environment's own schedule, and those chosen at each price."""
    spec, found = spec_of(record), record["figures"]["visits"]
    rows = found["rows"]
    figure, axes = panel(7.5, 4)
    fixed = fixed_rivals(found).values()
    points = [row["decisions"] for row in fixed], [objective_of(row) for row in fixed]
    axes.plot(*points, "o-", color=FIXED, ms=4, lw=0.9, label="fixed interval (better of two policies)")
    label_points(axes, *points, [f"{row['interval']:g}" for row in fixed], fontsize=7)
    own = found["usual"]["own"]
    axes.errorbar(*_bar(own), fmt="s", color=OWN, ms=5, label="the environment's own schedule")
    chosen = of_kind(rows, "chosen")
    places: dict[tuple[float, float], list[str]] = {}
    for i, row in enumerate(chosen.values()):
        axes.errorbar(*_bar(row), fmt="D", color=CHOSEN, ms=5, label=None if i else "chosen by the model")
        places.setdefault((row["decisions"], objective_of(row)), []).append(exact_number(row["price"]))
    for i, (where, labels) in enumerate(places.items()):
        words = f"price {', '.join(labels)}"
        axes.annotate(words, where, textcoords="offset points", xytext=(8, -3 - 9 * i), fontsize=7, color=CHOSEN)
    kind = "discounted return" if spec.discounted_objective else "accrued return"
    finish_axes(axes, f"{spec.decision_name}s per episode", kind, log=True)
    return figure


def _bar(row: dict[str, Any]) -> tuple[float, float, Any]:
    middle = objective_of(row)
    return row["decisions"], middle, [[max(0.0, middle - row["low"])], [max(0.0, row["high"] - middle)]]
