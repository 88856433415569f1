"""Imagined worlds: what the models predict, fed back; ensembles, timers, starts, ends."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import kairode
from kairode.config.models import ModelConfig
from kairode.data.trajectory import Trajectory, constant_variables
from kairode.envs.core import Intervals, advance_episode, begin_episode
from kairode.envs.gridworld import GridworldTask
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.zoo import build
from kairode.planning.model_env import ModelEnv, decision_observations, make_model_env, obs_range

ENV = kairode.make("gridworld")
SPEC = ENV.task.spec
SCALE = Scale((0.3, -1.0), (2.0, 3.0))
KEY = jax.random.key(0)
ACTIONS = [(3, 2.0), (0, 1.0), (7, 5.0), (5, 7.0)]
"""Actions and how long they are held."""


@functools.cache
def small(name: str = "rnn", seed: int = 0, spec: Any = SPEC, **sizes: Any) -> DynamicsModel:
    chosen = {"latent_size": 4, "encoder_hidden": 3, "field_hidden": 5, "timer": "none"} | sizes
    scale = SCALE if len(spec.observations) == 2 else None
    return build(name, spec, ModelConfig(**chosen), scale, key=jax.random.key(seed))


def three() -> list[DynamicsModel]:
    return [small(seed=seed) for seed in range(3)]


def always(model: DynamicsModel, obs: tuple[float, float]) -> DynamicsModel:
    """A model that predicts this, whatever happens."""
    bias = model.scale.apply(np.array(obs, np.float32))
    parts = (jnp.zeros_like(model.decoder.weight), jnp.asarray(bias))
    return eqx.tree_at(lambda m: (m.decoder.weight, m.decoder.bias), model, parts)


def experience(observation: Any, lengths: Sequence[int]) -> Trajectory:
    """Episodes of which only what was observed matters."""
    observation = np.array(observation, np.float32)
    nothing = np.zeros((len(lengths), observation.shape[1] - 1), np.float32)
    length, off = np.array(lengths, np.int32), np.zeros(len(lengths), bool)
    return Trajectory(SPEC, observation, nothing.astype(np.int32), nothing, nothing, length, off, ~off)


def course(model_env: ModelEnv, key: Any) -> list[Any]:
    """The decision_observations of an episode under given actions and intervals."""
    passed, step = [begin_episode(model_env, key=key)], eqx.filter_jit(advance_episode)
    for k, (action, tau) in enumerate(ACTIONS):
        moment, outcome = step(model_env, passed[-1], jnp.array(action), jnp.array(tau), key=jax.random.fold_in(key, k))
        expected = ENV.task.reward(passed[-1].obs, jnp.array(action), moment.obs, jnp.array(tau))
        assert outcome.reward == pytest.approx(float(expected))
        passed.append(moment)
    return passed


@pytest.mark.parametrize("name", ["rnn", "latent-ode"])
def test_a_world_of_one_model_is_the_model_fed_back(name: str) -> None:
    model = small(name)
    passed = course(make_model_env(model, ENV), KEY)
    z, obs = passed[0].state.z[0], passed[0].obs
    assert (np.asarray(z) == 0).all() == (name == "rnn")  # a latent ODE starts from a draw
    for k, (action, tau) in enumerate(ACTIONS):
        z, obs = model.step(z, obs, jnp.array(action), jnp.array(tau))
        np.testing.assert_allclose(passed[k + 1].obs, obs, atol=1e-5)
        np.testing.assert_allclose(passed[k + 1].state.z[0], z, atol=1e-5)
        assert passed[k + 1].state.disagreement == 0
    assert passed[-1].time == sum(tau for _, tau in ACTIONS)


@pytest.mark.parametrize("resample_member", [False, True])
def test_every_member_steps_along_with_what_one_predicts(resample_member: bool) -> None:
    models = three()
    model_env = make_model_env(models, ENV, resample_member=resample_member)
    assert model_env.size == 3
    passed = course(model_env, jax.random.key(2))
    members = [int(moment.state.member) for moment in passed]
    assert (len(set(members)) > 1) == resample_member
    for k, (action, tau) in enumerate(ACTIONS):
        before, after = passed[k], passed[k + 1]
        found = [
            model.step(z, before.obs, jnp.array(action), jnp.array(tau))
            for model, z in zip(models, before.state.z, strict=True)
        ]
        seen = np.stack([obs for _, obs in found])
        np.testing.assert_allclose(after.state.z, np.stack([z for z, _ in found]), atol=1e-5)
        np.testing.assert_allclose(after.obs, seen[members[k + 1]], atol=1e-5)
        assert after.state.disagreement == pytest.approx((seen / np.array(SCALE.std)).std(0).mean(), rel=1e-4)


def test_every_member_has_its_episodes() -> None:
    model_env = make_model_env(three(), ENV)
    members = jax.jit(jax.vmap(lambda key: model_env.reset(key=key).member))(jax.random.split(KEY, 3000))
    assert stats.chisquare(np.bincount(members, minlength=3)).pvalue > 1e-3


def test_starts() -> None:
    """As the environment resets, or one of the observations given, each alike."""
    keys = jax.random.split(KEY, 600)

    def firsts(model_env: ModelEnv) -> np.ndarray:
        return np.asarray(jax.jit(jax.vmap(lambda key: model_env.observe(model_env.reset(key=key))))(keys))

    x, y = firsts(make_model_env(three(), ENV)).T
    assert ((np.abs(x) <= 0.5) & (y >= -5) & (y <= -4)).all()
    assert len(np.unique(x)) > 500
    given = np.array([[1.0, 2.0], [-1.0, 0.5], [3.0, 4.0]], np.float32)
    found, counts = np.unique(firsts(make_model_env(three(), ENV.task, starts=given)), axis=0, return_counts=True)
    np.testing.assert_array_equal(found, given[np.argsort(given[:, 0])])
    assert stats.chisquare(counts).pvalue > 1e-3
    data = experience([[first, (9.0, 9.0)] for first in given], lengths=(1, 1, 1))
    np.testing.assert_array_equal(np.unique(firsts(make_model_env(three(), ENV.task, starts=data)), axis=0), found)


def intervals(model_env: ModelEnv, count: int, key: Any = KEY) -> np.ndarray:
    state = model_env.reset(key=key)
    draw = jax.jit(jax.vmap(lambda key: model_env.interval(state, jnp.array(3), key=key)))
    return np.asarray(draw(jax.random.split(KEY, count)))


def test_intervals_that_no_timer_knows_are_uniform() -> None:
    found = intervals(make_model_env(three(), ENV), 3500)
    values, counts = np.unique(found, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(1, 8))
    assert stats.chisquare(counts).pvalue > 1e-3
    free = GridworldTask(dataclasses.replace(SPEC, intervals=Intervals(0.5, 2.5, step=0)))
    found = intervals(make_model_env(three(), free, starts=ENV), 3500)
    assert stats.kstest(found, stats.uniform(0.5, 2.0).cdf).pvalue > 1e-3


def test_a_timer_of_an_older_version_cannot_be_sampled() -> None:
    spec = dataclasses.replace(SPEC, intervals=Intervals(1.0, 7.0, step=0.0))
    model = small(spec=spec, timer="continuous", timer_hidden=5)
    env = dataclasses.replace(ENV.task, spec=spec)
    starts = np.zeros((1, 2))
    make_model_env(model, env, starts=starts)
    older = dataclasses.replace(model, timer=dataclasses.replace(model.timer, spread=None))
    with pytest.warns(UserWarning, match="sample_intervals has no effect"):
        make_model_env([older, older], env, starts=starts)
    make_model_env(older, env, starts=starts, sample_intervals=False)


def test_the_timer_of_the_member() -> None:
    """An interval drawn by its probabilities; without `sample_intervals`, the most likely one."""
    models = [small(seed=seed, timer="classes", timer_hidden=5) for seed in range(3)]
    # Members that disagree, whatever the state: each favours an interval of its own.
    for i, favourite in enumerate((1, 3, 6)):
        models[i] = eqx.tree_at(
            lambda m: m.timer.net.layers[-1].bias, models[i], replace_fn=lambda b, k=favourite: b.at[k].add(2.0)
        )
    seen = set()
    model_env = make_model_env(models, ENV, sample_intervals=False)
    for seed in range(3):
        key = jax.random.key(seed)
        state = model_env.reset(key=key)
        own, member = models[int(state.member)], int(state.member)
        logits = own.timer.logits(jnp.concatenate([own.inputs(state.obs, jnp.array(3)), state.z[member]]))
        for other in jax.random.split(key, 3):
            assert model_env.interval(state, jnp.array(3), key=other) == 1 + np.argmax(logits)
        seen.add(member)
    assert len(seen) > 1
    drawn = intervals(make_model_env(models, ENV), 3500, key)
    counts = np.bincount(drawn.astype(int), minlength=8)[1:]
    chance = np.exp(np.asarray(logits, np.float64))
    assert stats.chisquare(counts, 3500 * chance / chance.sum()).pvalue > 1e-3


@pytest.fixture(scope="module")
def uniform() -> Trajectory:
    """Experience with intervals uniform on 2, 3 .. 12."""
    return kairode.collect(kairode.make("gridworld", intervals=(2, 12), horizon=60), episodes=400, seed=0)


def imagined_intervals(model: DynamicsModel, data: Trajectory, sample_intervals: bool) -> np.ndarray:
    task = GridworldTask(data.spec)
    model_env = make_model_env(model, task, starts=data, sample_intervals=sample_intervals)
    found = kairode.collect(model_env, episodes=300, seed=1)
    return np.asarray(found.interval)[found.mask]


@pytest.mark.parametrize("timer", ["classes", pytest.param("continuous", marks=pytest.mark.slow)])
def test_imagined_intervals_are_distributed_as_those_seen(uniform: Trajectory, timer: str) -> None:
    """Each as often as any other, which the most likely ones are not."""
    options = {"latent_size": 4, "timer": timer, "weights": {"timer": 1.0}, "learning_rate": 5e-3, "iterations": 300}
    model = kairode.fit("rnn", uniform, validate_every=300, **options)
    drawn, likely = (imagined_intervals(model, uniform, sample) for sample in (True, False))
    assert len(drawn) > 2000
    if timer == "classes":
        split = [np.bincount(x.astype(int), minlength=13)[2:] / len(x) for x in (drawn, likely)]
        near, far = (0.5 * np.abs(share - 1 / 11).sum() for share in split)  # total variation
        assert near < 0.1
        assert far > 0.3
    else:
        assert stats.kstest(drawn, stats.uniform(2, 10).cdf).statistic < 0.1
        assert likely.std() < 0.5 * drawn.std()


def test_a_predicted_goal_ends_the_episode() -> None:
    seen = kairode.collect(make_model_env(always(small(), (0.0, 2.0)), ENV), episodes=5, seed=0)
    assert seen.terminated.all()
    assert (seen.length == 1).all()
    np.testing.assert_allclose(seen.reward[:, 0], 10 - seen.interval[:, 0])


def test_the_horizon_is_the_tasks() -> None:
    """Also of models that were fitted to shorter episodes."""
    short = small(spec=dataclasses.replace(SPEC, max_decisions=50))
    seen = kairode.collect(make_model_env(always(short, (0.0, 0.0)), ENV), episodes=2, seed=0, schedule=1)
    assert seen.truncated.all()
    assert (seen.length == 150).all()
    assert seen.spec == SPEC


def test_predictions_stay_within_what_was_seen() -> None:
    model = always(small(), (-9.0, 4.0))
    for obs_bounds, expected in ((None, (-9.0, 4.0)), (jnp.array([[-2.0, -5.0], [3.0, 3.5]]), (-2.0, 3.5))):
        moment = course(make_model_env(model, ENV, obs_bounds=obs_bounds), KEY)[-1]
        np.testing.assert_allclose(moment.obs, expected, atol=1e-5)


def test_what_was_seen() -> None:
    """Padding is nothing that was seen; the walls hold, however wide the margin."""
    data = experience([[[0.0, 1.0], [1.0, 3.0], [9.0, 9.0]], [[2.0, 2.0], [-2.0, 4.0], [0.5, 1.5]]], lengths=(1, 2))
    np.testing.assert_allclose(obs_range(data, 0.25), [[-3.0, 0.25], [3.0, 4.75]])
    np.testing.assert_allclose(obs_range(data, 10.0), [[-3.5, -5.0], [3.5, 5.0]])
    np.testing.assert_array_equal(decision_observations(data), [[0.0, 1.0], [2.0, 2.0], [-2.0, 4.0]])


def test_what_never_changes_keeps_its_value() -> None:
    """The first variable is constant in both episodes; padding and single observations say nothing."""
    data = experience([[[2.0, 1.0], [2.0, 3.0], [9.0, 9.0]], [[-1.0, 2.0], [-1.0, 2.0], [-1.0, 1.5]]], lengths=(1, 2))
    mask = constant_variables(data)
    assert mask is not None
    assert mask.tolist() == [True, False]
    once = experience([[[2.0, 1.0], [9.0, 9.0]]], lengths=(0,))
    assert constant_variables(once) is None
    env = make_model_env(always(small(), (-9.0, 4.0)), ENV, constant=jnp.asarray(mask))
    start, *later = course(env, KEY)
    for moment in later:
        np.testing.assert_allclose(moment.obs, [start.obs[0], 4.0], atol=1e-5)


def test_short_branches() -> None:
    model_env, action, tau = make_model_env(always(small(), (0.0, 0.0)), ENV, branch=3), jnp.array(0), jnp.array(1.0)
    moment, step = begin_episode(model_env, key=KEY), eqx.filter_jit(advance_episode)
    for k in range(3):
        moment, outcome = step(model_env, moment, action, tau, key=KEY)
        assert bool(outcome.truncated) == (k == 2)


def test_time_is_counted_as_the_model_was_fitted() -> None:
    """Whatever counts as one in the task: the intervals are the same, in seconds."""
    model = small("dt-rnn", spec=dataclasses.replace(SPEC, tick=0.5))
    model_env = make_model_env(model, ENV)
    state, action, tau = model_env.reset(key=KEY), jnp.array(1), jnp.array(3.0)
    _, wanted = model.step(state.z[0], state.obs, action, tau)
    np.testing.assert_allclose(model_env.transition(state, action, tau, key=KEY).obs, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("models", "env", "options", "message"),
    [
        (three, kairode.make("hiv"), {}, "the model has 2 observations"),
        (three, ENV.task, {}, "a task does not define initial states"),
        (lambda: [small(), small("dt-rnn")], ENV, {}, "must have the same kind"),
        (lambda: [small(timer="classes", timer_hidden=n) for n in (3, 4)], ENV, {}, "must have the same kind and size"),
        (list, ENV, {}, "needs one fitted model"),
        (lambda: [ENV], ENV, {}, "needs one fitted model"),
        (three, ENV, {"starts": np.zeros((5, 3), np.float32)}, "observations of shape"),
        (three, ENV, {"starts": np.zeros((0, 2), np.float32)}, "observations of shape"),
        (three, ENV, {"starts": np.zeros(2, np.float32)}, "observations of shape"),
    ],
)
def test_worlds_that_make_no_sense(models: Callable[[], list], env: Any, options: dict, message: str) -> None:
    # Checked here, not by the types, which ordinary use does not check.
    call = getattr(make_model_env, "__wrapped__", make_model_env)
    with pytest.raises(KairodeError, match=message):
        call(models(), env, **options)
