"""Chunks of episodes, and when they are cut."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.config.training import TrainingConfig
from kairode.data.normalize import ROBUST_LIMIT
from kairode.models.dynamics import Scale
from kairode.models.predict import Episodes
from kairode.training.batches import _shuffled, batch_numbers, split_chunks
from kairode.training.sources import LONG, LONG_CHUNK, cut_long


@pytest.mark.parametrize(("count", "length", "most"), [(5, 37, 10), (3, 40, 10), (4, 9, 20), (1, 1, 1), (6, 101, 7)])
def test_chunks_are_the_slices_of_their_episodes(count, length, most):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, length + 1, count)
    obs, action = rng.normal(size=(count, length + 1, 3)), rng.normal(size=(count, length, 2))
    tau, real = rng.random((count, length)), np.arange(length) < lengths[:, None]
    found = split_chunks(Episodes(*(jnp.asarray(x, jnp.float32) for x in (obs, action, tau)), jnp.asarray(real)), most)
    places = [(k, i) for k in range(0, length, most) for i in range(count) if lengths[i] > k]
    assert len(found.tau) == len(places)
    for chunk, (k, i) in enumerate(places):
        n = min(most, length - k)
        np.testing.assert_array_equal(found.obs[chunk, : n + 1], obs[i, k : k + n + 1].astype(np.float32))
        np.testing.assert_array_equal(found.action[chunk, :n], action[i, k : k + n].astype(np.float32))
        np.testing.assert_array_equal(found.tau[chunk, :n], tau[i, k : k + n].astype(np.float32))
        np.testing.assert_array_equal(found.real[chunk, :n], real[i, k : k + n])
        assert not found.real[chunk, n:].any()


def test_long_episodes_are_cut_unless_a_length_is_given():
    data = kairode.collect(kairode.make("gridworld", horizon=20.0), episodes=2)
    assert cut_long(TrainingConfig(), data).chunk_length is None
    wide = [(0, 0), (0, LONG)]
    padded = dataclasses.replace(
        data,
        observation=np.pad(data.observation, [*wide, (0, 0)], mode="edge"),
        **{name: np.pad(np.asarray(getattr(data, name)), wide) for name in ("action", "interval", "reward")},
    )
    assert cut_long(TrainingConfig(), padded).chunk_length == LONG_CHUNK
    assert cut_long(TrainingConfig(chunk_length=50), padded).chunk_length == 50


def test_a_robust_scale_ignores_outliers():
    x = np.random.default_rng(0).normal(3.0, 2.0, (10_000, 3)).astype(np.float32)
    x[:, 1] = np.where(np.arange(10_000) % 10 == 0, x[:, 1], 7.0)  # its interquartile range is 0
    x[:, 2] = 5.0
    plain = Scale.robust(x)
    assert plain.limit == ROBUST_LIMIT
    np.testing.assert_allclose(plain.mean[0], 3.0, atol=0.1)
    np.testing.assert_allclose(plain.std[0], 2.0, rtol=0.05)
    assert plain.std[1] > 0.1
    assert plain.std[2] == 1.0
    x[7, 0], x[8, 1] = 1e30, -1e30
    spoilt = Scale.robust(x)
    np.testing.assert_allclose(spoilt.mean, plain.mean, rtol=1e-3)
    np.testing.assert_allclose(spoilt.std, plain.std, rtol=0.05)
    assert np.abs(spoilt.apply(x)).max() == ROBUST_LIMIT
    np.testing.assert_allclose(spoilt.undo(spoilt.apply(x[20:30])), x[20:30], rtol=1e-5)


def test_more_than_sixteen_seeds_keep_their_epochs():
    _shuffled.cache_clear()
    for _ in range(3):
        for seed in range(40):
            batch_numbers(seed, 40, 8, 0, 3)
    assert _shuffled.cache_info().misses == 40
