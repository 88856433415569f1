"""Whole models: steps, paths, teacher forcing and open loop, timers."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import kairode
from kairode.config.models import PAPER_MODELS, ModelConfig
from kairode.data.trajectory import Trajectory
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.networks import MLP, Linear
from kairode.models.predict import Episodes, follow, open_loop, predict, prepare
from kairode.models.timer import ClassTimer, ContinuousTimer
from kairode.models.zoo import MODELS, build

SMALL = ModelConfig(latent_size=4, encoder_hidden=5, field_hidden=6, timer_hidden=5)


@pytest.fixture(scope="module")
def episodes() -> Trajectory:
    return kairode.collect(kairode.make("hiv", max_decisions=7, horizon=40), episodes=5, seed=0)


def model_of(name: str, trajectory: Trajectory, scale: Scale | None = None) -> DynamicsModel:
    return build(name, trajectory.spec, SMALL, scale, key=jax.random.key(3))


def batch(model: DynamicsModel, trajectory: Trajectory) -> Episodes:
    return jax.tree.map(jnp.asarray, prepare(model, trajectory)).batch_last()


@pytest.mark.parametrize("name", MODELS)
def test_open_loop_is_step_after_step(name: str, episodes: Trajectory) -> None:
    """`predict` against a plain loop over `step`, in the environment's units."""
    scale = Scale((0.1,) * 6, (2.0,) * 6)
    model = model_of(name, episodes, scale)
    found = predict(model, episodes, seed=5)
    keys = jax.random.split(jax.random.key(5), len(episodes))
    for n in range(len(episodes)):
        z, obs = model.start(key=keys[n]), jnp.asarray(episodes.observation[n, 0])
        for k in range(int(episodes.length[n])):
            z, obs = model.step(z, obs, jnp.asarray(episodes.action[n, k]), jnp.asarray(episodes.interval[n, k]))
            np.testing.assert_allclose(found[n, k], obs, atol=2e-5)
    np.testing.assert_allclose(predict(model, episodes[1], seed=5).shape, found[1].shape)


