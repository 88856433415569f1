"""Fitting: seeds together and alone, early stopping, bad batches, recovery of a known system."""

import dataclasses
import json
import math
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import expm

import kairode
from kairode.callbacks import Progress
from kairode.config.algorithms import FitConfig
from kairode.config.models import MIDPOINT, ModelConfig
from kairode.config.training import LossWeights, TrainingConfig
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Intervals, Spec, Variable
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.networks import Linear
from kairode.models.ode import Adaptive, FixedSteps
from kairode.models.predict import predict
from kairode.models.zoo import build
from kairode.training import checkpoint, session
from kairode.training.evaluate_model import check_solver, compare_intervals, evaluate_model
from kairode.training.loop import train
from kairode.training.model_files import load_models, save_models
from kairode.training.step import (
    compiled_settings,
    cooldown_of,
    init_fit_state,
    make_optimizer,
    run_iterations,
)

SMALL = ModelConfig(latent_size=4, encoder_hidden=5, field_hidden=6, timer_hidden=5)
QUICK = TrainingConfig(iterations=12, batch_size=4, validate_every=4)


@pytest.fixture(scope="module")
def data() -> Trajectory:
    return kairode.collect(kairode.make("hiv", horizon=60), episodes=20, seed=0)


def stacked(name: str, spec: Spec, seeds: int, sizes: ModelConfig = SMALL) -> DynamicsModel:
    keys = jax.random.split(jax.random.key(0), seeds)
    return eqx.filter_vmap(lambda key: build(name, spec, sizes, key=key))(keys)


def same(a: DynamicsModel, b: DynamicsModel, tolerance: float = 0.0) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_seeds_together_are_seeds_alone(data: Trajectory) -> None:
    models = stacked("latent-ode", data.spec, 3)
    together = train(models, QUICK, data, data, seeds=[5, 6, 7])
    second = jax.tree.map(lambda x: x[1:2], eqx.filter(models, eqx.is_array))
    alone = train(eqx.combine(second, models), QUICK, data, data, seeds=[6])
    same(together.models[1], alone.models[0], 2e-5)


@pytest.mark.slow
def test_early_stopping_keeps_the_best(data: Trajectory) -> None:
    """A learning rate that ruins everything: the best look was an early one, and fitting stops after two more."""
    wild = dataclasses.replace(QUICK, iterations=400, validate_every=4, learning_rate=1.0, patience=2)
    seen: list[Progress] = []
    fitted = train(stacked("rnn", data.spec, 2), wild, data, data, seeds=[0, 1], callback=seen.append)
    assert max(fitted.iterations) < 400
    for i in range(2):
        looks = [report.metrics["validation"][i] for report in seen if "validation" in report.metrics]
        assert fitted.validation[i] == pytest.approx(min(looks))
        assert evaluate_model(fitted.models[i], data).error == pytest.approx(min(looks), rel=1e-4)


def test_bad_batches_are_skipped_and_counted(data: Trajectory) -> None:
    broken = np.array(data.observation)
    broken[3, 2:] = np.inf
    bad = dataclasses.replace(data, observation=broken)
    fitted = train(stacked("rnn", data.spec, 1), dataclasses.replace(QUICK, iterations=20), bad, data, seeds=[0])
    assert 3 <= fitted.skipped[0] <= 5  # one episode of 20, batches of 4, four epochs
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(fitted.models[0]))


def test_too_many_bad_batches_stop_with_the_last_good_weights(data: Trajectory, tmp_path: Path) -> None:
    broken = dataclasses.replace(data, observation=np.full_like(data.observation, np.inf))
    settings = dataclasses.replace(QUICK, iterations=100)
    models = stacked("rnn", data.spec, 1)
    with pytest.raises(KairodeError, match="batches in a row gave a loss or gradient that is not finite"):
        train(models, settings, broken, data, seeds=[0], folder=tmp_path)
    assert checkpoint.exists(tmp_path)


@pytest.mark.slow
def test_a_solver_out_of_steps_says_so(data: Trajectory) -> None:
    spun = stacked("latent-ode", data.spec, 1, dataclasses.replace(SMALL, solver="dopri5"))
    spun = eqx.tree_at(lambda m: m.transition.solver, spun, Adaptive(1e-7, 1e-7, max_steps=2))
    with pytest.raises(KairodeError, match="solver needs more than its 2 steps"):
        train(spun, dataclasses.replace(QUICK, iterations=50), data, data, seeds=[0])
    with pytest.raises(KairodeError, match="more than 2 steps"):
        evaluate_model(jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, spun), data)


