"""Rendering of the simple environments with Matplotlib."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullFormatter

from kairode.envs import acrobot, gridworld, hiv, pendulum
from kairode.envs.core import Environment

History = list[dict[str, Any]]
"""The decisions of one episode: time, state, and the action that led there (None at the start)."""

INK, MUTED, ACCENT, GOOD = "#1f2933", "#9aa5b1", "#d64545", "#2f855a"


def render_history(env: Environment, history: History) -> np.ndarray:
    """An RGB image of the last state, with what came before where the drawing shows it."""
    drawing = DRAWINGS[type(env)]
    figure = Figure(figsize=(6.4, 4.8), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    drawing(figure, env, history)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def draw_gridworld(figure: Figure, env: gridworld.WindyGridworld, history: History) -> None:
    """The box with wind, start, goal and the path so far. The side of 10 is horizontal, the wind blows up."""
    axes = figure.subplots()
    for band, shade in ((gridworld.WEAK_BAND, 0.12), (gridworld.STRONG_BAND, 0.22)):
        axes.axvspan(*band, color="#3182ce", alpha=shade, lw=0)
    for y in np.arange(-2, 3.51, 1.0):
        push = float(gridworld.wind(jnp.asarray(y, jnp.float32)))
        for x in (-2.6, 0.0, 2.6):
            tip = {"arrowstyle": "->", "color": "#3182ce", "alpha": 0.6}
            axes.annotate("", (y, x + 8 * push), (y, x), arrowprops=tip)
    for ((x0, x1), (y0, y1)), colour, letter in ((gridworld.START, MUTED, "S"), (gridworld.GOAL, GOOD, "G")):
        axes.add_patch(Rectangle((y0, x0), y1 - y0, x1 - x0, color=colour, alpha=0.35, lw=0))
        axes.text((y0 + y1) / 2, (x0 + x1) / 2, letter, ha="center", va="center", color=INK, fontsize=13)
    x, y = np.stack([moment["state"] for moment in history]).T
    axes.plot(y, x, color=INK, lw=1.2, marker="o", ms=3)
    axes.plot(y[-1], x[-1], "o", color=ACCENT, ms=9)
    axes.set(xlim=(-5, 5), ylim=(-3.5, 3.5), aspect="equal", xlabel="y", ylabel="x")
    axes.set_title(f"t = {history[-1]['time']:g} s", color=INK)


def draw_acrobot(figure: Figure, env: acrobot.Acrobot, history: History) -> None:
    """The two links, the height of the goal, the last torque."""
    axes = figure.subplots()
    theta1, theta2 = history[-1]["state"][:2]
    x = np.cumsum([0.0, math.sin(theta1), math.sin(theta1 + theta2)])
    y = np.cumsum([0.0, -math.cos(theta1), -math.cos(theta1 + theta2)])
    axes.axhline(1.0, color=GOOD, ls="--", lw=1.2)
    axes.text(-2.2, 1.04, "goal", color=GOOD)
    axes.plot(x, y, color=INK, lw=7, solid_capstyle="round")
    axes.plot(x[:2], y[:2], "o", color=ACCENT, ms=10)
    action = history[-1]["action"]
    torque = "" if action is None else f", {list(acrobot.TORQUES)[int(action)]}"
    axes.set_title(f"t = {history[-1]['time']:.1f} s{torque}", color=INK)
    axes.set(xlim=(-2.3, 2.3), ylim=(-2.3, 2.3), aspect="equal", xticks=[], yticks=[])


def draw_pendulum(figure: Figure, env: pendulum.Pendulum, history: History) -> None:
    """The pole, the upright position, the last torque."""
    axes = figure.subplots()
    theta = history[-1]["state"][0]
    axes.plot([0, 0], [0, 1], color=GOOD, ls="--", lw=1.2)
    axes.plot([0, -math.sin(theta)], [0, math.cos(theta)], color=INK, lw=9, solid_capstyle="round")
    axes.plot(0, 0, "o", color=ACCENT, ms=10)
    action = history[-1]["action"]
    torque = "" if action is None else f", torque {float(np.ravel(action)[0]):+.1f}"
    axes.set_title(f"t = {history[-1]['time']:.2f} s{torque}", color=INK)
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal", xticks=[], yticks=[])


def draw_hiv(figure: Figure, env: hiv.HIV, history: History) -> None:
    """The six markers over time, on log scales, and the drugs given."""
    panels = figure.subplots(4, 2, sharex=True, gridspec_kw={"height_ratios": [3, 3, 3, 1]})
    time = np.array([moment["time"] for moment in history])
    state = np.stack([moment["state"] for moment in history])
    for axes, name, values in zip(panels[:3].T.ravel(), hiv.MARKERS, state.T, strict=True):
        axes.semilogy(time, values, color=ACCENT if name == "V" else INK, lw=1.2, marker="o", ms=2)
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(name)
    efficacy = list(hiv.TREATMENTS.values())
    for axes, drug, label in zip(panels[3], (0, 1), ("RTI", "PI"), strict=True):
        for i, moment in enumerate(history[1:]):
            if efficacy[int(moment["action"])][drug]:
                axes.axvspan(time[i], time[i + 1], color="#805ad5", alpha=0.6, lw=0)
        axes.set(yticks=[], ylabel=label, xlabel="day", xlim=(0, max(time[-1], 1.0)))


DRAWINGS: dict[type, Callable[..., None]] = {
    gridworld.WindyGridworld: draw_gridworld,
    acrobot.Acrobot: draw_acrobot,
    pendulum.Pendulum: draw_pendulum,
    hiv.HIV: draw_hiv,
}
