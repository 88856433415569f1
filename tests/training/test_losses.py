"""The objective, term by term, against plain NumPy over the valid steps of each episode."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import kairode
from kairode.config.models import ModelConfig
from kairode.config.training import LossWeights
from kairode.data.trajectory import Trajectory
from kairode.models.dynamics import DynamicsModel
from kairode.models.ode import Adaptive, FixedSteps
from kairode.models.predict import Episodes, encode, follow, prepare
from kairode.models.zoo import MODELS, build
from kairode.training.batches import batch_numbers, pad, split_chunks
from kairode.training.losses import consistency, objective, state_error

SMALL = ModelConfig(latent_size=4, encoder_hidden=5, field_hidden=6, timer_hidden=5)
terms_of = eqx.filter_jit(objective)


@pytest.fixture(scope="module")
def uneven() -> Trajectory:
    """Two episodes each of two lengths."""
    found = kairode.collect(kairode.make("hiv", horizon=60), episodes=40, seed=0)
    lengths, counts = np.unique(found.length, return_counts=True)
    short, long = lengths[counts >= 2][[0, -1]]
    assert short < long
    rows = [n for length in (short, long) for n in np.flatnonzero(found.length == length)[:2]]
    return jax.tree.map(lambda x: x[np.array(rows)], found)


def on_device(episodes: Episodes) -> Episodes:
    return jax.tree.map(jnp.asarray, episodes).batch_last()


@eqx.filter_jit
def without_padding(model: DynamicsModel, episodes: Episodes, noise: Array) -> tuple[Array, Array, Array]:
    """Sums of the squared errors and of the timer's losses over the steps of episodes of one length, and of the KL."""
    q = encode(model, episodes)
    kl = jnp.zeros(())
    z = jnp.zeros(noise.shape)
    if q is not None:
        z = q.draw(noise)
        kl = (0.5 * (q.mean**2 + jnp.exp(q.log_variance) - 1 - q.log_variance)).mean(0).sum()
    course = follow(model, z, episodes)
    squares = ((course.obs - episodes.obs[1:]) ** 2).mean(1).sum()
    features = jnp.concatenate([episodes.obs[:-1], episodes.action, course.before], axis=1)
    one_step = jax.vmap(jax.vmap(model.timer.loss, in_axes=(-1, -1)))  # over steps, then episodes
    return squares, one_step(features, episodes.tau).sum(), kl


@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_nothing(name: str, uneven: Trajectory) -> None:
    """The loss of padded episodes is the loss without padding, by hand, for the episodes of each length."""
    model = build(name, uneven.spec, SMALL, key=jax.random.key(0))
    data = prepare(model, uneven)
    key, noise_key = jax.random.key(1), jax.random.split(jax.random.key(1), 3)[0]
    longer = jax.tree.map(lambda x: x[: len(uneven)], pad(data))
    assert longer.tau.shape[1] > data.tau.shape[1]
    terms = terms_of(model, on_device(longer), LossWeights(), truth=None, warm=jnp.ones(()), key=key)

    noise = jax.random.normal(noise_key, (4, len(uneven)))
    sums = np.zeros(3)
    for rows in (slice(0, 2), slice(2, 4)):
        length = int(uneven.length[rows][0])
        part = rows, slice(length)
        alone = Episodes(data.obs[rows, : length + 1], data.action[part], data.tau[part], data.real[part])
        assert alone.real.all()
        sums += without_padding(model, on_device(alone), noise[:, rows])
    steps = uneven.length.sum()
    np.testing.assert_allclose(terms.state, sums[0] / steps, rtol=1e-4)
    np.testing.assert_allclose(terms.timer, sums[1] / steps, rtol=1e-4)
    np.testing.assert_allclose(terms.kl, sums[2] / len(uneven), rtol=1e-4)
    np.testing.assert_allclose(terms.total, terms.state + terms.kl + 0.01 * terms.timer, rtol=1e-5)


def test_weights_and_warm_up(uneven: Trajectory) -> None:
    model = build("latent-ode", uneven.spec, SMALL, key=jax.random.key(0))
    data, key = on_device(prepare(model, uneven)), jax.random.key(1)
    weights = LossWeights(kl=0.5, timer=0.2)
    half = terms_of(model, data, weights, truth=None, warm=jnp.asarray(0.5), key=key)
    np.testing.assert_allclose(half.total, half.state + 0.25 * half.kl + 0.2 * half.timer, rtol=1e-5)
    assert half.kl > 0


