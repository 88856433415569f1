"""The course of one episode: what happened between decisions, where the decisions were, what was done."""

from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kairode.data import Trajectory
from kairode.data.files import whole
from kairode.envs import HIV, Discrete, Environment, HostEnvironment
from kairode.envs.hiv import MARKERS
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel

POINTS = 12
"""Moments drawn within an interval."""
LINE, DECISION, EXPECTED = "#2b6cb0", "#c53030", "#dd6b20"


def between_decisions(
    env: Environment, episode: Trajectory
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n obs"]]:
    """Times and observations between decisions, by running the true dynamics again (of a deterministic environment).

    From every decision anew, where the state is seen: a patient between health and sickness goes either way by the last
    digit. Where it is not, from the start.
    """
    steps = int(episode.length)
    parts = jnp.linspace(0.0, 1.0, POINTS + 1)[1:]
    start = env.reset(key=jax.random.key(0))
    seen_whole = isinstance(env, HIV) and len(env.observed) == len(MARKERS)

    @eqx.filter_jit
    def run(observations: Array, actions: Array, intervals: Array) -> Array:
        def hold(state: Any, decision: tuple[Array, Array, Array]) -> tuple[Any, Array]:
            obs, action, tau = decision
            if seen_whole and isinstance(env, HIV):
                state = env.restored(obs)
            at = partial(env.transition, state, action, key=jax.random.key(0))
            states = jax.vmap(at)(parts * tau)
            return jax.tree.map(lambda x: x[-1], states), jax.vmap(env.observe)(states)

        return jax.lax.scan(hold, start, (observations, actions, intervals))[1]

    rows = (episode.observation[:steps], episode.action[:steps], episode.interval[:steps])
    seen = run(*map(jnp.asarray, rows))
    time = episode.time[:steps, None] + np.asarray(parts) * np.asarray(episode.interval)[:steps, None]
    first = np.asarray(episode.observation[:1])
    return np.append(0.0, time.ravel()), np.concatenate([first, np.asarray(seen).reshape(-1, first.shape[1])])


def predicted_between(
    model: DynamicsModel, episode: Trajectory
) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k n obs"]]:
    """What a model expected between decisions, from what was observed at each: times and observations."""
    steps = int(episode.length)
    parts = jnp.linspace(0.0, 1.0, POINTS + 1)[1:]

    @eqx.filter_jit
    def run(seen: Array, actions: Array, intervals: Array) -> Array:
        def hold(z: Any, decision: tuple[Array, Array, Array]) -> tuple[Any, Array]:
            obs, action, tau = decision
            zs, expected = model.path(z, obs, action, parts * tau)
            return zs[-1], jnp.concatenate([obs[None], expected])

        return jax.lax.scan(hold, model.start(key=jax.random.key(0)), (seen, actions, intervals))[1]

    arrays = (episode.observation[:steps], episode.action[:steps], episode.interval[:steps])
    expected = np.asarray(run(*map(jnp.asarray, arrays)))
    shares = np.append(0.0, np.asarray(parts))
    return episode.time[:steps, None] + shares * np.asarray(episode.interval)[:steps, None], expected


def draw_course(
    env: Environment | HostEnvironment,
    episode: Trajectory,
    path: str | Path,
    title: str,
    model: DynamicsModel | None = None,
) -> None:
    """A figure of one episode: a panel for each observed variable, a strip of actions, decisions as dots.

    With a model also what it expected between decisions.
    """
    spec, steps = episode.spec, int(episode.length)
    decisions = episode.time[: steps + 1]
    at_decisions = np.asarray(episode.observation)[: steps + 1]
    time, between = between_decisions(env, episode) if isinstance(env, HIV) else (decisions, at_decisions)
    expected = None if model is None else predicted_between(model, episode)
    count = len(spec.observations)
    figure = Figure(figsize=(9, 1.25 * count + 1.9), layout="constrained")
    heights = [1.0] * count + [0.45]
    panels = figure.subplots(count + 1, 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for i, (axes, variable) in enumerate(zip(panels, spec.observations, strict=False)):
        line, dots, unit = between[:, i], at_decisions[:, i], variable.unit
        if isinstance(env, HIV):
            line, dots = (np.asarray(env.task.marker(variable.name, x)) for x in (between, at_decisions))
            unit = "per ml"
            axes.set_yscale("log")
        axes.plot(time, line, color=LINE, lw=1.1, zorder=1)
        if expected is not None:
            times, values = expected[0], expected[1][..., i]
            if isinstance(env, HIV):
                values = np.asarray(env.task.marker(variable.name, expected[1]))
            gap = np.full((len(times), 1), np.nan)  # every interval is predicted anew
            across = [np.concatenate([x, gap], axis=1).ravel() for x in (times, values)]
            axes.plot(*across, color=EXPECTED, lw=0.9, linestyle="--", zorder=3)
        axes.plot(decisions, dots, "o", color=DECISION, ms=2.6, zorder=2)
        axes.set_ylabel(f"{variable.name}\n{unit}", fontsize=8)
        axes.tick_params(which="both", labelsize=7)
    draw_actions(panels[-1], episode)
    panels[-1].set_xlabel(f"time, {spec.time_unit}s")
    panels[0].set_title(title, fontsize=11, loc="left")
    panels[0].plot([], [], "o", color=DECISION, ms=3, label="decision")
    if expected is not None:
        panels[0].plot([], [], color=LINE, lw=1.1, label="what happened")
        panels[0].plot([], [], color=EXPECTED, lw=0.9, linestyle="--", label="what the model expected")
    panels[0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, fontsize=7, frameon=False)
    figure.align_ylabels()
    save_figure(figure, path)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure, whole or not at all, text as text and the same figure as the same bytes."""
    kind = Path(path).suffix.lstrip(".").lower() or "svg"
    if kind not in figure.canvas.get_supported_filetypes():
        raise KairodeError(f"cannot draw {path}: '.{kind}' is no kind of picture. Take .svg, .png or .pdf.")
    with whole(path) as part, rc_context({"svg.fonttype": "none", "svg.hashsalt": "kairode"}):
        figure.savefig(part, format=kind, metadata={"Date": None} if kind == "svg" else None)


def draw_actions(axes: Axes, episode: Trajectory) -> None:
    """A strip of what was done when, decision times as ticks above."""
    spec, steps = episode.spec, int(episode.length)
    starts, widths = episode.time[:steps], np.asarray(episode.interval)[:steps]
    actions = np.asarray(episode.action)[:steps]
    if isinstance(spec.actions, Discrete):
        colours = colormaps["viridis"](np.linspace(0.95, 0.1, spec.actions.n))
        for i, name in enumerate(spec.actions.names):
            held = actions == i
            spans = list(zip(starts[held], widths[held], strict=True))
            axes.broken_barh(spans, (0, 1), color=colours[i], label=name, lw=0)
        columns = min(spec.actions.n, 8)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.75), ncols=columns, fontsize=7, frameon=False)
        axes.set_ylim(0, 1.35)
    else:
        axes.step(starts, actions, where="post", lw=0.7)
        low, high = min(spec.actions.low), max(spec.actions.high)
        axes.set_ylim(low, high + 0.35 * (high - low))
    bottom, top = axes.get_ylim()
    axes.plot(starts, np.full(steps, top - 0.1 * (top - bottom)), "|", color=DECISION, ms=4, mew=0.5)
    axes.set_yticks([])
    axes.set_ylabel("action", fontsize=8)
    axes.set_xlim(0, float(episode.time[steps]))
