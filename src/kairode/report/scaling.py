"""Figures of how cost grows, from the record of `kairode bench scaling`."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kairode.report.figures import CHOSEN, FIXED, LINE, finish_axes
from kairode.report.table import Table
from kairode.runs.record import read_record

AXES = {
    "episodes": "training episodes",
    "length": "decisions in an episode",
    "variables": "observed variables",
    "latent": "latent size",
    "agents": "agents in imagination",
}
RECORD = "bench-scaling.json"


def scaling_figures(results: Path) -> dict[str, Figure]:
    """A figure for each quantity that cost grows with; none without the record."""
    path = results / RECORD
    if not path.exists():
        return {}
    figures = read_record(path)["figures"]
    return {name: _figure(name, label, figures) for name, label in AXES.items() if name in figures}


def scaling_table(results: Path) -> Table:
    """Cost at the smallest and the largest size, and the exponent between the last two."""
    path = results / RECORD
    figures = read_record(path)["figures"] if path.exists() else {}
    rows = []
    for name, label in (*AXES.items(), ("streamed", "training episodes, streamed")):
        if name not in figures:
            continue
        cells = [label, f"{int(next(iter(figures[name]['megabytes']))):,} to {int(_last(figures[name])):,}"]
        for kind in ("milliseconds", "megabytes"):
            values = list(figures[name][kind].values())
            cells += [f"{values[0]:,.3g} to {values[-1]:,.3g}", f"{figures[name]['exponent'][kind]:.2f}"]
        rows.append(cells)
    return Table.of(["", "range", "ms", "exponent", "MB on the device", "exponent"], rows)


def _last(found: dict[str, Any]) -> str:
    return list(found["megabytes"])[-1]


def _figure(name: str, label: str, figures: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(8.4, 2.8), layout="constrained")
    time, memory = figure.subplots(1, 2)
    found = figures[name]
    _line(time, found["milliseconds"], "in memory" if name == "episodes" else "measured", LINE)
    _line(memory, found["megabytes"], "on the device" if name == "episodes" else "measured", LINE)
    if name == "episodes":
        _line(time, figures["streamed"]["milliseconds"], "streamed", CHOSEN)
        _line(memory, figures["streamed"]["megabytes"], "on the device, streamed", CHOSEN)
        for kind, style in (("memory", "--"), ("streamed", ":")):
            _line(memory, figures["peak"][kind], f"whole process, {kind}", FIXED, ls=style)
    what = "decision of all agents" if name == "agents" else "iteration"
    for axes, unit, points in ((time, f"ms per {what}", found["milliseconds"]), (memory, "MB", found["megabytes"])):
        _linear(axes, points)
        axes.set_yscale("log")
        finish_axes(axes, label, unit, log=True, legend=7)
    return figure


def _line(axes: Axes, points: dict[str, float], label: str, colour: str, ls: str = "-") -> None:
    axes.plot([int(size) for size in points], list(points.values()), color=colour, label=label, ls=ls, marker="o", ms=3)


def _linear(axes: Axes, points: dict[str, float]) -> None:
    """A line of linear growth through the last point, as far as the measured values reach down."""
    last, cost = int(list(points)[-1]), list(points.values())[-1]
    first = max(int(next(iter(points))), last * min(points.values()) / cost)
    axes.plot([first, last], [cost * first / last, cost], color="#a0aec0", lw=0.8, label="linear growth")
