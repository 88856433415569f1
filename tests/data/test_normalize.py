"""Running statistics against NumPy's over everything at once."""

import jax.numpy as jnp
import numpy as np
import pytest

from kairode.data.normalize import RunningStatistics, mean_and_std


def test_running_statistics_equal_those_of_all() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal([1.0, -200.0, 0.0], [0.5, 30.0, 1e-3], size=(1000, 3)).astype(np.float32)
    statistics = RunningStatistics.empty(3)
    for start in range(0, 1000, 90):
        statistics = statistics.with_more(jnp.asarray(data[start : start + 90]))
    kept = data.astype(np.float64)
    assert int(statistics.count) == 1000
    np.testing.assert_allclose(statistics.mean, kept.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(statistics.std, kept.std(0), rtol=1e-4)
    x = jnp.asarray(data[0])
    np.testing.assert_allclose(statistics.normalize(x), (data[0] - kept.mean(0)) / kept.std(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(statistics.denormalize(statistics.normalize(x)), data[0], rtol=1e-5)


def test_nothing_and_constants_are_left_alone() -> None:
    x = jnp.array([3.0, 4.0])
    np.testing.assert_array_equal(RunningStatistics.empty(2).normalize(x), x)
    same = RunningStatistics.empty(2).with_more(jnp.broadcast_to(x, (10, 2)))
    np.testing.assert_allclose(same.normalize(x), [0.0, 0.0])
    np.testing.assert_allclose(same.normalize(x + 1), [1.0, 1.0])
    unseen = same.with_more(jnp.ones((0, 2)))
    np.testing.assert_allclose(unseen.mean, same.mean)
    assert float(unseen.count) == 10


@pytest.mark.parametrize("unit", [1.0, 1e-11, 1e9])
def test_mean_and_std_in_any_unit(unit: float) -> None:
    rows = unit * np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    mean, std = mean_and_std(rows)
    np.testing.assert_allclose(mean, rows[1])
    np.testing.assert_allclose(std, [unit * np.sqrt(2 / 3), 1.0])


def test_running_statistics_of_small_units() -> None:
    rows = np.random.default_rng(0).normal(2e-8, 1e-8, (1000, 1)).astype(np.float32)
    found = RunningStatistics.empty(1).with_more(jnp.asarray(rows))
    np.testing.assert_allclose(found.std, rows.std(0), rtol=1e-3)
