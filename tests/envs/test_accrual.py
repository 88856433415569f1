"""Rewards that accrue: the same whatever the schedule, against sums by hand and the environment stepped finely."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.config.models import ModelConfig
from kairode.data import collect
from kairode.envs.accrual import AccruedRewards, inner_state
from kairode.errors import KairodeError
from kairode.models.zoo import build
from kairode.planning.interpolate import interpolated
from kairode.planning.model_env import make_model_env

HIV = kairode.make("hiv", horizon=60.0)


def both(obs: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.array(3)


def total(env: kairode.Environment, schedule: float | list[float] | None, discounted: bool = True) -> float:
    found = collect(env, both, episodes=1, schedule=schedule)
    return float(found.discounted[0] if discounted else found.undiscounted[0])


@pytest.mark.slow
def test_a_day_earns_the_same_whatever_the_schedule() -> None:
    daily = total(HIV, 1.0)
    place = AccruedRewards.of(HIV, 14.0)
    for schedule in (1.0, 4.0, 7.0, [3.0, 5.0, 2.0], None):
        assert total(place, schedule) == pytest.approx(daily, rel=1e-4)
    # Without it, only every fourth day counts.
    assert total(HIV, 4.0) < 0.5 * daily


def test_an_interval_by_hand() -> None:
    place = AccruedRewards.of(HIV, 7.0)
    key = jax.random.key(0)
    state = place.reset(key=key)
    found = place.transition(state, jnp.array(1), jnp.array(5.0), key=key)
    inner, by_hand = HIV.reset(key=key), 0.0
    for day in range(5):
        after = HIV.transition(inner, jnp.array(1), jnp.array(1.0), key=key)
        reward = HIV.task.reward(HIV.observe(inner), jnp.array(1), HIV.observe(after), jnp.array(1.0))
        by_hand += 0.995**day * float(reward)
        inner = after
    assert float(found.earned) == pytest.approx(by_hand, rel=1e-4)
    np.testing.assert_allclose(inner_state(found), inner, rtol=1e-5)


def test_a_step_cut_short_earns_its_share_and_nothing_comes_after_the_horizon() -> None:
    place = AccruedRewards.of(HIV, 7.0)
    key = jax.random.key(0)
    state = place.reset(key=key)
    one, more = (place.transition(state, jnp.array(0), jnp.array(tau), key=key).earned for tau in (1.0, 1.5))
    next_obs = HIV.observe(HIV.transition(inner_state(state), jnp.array(0), jnp.array(1.5), key=key))
    full = HIV.task.reward(next_obs, jnp.array(0), next_obs, jnp.array(1.0))
    assert float(more - one) == pytest.approx(0.5 * 0.995 * float(full), rel=1e-3)
    late = state._replace(time=jnp.array(58.0))
    two = place.transition(state, jnp.array(0), jnp.array(2.0), key=key).earned
    assert float(place.transition(late, jnp.array(0), jnp.array(7.0), key=key).earned) == pytest.approx(float(two))


def test_a_price_is_taken_once_a_decision() -> None:
    free, dear = AccruedRewards.of(HIV, 7.0), AccruedRewards.of(HIV, 7.0, price=100.0)
    task = dataclasses.replace(HIV.task, spec=dataclasses.replace(HIV.task.spec, discount=1.0))
    plain, priced = (dataclasses.replace(place, task=task) for place in (free, dear))
    lost = total(plain, 6.0, discounted=False) - total(priced, 6.0, discounted=False)
    assert lost == pytest.approx(1000.0, rel=0.02)


def test_what_is_passed_on_the_way_ends_the_process() -> None:
    """Along a swing-up the tip passes the line within a long interval, and that counts."""
    env = kairode.make("acrobot")
    place = AccruedRewards.of(env, 1.0)
    near = jnp.array([1.9, 0.0, 4.0, 0.0])
    state = place.reset(key=jax.random.key(0))._replace(inner=near)
    found = place.transition(state, jnp.array(2), jnp.array(1.0), key=jax.random.key(0))
    heights = []
    for step in range(1, 6):
        after = env.transition(near, jnp.array(2), jnp.array(0.2 * step), key=jax.random.key(0))
        heights.append(float(env.task.reward(near, jnp.array(2), after, jnp.array(0.2))))
    over = next(i for i, height in enumerate(heights) if height > 1)
    assert over < 4
    assert bool(env.task.terminal(place.observe(found)))
    assert float(found.earned) == pytest.approx(sum(heights[: over + 1]), rel=1e-3)


@pytest.mark.slow
def test_in_imagination_one_solve_passes_through_all_days() -> None:
    env = kairode.make("hiv")
    model = build("latent-ode", env.task.spec, ModelConfig(latent_size=4), key=jax.random.key(0))
    model_env = make_model_env(model, env)
    key = jax.random.key(1)
    state = model_env.reset(key=key)
    days = jnp.arange(1.0, 6.0)
    passed = model_env.course(state, jnp.array(2), days, key=key)
    for i, day in enumerate(days):
        alone = model_env.transition(state, jnp.array(2), day, key=key)
        np.testing.assert_allclose(passed.obs[i], alone.obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(passed.z[i], alone.z, rtol=1e-5, atol=1e-6)
    # Rewards of an imagined interval are those of its days, seen along the path.
    place = AccruedRewards.of(model_env, 14.0)
    held = place.transition(place.reset(key=key), jnp.array(2), jnp.array(5.0), key=key)
    start = place.reset(key=key).inner
    along = model_env.course(start, jnp.array(2), days, key=key).obs
    before = [start.obs, *along[:-1]]
    each = [env.task.reward(b, jnp.array(2), a, jnp.array(1.0)) for b, a in zip(before, along, strict=True)]
    by_hand = sum(0.995**i * float(r) for i, r in enumerate(each))
    assert float(held.earned) == pytest.approx(by_hand, rel=1e-4)


def test_a_longer_interval_than_was_announced_still_ends_where_it_should() -> None:
    place = AccruedRewards.of(HIV, 7.0)
    key = jax.random.key(0)
    found = place.transition(place.reset(key=key), jnp.array(1), jnp.array(20.0), key=key)
    wanted = HIV.transition(HIV.reset(key=key), jnp.array(1), jnp.array(20.0), key=key)
    np.testing.assert_allclose(inner_state(found), wanted, rtol=1e-4)


def test_interpolated_rewards_end_in_what_was_observed() -> None:
    """A model of nothing at all is bent into straight lines between visits."""
    env = kairode.make("hiv", horizon=30.0)
    data = collect(env, episodes=3, schedule=5)
    model = build("rnn", env.task.spec, ModelConfig(latent_size=4), key=jax.random.key(0))
    still = eqx.tree_at(lambda m: m.decoder.weight, model, jnp.zeros_like(model.decoder.weight))
    found = interpolated(still, env.task, data)
    np.testing.assert_array_equal(found.observation, data.observation)
    level = still.decode(jnp.zeros(4))
    for k in range(3):
        seen, after = data.observation[1, k], data.observation[1, k + 1]
        path = [np.asarray(level) + (j / 5) * (after - np.asarray(level)) for j in range(1, 6)]
        before = [seen, *path[:-1]]
        action = jnp.asarray(data.action[1, k])
        each = [
            env.task.reward(jnp.asarray(b), action, jnp.asarray(a), jnp.array(1.0))
            for b, a in zip(before, path, strict=True)
        ]
        by_hand = sum(0.995**j * float(r) for j, r in enumerate(each))
        assert found.reward[1, k] == pytest.approx(by_hand, rel=1e-3)


def test_refused() -> None:
    with pytest.raises(KairodeError, match="longest interval must be a positive"):
        AccruedRewards.of(HIV, 0.0)
