"""Replay: the ring, the frequencies and weights of prioritised sampling against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kairode.data import replay as rp
from kairode.errors import KairodeError

KEY = jax.random.key(0)
add, update_priorities = jax.jit(rp.add_prioritized), jax.jit(rp.update_priorities)
draw = jax.jit(rp.draw, static_argnums=1)
EXAMPLE = {"obs": jnp.zeros(2), "number": jnp.zeros((), jnp.int32)}


def items(numbers):
    numbers = jnp.asarray(numbers, jnp.int32)
    return {"obs": jnp.stack([numbers, -numbers], axis=1).astype(jnp.float32), "number": numbers}


def test_the_ring_keeps_the_latest() -> None:
    memory = rp.empty(5, EXAMPLE)
    seen = []
    for start in (0, 2, 4, 6):
        memory = rp.add(memory, items([start, start + 1]))
        seen += [start, start + 1]
        kept = set(np.asarray(memory.items["number"])[: int(memory.size)].tolist())
        assert kept == set(seen[-5:])
    assert int(memory.size) == 5
    np.testing.assert_array_equal(memory.items["obs"][:, 0], memory.items["number"])


def test_uniform_sampling() -> None:
    memory = rp.add(rp.empty(100, EXAMPLE), items(range(30)))
    drawn = rp.sample(memory, 30_000, key=KEY)
    assert stats.chisquare(np.bincount(drawn["number"], minlength=30)).pvalue > 1e-3
    np.testing.assert_array_equal(drawn["obs"][:, 1], -np.asarray(drawn["number"]))


@jax.jit
def draws_of(memory, keys):
    return jax.vmap(lambda key: rp.draw(memory, 256, key=key))(keys)


@pytest.mark.parametrize("capacity", [7, 100, 1000])
@pytest.mark.parametrize("filled", [0.4, 1.0, 1.7])
def test_frequencies_and_weights_follow_the_formulas(capacity: int, filled: float) -> None:
    count = max(2, round(capacity * filled))
    memory = rp.empty_prioritized(capacity, EXAMPLE, alpha=0.6, beta=0.4)
    for start in range(0, count, 7):
        memory = add(memory, items(range(start, min(start + 7, count))))
    size = min(count, capacity)
    errors = np.random.default_rng(0).gamma(0.5, 10.0, size=size).astype(np.float32)
    memory = update_priorities(memory, jnp.arange(size), jnp.asarray(errors))

    power = (np.abs(errors.astype(np.float64)) + 1e-6) ** 0.6
    probability = power / power.sum()
    draws = 200
    drawn = draws_of(memory, jax.random.split(KEY, draws))
    where = np.asarray(drawn.where)
    assert where.max() < size
    total = draws * 256
    counts, expected = np.bincount(where.ravel(), minlength=size), total * probability
    # Stratified draws vary less than independent ones, so this bound is generous.
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1).all()
    weights = (size * probability[where]) ** -0.4
    np.testing.assert_allclose(drawn.weights, weights / weights.max(axis=1, keepdims=True), rtol=1e-3)
    stored = np.asarray(memory.replay.items["number"])
    np.testing.assert_array_equal(drawn.items["number"], stored[where])


def test_new_items_get_the_highest_priority() -> None:
    memory = rp.add_prioritized(rp.empty_prioritized(16, EXAMPLE), items([0, 1, 2]))
    memory = rp.update_priorities(memory, jnp.array([0, 1, 2]), jnp.array([0.1, 5.0, 0.2]))
    memory = rp.add_prioritized(memory, items([3]))
    power = np.asarray(memory.powers).ravel()[:4]
    np.testing.assert_allclose(power, (np.array([0.1, 5.0, 0.2, 5.0]) + 1e-6) ** 0.6, rtol=1e-5)


def test_an_error_that_is_no_number_does_no_harm() -> None:
    memory = rp.add_prioritized(rp.empty_prioritized(16, EXAMPLE), items(range(10)))
    memory = rp.update_priorities(memory, jnp.array([3, 4, 5]), jnp.array([jnp.nan, jnp.inf, 2.0]))
    drawn = rp.draw(memory, 64, key=KEY)
    assert int(drawn.where.max()) < 10
    assert np.isfinite(drawn.weights).all()


def test_more_than_the_capacity_at_once() -> None:
    with pytest.raises(KairodeError, match="5 items exceed the replay buffer's capacity of 4"):
        rp.add(rp.empty(4, EXAMPLE), items(range(5)))


def test_an_item_drawn_twice_is_set_once() -> None:
    memory = rp.add_prioritized(rp.empty_prioritized(16, EXAMPLE), items(range(10)))
    memory = rp.update_priorities(memory, jnp.array([3, 3, 4]), jnp.array([2.0, 2.0, 7.0]))
    np.testing.assert_allclose(memory.sums, memory.powers.sum(1), rtol=1e-6)


MORE = items([1, 2, 3])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "set"]), st.integers(0, 2**31 - 1)), min_size=1, max_size=30))
def test_the_sums_stay_true(steps) -> None:
    memory = rp.add_prioritized(rp.empty_prioritized(20, EXAMPLE), items([0, 1, 2]))
    for kind, seed in steps:
        key = jax.random.key(seed)
        if kind == "add":
            memory = add(memory, MORE)
        else:
            drawn = draw(memory, 4, key=key)
            assert int(drawn.where.max()) < int(memory.replay.size)
            memory = update_priorities(memory, drawn.where, jax.random.normal(key, (4,)) * 100)
    np.testing.assert_allclose(memory.sums, memory.powers.sum(1), rtol=1e-5)
    empty = np.arange(memory.powers.size) >= int(memory.replay.size)
    assert (np.asarray(memory.powers).ravel()[empty] == 0).all()


def test_one_memory_alone_equals_the_same_among_several() -> None:
    def live(key):
        memory = rp.empty_prioritized(50, EXAMPLE)

        def step(memory, key):
            add_key, draw_key, error_key = jax.random.split(key, 3)
            memory = rp.add_prioritized(memory, items(jax.random.randint(add_key, (2,), 0, 100)))
            drawn = rp.draw(memory, 8, key=draw_key)
            return rp.update_priorities(memory, drawn.where, jax.random.normal(error_key, (8,))), drawn.where

        return jax.lax.scan(step, memory, jax.random.split(key, 40))[1]

    keys = jax.random.split(KEY, 5)
    together = jax.jit(jax.vmap(live))(keys)
    np.testing.assert_array_equal(jax.jit(live)(keys[3]), together[3])
