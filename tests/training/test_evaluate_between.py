"""Errors between decisions and at unseen intervals, against scipy and the simulators themselves."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import kairode
from kairode.config.models import ModelConfig
from kairode.data.collect import collect_between
from kairode.envs import Discrete, Intervals, Spec, Variable
from kairode.errors import KairodeError
from kairode.models.dynamics import Scale
from kairode.models.predict import predict_with_states
from kairode.models.zoo import build
from kairode.training.evaluate_between import (
    collect_between_episodes,
    evaluate_between,
    evaluate_on_between_episodes,
    predict_between,
    variances,
)
from kairode.training.evaluate_model import evaluate_model

SMALL = ModelConfig(latent_size=3, encoder_hidden=4, field_hidden=5, timer="none", solver="rk4:4")
SCALE = Scale((0.1, 0.0, 0.5), (0.7, 0.7, 3.0))
FRACTIONS = (0.25, 0.5, 0.75)


@pytest.fixture(scope="module")
def env():
    return kairode.make("pendulum", max_decisions=6)


@pytest.fixture(scope="module")
def test_set(env):
    return collect_between_episodes(env, episodes=5, seed=2, fractions=FRACTIONS)


def model_of(name, env):
    return build(name, env.task.spec, SMALL, SCALE, key=jax.random.key(3))


def test_the_course_is_that_of_the_simulator(env, test_set) -> None:
    """The pendulum's own equation, integrated by scipy from each decision; the decisions are those of `collect`."""
    own = kairode.collect(env, episodes=5, seed=2)
    for name in ("observation", "action", "interval", "reward", "length"):
        np.testing.assert_array_equal(getattr(test_set.own, name), getattr(own, name))
    assert test_set.between.shape == (5, 6, 3, 3)
    for n, k in ((0, 0), (1, 3), (4, 5)):
        cos, sin, velocity = own.observation[n, k]
        torque, tau = float(own.action[n, k, 0]), float(own.interval[n, k])
        course = solve_ivp(
            lambda _, y, torque=torque: np.array([y[1], 15.0 * np.sin(y[0]) + 3.0 * torque]),
            (0, tau),
            [np.arctan2(sin, cos), velocity],
            t_eval=[f * tau for f in FRACTIONS],
            rtol=1e-9,
            atol=1e-9,
        ).y
        expected = np.stack([np.cos(course[0]), np.sin(course[0]), course[1]], axis=-1)
        np.testing.assert_allclose(test_set.between[n, k], expected, atol=2e-5)


def test_unseen_intervals(test_set) -> None:
    """Half of 0.05 s and twice 0.25 s, from the same initial states."""
    np.testing.assert_allclose(test_set.half.interval[test_set.half.mask], 0.025, rtol=1e-6)
    np.testing.assert_allclose(test_set.double.interval[test_set.double.mask], 0.5, rtol=1e-6)
    for other in (test_set.half, test_set.double):
        np.testing.assert_array_equal(other.observation[:, 0], test_set.own.observation[:, 0])


def test_a_latent_ode_follows_its_field(env, test_set) -> None:
    """Predictions between decisions are those of scipy, from the latent state of the open-loop prediction."""
    model = model_of("latent-ode", env)
    own = test_set.own
    predicted, states = predict_with_states(model, own)
    field = model.transition.field
    layers = [(np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)) for layer in field.layers]

    def slope(_, z):
        for weight, bias in layers[:-1]:
            z = np.tanh(weight @ z + bias)
        return layers[-1][0] @ z + layers[-1][1]

    found = predict_between(model, own, FRACTIONS)
    for n, k in ((0, 1), (2, 3), (4, 5)):  # the first latent state is drawn from the prior
        x = jnp.concatenate([SCALE.apply(predicted[n, k - 1]), own.action[n, k]])
        start = model.transition.entry(jnp.asarray(states[n, k - 1]), model.transition.drive(x))
        ticks = float(own.interval[n, k]) / 0.05
        times = [f * ticks for f in FRACTIONS]
        zs = solve_ivp(slope, (0, ticks), np.asarray(start, np.float64), t_eval=times, rtol=1e-8, atol=1e-9).y
        obs = (np.asarray(model.decoder.weight) @ zs).T + np.asarray(model.decoder.bias)
        np.testing.assert_allclose(found[n, k], SCALE.undo(obs), rtol=1e-4, atol=1e-4)
    evaluated = evaluate_on_between_episodes(model, test_set)
    squares = ((found - test_set.between) / np.array(SCALE.std))[own.mask] ** 2
    assert evaluated.between == pytest.approx(squares.mean(), rel=1e-4)
    assert evaluated.by_fraction == pytest.approx(squares.mean((0, 2)).tolist(), rel=1e-4)


