"""Irregular episodes on a grid (tools/resample.py)."""

import dataclasses

import numpy as np
from tools.resample import resample

import kairode


def test_by_hand() -> None:
    """Visits on days 0, 2, 3 and 8 on grids of 3 days, and of 1."""
    whole = kairode.collect(kairode.make("hiv", max_decisions=3), episodes=1, seed=0)
    data = dataclasses.replace(
        whole,
        observation=np.repeat(np.arange(4.0, dtype=np.float32)[None, :, None], 6, axis=2),
        action=np.array([[3, 1, 2]], np.int32),
        interval=np.array([[2.0, 1.0, 5.0]], np.float32),
        reward=np.array([[10.0, 20.0, 40.0]], np.float32),
    )
    found = resample(data, 3.0)
    assert found.length.tolist() == [3]
    assert found.observation[0, :, 0].tolist() == [0, 2, 2, 3], "days 0, 3, 6 and 9, at most a visit late"
    assert found.action.tolist() == [[3, 2, 2]]
    assert found.reward.tolist() == [[30.0, 0.0, 40.0]], "days 2 and 3, none, day 8"
    assert found.interval.tolist() == [[3.0, 3.0, 3.0]]
    daily = resample(data, 1.0)
    assert daily.observation[0, :, 0].tolist() == [0, 0, 1, 2, 2, 2, 2, 2, 3]
    assert daily.action.tolist() == [[3, 3, 1, 2, 2, 2, 2, 2]]
    assert daily.reward.tolist() == [[0, 10, 20, 0, 0, 0, 0, 40]]
    assert daily.spec.intervals.classes == 1


def test_many_episodes() -> None:
    """No reward is lost, and a table on its own grid stays as it is."""
    env = kairode.make("hiv", horizon=60)
    data = kairode.collect(env, episodes=5, seed=0)
    for interval in (1.0, 3.0, 7.0):
        found = resample(data, interval)
        np.testing.assert_allclose(found.undiscounted, data.undiscounted, rtol=1e-6)
        ends = [np.ptp(part.time[one, : part.length[one] + 1]) for part in (found, data) for one in range(5)]
        assert (np.array(ends[:5]) >= ends[5:]).all()
        assert (np.array(ends[:5]) - ends[5:] < interval).all()
    regular = kairode.collect(env, episodes=3, seed=0, schedule=3)
    again = resample(regular, 3.0)
    for name in ("observation", "action", "interval", "reward", "length", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(again, name), getattr(regular, name))
