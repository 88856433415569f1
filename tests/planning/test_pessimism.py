"""Pessimistic imagination: rewards less disagreement, ends where the data are left."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.agents.network import ReLUNetwork
from kairode.agents.support import ActionSupport, BehaviorPolicy
from kairode.config.models import ModelConfig
from kairode.envs.core import advance_episode, begin_episode
from kairode.models.dynamics import Scale
from kairode.models.zoo import build
from kairode.planning.model_env import ModelEnv, make_model_env
from kairode.planning.pessimism import PessimisticEnv, data_disagreement

ENV = kairode.make("gridworld")
SPEC = ENV.task.spec
KEY = jax.random.key(3)
FLOOR = -50.0


@pytest.fixture(scope="module")
def models() -> list[Any]:
    sizes = ModelConfig(latent_size=4, encoder_hidden=3, field_hidden=5, timer="none")
    scale = Scale((0.3, -1.0), (2.0, 3.0))
    return [build("rnn", SPEC, sizes, scale, key=jax.random.key(seed)) for seed in range(3)]


@pytest.fixture(scope="module")
def inner(models: list[Any]) -> ModelEnv:
    return make_model_env(models, ENV)


def support(threshold: float, rare: int) -> ActionSupport:
    """Of a behaviour that hardly ever takes the action `rare`."""
    bias = jnp.zeros(8).at[rare].set(-8.0)
    net = ReLUNetwork((jnp.zeros((4, 2)), jnp.zeros((8, 4))), (jnp.zeros(4), bias))
    return ActionSupport(BehaviorPolicy(net, jnp.zeros(2), jnp.ones(2), jnp.full(8, 1 / 8), SPEC), threshold)


def step(env: Any, action: int = 3) -> tuple[Any, Any]:
    moment = begin_episode(env, key=KEY)
    return advance_episode(env, moment, jnp.array(action), jnp.array(2.0), key=KEY)


def pessimistic(inner: ModelEnv, penalty: float = 0.0, limit: float = np.inf, known: Any = None) -> PessimisticEnv:
    return PessimisticEnv(inner.task, inner, *map(jnp.asarray, (penalty, limit, FLOOR)), known)


def test_without_any_it_is_the_model_environment(inner: ModelEnv) -> None:
    plain, outcome = step(inner)
    same, other = step(pessimistic(inner, known=support(0.0, rare=3)))
    np.testing.assert_array_equal(plain.obs, same.obs)
    assert (outcome.reward, bool(outcome.terminated)) == (other.reward, bool(other.terminated))


def test_disagreement_costs_its_price(inner: ModelEnv) -> None:
    plain, outcome = step(inner)
    _, other = step(pessimistic(inner, penalty=7.0))
    assert float(plain.state.disagreement) > 0.01
    assert float(outcome.reward - other.reward) == pytest.approx(7.0 * float(plain.state.disagreement), rel=1e-5)


def test_an_episode_ends_with_the_floor_where_models_disagree_too_much(inner: ModelEnv) -> None:
    level = float(step(inner)[0].state.disagreement)
    for limit, ends in ((0.99 * level, True), (1.01 * level, False)):
        _, outcome = step(pessimistic(inner, penalty=7.0, limit=limit))
        assert bool(outcome.terminated) == ends
        assert (float(outcome.reward) == FLOOR) == ends


def test_an_episode_ends_under_an_action_without_support(inner: ModelEnv) -> None:
    env = pessimistic(inner, known=support(0.1, rare=3))
    assert bool(step(env, 3)[1].terminated)
    assert float(step(env, 3)[1].reward) == FLOOR
    assert not bool(step(env, 4)[1].terminated)


def test_disagreement_about_data_is_that_of_imagination(models: list[Any], inner: ModelEnv) -> None:
    """For the first decision of an episode, from which imagination starts in the same state."""
    data = kairode.collect(ENV, episodes=1, seed=5)
    short = dataclasses.replace(data, length=np.array([1]))
    env = dataclasses.replace(inner, starts=jnp.asarray(data.observation[:, 0]))
    moment = begin_episode(env, key=KEY)
    moment, _ = advance_episode(env, moment, jnp.asarray(data.action[0, 0]), jnp.asarray(data.interval[0, 0]), key=KEY)
    np.testing.assert_allclose(data_disagreement(models, short), [moment.state.disagreement], rtol=1e-4)
    assert data_disagreement(models[:1], short).tolist() == [0.0]
