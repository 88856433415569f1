"""Running statistics against NumPy's over everything at once."""

import jax.numpy as jnp
import numpy as np

from kairode.data import normalize as nm


def test_running_statistics_equal_those_of_all() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal([1.0, -200.0, 0.0], [0.5, 30.0, 1e-3], size=(1000, 3)).astype(np.float32)
    mask = rng.random(1000) < 0.7
    statistics = nm.empty_statistics(3)
    for start in range(0, 1000, 90):
        part = slice(start, start + 90)
        statistics = nm.update_statistics(statistics, jnp.asarray(data[part]), jnp.asarray(mask[part]))
    kept = data[mask].astype(np.float64)
    assert int(statistics.count) == mask.sum()
    np.testing.assert_allclose(statistics.mean, kept.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(statistics.std, kept.std(0), rtol=1e-4)
    x = jnp.asarray(data[0])
    np.testing.assert_allclose(
        nm.normalize(statistics, x), (data[0] - kept.mean(0)) / kept.std(0), rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(nm.denormalize(statistics, nm.normalize(statistics, x)), data[0], rtol=1e-5)


def test_nothing_and_constants_are_left_alone() -> None:
    x = jnp.array([3.0, 4.0])
    np.testing.assert_array_equal(nm.normalize(nm.empty_statistics(2), x), x)
    same = nm.update_statistics(nm.empty_statistics(2), jnp.broadcast_to(x, (10, 2)))
    np.testing.assert_allclose(nm.normalize(same, x), [0.0, 0.0])
    np.testing.assert_allclose(nm.normalize(same, x + 1), [1.0, 1.0])
    unseen = nm.update_statistics(same, jnp.ones((4, 2)), jnp.zeros(4, bool))
    np.testing.assert_allclose(unseen.mean, same.mean)
    assert float(unseen.count) == 10
