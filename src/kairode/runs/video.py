"""Recordings of a robot's gait: the frames of an episode, and their file in a run folder."""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from kairode.data.host_rollout import HostRollout
from kairode.data.policy import Policy
from kairode.envs.locomotion import Locomotion, LocomotionSimulation
from kairode.envs.vector_host import HostVectorEnv
from kairode.errors import KairodeError
from kairode.files import load_json, save_json
from kairode.runs.mpc import POLICIES, best_seed
from kairode.training import checkpoint

GAIT = "gait.json"
DIGITS = 6
"""Decimals of metres and seconds in the file."""


class Frame(NamedTuple):
    """One frame of a recording."""

    time: float
    """Seconds."""
    pose: np.ndarray
    """The limbs: x1, y1, x2, y2, radius."""
    x: float
    """Position of the root."""


class Gait(NamedTuple):
    """Recording of a run's best seed."""

    env: str
    model: str
    seed: int
    seeds: int
    """Number of seeds of the run."""
    frames: list[Frame]


def record_video(env: Locomotion, policy: Policy, *, seconds: float = 6.0, seed: int = 0) -> list[Frame]:
    """Simulate a policy for some seconds, or until the episode ends."""
    vector_env = HostVectorEnv(env, 1)
    rollout, simulation = HostRollout(vector_env), vector_env.simulations[0]
    assert isinstance(simulation, LocomotionSimulation)
    start_key, key = jax.random.split(jax.random.key(seed))
    memory, time, ended, frames = policy.start(key=start_key), 0.0, False, []
    try:
        rollout.start(np.arange(1), [seed])
        frames.append(Frame(time, simulation.pose(), float(vector_env.obs[0, -1])))
        while time < seconds and not ended:
            key, now = jax.random.split(key)
            action, memory = _act(policy, memory, rollout.obs[0], rollout.elapsed[0], now)
            step = rollout.step(np.asarray(action)[None])
            time, ended = time + float(step.tau[0]) * env.robot.frame, bool(step.ended[0])
            frames.append(Frame(time, simulation.pose(), float(vector_env.obs[0, -1])))
    finally:
        vector_env.close()
    return frames


@eqx.filter_jit
def _act(policy: Policy, memory: Any, obs: Any, elapsed: Any, key: Any) -> Any:
    return policy.act(memory, obs, elapsed, key=key)


def record_gait(env: Any, policies: list[Policy], made: dict[str, Any], folder: Path) -> Gait | None:
    """Record the best seed of a finished MPC run in its folder; None if the system is not a robot."""
    if not isinstance(env, Locomotion):
        return None
    path, digest = folder / GAIT, checkpoint.describe(folder, POLICIES)["sha256"]
    if path.exists() and load_json(path)["policies"] == digest:
        return read_gait(folder)
    best = best_seed(made)
    frames = record_video(env, policies[best])
    about = {
        "env": env.name,
        "model": made["config"]["model"],
        "seed": made["config"]["seed"] + best,
        "seeds": len(policies),
        "policies": digest,
        "time": [round(frame.time, DIGITS) for frame in frames],
        "x": [round(frame.x, DIGITS) for frame in frames],
        "pose": np.round([frame.pose for frame in frames], DIGITS).tolist(),
    }
    save_json(path, about)
    return read_gait(folder)


def read_gait(folder: str | Path) -> Gait:
    """The recording that a finished run of a robot left in its folder."""
    path = Path(folder) / GAIT
    if not path.exists():
        raise KairodeError(f"{folder} holds no recording: only finished runs of robots have one.")
    about = load_json(path)
    frames = [Frame(*one) for one in zip(about["time"], np.asarray(about["pose"]), about["x"], strict=True)]
    return Gait(about["env"], about["model"], about["seed"], about["seeds"], frames)