def test_other_lengths_do_not_compile_again(data: Trajectory) -> None:
    models = stacked("rnn", data.spec, 1)
    shorter = kairode.collect(kairode.make("hiv", horizon=52), episodes=17, seed=3)
    shorter = dataclasses.replace(shorter, spec=data.spec)
    train(models, QUICK, data, data, seeds=[0])
    before = run_iterations._cache_size()
    train(models, QUICK, shorter, data, seeds=[0])
    assert run_iterations._cache_size() == before


@pytest.mark.slow
def test_growing_data_and_fewer_iterations_do_not_compile_again(data: Trajectory) -> None:
    """As in Dyna rounds: chunks of more episodes, half the iterations, a cooldown."""
    models = stacked("rnn", data.spec, 1)
    first = dataclasses.replace(QUICK, iterations=100, chunk_length=5, cooldown=0.5, validate_every=100)
    train(models, first, data[:8], data, seeds=[0])
    before = run_iterations._cache_size()
    train(models, dataclasses.replace(first, iterations=50, validate_every=50, patience=3), data, data, seeds=[0])
    assert run_iterations._cache_size() == before


def test_the_cooldown_is_optax() -> None:
    settings = TrainingConfig(iterations=10, cooldown=0.4, learning_rate=0.1, weight_decay=0.01)
    rate = optax.linear_schedule(0.1, 0.0, 4, 6)
    known = optax.chain(optax.add_decayed_weights(0.01), optax.adam(rate))
    update = jax.jit(lambda *given: make_optimizer(compiled_settings(settings), given[3:]).update(*given[:3]))
    x = wanted = jnp.array([1.0, -2.0])
    state, expected = make_optimizer(settings).init(x), known.init(x)
    for k in range(10):
        changes, state = update(jnp.sin(k + x), state, x, *cooldown_of(settings))
        theirs, expected = known.update(jnp.sin(k + wanted), expected, wanted)
        x, wanted = x + changes, wanted + theirs
        np.testing.assert_allclose(x, wanted, rtol=1e-5)


