"""Stacks of trees: the same from values in memory, from random keys and inside compiled functions; values as bytes."""

from typing import Any

import equinox as eqx
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from kairode.errors import KairodeError
from kairode.trees import alone, copies, on_host, one, pack, stack, unpack


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


ARRAYS = st.sampled_from(["<f8", "<f4", ">i4", "|u1", "|b1", "<c16", "<U3", "|S2", "<f2"]).flatmap(
    lambda kind: npst.arrays(np.dtype(kind), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | ARRAYS
    | st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True), np.uint8(255), np.str_("a")])
)
VALUES = st.recursive(
    LEAVES,
    lambda part: (
        st.lists(part, max_size=4)
        | st.lists(part, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), part, max_size=4)
    ),
    max_leaves=12,
)


def alike(one: Any, other: Any) -> bool:
    """Equal in type, shape, kind of numbers and every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


@hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
@hypothesis.given(VALUES, st.binary(max_size=5))
def test_nested_values_as_bytes(value: Any, after: bytes) -> None:
    content = pack(value)
    assert alike(unpack(content), value)
    assert alike(unpack(content + after), value), "what comes after the end says nothing"


def test_states_of_generators_and_strided_arrays_as_bytes() -> None:
    for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox):
        rng, other = np.random.Generator(kind(3)), np.random.Generator(kind(4))
        rng.normal(size=5)
        other.bit_generator.state = unpack(pack(rng.bit_generator.state))
        np.testing.assert_array_equal(rng.normal(size=5), other.normal(size=5))
    table = np.arange(12.0).reshape(3, 4)
    for view in (table.T, table[::-1, ::2], np.broadcast_to(table[0], (2, 4))):
        np.testing.assert_array_equal(unpack(pack(view)), view)
    found = unpack(pack(jnp.arange(3)))
    assert isinstance(found, np.ndarray)
    found[0] = 7  # it may be changed
    assert np.isnan(unpack(pack(float("nan"))))


@pytest.mark.parametrize("value", [object(), {1, 2}, {"a": [lambda: 1]}, np.array([None]), np.array(["2020"], "M8[D]")])
def test_values_that_are_no_numbers_are_refused(value: Any) -> None:
    with pytest.raises(KairodeError, match="cannot be saved"):
        pack(value)
