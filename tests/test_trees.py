"""Stacks of trees: the same from values in memory, from random keys and inside compiled functions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.trees import alone, copies, on_host, one, stack


class Pair(eqx.Module):
    x: jax.Array
    name: str = eqx.field(static=True)


def test_values_tracers_and_keys() -> None:
    pairs = [Pair(jnp.arange(3.0) + i, "a") for i in range(4)]
    both = stack(pairs)
    wanted = np.arange(3.0) + np.arange(4)[:, None]
    np.testing.assert_array_equal(both.x, wanted)
    np.testing.assert_array_equal(jax.jit(lambda x: stack([Pair(x, "a"), Pair(2 * x, "a")]).x)(jnp.ones(2))[1], 2)
    assert both.name == "a"
    for index in (2, slice(1, 3), jnp.array(1), np.array([True, False, True, False]), jnp.array([3, 0])):
        found = one(both, index).x
        assert isinstance(found, jax.Array)
        np.testing.assert_array_equal(found, wanted[np.asarray(index) if hasattr(index, "shape") else index])
        np.testing.assert_array_equal(jax.jit(lambda x, i=index: one(x, i))(both.x), found)
    assert alone(both).x.shape == (1, 4, 3)
    keys = stack(list(jax.random.split(jax.random.key(0), 3)))
    assert keys.shape == (3,)
    assert one(keys, 1) == jax.random.split(jax.random.key(0), 3)[1]
    assert on_host(both.x)
    assert not on_host(keys)


def test_copies_may_be_donated() -> None:
    x = jnp.arange(5.0)
    for taken in (copies({"x": x})["x"], one({"x": x[None]}, 0)["x"]):
        jax.jit(lambda y: y + 1, donate_argnums=0)(taken)
    np.testing.assert_array_equal(x, np.arange(5.0))
