"""Videos of a robot's gait, drawn with lines so that no graphics library is needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from kairode.files import atomic_write
from kairode.report.figures import plain_text, save_figure
from kairode.runs.video import GAIT, Frame, Gait, read_gait

FRAMES_A_SECOND = 20
LIMB, GROUND, TRACE = "#2b6cb0", "#cbd2d9", "#9aa5b1"


def save_gait(gait: Gait | None, folder: Path) -> str:
    """Draw a recording as a GIF and as a strip of poses; returns a sentence with their paths."""
    if gait is None:
        return ""
    gif, strip = folder / "gait.gif", folder / "gait.svg"
    recorded = (folder / GAIT).stat().st_mtime
    if not gif.exists() or gif.stat().st_mtime < recorded:
        draw_gif(gait.frames, gif, f"{gait.env}, {gait.model}")
    draw_strip({f"{gait.env}, {gait.model}": gait.frames}, strip)
    which = "" if gait.seeds == 1 else f" (seed {gait.seed})"
    return f" Gait{which}: {gif} and {strip}."


def save_gaits(folders: Sequence[Path], path: Path) -> None:
    """Draw the recordings of several runs as one figure, one row each: docs/gait.svg."""
    gaits = [read_gait(folder) for folder in folders]
    several_models = len({gait.env for gait in gaits}) < len(gaits)
    titles = [f"{gait.env}, {gait.model}, seed {gait.seed}" if several_models else gait.env for gait in gaits]
    draw_strip(dict(zip(titles, (gait.frames for gait in gaits), strict=True)), path)


def draw_gif(frames: list[Frame], path: Path, title: str) -> None:
    """A GIF in real time (slower for short episodes)."""
    length = frames[-1].time
    slower = max(1.0, 2.0 / max(length, 1e-6))
    times = np.arange(0.0, length, 1 / (FRAMES_A_SECOND * slower))
    known = np.array([frame.time for frame in frames])
    pictures = [_picture(frames, int(np.searchsorted(known, t)), title, slower) for t in times]
    with atomic_write(path) as part:
        rest = {"append_images": pictures[1:], "duration": round(1000 / FRAMES_A_SECOND), "loop": 0}
        pictures[0].save(part, format="GIF", save_all=True, optimize=True, **rest)


def draw_strip(strips: dict[str, list[Frame]], path: Path, *, count: int = 9) -> None:
    """Poses at equal time steps, with time and position below each; one row per video."""
    figure = Figure(figsize=(9, 1.6 * len(strips)), layout="constrained")
    rows = figure.subplots(len(strips), 1, squeeze=False)[:, 0]
    for axes, (title, frames) in zip(rows, strips.items(), strict=True):
        known = np.array([frame.time for frame in frames])
        chosen = [frames[int(np.searchsorted(known, t))] for t in np.linspace(0.0, known[-1], count)]
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


def _picture(frames: list[Frame], index: int, title: str, slower: float) -> Any:
    index = min(index, len(frames) - 1)
    frame = frames[index]
    figure = Figure(figsize=(4.8, 2.6), dpi=80)
    axes = figure.add_axes((0.02, 0.1, 0.96, 0.75))
    low, high = _height(frames)
    half = 0.5 * (high - low) * 4.8 / 2.6 * 1.3
    axes.plot([past.x for past in frames[: index + 1]], [low] * (index + 1), color=TRACE, lw=2)
    for mark in range(int(np.floor(frame.x - half)), int(np.ceil(frame.x + half)) + 1):
        axes.plot([mark, mark], [low, low + 0.04 * (high - low)], color=GROUND, lw=1)
        axes.text(mark, low - 0.02 * (high - low), f"{mark} m", ha="center", va="top", fontsize=7, color=TRACE)
    _limbs(axes, frame.pose, 1.0)
    axes.set(xlim=(frame.x - half, frame.x + half), ylim=(low - 0.08 * (high - low), high), aspect="equal")
    axes.axis("off")
    speed = "" if slower == 1 else f", {slower:.1f} times slower"
    figure.text(0.02, 0.93, f"{title}: {frame.time:.2f} s, {frame.x:+.2f} m{speed}", fontsize=8)
    plain_text(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()).convert(
        "P", palette=Image.Palette.ADAPTIVE
    )


def _height(frames: list[Frame]) -> tuple[float, float]:
    ends = np.concatenate([frame.pose[:, [1, 3]].ravel() for frame in frames])
    margin = 0.15 * (ends.max() - ends.min()) + 0.1
    return float(ends.min() - margin), float(ends.max() + margin)


def _limbs(axes: Axes, pose: np.ndarray, strength: float) -> None:
    for x1, y1, x2, y2, radius in pose:
        width = max(2.0, 60 * radius)
        axes.plot([x1, x2], [y1, y2], color=LIMB, alpha=strength, lw=width, solid_capstyle="round")
