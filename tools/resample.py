"""Irregular episodes put on a grid of fixed intervals, as is usual where a method needs regular time series."""

import dataclasses

import numpy as np

from kairode.data.trajectory import Trajectory
from kairode.envs.core import Intervals


def resample(data: Trajectory, interval: float) -> Trajectory:
    """The episodes at times 0, interval, 2 interval, .., up to the first one at or after their end.

    At a time of the grid, the observation is the last one made by then, and the action is the one in force. A reward is
    counted in the cell in which its interval ends: rewards of visits within a cell are summed, none is lost.
    """
    parts = [_resample_one(data[i], interval) for i in range(len(data))]
    longest = max(len(action) for _, action, _ in parts)
    length = np.array([len(action) for _, action, _ in parts], np.int32)
    spec = dataclasses.replace(data.spec, intervals=Intervals(interval, interval, step=data.spec.intervals.step))

    def padded(arrays: list[np.ndarray], count: int, mode: str) -> np.ndarray:
        wide = [[(0, count - len(x)), *([(0, 0)] * (x.ndim - 1))] for x in arrays]
        return np.stack([np.pad(x, w, mode=mode) for x, w in zip(arrays, wide, strict=True)])  # type: ignore[call-overload]

    observation, action, reward = (list(column) for column in zip(*parts, strict=True))
    return Trajectory(
        spec=spec,
        observation=padded(observation, longest + 1, "edge"),
        action=padded(action, longest, "constant"),
        interval=np.where(np.arange(longest) < length[:, None], np.float32(interval), np.float32(0)),
        reward=padded(reward, longest, "constant"),
        length=length,
        terminated=np.asarray(data.terminated),
        truncated=np.asarray(data.truncated),
    )


def _resample_one(episode: Trajectory, interval: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations, actions and rewards of one episode."""
    visits = int(episode.length)
    times = np.asarray(episode.time)[: visits + 1]
    cells = int(np.ceil(times[-1] / interval))
    seen = np.searchsorted(times, interval * np.arange(cells + 1), side="right") - 1
    earned = np.ceil(times[1:] / interval).astype(int) - 1
    reward = np.bincount(earned, np.asarray(episode.reward, np.float64)[:visits], cells)
    action = np.asarray(episode.action)[np.minimum(seen[:-1], visits - 1)]
    return np.asarray(episode.observation)[seen], action, reward.astype(np.float32)