@pytest.mark.slow
def test_regularisers_of_the_field(uneven: Trajectory) -> None:
    """Each against its definition at the start of every flow, with Jacobians from forward mode."""
    model = build("latent-ode", uneven.spec, SMALL, key=jax.random.key(0))
    data, key = on_device(prepare(model, uneven)), jax.random.key(1)
    plain = terms_of(model, data, LossWeights(consistency=0.0), truth=None, warm=jnp.ones(()), key=key)
    assert plain.field == 0
    q = encode(model, data)
    z = q.draw(jax.random.normal(jax.random.split(key, 3)[0], q.mean.shape))
    course = follow(model, z, data)
    starts = jax.vmap(model.transition.entry)(course.before, course.drive)
    real = np.argwhere(np.asarray(data.real))
    energy, curvature, frobenius = [], [], []
    for t, n in real:
        z, tau = starts[t, :, n], data.tau[t, n]
        speed, jacobian = tau * model.transition.field(z), tau * jax.jacfwd(model.transition.field)(z)
        energy.append((speed**2).mean())
        curvature.append(((jacobian @ speed) ** 2).mean())
        frobenius.append((jacobian**2).sum() / 4)
    for weights, expected in ((LossWeights(energy=2.0), energy), (LossWeights(curvature=2.0), curvature)):
        found = terms_of(model, data, weights, truth=None, warm=jnp.ones(()), key=key)
        np.testing.assert_allclose(found.field, 2 * np.mean(expected), rtol=1e-3)
        np.testing.assert_allclose(found.total - plain.total, found.field, atol=1e-4)
    noisy = [
        float(terms_of(model, data, LossWeights(jacobian=1.0), truth=None, warm=jnp.ones(()), key=k).field)
        for k in jax.random.split(key, 60)
    ]
    assert abs(np.mean(noisy) / np.mean(frobenius) - 1) < 0.25


@pytest.mark.slow
def test_consistency_of_the_flow(uneven: Trajectory) -> None:
    """Its mean over draws is that over all decisions, of one step against two; only the field has a gradient."""
    sizes = dataclasses.replace(SMALL, solver="midpoint:1")
    model = build("latent-ode", uneven.spec, sizes, key=jax.random.key(0))
    model = eqx.tree_at(lambda m: m.transition.field, model, jax.tree.map(lambda x: 2 * x, model.transition.field))
    data, field = on_device(prepare(model, uneven)), model.transition.field
    course = follow(model, jnp.zeros((4, len(uneven))), data)
    starts = jax.vmap(model.transition.entry)(course.before, course.drive)
    one, two = (jax.vmap(lambda z, tau, n=n: FixedSteps("midpoint", n).solve(field, z, tau)) for n in (1, 2))
    apart = ((one(starts, data.tau) - two(starts, data.tau)) ** 2).mean(1)
    keys = jax.random.split(jax.random.key(1), 400)
    drawn = jax.jit(jax.vmap(lambda key: consistency(model, course, data, key)))(keys)
    np.testing.assert_allclose(drawn.mean(), apart[data.real].mean(), rtol=0.1)

    gradient = eqx.filter_grad(lambda m: consistency(m, follow(m, jnp.zeros((4, len(uneven))), data), data, keys[0]))(
        model
    )
    assert all((x != 0).any() for x in jax.tree.leaves(gradient.transition.field))
    assert not any((x != 0).any() for x in jax.tree.leaves((gradient.transition.mix, gradient.decoder)))
    adaptive = eqx.tree_at(lambda m: m.transition.solver, model, Adaptive())
    assert consistency(adaptive, course, data, keys[0]) == 0


def test_scheduled_sampling_in_the_objective(uneven: Trajectory) -> None:
    model = build("rnn", uneven.spec, SMALL, key=jax.random.key(0))
    data, key = on_device(prepare(model, uneven)), jax.random.key(1)

    def state(truth: float | None) -> float:
        given = None if truth is None else jnp.asarray(truth)
        return float(terms_of(model, data, LossWeights(), truth=given, warm=jnp.ones(()), key=key).state)

    open_loop = follow(model, jnp.zeros((4, len(uneven))), data, jnp.zeros(data.tau.shape, bool))
    np.testing.assert_allclose(state(1.0), state(None), rtol=1e-5)
    np.testing.assert_allclose(state(0.0), state_error(open_loop.obs, data), rtol=1e-5)


def test_chunks_hold_every_decision_once(uneven: Trajectory) -> None:
    data = prepare(build("rnn", uneven.spec, SMALL, key=jax.random.key(0)), uneven)
    parts = split_chunks(data, 4)
    assert parts.tau.shape[1] == 4
    assert parts.obs.shape[1] == 5
    assert parts.real.sum() == data.real.sum()
    assert sorted(parts.tau[parts.real]) == sorted(data.tau[data.real])
    next_obs = {tuple(row) for row in np.round(data.obs[:, 1:][data.real], 5).tolist()}
    assert {tuple(row) for row in np.round(parts.obs[:, 1:][parts.real], 5).tolist()} == next_obs


def test_batches_are_shuffled_epochs() -> None:
    all_of_it = batch_numbers(3, 10, 4, 0, 7)
    assert all_of_it.shape == (7, 4)
    for epoch in range(3):
        rows = all_of_it[2 * epoch : 2 * epoch + 2].ravel()
        assert len(set(rows.tolist())) == 8
    in_parts = np.concatenate([batch_numbers(3, 10, 4, 0, 3), batch_numbers(3, 10, 4, 3, 4)])
    np.testing.assert_array_equal(all_of_it, in_parts)
    assert not np.array_equal(all_of_it, batch_numbers(4, 10, 4, 0, 7))
    assert batch_numbers(0, 3, 8, 0, 2).shape == (2, 8)


def test_weights_are_data() -> None:
    assert dataclasses.asdict(LossWeights())["kl"] == 1.0
    assert not LossWeights().regularised
