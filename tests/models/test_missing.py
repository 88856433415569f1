"""Missing measurements: what models are shown, what the loss counts, what is saved."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.config.models import ModelConfig
from kairode.config.training import LossWeights
from kairode.data.stream import stream
from kairode.data.trajectory import Trajectory, carried_forward
from kairode.errors import KairodeError
from kairode.models.dynamics import Scale
from kairode.models.predict import encode, follow, open_loop, predict, prepare, timer_features
from kairode.models.zoo import MODELS, build
from kairode.training.batches import pad, split_chunks
from kairode.training.evaluate_between import predict_between
from kairode.training.evaluate_model import evaluate_model
from kairode.training.losses import objective, state_error

SMALL = ModelConfig(latent_size=4, encoder_hidden=5, field_hidden=6, timer_hidden=5)


@pytest.fixture(scope="module")
def whole() -> Trajectory:
    return kairode.collect(kairode.make("hiv", max_decisions=7, horizon=40), episodes=12, seed=0)


@pytest.fixture(scope="module")
def gone(whole: Trajectory) -> Trajectory:
    """Of 12 episodes, with 30 % of the measurements missing; in one, those of the first visit."""
    lost = np.random.default_rng(0).random(whole.observation.shape) < 0.3
    lost[0, 0] = True
    return dataclasses.replace(whole, observation=np.where(lost, np.nan, whole.observation))


def masked(name: str, data: Trajectory):
    return build(
        name,
        data.spec,
        SMALL,
        Scale.of(kairode.data.trajectory.carried_forward(data).observation[:, 0]),
        True,
        key=jax.random.key(3),
    )


@pytest.mark.parametrize("name", MODELS)
def test_models_are_shown_their_own_predictions_in_place_of_missing_values(name: str, gone: Trajectory) -> None:
    """Teacher forcing against a plain loop over `step`, in the environment's units."""
    model = masked(name, gone)
    found = predict(model, gone, teacher_forcing=True, seed=5)
    keys = jax.random.split(jax.random.key(5), len(gone))
    for n in range(4):
        z, predicted = model.start(key=keys[n]), jnp.asarray(model.scale.mean)
        for k in range(int(gone.length[n])):
            observed = ~np.isnan(gone.observation[n, k])
            obs = jnp.where(observed, gone.observation[n, k], predicted)
            now = (jnp.asarray(gone.action[n, k]), jnp.asarray(gone.interval[n, k]))
            z, predicted = model.step(z, obs, *now, jnp.asarray(observed))
            np.testing.assert_allclose(found[n, k], predicted, atol=3e-5)


def test_predictions_that_are_fed_back_count_as_measured(gone: Trajectory) -> None:
    """As in imagination, where `step` is given no mask."""
    model = masked("latent-ode", gone)
    found = predict(model, gone, seed=5)
    keys = jax.random.split(jax.random.key(5), len(gone))
    observed = ~np.isnan(gone.observation[1, 0])
    first = jnp.where(observed, gone.observation[1, 0], jnp.asarray(model.scale.mean))
    z, obs = model.step(
        model.start(key=keys[1]),
        first,
        jnp.asarray(gone.action[1, 0]),
        jnp.asarray(gone.interval[1, 0]),
        jnp.asarray(observed),
    )
    np.testing.assert_allclose(found[1, 0], obs, atol=3e-5)
    _, obs = model.step(z, obs, jnp.asarray(gone.action[1, 1]), jnp.asarray(gone.interval[1, 1]))
    np.testing.assert_allclose(found[1, 1], obs, atol=3e-5)


def test_predictions_between_decisions_end_at_those_at_decisions(gone: Trajectory) -> None:
    for name in ("latent-ode", "ode-rnn", "dt-rnn"):
        model = masked(name, gone)
        between = predict_between(model, gone, (0.5, 1.0), seed=4)
        np.testing.assert_allclose(between[:, :, 1][gone.mask], predict(model, gone, seed=4)[gone.mask], atol=5e-3)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_counts_what_was_measured(name: str, gone: Trajectory) -> None:
    """Each term against NumPy, and no gradient or value is NaN."""
    model = masked(name, gone)
    data, key = jax.tree.map(jnp.asarray, prepare(model, gone)).batch_last(), jax.random.key(1)

    def loss(model):
        terms = objective(
            model, data, LossWeights(kl=0.0, timer=1.0, consistency=0.0), truth=None, warm=jnp.ones(()), key=key
        )
        return terms.total, terms

    (_, terms), gradient = jax.value_and_grad(
        lambda weight: loss(dataclasses.replace(model, decoder=dataclasses.replace(model.decoder, weight=weight))),
        has_aux=True,
    )(model.decoder.weight)
    assert np.isfinite(gradient).all()
    q = encode(model, data)
    z = jnp.zeros((4, len(gone))) if q is None else q.draw(jax.random.normal(jax.random.split(key, 3)[0], q.mean.shape))
    course = follow(model, z, data)
    predicted = np.moveaxis(np.asarray(course.obs), -1, 0)
    apart = predicted - model.scale.apply(np.asarray(gone.observation, np.float32))[:, 1:]
    np.testing.assert_allclose(terms.state, np.nanmean(apart[gone.mask] ** 2), rtol=1e-5)
    each = jax.vmap(model.timer.loss)(timer_features(model, course, data), data.tau)
    np.testing.assert_allclose(terms.timer, np.asarray(each).T[gone.mask].mean(), rtol=1e-5)
    np.testing.assert_allclose(
        evaluate_model(model, gone, seed=2).error,
        state_error(open_loop(model, data, jax.random.key(2)).obs, data),
        rtol=1e-5,
    )