@pytest.mark.slow
def test_stopped_and_resumed_is_never_stopped(
    data: Trajectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SAVE_SECONDS", 0.0)
    models = stacked("latent-ode", data.spec, 2)
    whole = train(models, QUICK, data, data, seeds=[0, 1], folder=tmp_path / "whole")

    def stop(report: Progress) -> None:
        if report.done == 8:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train(models, QUICK, data, data, seeds=[0, 1], folder=tmp_path / "cut", callback=stop)
    assert int(json.loads((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()[-1])["iteration"]) == 8
    resumed = train(models, QUICK, data, data, seeds=[0, 1], folder=tmp_path / "cut")
    for a, b in zip(whole.models, resumed.models, strict=True):
        same(a, b)
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    for a, b in zip(*lines, strict=True):
        one, other = json.loads(a), json.loads(b)
        del one["seconds"], other["seconds"]
        assert one == other


@pytest.mark.slow
def test_checkpoints_that_are_not_ours(data: Trajectory, tmp_path: Path) -> None:
    models = stacked("latent-ode", data.spec, 1)
    fitted = train(models, QUICK, data, data, seeds=[0], folder=tmp_path)
    with pytest.raises(KairodeError, match="another model"):
        train(stacked("rnn", data.spec, 1), QUICK, data, data, seeds=[0], folder=tmp_path)
    partial = kairode.collect(kairode.make("hiv-partial", horizon=60), episodes=5, seed=0)
    with pytest.raises(KairodeError, match="another model or other data"):
        train(stacked("latent-ode", partial.spec, 1), QUICK, partial, partial, seeds=[0], folder=tmp_path)
    save_models(tmp_path, "latent-ode", SMALL, fitted.models)
    same(load_models(tmp_path)[0], fitted.models[0])
    [file] = tmp_path.glob("models-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(KairodeError, match="is damaged"):
        load_models(tmp_path)
    file.unlink()
    with pytest.raises(KairodeError, match="is missing"):
        load_models(tmp_path)
    (tmp_path / "models.json").write_text("{")
    with pytest.raises(KairodeError, match=r"models\.json is damaged"):
        load_models(tmp_path)
    with pytest.raises(KairodeError, match="does not exist"):
        load_models(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "wrong", [{"iterations": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"cooldown": 2.0}, {"weight_decay": -1.0}]
)
def test_settings_that_make_no_sense(wrong: dict) -> None:
    with pytest.raises(KairodeError, match=next(iter(wrong))):
        TrainingConfig(**wrong)


def test_cooldown_ends_at_rest(data: Trajectory) -> None:
    """With a falling learning rate the weights move less."""
    cold = dataclasses.replace(QUICK, iterations=12, cooldown=1.0)
    models = stacked("rnn", data.spec, 1)
    a = train(models, dataclasses.replace(cold, cooldown=0.0), data, data, seeds=[0])
    b = train(models, cold, data, data, seeds=[0])
    start = jax.tree.map(lambda x: x[0], eqx.filter(models, eqx.is_array))

    def distance(model: DynamicsModel) -> float:
        pairs = zip(jax.tree.leaves(start), jax.tree.leaves(eqx.filter(model, eqx.is_array)), strict=True)
        return float(sum(jnp.abs(x - y).sum() for x, y in pairs))

    assert 0 < distance(b.models[0]) < 0.8 * distance(a.models[0])


# A system whose course is known in closed form: dx/dt = A x + b(action), an oscillator with friction.

A = np.array([[0.0, 1.0], [-1.0, -0.3]])
PUSH = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
LINEAR = Spec(
    name="oscillator",
    observations=(Variable("x", "m"), Variable("v", "m/s")),
    actions=Discrete(("none", "push", "pull")),
    intervals=Intervals(0.5, 1.5, 0.5),
    time_unit="second",
    max_decisions=20,
)


def oscillator(episodes: int, choices: tuple[float, ...], seed: int) -> Trajectory:
    rng, length = np.random.default_rng(seed), 20
    obs = np.zeros((episodes, length + 1, 2))
    obs[:, 0] = rng.normal(size=(episodes, 2))
    action = rng.integers(3, size=(episodes, length))
    tau = rng.choice(choices, size=(episodes, length))
    rest = np.linalg.solve(A, PUSH.T).T
    flows = {choice: expm(A * choice) for choice in choices}
    for k in range(length):
        flow = np.stack([flows[t] for t in tau[:, k]])
        shift = rest[action[:, k]]
        obs[:, k + 1] = np.einsum("nij,nj->ni", flow, obs[:, k] + shift) - shift
    return Trajectory(
        spec=LINEAR,
        observation=obs.astype(np.float32),
        action=action.astype(np.int32),
        interval=tau.astype(np.float32),
        reward=np.zeros((episodes, length), np.float32),
        length=np.full(episodes, length, np.int32),
        terminated=np.zeros(episodes, bool),
        truncated=np.ones(episodes, bool),
    )


UNSEEN = {"twice as long": (3.0,), "half as long": (0.25,), "between": (0.6, 0.8, 1.1, 1.3)}


def recovered() -> dict[str, dict[str, float]]:
    """Test errors of four models, on intervals of training and on others."""
    train_data, valid = oscillator(300, (0.5, 1.0, 1.5), 0), oscillator(50, (0.5, 1.0, 1.5), 1)
    settings = TrainingConfig(iterations=4000, learning_rate=3e-3, cooldown=0.5, weight_decay=0.0, validate_every=1000)
    settings = dataclasses.replace(settings, weights=LossWeights(timer=0.0))
    # Four steps: with two, an interval of 3 s takes steps of 1.5 s, whose own error adds much to the field's.
    sizes = ModelConfig(latent_size=8, encoder_hidden=10, field_hidden=16, timer="none", solver="rk4:4")
    found = {}
    for name in ("latent-ode", "rnn", "dt-rnn", "decay-rnn"):
        [model] = train(stacked(name, LINEAR, 1, sizes), settings, train_data, valid, seeds=[0]).models
        found[name] = {"seen": evaluate_model(model, oscillator(100, (0.5, 1.0, 1.5), 2)).error}
        found[name] |= {case: evaluate_model(model, oscillator(100, taus, 3)).error for case, taus in UNSEEN.items()}
    print(found)
    return found


@pytest.mark.slow
def test_latent_ode_recovers_a_linear_system() -> None:
    """And knows intervals it never saw five times better than models without an ODE."""
    found = recovered()
    assert found["latent-ode"]["seen"] < 1e-3
    for case in UNSEEN:
        for other in ("rnn", "dt-rnn", "decay-rnn"):
            assert found["latent-ode"][case] < found[other][case] / 5, (case, other)


@pytest.mark.slow
def test_solver_check_sees_a_coarse_solver(data: Trajectory) -> None:
    fine = build("latent-ode", data.spec, dataclasses.replace(SMALL, solver="rk4:64"), key=jax.random.key(0))
    sharper = eqx.tree_at(
        lambda m: [layer.weight for layer in m.transition.field.layers], fine, replace_fn=lambda w: 3 * w
    )
    coarse = eqx.tree_at(lambda m: m.transition.solver, sharper, FixedSteps("midpoint", 1))
    assert check_solver(fine, data).difference < 1e-4
    assert check_solver(coarse, data).difference > 30 * check_solver(sharper, data).difference
    assert check_solver(build("rnn", data.spec, SMALL, key=jax.random.key(0)), data) is None


def test_evaluation_by_hand(data: Trajectory) -> None:
    model = build("rnn", data.spec, SMALL, key=jax.random.key(0))
    found, predicted = evaluate_model(model, data), predict(model, data)
    squares = [(predicted[n, :m] - data.observation[n, 1 : m + 1]) ** 2 for n, m in enumerate(data.length)]
    each = np.concatenate(squares)
    assert found.error == pytest.approx(each.mean(), rel=1e-5)
    np.testing.assert_allclose(found.by_dimension, each.mean(0), rtol=1e-5)
    times = np.concatenate([data.time[n, 1 : m + 1] for n, m in enumerate(data.length)])
    weights = [((times > a) & (times <= b)).sum() for a, b in zip(found.time_edges, found.time_edges[1:], strict=False)]
    assert np.average([x or 0 for x in found.by_time], weights=weights) == pytest.approx(found.error, rel=1e-5)
    assert found.median_episode == pytest.approx(np.median([x.mean() for x in squares]), rel=1e-5)
    assert found.worst_share == pytest.approx(max(x.mean(1).sum() for x in squares) / each.mean(1).sum(), rel=1e-5)
    assert 0 <= found.timer_hits <= 1


def continuous(spec: Spec) -> Spec:
    """With intervals that any number between the ends may be."""
    return dataclasses.replace(spec, intervals=dataclasses.replace(spec.intervals, step=0.0))


@pytest.mark.parametrize("timer", ["classes", "continuous"])
def test_intervals_beside_those_of_the_data(data: Trajectory, timer: str) -> None:
    """A timer that always predicts the longest interval, whatever it draws; and one whose draws are uniform."""
    sizes = dataclasses.replace(SMALL, timer=timer)
    model = build("rnn", data.spec, sizes, key=jax.random.key(0))
    low, high = data.spec.intervals.low, data.spec.intervals.high
    outputs = data.spec.intervals.classes if timer == "classes" else 1
    true = np.asarray(data.interval)[data.mask]

    def with_timer(bias: np.ndarray, spread: float) -> DynamicsModel:
        last = Linear(jnp.zeros((outputs, 5)), jnp.asarray(bias, jnp.float32))
        model_ = eqx.tree_at(lambda m: m.timer.net.layers[-1], model, last)
        if timer == "classes":
            return model_
        wide = Linear(jnp.zeros((1, 5)), jnp.array([spread]))
        return eqx.tree_at(lambda m: m.timer.spread.layers[-1], model_, wide)

    bias = 50.0 * (np.arange(outputs) == outputs - 1) if timer == "classes" else np.array([high])
    found = evaluate_model(with_timer(bias, -20.0), data).intervals
    assert found.mean == pytest.approx(true.mean(), rel=1e-5)
    assert found.drawn_mean == pytest.approx(high, rel=1e-2)
    assert found.likely_mean == pytest.approx(high)
    if timer == "classes":
        assert found.drawn == found.likely == pytest.approx(1 - (true == high).mean())
    else:
        assert found.likely == pytest.approx((high - true).mean() / true.mean(), rel=1e-5)
    assert found.far

    even = np.zeros(outputs) if timer == "classes" else np.array([(low + high) / 2])
    found = evaluate_model(with_timer(even, 20.0), data).intervals
    assert found.drawn_mean == pytest.approx((low + high) / 2, rel=0.1)
    if timer == "classes":
        assert found.likely_mean == low


def test_the_distance_that_chance_makes() -> None:
    """Two samples of one distribution are as far apart as is expected of them."""
    env = kairode.make("gridworld", intervals=(2, 12))
    data = kairode.collect(env, episodes=60, seed=0)
    model = build("rnn", data.spec, dataclasses.replace(SMALL, timer="classes"), key=jax.random.key(0))
    last = Linear(jnp.zeros((11, 5)), jnp.zeros(11))
    model = eqx.tree_at(lambda m: m.timer.net.layers[-1], model, last)
    found = [compare_intervals(model, data, seed=seed) for seed in range(10)]
    drawn, chance = (np.mean([getattr(check, name) for check in found]) for name in ("drawn", "chance"))
    assert drawn == pytest.approx(chance, rel=0.35)
    assert not any(check.far for check in found)


@pytest.mark.slow
def test_models_whose_timer_has_no_spread_still_load(data: Trajectory, tmp_path: Path) -> None:
    """As those of older versions; an unfinished fit of them goes on, too."""
    spec = continuous(data.spec)
    models = stacked("rnn", spec, 2)
    older = dataclasses.replace(models, timer=dataclasses.replace(models.timer, spread=None))
    each = [jax.tree.map(lambda x, i=i: x[i], older) for i in range(2)]
    save_models(tmp_path / "fit", "rnn", SMALL, each)
    for loaded, saved in zip(load_models(tmp_path / "fit"), each, strict=True):
        same(loaded, saved)
        assert loaded.timer.spread is None
        assert loaded.interval(jnp.ones(4), jnp.ones(6), jnp.asarray(0), key=jax.random.key(0)) == loaded.interval(
            jnp.ones(4), jnp.ones(6), jnp.asarray(0)
        )
    checkpoint.save(tmp_path / "part", init_fit_state(older, QUICK, [0, 1]))
    experience = dataclasses.replace(data, spec=spec)
    few = dataclasses.replace(QUICK, iterations=2)
    resumed = train(models, few, experience, experience, seeds=[0, 1], folder=tmp_path / "part")
    assert resumed.models[0].timer.spread is None
    save_models(tmp_path / "new", "rnn", SMALL, [jax.tree.map(lambda x, i=i: x[i], models) for i in range(2)])
    assert load_models(tmp_path / "new")[0].timer.spread is not None


def test_checkpoints_of_earlier_versions(data: Trajectory, tmp_path: Path) -> None:
    """Settings that an earlier version did not have, or that have no effect on this model, are no other run."""
    settings = dataclasses.replace(QUICK, iterations=4)
    config = FitConfig("hiv", model="latent-ode", sizes=dataclasses.replace(SMALL, solver=MIDPOINT), training=settings)
    without = dataclasses.replace(config, training=dataclasses.replace(settings, weights=LossWeights(consistency=0.0)))
    identity = dataclasses.asdict(without)
    del identity["training"]["weights"]["consistency"]
    models = stacked("rnn", data.spec, 1)
    train(models, settings, data, data, seeds=[0], folder=tmp_path, identity=identity)

    def again(config: FitConfig) -> None:
        train(models, settings, data, data, seeds=[0], folder=tmp_path, identity=dataclasses.asdict(config))

    again(without)
    with pytest.raises(KairodeError, match=r"training.weights.consistency is 0.0 there and 3.0 here"):
        again(config)
    other = dataclasses.replace(without, model="rnn", sizes=SMALL)
    with pytest.raises(KairodeError, match="model is"):
        again(other)
    train(models, settings, data, data, seeds=[0], folder=tmp_path / "rnn", identity=identity | {"model": "rnn"})
    train(models, settings, data, data, seeds=[0], folder=tmp_path / "rnn", identity=dataclasses.asdict(other))


def test_weights_of_the_loss_are_not_negative() -> None:
    for bad in (-1.0, math.nan):
        with pytest.raises(KairodeError, match="consistency"):
            LossWeights(consistency=bad)
