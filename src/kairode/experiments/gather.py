"""The first part of the main job: experience under a random policy, in a folder of its own."""

import dataclasses
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kairode.data import Trajectory, collect, write
from kairode.envs import make
from kairode.experiments.record import record, save


@dataclasses.dataclass(frozen=True)
class Gather:
    """What to collect."""

    env: str = "hiv"
    """Name of the environment."""
    episodes: int = 1000
    """How many episodes."""
    seed: int = 0
    """Fixes everything random."""
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the environment that differ from its defaults."""


def gather(config: Gather, folder: Path, progress: Callable[[int], None] | None = None) -> tuple[Trajectory, dict]:
    """Collect, then write config.json, experience.parquet and record.json."""
    started = time.perf_counter()
    env = make(config.env, **config.fields)
    save(folder / "config.json", dataclasses.asdict(config))
    trajectory = collect(env, episodes=config.episodes, seed=config.seed, progress=progress)
    write(folder / "experience.parquet", trajectory)
    made = record(
        "gather",
        config,
        summary(trajectory),
        command=command(config),
        seconds=time.perf_counter() - started,
    )
    save(folder / "record.json", made)
    return trajectory, made


def command(config: Gather) -> str:
    """The command that makes the run again."""
    fields = [f"{name}={json.dumps(value)}" for name, value in config.fields.items()]
    words = ["kairode", "run", config.env, "--episodes", str(config.episodes), "--seed", str(config.seed)]
    return shlex.join([*words, *(["--set", *fields] if fields else [])])


def summary(trajectory: Trajectory) -> dict[str, Any]:
    """The figures a person asks for first."""
    real = np.asarray(trajectory.interval)[trajectory.mask]
    return {
        "episodes": len(trajectory),
        "decisions": trajectory.decisions,
        "decisions_per_episode": float(np.mean(trajectory.length)),
        "interval_mean": float(real.mean()),
        "interval_min": float(real.min()),
        "interval_max": float(real.max()),
        "return_mean": float(np.mean(trajectory.undiscounted)),
        "return_std": float(np.std(trajectory.undiscounted)),
        "discounted_return_mean": float(np.mean(trajectory.discounted)),
        "discounted_return_std": float(np.std(trajectory.discounted)),
        "terminated_share": float(np.mean(trajectory.terminated)),
    }
