"""Keys of compiled environments give the random numbers of JAX's own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kairode.envs.gridworld import WindyGridworld
from kairode.envs.keys import FEW, THREEFRY, key_of
from kairode.envs.pendulum import Pendulum
from kairode.envs.vector_jax import JaxVectorEnv

DATA = np.random.SeedSequence(0).generate_state(10).reshape(5, 2)

DRAWS = {
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 7)),
    "fold_in a large number": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**31 + 5)),
    "split": lambda key: jax.random.key_data(jax.random.split(key)),
    "the second key": lambda key: jax.random.bits(jax.random.split(key)[1]),
    "split into many": lambda key: jax.random.key_data(jax.random.split(key, FEW + 3)),
    "split into a matrix": lambda key: jax.random.key_data(jax.random.split(key, (2, 2))),
    "split into none": lambda key: jax.random.key_data(jax.random.split(key, 0)),
    "bits": lambda key: jax.random.bits(key, (3,)),
    "bytes": lambda key: jax.random.bits(key, (3, 4), jnp.uint8),
    "short": lambda key: jax.random.bits(key, (), jnp.uint16),
    "uniform": lambda key: jax.random.uniform(key, (2,), minval=-3.0, maxval=5.0),
    "normal": lambda key: jax.random.normal(key, (40,)),
    "randint": lambda key: jax.random.randint(key, (), 1, 8),
    "permutation": lambda key: jax.random.permutation(key, 20),
    "categorical": lambda key: jax.random.categorical(key, jnp.log(jnp.array([0.2, 0.5, 0.3]))),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_numbers_are_jaxs(draw: str) -> None:
    both = jax.jit(jax.vmap(lambda data: [DRAWS[draw](jax.random.wrap_key_data(data, impl=i)) for i in IMPLS]))
    ours, theirs = both(DATA)
    np.testing.assert_array_equal(ours, theirs)


IMPLS = (THREEFRY, "threefry2x32")


def test_64_bits_and_seeds() -> None:
    with jax.enable_x64(True):
        ours, theirs = (jax.random.uniform(jax.random.key(2**40 + 3, impl=impl), (6,)) for impl in IMPLS)
    assert ours.dtype == np.float64
    np.testing.assert_array_equal(ours, theirs)


def test_used_on_a_cpu_with_jaxs_default_generator() -> None:
    data = jnp.asarray(DATA[0])
    assert jax.random.key_impl(key_of(data, True)) == THREEFRY
    assert jax.random.key_impl(key_of(data, False)) == "threefry2x32"
    with jax.threefry_partitionable(False):
        assert jax.random.key_impl(key_of(data, True)) == "threefry2x32"


class Arrivals(Pendulum):
    """A pendulum whose intervals are drawn from a distribution that needs JAX's own keys."""

    def interval(self, state: Any, action: Any, *, key: Any) -> Any:
        return 0.05 * (1.0 + jax.random.poisson(key, 1.0, shape=()).clip(0, 3))


def test_environments_of_ones_own_have_jaxs_keys() -> None:
    env = JaxVectorEnv(Arrivals(), 2)
    env.reset([0, 1])
    assert (env.step(np.zeros((2, 1), np.float32)).tau > 0).all()
    assert WindyGridworld.unrolled_keys