def test_what_stands_in_a_missing_cell_does_not_matter(gone: Trajectory) -> None:
    """Padding and chunks keep the mask."""
    model = masked("latent-rnn", gone)
    episodes = prepare(model, gone)
    other = dataclasses.replace(episodes, obs=jnp.where(episodes.observed, episodes.obs, 7.0))
    for a, b in ((episodes, other), (pad(episodes), pad(other)), (split_chunks(episodes, 3), split_chunks(other, 3))):
        np.testing.assert_array_equal(a.observed, b.observed)
        found = [
            state_error(follow(model, jnp.zeros((4, len(x.tau))), x.batch_last()).obs, x.batch_last()) for x in (a, b)
        ]
        assert found[0] == found[1]


@pytest.mark.slow
def test_a_fit_to_missing_values(gone: Trajectory, whole: Trajectory, tmp_path: Path) -> None:
    """The mask is an input only where values are missing; saved and loaded, and from a stream, models are the same."""
    options = {"iterations": 20, "validate_every": 10, "batch_size": 4, "latent_size": 4}
    model = kairode.fit("latent-ode", gone, valid=whole, folder=tmp_path / "run", **options)
    assert model.masked
    assert not kairode.fit("latent-ode", whole, valid=gone, **options).masked
    (again,) = kairode.load_models(tmp_path / "run")
    np.testing.assert_array_equal(predict(again, gone), predict(model, gone))
    kairode.write(tmp_path / "gone.parquet", gone)
    read = kairode.read(tmp_path / "gone.parquet")
    np.testing.assert_array_equal(read.observation, gone.observation)
    streamed = kairode.fit("latent-ode", stream(tmp_path / "gone.parquet"), valid=whole, **options)
    np.testing.assert_allclose(predict(streamed, gone), predict(model, gone), atol=1e-5)
    alone = dataclasses.replace(gone, observation=np.full_like(gone.observation, np.nan))
    kairode.write(tmp_path / "alone.parquet", alone)
    with pytest.raises(KairodeError, match="column 'T1': every value is missing"):
        kairode.read(tmp_path / "alone.parquet")
    with pytest.raises(KairodeError, match="column 'T1': every value is missing"):
        stream(tmp_path / "alone.parquet")


def test_the_scale_is_that_of_the_measured_values(gone: Trajectory) -> None:
    seen = np.asarray(gone.observation)[:, :-1][gone.mask]
    expected = np.nanmean(seen, 0), np.nanstd(seen, 0)
    for scale in (Scale.of(seen), Scale.of_blocks(lambda: [seen[:20], seen[20:]])):
        np.testing.assert_allclose((scale.mean, scale.std), expected, rtol=1e-6)
    robust = Scale.robust(seen)
    np.testing.assert_allclose(robust.mean, np.nanmedian(seen, 0), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::kairode.KairodeWarning")
def test_clipped_values_are_missing_to_a_robust_scale(whole: Trajectory) -> None:
    spoilt = np.array(whole.observation)
    spoilt[2, 1, 0] = 1e30
    model = kairode.fit(
        "rnn",
        dataclasses.replace(whole, observation=spoilt),
        valid=whole,
        robust_scale=True,
        standardize=True,
        iterations=2,
        validate_every=2,
        latent_size=4,
    )
    assert model.masked
    observed = np.asarray(prepare(model, dataclasses.replace(whole, observation=spoilt)).observed)
    assert not observed[2, 1, 0]
    assert observed[..., 0].sum() == observed[..., 0].size - 1
    assert prepare(model, whole).observed[..., 0].all()


def test_values_carried_forward(whole: Trajectory) -> None:
    seen = np.array([[[1.0, np.nan], [np.nan, np.nan], [3.0, 5.0]], [[np.nan, 2.0], [4.0, np.nan], [np.nan, np.nan]]])
    numbers = {name: getattr(whole, name)[:2, :2] for name in ("action", "interval", "reward")}
    data = dataclasses.replace(whole[:2], observation=seen, length=np.array([2, 2], np.int32), **numbers)
    expected = [[[1, 3.5], [1, 3.5], [3, 5]], [[2.5, 2], [4, 2], [4, 2]]]  # medians of first values: 1, 4 and 5, 2
    np.testing.assert_array_equal(carried_forward(data).observation, expected)
    assert carried_forward(whole) is whole
    short = dataclasses.replace(data, length=np.array([2, 0], np.int32))  # one moment is real, the others are padding
    np.testing.assert_array_equal(carried_forward(short).observation[0], [[1, 3.5], [1, 3.5], [3, 5]])
