"""Decisions with continuous actions as rows of one array, for the replay buffer, the models' data and checkpoints."""

from typing import Any, NamedTuple

import numpy as np

from kairode.envs.core import Spec


class StepRow(NamedTuple):
    """One decision: observation, action, reward and next observation; any leading axes."""

    seen_obs: Any
    next_seen_obs: Any
    control: Any
    reward: Any
    tau: Any
    terminated: Any
    """1 if the process terminated."""
    first: Any
    """1 at the first decision of an episode."""


def packed_width(spec: Spec) -> int:
    """Numbers in a packed row."""
    return 2 * len(spec.observations) + spec.actions.n + 4


def pack_row(row: StepRow) -> np.ndarray:
    """Concatenate the fields along the last axis, in float32."""
    scalars = [np.asarray(x, np.float32)[..., None] for x in row[3:]]
    return np.concatenate([row.seen_obs, row.next_seen_obs, row.control, *scalars], axis=-1).astype(np.float32)


def unpack_row(spec: Spec, rows: Any) -> StepRow:
    """Inverse of `pack_row`, for NumPy and JAX arrays."""
    d = len(spec.observations)
    scalars = (rows[..., i] for i in range(-4, 0))
    return StepRow(rows[..., :d], rows[..., d : 2 * d], rows[..., 2 * d : -4], *scalars)


class Chunks(NamedTuple):
    """Chunks of episodes, padded: [chunk, decision, ..]; one more observation than decisions."""

    seen_obs: np.ndarray
    control: np.ndarray
    tau: np.ndarray
    real: np.ndarray
    """Mask of the decisions that are not padding."""
    episode: np.ndarray
    """Episode number of each chunk, [chunk]."""


def cut(spec: Spec, rows: np.ndarray, most: int) -> Chunks:
    """Cut decisions, in order, into chunks of at most `most`, none across the end of an episode."""
    row = unpack_row(spec, rows)
    first = row.first > 0
    first[:1] = True
    episode = np.cumsum(first) - 1
    number = np.arange(len(rows)) - np.flatnonzero(first)[episode]
    begins = np.flatnonzero(number % most == 0)
    lengths = np.diff(np.append(begins, len(rows)))
    steps = np.minimum(np.arange(most), lengths[:, None] - 1)  # padding repeats a chunk's last decision
    index = begins[:, None] + steps
    real = np.arange(most) < lengths[:, None]
    seen_obs = np.concatenate([row.seen_obs[begins][:, None], row.next_seen_obs[index]], axis=1)
    return Chunks(seen_obs, row.control[index], row.tau[index], real, episode[begins])