@pytest.mark.parametrize("name", MODELS)
def test_scheduled_sampling_between_its_ends(name: str, episodes: Trajectory) -> None:
    """Shown everywhere it is teacher forcing, nowhere open loop."""
    model = model_of(name, episodes)
    data = batch(model, episodes)
    z = jax.random.normal(jax.random.key(0), (4, 5))
    everywhere = follow(model, z, data, jnp.ones(data.tau.shape, bool))
    for a, b in zip(jax.tree.leaves(follow(model, z, data)), jax.tree.leaves(everywhere), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    key = jax.random.key(1)
    z = jax.vmap(lambda key: model.start(key=key), out_axes=-1)(jax.random.split(key, 5))
    nowhere = follow(model, z, data, jnp.zeros(data.tau.shape, bool))
    np.testing.assert_allclose(open_loop(model, data, key).obs, nowhere.obs, atol=1e-6)
    assert not np.allclose(everywhere.obs[2:], nowhere.obs[2:], atol=1e-4)


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_path_ends_where_step_does(name: str, episodes: Trajectory) -> None:
    model = model_of(name, episodes)
    z, obs, action = jnp.ones(4), jnp.asarray(episodes.observation[0, 0]), jnp.asarray(episodes.action[0, 0])
    taus = jnp.array([1.0, 3.5, 7.0])
    zs, seen = model.path(z, obs, action, taus)
    assert zs.shape == (3, 4)
    assert seen.shape == (3, 6)
    for i, tau in enumerate(taus):
        after, predicted = model.step(z, obs, action, tau)
        np.testing.assert_allclose(zs[i], after, atol=1e-4)
        np.testing.assert_allclose(seen[i], predicted, atol=1e-4)


def test_acrobot_counts_time_in_ticks() -> None:
    """0.2 s is one."""
    env = kairode.make("acrobot")
    model = build("latent-ode", env.task.spec, SMALL, key=jax.random.key(0))
    z, obs, action = jnp.ones(4), jnp.zeros(4), jnp.asarray(1)
    x = model.inputs(obs, action)
    expected = model.transition.move(z, model.transition.inputs(x, jnp.float32(5.0)), jnp.float32(5.0))
    np.testing.assert_allclose(model.step(z, obs, action, jnp.float32(1.0))[0], expected, atol=1e-6)


def test_controls_and_host_environments() -> None:
    model = build("latent-ode", kairode.make("swimmer").task.spec, SMALL, key=jax.random.key(0))
    z, obs = model.step(jnp.ones(4), jnp.zeros(len(model.spec.observations)), jnp.array([0.5, -0.5]), jnp.float32(3.0))
    assert np.isfinite(z).all()
    assert np.isfinite(obs).all()


def test_class_timer_is_cross_entropy() -> None:
    timer = ClassTimer(MLP.new(3, 4, 5, key=jax.random.key(0)), low=2.0, step=0.5)
    features, tau = jax.random.normal(jax.random.key(1), (3, 6)), jnp.array([2.0, 2.5, 3.0, 3.5, 4.0, 2.0])
    logits = np.asarray(timer.logits(features), np.float64)
    p = np.exp(logits) / np.exp(logits).sum(0)
    which = np.array([0, 1, 2, 3, 4, 0])
    np.testing.assert_allclose(timer.loss(features, tau), -np.log(p[which, np.arange(6)]), rtol=1e-5)
    np.testing.assert_allclose(timer.interval(features), 2.0 + 0.5 * logits.argmax(0))
    drawn = jax.vmap(lambda key: timer.interval(features[:, 0], key=key))(jax.random.split(jax.random.key(2), 4000))
    share = [(np.asarray(drawn) == 2.0 + 0.5 * i).mean() for i in range(5)]
    np.testing.assert_allclose(share, p[:, 0], atol=0.03)


def test_continuous_timer_is_squared_error() -> None:
    timer = ContinuousTimer(MLP.new(3, 4, 1, key=jax.random.key(0)), low=0.1, high=0.2)
    features, tau = jax.random.normal(jax.random.key(1), (3, 6)), jnp.arange(6.0)
    np.testing.assert_allclose(timer.loss(features, tau), (timer.net(features)[0] - tau) ** 2, rtol=1e-6)
    assert np.all((np.asarray(timer.interval(features)) >= 0.1) & (np.asarray(timer.interval(features)) <= 0.2 + 1e-6))


def test_continuous_timer_draws_from_a_truncated_normal() -> None:
    """Also where its centre would lie outside the range; without a spread, as in older models, always its centre."""
    net, spread = MLP.new(3, 4, 1, key=jax.random.key(0)), MLP.new(3, 4, 1, key=jax.random.key(1))
    features = jax.random.normal(jax.random.key(2), (3,))
    for centre, log_scale, expected in ((0.0, -1.0, 2.0), (5.0, -2.0, 5.0), (11.0, 1.0, 11.0), (20.0, 9.0, 12.0)):
        net = eqx.tree_at(lambda n: n.layers[-1], net, Linear(jnp.zeros((1, 4)), jnp.array([centre])))
        spread = eqx.tree_at(lambda n: n.layers[-1], spread, Linear(jnp.zeros((1, 4)), jnp.array([log_scale])))
        timer = ContinuousTimer(net, 2.0, 12.0, spread)
        scale = 10.0 * min(np.exp(log_scale), 10.0)
        assert timer.interval(features) == expected
        wanted = stats.truncnorm((2 - expected) / scale, (12 - expected) / scale, expected, scale)
        draw = jax.jit(jax.vmap(lambda key, timer=timer: timer.interval(features, key=key)))
        drawn = np.asarray(draw(jax.random.split(jax.random.key(3), 4000)))
        assert ((drawn >= 2.0) & (drawn <= 12.0)).all()
        assert stats.kstest(drawn, wanted.cdf).pvalue > 1e-3
        taus = jnp.linspace(2.0, 12.0, 6)
        many = jnp.tile(features[:, None], (1, 6))
        squares = (centre - np.asarray(taus, np.float64)) ** 2
        np.testing.assert_allclose(timer.loss(many, taus), squares - wanted.logpdf(np.asarray(taus)), rtol=1e-4)
        older = dataclasses.replace(timer, spread=None)
        assert older.interval(features, key=jax.random.key(0)) == expected


def test_the_spread_changes_nothing_else_that_is_fitted() -> None:
    net, spread = MLP.new(3, 4, 1, key=jax.random.key(0)), MLP.new(3, 4, 1, key=jax.random.key(1))
    features, tau = jax.random.normal(jax.random.key(1), (3, 6)), jnp.linspace(2.0, 12.0, 6)

    def gradients(spread: MLP | None) -> Any:
        def loss(net: MLP, features: Any) -> Any:
            return ContinuousTimer(net, 2.0, 12.0, spread).loss(features, tau).sum()

        return jax.grad(loss, argnums=(0, 1))(net, features)

    for with_one, without in zip(*(jax.tree.leaves(gradients(s)) for s in (spread, None)), strict=True):
        np.testing.assert_array_equal(with_one, without)


def test_timer_fits_the_intervals(episodes: Trajectory) -> None:
    spec = episodes.spec
    assert isinstance(build("rnn", spec, SMALL, key=jax.random.key(0)).timer, ClassTimer)
    loose = dataclasses.replace(spec, intervals=dataclasses.replace(spec.intervals, step=0.0))
    assert isinstance(build("rnn", loose, SMALL, key=jax.random.key(0)).timer, ContinuousTimer)
    with pytest.raises(KairodeError, match="continuous"):
        build("rnn", loose, dataclasses.replace(SMALL, timer="classes"), key=jax.random.key(0))
    none = build("rnn", spec, dataclasses.replace(SMALL, timer="none"), key=jax.random.key(0))
    assert np.isnan(none.interval(jnp.ones(4), jnp.zeros(6), jnp.asarray(0)))


def test_data_of_something_else(episodes: Trajectory) -> None:
    """Other observations, other actions: one sentence, no broadcasting."""
    model = model_of("rnn", episodes)
    partial = kairode.collect(kairode.make("hiv-partial", max_decisions=4), episodes=2, seed=0)
    with pytest.raises(KairodeError, match=r"the model has 6 observations .* has 4"):
        predict(model, partial)
    grid = kairode.collect(kairode.make("gridworld"), episodes=2, seed=0)
    same_names = dataclasses.replace(grid, spec=dataclasses.replace(grid.spec, observations=model.spec.observations))
    with pytest.raises(KairodeError, match="the model has 4 actions"):
        predict(model, same_names)


def test_unknown_names() -> None:
    spec = kairode.make("hiv").task.spec
    with pytest.raises(KairodeError, match="latent-ode"):
        build("latent_ode", spec, SMALL, key=jax.random.key(0))
    with pytest.raises(KairodeError, match="timer"):
        build("rnn", spec, dataclasses.replace(SMALL, timer="clock"), key=jax.random.key(0))
    with pytest.raises(KairodeError, match="latent_size must be"):
        ModelConfig(latent_size=0)


def test_scale_of_data() -> None:
    x = np.random.default_rng(0).normal(3.0, 2.0, (500, 2)).astype(np.float32)
    x[:, 1] = 7.0
    scale = Scale.of(x)
    np.testing.assert_allclose(scale.apply(x)[:, 0].std(), 1.0, rtol=1e-5)
    assert scale.std[1] == 1.0
    np.testing.assert_allclose(scale.undo(scale.apply(x)), x, rtol=1e-5, atol=1e-6)


def test_models_can_be_differentiated_both_ways(episodes: Trajectory) -> None:
    """Outside the fast loop a model is plain JAX."""
    model = model_of("latent-ode", episodes)

    def to_obs(z: jax.Array) -> jax.Array:
        return model.step(z, jnp.zeros(6), jnp.asarray(0), jnp.float32(3.0))[1]

    np.testing.assert_allclose(jax.jacfwd(to_obs)(jnp.ones(4)), jax.jacrev(to_obs)(jnp.ones(4)), atol=1e-5)
    assert eqx.tree_equal(jax.vmap(to_obs)(jnp.ones((2, 4)))[0], jax.vmap(to_obs)(jnp.ones((2, 4)))[1])