def test_at_decisions_as_table_1(env, test_set) -> None:
    model = model_of("dt-rnn", env)
    found = evaluate_on_between_episodes(model, test_set)
    assert found.at_decisions == pytest.approx(evaluate_model(model, test_set.own).error, rel=1e-6)
    assert found.half == pytest.approx(evaluate_model(model, test_set.half).error, rel=1e-6)
    assert found.double == pytest.approx(evaluate_model(model, test_set.double).error, rel=1e-6)
    assert found.ratio == found.between / found.at_decisions
    assert kairode.evaluate_between(model, env, episodes=5, fractions=FRACTIONS) == found
    spread = variances(model, test_set)
    rows = test_set.double.observation[:, 1:][test_set.double.mask].astype(np.float64)
    assert spread["double"] == pytest.approx((rows.var(0) / np.square(SCALE.std)).mean(), rel=1e-5)
    assert set(spread) == {"at_decisions", "between", "half", "double"}


def test_models_without_an_interval_predict_the_next_decision(env, test_set) -> None:
    for name in ("rnn", "latent-rnn"):
        model = model_of(name, env)
        at, _ = predict_with_states(model, test_set.own)
        apart = (SCALE.apply(at)[:, :, None] - SCALE.apply(test_set.between))[test_set.own.mask]
        found = evaluate_on_between_episodes(model, test_set)
        assert found.between == pytest.approx(float((apart**2).mean()), rel=1e-5)
        assert found.by_fraction == pytest.approx((apart**2).mean((0, 2)).tolist(), rel=1e-5)


def test_predictions_that_are_not_finite(env, test_set) -> None:
    model = model_of("rnn", env)
    lost = eqx.tree_at(lambda model: model.decoder.bias, model, jnp.full(3, jnp.inf))
    found = evaluate_on_between_episodes(lost, test_set)
    assert (found.at_decisions, found.between, found.half, found.double, found.ratio) == (None,) * 5


class Dose(kairode.Environment):
    """A drug that is given at the decision and decays: exp(-t) of it is left after t."""

    deterministic: ClassVar[bool] = True

    @property
    def action_mode(self):
        return "once"

    @property
    def task(self):
        spec = Spec(
            name="dose",
            observations=(Variable("level", "1"),),
            actions=Discrete(("none", "dose")),
            intervals=Intervals(1.0, 2.0),
            time_unit="hour",
            horizon=6.0,
        )
        return DoseTask(spec)

    def reset(self, *, key):
        return jnp.ones(1)

    def observe(self, state):
        return state

    def interval(self, state, action, *, key):
        return jax.random.uniform(key, minval=1.0, maxval=2.0)

    def transition(self, state, action, tau, *, key):
        return (state + action) * jnp.exp(-tau)


class DoseTask(kairode.Task):
    spec: Spec = eqx.field(static=True)

    def reward(self, obs, action, next_obs, tau):
        return next_obs[0]

    def terminal(self, obs):
        return jnp.zeros((), bool)


def test_an_environment_of_ones_own() -> None:
    test = collect_between_episodes(Dose(), episodes=3, seed=0, fractions=(0.5, 1.0))
    seen, between = test.own, test.between
    before, tau = seen.observation[:, :-1, 0], seen.interval
    halfway = (before + seen.action) * np.exp(-0.5 * tau)
    np.testing.assert_allclose(between[seen.mask][:, 0, 0], halfway[seen.mask], rtol=1e-5)
    np.testing.assert_array_equal(between[seen.mask][:, 1], seen.observation[:, 1:][seen.mask])
    assert set(test.half.interval[test.half.mask]) == {0.5}
    assert set(test.double.interval[test.double.mask]) == {4.0}


def test_what_cannot_be_evaluated_between(env) -> None:
    with pytest.raises(KairodeError, match="'swimmer' runs on the host and does not report its states between"):
        evaluate_between(model_of("rnn", env), kairode.make("swimmer"), episodes=2)
    for fractions in ((), (0.0, 0.5), (0.5, 0.25), (0.5, 1.5)):
        with pytest.raises(KairodeError, match="fractions must be ascending"):
            collect_between(env, episodes=2, fractions=fractions)
    with pytest.raises(KairodeError, match=r"ends after 20 days, so it has no episodes at twice its longest interval"):
        evaluate_between(model_of("rnn", env), kairode.make("hiv", horizon=20), episodes=2)
