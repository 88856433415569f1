"""A short film of a robot's gait: drawn with lines, so that no graphics library is needed."""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from kairode.data.policy import Policy
from kairode.envs.locomotion import Locomotion
from kairode.files import atomic_write
from kairode.report.figures import save_figure
from kairode.runs.mpc import POLICIES, best_seed

FRAMES_A_SECOND = 20
LIMB, GROUND, TRACE = "#2b6cb0", "#cbd2d9", "#9aa5b1"


def save_video(env: Any, policies: list[Policy], made: dict[str, Any], path: Path) -> str:
    """Film the best seed of a run, where there is a robot to film; a sentence that says where."""
    if not isinstance(env, Locomotion):
        return ""
    best = best_seed(made)
    if not path.exists() or path.stat().st_mtime < (path.parent / f"{POLICIES}.json").stat().st_mtime:
        draw_gif(record_video(env, policies[best]), path, f"{env.name}, {made['config']['model']}")
    which = "" if len(policies) == 1 else f" (of seed {made['config']['seed'] + best})"
    return f" A film of the gait{which}: {path}."


class Frame(NamedTuple):
    """What a frame of the film shows."""

    time: float
    """In seconds."""
    pose: np.ndarray
    """The limbs: x1, y1, x2, y2, radius."""
    x: float
    """Where the root is."""


def record_video(env: Locomotion, policy: Policy, *, seconds: float = 6.0, seed: int = 0) -> list[Frame]:
    """Let a policy act for some seconds of the robot's time, or until it falls."""
    simulation, task = env.open(), env.task
    act = eqx.filter_jit(lambda policy, memory, obs, tau, key: policy.act(memory, obs, tau, key=key))
    try:
        obs, time, tau = simulation.reset(seed), 0.0, 0.0
        start_key, key = jax.random.split(jax.random.key(seed))
        memory = policy.start(key=start_key)
        found = [Frame(0.0, simulation.pose(), float(obs[-1]))]
        while time < seconds and len(found) <= (env.max_decisions or 10_000):
            key, now = jax.random.split(key)
            seen = jnp.asarray(obs, jnp.float32)
            action, memory = act(policy, memory, seen, jnp.asarray(tau, jnp.float32), now)
            control = np.asarray(action, np.float64)
            tau = simulation.interval(control)
            after = simulation.transition(control, tau)
            time += tau * env.robot.frame
            found.append(Frame(time, simulation.pose(), float(after[-1])))
            obs = after
            if task.terminal(obs):
                break
        return found
    finally:
        simulation.close()


def draw_gif(moments: list[Frame], path: Path, title: str) -> None:
    """A GIF at the robot's own speed (slower where an episode is short)."""
    length = moments[-1].time
    slower = max(1.0, 2.0 / max(length, 1e-6))
    times = np.arange(0.0, length, 1 / (FRAMES_A_SECOND * slower))
    known = np.array([frame.time for frame in moments])
    pictures = [_picture(moments, int(np.searchsorted(known, t)), title, slower) for t in times]
    with atomic_write(path) as part:
        rest = {"append_images": pictures[1:], "duration": round(1000 / FRAMES_A_SECOND), "loop": 0}
        pictures[0].save(part, format="GIF", save_all=True, optimize=True, **rest)


def draw_strip(strips: dict[str, list[Frame]], path: Path, *, count: int = 9) -> None:
    """Poses at equal times one beside the other, a row for each film, time and place below: what fits on paper."""
    figure = Figure(figsize=(9, 1.6 * len(strips)), layout="constrained")
    rows = figure.subplots(len(strips), 1, squeeze=False)[:, 0]
    for axes, (title, moments) in zip(rows, strips.items(), strict=True):
        known = np.array([frame.time for frame in moments])
        chosen = [moments[int(np.searchsorted(known, t))] for t in np.linspace(0.0, known[-1], count)]
        low, _ = _height(chosen)
        wide = 1.15 * max(np.ptp(frame.pose[:, [0, 2]]) for frame in chosen)
        for i, frame in enumerate(chosen):
            shift = i * wide - frame.pose[:, [0, 2]].mean()
            _limbs(axes, frame.pose + np.array([shift, 0.0, shift, 0.0, 0.0]), 1.0)
            axes.text(i * wide, low, f"{frame.time:.2f} s\n{frame.x:+.2f} m", ha="center", va="top", fontsize=7)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_aspect("equal")
        axes.axis("off")
    save_figure(figure, path)


def _picture(moments: list[Frame], index: int, title: str, slower: float) -> Any:
    index = min(index, len(moments) - 1)
    frame = moments[index]
    figure = Figure(figsize=(4.8, 2.6), dpi=80)
    axes = figure.add_axes((0.02, 0.1, 0.96, 0.75))
    low, high = _height(moments)
    half = 0.5 * (high - low) * 4.8 / 2.6 * 1.3
    axes.plot([m.x for m in moments[: index + 1]], [low] * (index + 1), color=TRACE, lw=2)
    for mark in range(int(np.floor(frame.x - half)), int(np.ceil(frame.x + half)) + 1):
        axes.plot([mark, mark], [low, low + 0.04 * (high - low)], color=GROUND, lw=1)
        axes.text(mark, low - 0.02 * (high - low), f"{mark} m", ha="center", va="top", fontsize=7, color=TRACE)
    _limbs(axes, frame.pose, 1.0)
    axes.set(xlim=(frame.x - half, frame.x + half), ylim=(low - 0.08 * (high - low), high), aspect="equal")
    axes.axis("off")
    speed = "" if slower == 1 else f", {slower:.1f} times slower"
    figure.text(0.02, 0.93, f"{title}: {frame.time:.2f} s, {frame.x:+.2f} m{speed}", fontsize=8)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()).convert(
        "P", palette=Image.Palette.ADAPTIVE
    )


def _height(moments: list[Frame]) -> tuple[float, float]:
    """The least and most that the limbs reach across the track, with some room."""
    ends = np.concatenate([frame.pose[:, [1, 3]].ravel() for frame in moments])
    room = 0.15 * (ends.max() - ends.min()) + 0.1
    return float(ends.min() - room), float(ends.max() + room)


def _limbs(axes: Axes, pose: np.ndarray, strength: float) -> None:
    for x1, y1, x2, y2, radius in pose:
        width = max(2.0, 60 * radius)
        axes.plot([x1, x2], [y1, y2], color=LIMB, alpha=strength, lw=width, solid_capstyle="round")
