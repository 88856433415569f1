"""What is in a table: on the terminal, and as a page."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kairode.report import page
from kairode.report.figures import LINE, label
from kairode.report.table import Table, print_table, to_html
from kairode.result import short_number
from kairode.text import MOST, listed, say, short_name

HEADERS = ("minimum", "5 %", "median", "95 %", "maximum")
SHOWN = ("0.0", "0.05", "0.5", "0.95", "1.0")
"""Quantiles in the tables."""


def print_inspection(found: dict[str, Any]) -> None:
    say(summary(found), *found["notes"])
    for table in tables(found):
        say(table.caption)
        print_table(Table(table.columns, table.sections))
    warnings = found["warnings"]
    say(f"{len(warnings)} warning{'s' * (len(warnings) != 1)}:" if warnings else "No warnings.")
    say(*(f"- {text}" for text in warnings))


def summary(found: dict[str, Any]) -> str:
    ends = found["terminated"] / found["episodes"]
    return (
        f"{short_name(found['source'])}: {found['episodes']:,} episodes with {found['decisions']:,} decisions and "
        f"{len(found['variables']):,} variables; {ends:.0%} of the episodes terminated."
    )


def tables(found: dict[str, Any]) -> list[Table]:
    """Sizes, variables and actions."""
    unit = found["time_unit"]
    rows = [
        ("decisions in an episode", found["lengths"]),
        (f"duration of an episode ({unit}s)", found["durations"]),
        (f"interval ({unit}s)", found["intervals"]),
        ("reward", found["rewards"]),
        ("return of an episode", found["returns"]),
    ]
    sizes = Table.of(
        ["", "mean", *HEADERS], [[name, *_cells(one)] for name, one in rows], "Episodes, times and rewards:"
    )
    return [sizes, variable_table(found), action_table(found)]


def variable_table(found: dict[str, Any]) -> Table:
    variables = found["variables"]
    shown = sorted(variables, key=lambda name: -variables[name]["missing"])[:MOST]
    shown = [name for name in variables if name in shown]
    rows = [[short_name(name), f"{variables[name]['missing']:.1%}", *_cells(variables[name])] for name in shown]
    which = f" ({MOST} of {len(variables):,}: those with most missing values)" if len(variables) > MOST else ""
    return Table.of(["variable", "missing", "mean", *HEADERS], rows, f"Variables{which}:")


def action_table(found: dict[str, Any]) -> Table:
    """How often actions are taken, and the means of the variables before them; quantiles of continuous actions."""
    actions = found["actions"]
    if all("quantiles" in one for one in actions.values()):
        rows = [[short_name(name), *_cells(one)] for name, one in actions.items()]
        return Table.of(["action", "mean", *HEADERS], rows[:MOST], "Continuous actions:")
    names = [*found["variables"]][:4]
    headers = ["action", "decisions", "share", "episodes", "repeated", *(f"mean {short_name(name)}" for name in names)]
    taken = sorted(actions, key=lambda name: -actions[name]["count"])
    rows = []
    for name in taken[:MOST]:
        one = actions[name]
        often = [f"{one['count']:,}", f"{one['share']:.1%}", f"{one['episodes']:,}"]
        repeated = None if one["repeated"] is None else f"{one['repeated']:.0%}"
        means = [one["before"][variable] for variable in names]
        rows.append([short_name(name), *often, repeated, *(None if x is None else short_number(x, 3) for x in means)])
    which = f", the {MOST} most frequent of {len(actions):,}" if len(actions) > MOST else ""
    caption = f"Actions{which}, how often they follow themselves, and what was observed before them:"
    return Table.of(headers, rows, caption)


def _cells(one: dict[str, Any]) -> list[str | None]:
    if one["quantiles"] is None:
        return [None] * (1 + len(SHOWN))
    return [short_number(one["mean"], 3), *(short_number(one["quantiles"][name], 3) for name in SHOWN)]


def inspection_figure(found: dict[str, Any]) -> Figure:
    """Histograms of lengths, intervals and rewards, missing values, and actions."""
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = figure.subplots(2, 3).flat
    _histogram(next(axes), found["lengths"], "decisions in an episode")
    _histogram(next(axes), found["intervals"], f"interval ({found['time_unit']}s)")
    _histogram(next(axes), found["rewards"], "reward")
    _histogram(next(axes), found["returns"], "return of an episode")
    variables = found["variables"]
    most = sorted(variables, key=lambda name: -variables[name]["missing"])[:MOST]
    _bars(next(axes), {name: 100 * variables[name]["missing"] for name in most}, "missing values (%)")
    actions = {name: 100 * one["share"] for name, one in found["actions"].items() if "share" in one}
    often = sorted(actions, key=lambda name: -actions[name])[:MOST]
    _bars(next(axes), {name: actions[name] for name in often}, "actions (% of the decisions)")
    return figure


def _histogram(axes: Axes, one: dict[str, Any], name: str) -> None:
    drawn = one["histogram"]
    axes.stairs(drawn["counts"], drawn["edges"], fill=True, color=LINE, alpha=0.7)
    axes.set(xlabel=name, ylabel="count")
    axes.spines[["top", "right"]].set_visible(False)


def _bars(axes: Axes, shares: dict[str, float], name: str) -> None:
    axes.barh([label(one) for one in shares], [*shares.values()], color=LINE, alpha=0.7)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlim(0, max(1.0, 1.05 * max(shares.values(), default=0.0)))
    axes.set_xlabel(name)
    axes.spines[["top", "right"]].set_visible(False)


def write_inspection_page(path: Path, found: dict[str, Any]) -> Path:
    warnings = found["warnings"]
    facts = [
        (f"{found['episodes']:,}", "episodes"),
        (f"{found['decisions']:,}", "decisions"),
        (f"{len(found['variables']):,}", "variables"),
        (f"{len(warnings):,}", f"warning{'s' * (len(warnings) != 1)}"),
    ]
    words = "Histograms of lengths, intervals, rewards and returns; missing values by variable; shares of the actions."
    sizes, variables, actions = tables(found)
    parts = [
        page.paragraph(summary(found), "lead"),
        page.facts(facts),
        page.section("Warnings", *(map(page.paragraph, warnings or ["None."]))),
        page.section("Loading", *(map(page.paragraph, found["notes"] or ["Nothing was changed."]))),
        page.section("Distributions", page.picture(inspection_figure(found), "distributions", words, words)),
        page.section("Episodes, times and rewards", to_html(sizes)),
        page.section("Variables", to_html(variables)),
        page.section("Actions", to_html(actions)),
    ]
    return page.write_page(path, f"{listed([found['source']])}: what is in the table", parts)
