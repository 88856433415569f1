"""Networks made of others: the same functions, by their values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kairode.agents.network import ReLUNetwork, mean_network


@pytest.mark.parametrize("hidden", [(), (8,), (8, 6)])
def test_the_mean_of_networks_is_one_network(hidden: tuple[int, ...]) -> None:
    networks = [ReLUNetwork.new(3, *hidden, 2, key=jax.random.key(i)) for i in range(4)]
    features = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    expected = np.mean([np.asarray(one(features)) for one in networks], axis=0)
    np.testing.assert_allclose(mean_network(networks)(features), expected, rtol=1e-5, atol=1e-6)


def test_a_network_of_plain_inputs() -> None:
    network = ReLUNetwork.new(2, 8, 1, key=jax.random.key(0))
    mean, std = np.array([3.0, -1e4]), np.array([0.5, 2e3])
    rows = np.random.default_rng(0).normal(size=(4, 2)) * std + mean
    expected = network(jnp.asarray((rows - mean) / std, jnp.float32))
    np.testing.assert_allclose(network.on_inputs(mean, std)(jnp.asarray(rows, jnp.float32)), expected, rtol=1e-4)
