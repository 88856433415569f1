"""Advice against closed forms: models made by hand, values that are known, the same one by one and all at once."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode as kd
from kairode.agents.actor_critic import init_actor_critic, value
from kairode.agents.actor_policy import ActorPolicy, actions
from kairode.agents.behavior import BehaviorPolicy
from kairode.agents.encoder import IdentityEncoder, LatentEncoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.agents.policy_files import save_policy
from kairode.agents.q_policy import QPolicy
from kairode.agents.support import ActionSupport
from kairode.algorithms.visits import encode_named_action
from kairode.config.agents import ActorCriticConfig
from kairode.config.models import ModelConfig
from kairode.data.trajectory import Trajectory, carried_forward
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.networks import Linear
from kairode.models.predict import predict_with_states
from kairode.models.zoo import build
from kairode.planning.histories import padded_histories, predict_courses, track
from kairode.planning.optimize_schedule import optimize_schedule
from kairode.planning.pessimism import data_disagreement
from kairode.planning.reference import make_reference
from kairode.planning.table_task import TableTask
from kairode.planning.task_files import save_task
from kairode.runs.advise import add_advisor, load_advisor
from kairode.training.model_files import recognize_model, save_models
from kairode.trees import stack

SMALL = ModelConfig(latent_size=3, encoder_hidden=4, field_hidden=4, timer_hidden=4)


def records(missing: float = 0.0, controls: bool = False, episodes: int = 24) -> Trajectory:
    """x, y and the constant sex; visits every 1 to 3 days, from -1 to 1."""
    rng = np.random.default_rng(0)
    visits = 6
    y = rng.uniform(-1, 1, episodes * visits)
    table: dict[str, Any] = {
        "who": np.repeat(np.arange(episodes), visits),
        "t": np.cumsum(rng.integers(1, 4, (episodes, visits)), 1).ravel().astype(float),
        "x": rng.uniform(-1, 1, episodes * visits),
        "y": np.where(rng.random(len(y)) < missing, np.nan, y),
        "sex": np.repeat(np.where(np.arange(episodes) % 2, "F", "M"), visits),
        "gain": rng.normal(size=episodes * visits),
    }
    if controls:
        table["dose"] = rng.uniform(0, 2, episodes * visits)
    else:
        table["drug"] = rng.choice(["a", "b"], episodes * visits)
    kinds: dict[str, Any] = {"controls": ["dose"]} if controls else {"action": "drug"}
    return kd.load_table(
        table,
        episode="who",
        time_unit="day",
        categorical=["sex"],
        static=["sex"],
        reward="1 * x",
        ignore=["gain"],
        **kinds,
    )


def ensemble(data: Trajectory, name: str = "dt-rnn", count: int = 3) -> list[DynamicsModel]:
    masked = bool(np.isnan(data.observation).any())
    scale = Scale.of(np.asarray(data.observation)[:, :-1][data.mask])
    return [build(name, data.spec, SMALL, scale, masked, key=jax.random.key(i)) for i in range(count)]


def linear_policy(data: Trajectory, weights: Any, scale: float = 1.0, **options: Any) -> QPolicy:
    """Q(s, a) = scale (w_a s)."""
    q = ReLUNetwork((scale * jnp.asarray(weights, jnp.float32),), (jnp.zeros(len(weights)),))
    return QPolicy(q, IdentityEncoder(), data.spec, 0.3, scale, **options)


WEIGHTS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
"""The value of a is x, that of b is y."""


@pytest.fixture(scope="module")
def data() -> Trajectory:
    return records(missing=0.3)


@pytest.fixture(scope="module")
def advisor(data: Trajectory) -> kd.Advisor:
    return kd.Advisor(ensemble(data), linear_policy(data, WEIGHTS, 0.5), data=data)


def test_the_better_action_and_its_value(advisor: kd.Advisor) -> None:
    advisor.reset()
    advisor.observe({"x": 0.3, "y": 0.1, "sex": "F"}, time=4.0)
    found = advisor.advise()
    assert found.action == "a"
    assert found.values == pytest.approx({"a": 0.3, "b": 0.1})
    assert found.next_visit in (1.0, 2.0, 3.0)
    assert (found.time, found.next_time) == (4.0, 4.0 + found.next_visit)
    assert not found.out_of_distribution
    advisor.observe({"x": 0.3, "y": 0.5}, time=5.0, action="b")
    assert advisor.advise().action == "b"
    assert any("no action was recorded at 4" in text for text in advisor.advise().warnings)


def test_predictions_are_those_of_the_models(data: Trajectory, advisor: kd.Advisor) -> None:
    """At the data's own intervals, with the values that are missing; quantiles over the ensemble."""
    episode = data[3]
    advisor.observe_episode(episode)
    found = advisor.advise()
    now = int(episode.length)
    x = jnp.asarray(found.course.times - found.time, jnp.float32)
    assert len(x) == 20
    assert np.abs(np.asarray(x) - found.next_visit).min() < 1e-6
    each = []
    for model, key in zip(advisor.models, jax.random.split(jax.random.key(0), 3), strict=True):
        z, own = model.start(key=key), jnp.asarray(model.scale.mean)
        for k in range(now + 1):
            known = jnp.asarray(~np.isnan(episode.observation[k]))
            obs = jnp.where(known, episode.observation[k], own)
            if k < now:
                z, own = model.step(z, obs, *(jnp.asarray(v[k]) for v in (episode.action, episode.interval)), known)
        action = jnp.asarray(data.spec.actions.names.index(str(found.action)))
        each.append(model.path(z, obs, action, x, known)[1])
    seen = np.asarray(each)
    for i, name in enumerate(("x", "y")):
        np.testing.assert_allclose(found.course.mean[name], seen[..., i].mean(0), atol=1e-5)
        expected = np.quantile(seen[..., i], (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
        np.testing.assert_allclose(found.course.quantiles[name], expected, atol=1e-5)
    assert set(found.course.mean["sex=M"]) == {float(episode.observation[0, 2])}
    spread = seen.std(0)[np.abs(np.asarray(x) - found.next_visit).argmin()] / np.array(advisor.models[0].scale.std)
    assert found.likeness["disagreement"] == pytest.approx(spread[:2].sum() / 3, rel=1e-4)  # sex is no prediction


def test_constant_predictions_by_hand(data: Trajectory) -> None:
    """Members whose decoders say 1, 2 and 6, in standard deviations."""
    members = []
    for model, level in zip(ensemble(data), (1.0, 2.0, 6.0), strict=True):
        decoder = Linear(jnp.zeros_like(model.decoder.weight), jnp.full(3, level))
        members.append(dataclasses.replace(model, decoder=decoder, scale=Scale.none(3)))
    advisor = kd.Advisor(members, linear_policy(data, WEIGHTS), schedule=2)
    advisor.observe({"x": 0.0, "y": 0.0, "sex": "M"}, time=0.0)
    found = advisor.advise()
    assert (found.next_visit, found.out_of_distribution) == (2.0, None)
    np.testing.assert_allclose(found.course.mean["x"], 3.0, rtol=1e-5)
    np.testing.assert_allclose(found.course.quantiles["x"][:, 0], [1.1, 1.5, 2.0, 4.0, 5.6], rtol=1e-5)


@pytest.mark.parametrize(
    ("missing", "name"), [(0.0, "dt-rnn"), pytest.param(0.3, "latent-ode", marks=pytest.mark.slow)]
)
def test_many_at_once_is_the_same_as_one_by_one(missing: float, name: str) -> None:
    data = records(missing)
    cut = np.arange(len(data)) % 5  # histories of different lengths
    data = dataclasses.replace(data, length=np.minimum(data.length, cut).astype(np.int32))
    whole = records(missing)
    models = ensemble(whole, name)
    policy = dataclasses.replace(linear_policy(whole, WEIGHTS), encoder=LatentEncoder(models[0]))
    policy = dataclasses.replace(policy, q=ReLUNetwork.new(6, 8, 2, key=jax.random.key(1)))
    advisor = kd.Advisor(models, policy, data=whole)
    found = advisor.advise_many(data)
    assert found.out_of_distribution is not None
    for i in range(len(data)):
        advisor.observe_episode(data[i])
        one = advisor.advise()
        assert one.action == data.spec.actions.names[found.action[i]]
        assert one.next_visit == pytest.approx(found.interval[i], rel=1e-4)
        np.testing.assert_allclose(list(one.values.values()), found.values[i], rtol=1e-3, atol=1e-5)
        assert one.likeness["disagreement"] == pytest.approx(found.disagreement[i], rel=1e-3)
        assert one.out_of_distribution == found.out_of_distribution[i]


def test_a_policy_is_shown_the_last_values(data: Trajectory, advisor: kd.Advisor) -> None:
    seen = np.asarray(carried_forward(data).observation)
    found = advisor.advise_many(data)
    last = seen[np.arange(len(data)), data.length]
    np.testing.assert_allclose(found.values, last[:, :2], rtol=1e-5)


def test_a_static_variable_that_changes_is_said(advisor: kd.Advisor) -> None:
    advisor.reset()
    advisor.observe({"x": 0.1, "y": 0.2, "sex": "F"}, time=0.0, action="a")
    advisor.observe({"x": 0.1, "y": 0.2}, time=1.0, action="a")
    assert not any("never changed" in text for text in advisor.advise().warnings)
    advisor.observe({"x": 0.1, "y": 0.2, "sex": "M"}, time=2.0)
    assert any("never changed within an episode of the data" in text for text in advisor.advise().warnings)


def test_what_is_unlike_the_data(data: Trajectory, advisor: kd.Advisor) -> None:
    flagged = advisor.advise_many(data).out_of_distribution
    assert flagged is not None
    assert flagged.mean() < 0.3  # of 24 episodes
    advisor.reset()
    advisor.observe({"x": 9.0, "sex": "M"}, time=0.0)
    found = advisor.advise()
    assert found.out_of_distribution
    said = " ".join(found.reasons)
    assert "x = 9 is outside of the data's range" in said
    assert "no decision of the data is near" in said
    assert "how much depends on it: y" in " ".join(found.warnings)
    text = str(found)
    assert "unlike the data: x = 9" in text
    assert "next visit: in" in text


def test_rare_actions_and_actions_without_support() -> None:
    """b is taken only where x is positive; the policy would take it anywhere. Without support it has no value."""
    data = records(episodes=100)
    taken = np.where(np.asarray(data.observation)[:, :-1, 0] > 0, 1, 0)
    rare = dataclasses.replace(data, action=np.where(data.mask, taken, 0).astype(np.int32))
    always = linear_policy(data, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    always = dataclasses.replace(always, q=ReLUNetwork((jnp.zeros((2, 3)),), (jnp.array([0.0, 1.0]),)))
    advisor = kd.Advisor(ensemble(data), always, data=rare)
    for x, unlike in ((-0.7, True), (0.7, False)):
        advisor.reset()
        advisor.observe({"x": x, "y": 0.0, "sex": "M"}, time=0.0)
        assert any("'b' was hardly ever done" in text for text in advisor.advise().reasons) == unlike
    never = BehaviorPolicy(
        ReLUNetwork((jnp.zeros((2, 3)),), (jnp.array([9.0, -9.0]),)),
        jnp.zeros(3),
        jnp.ones(3),
        jnp.array([1.0, 0.0]),
        data.spec,
    )
    advisor = kd.Advisor(ensemble(data), dataclasses.replace(always, support=ActionSupport(never, 0.3)), data=data)
    advisor.observe({"x": 0.0, "y": 0.0, "sex": "M"}, time=0.0)
    found = advisor.advise()
    assert found.action == "a"
    assert math.isnan(found.values["b"])
    assert json.loads(json.dumps(found.figures(), allow_nan=False))["values"]["b"] is None
    assert "b: not supported" in str(found)


def test_the_reference(data: Trajectory) -> None:
    models = ensemble(data)
    found = make_reference(models, data)
    rows = np.asarray(carried_forward(data).observation)[:, :-1][data.mask]
    np.testing.assert_allclose(found.rows * found.std + found.mean, rows, atol=1e-5)
    np.testing.assert_array_equal(found.static, [False, False, True])
    np.testing.assert_allclose(found.intervals, [1.0, np.median(data.interval[data.mask]), 3.0, 3.0])
    np.testing.assert_allclose(found.low[:2], np.nanmin(data.observation, axis=(0, 1))[:2])
    assert found.disagreement == pytest.approx(np.quantile(data_disagreement(models, data, found.static), 0.99))
    episode, x = np.nonzero(data.mask)[0], found.rows.astype(float)
    apart = np.sqrt(((x[:, None] - x) ** 2).mean(-1))
    apart[episode[:, None] == episode] = np.inf
    assert found.distance == pytest.approx(np.quantile(apart.min(1), 0.99), rel=1e-4)


@pytest.mark.filterwarnings("ignore:schedules count the reward on every finest time step")
def test_chosen_decision_times(tmp_path: Path) -> None:
    """Against brute force: x until then, and the better of x and y after it; saved and loaded too."""
    data = records()
    models = ensemble(data)
    task = TableTask(dataclasses.replace(data.spec, horizon=20.0, max_decisions=20), least=-1.0)
    policy = linear_policy(data, WEIGHTS, accrues=True)
    advisor = kd.Advisor(models, policy, data=data, schedule=optimize_schedule(models, policy, task, tolerance=0))
    found = advisor.advise_many(data)
    histories = padded_histories(data, np.zeros(3), np.zeros(3, bool))
    stacked, taus = stack(models), jnp.repeat(jnp.arange(1.0, 4.0)[:, None], len(data), 1)
    seen = np.asarray(predict_courses(stacked, track(stacked, histories), jnp.asarray(found.action), taus))
    by_hand = (np.cumsum(seen[:, :, 0], 1) + np.maximum(seen[:, :, 0], seen[:, :, 1])).mean(0)
    np.testing.assert_array_equal(found.interval, 1 + by_hand.argmax(0))
    assert len(set(found.interval)) > 1
    advisor.observe_episode(data[1])
    assert advisor.advise().next_visit == found.interval[1]
    advisor.save(tmp_path / "saved")
    np.testing.assert_array_equal(load_advisor(tmp_path / "saved").advise_many(data).interval, found.interval)
    fewest = load_advisor(tmp_path / "saved", budget=7).advise_many(data[:4])
    assert set(fewest.interval) == {3.0}


@pytest.mark.filterwarnings("ignore:schedules count the reward on every finest time step")
def test_chosen_decision_times_have_the_discount_of_their_policy(tmp_path: Path) -> None:
    """Where that of the table is 1, the policy was learned with another, which its values are of."""
    data = records()
    models = ensemble(data)
    task = TableTask(dataclasses.replace(data.spec, horizon=20.0, max_decisions=20), least=-1.0)
    policy = linear_policy(data, WEIGHTS, accrues=True)
    policy = dataclasses.replace(policy, spec=dataclasses.replace(policy.spec, discount=0.5))
    save_models(tmp_path / "fit", "dt-rnn", SMALL, models)
    save_task(tmp_path, task)
    save_policy(tmp_path, policy)
    save_policy(tmp_path / "timed", policy)
    made = add_advisor(tmp_path, models, policy, task, data, timed=policy)
    for advisor in (made, load_advisor(tmp_path), load_advisor(tmp_path, price=0.1)):
        assert advisor.schedule.task.spec.discount == 0.5


def test_controls(tmp_path: Path) -> None:
    data = records(controls=True)
    settings = ActorCriticConfig(hidden=(8, 8), reward_scale=2.0)
    networks = init_actor_critic(3, 1, settings, key=jax.random.key(0)).networks
    policy = ActorPolicy(networks, ObsNormalizer.new(data.spec), settings, data.spec, explores=True)
    advisor = kd.Advisor(ensemble(data), policy, data=data)
    advisor.observe({"x": 0.2, "y": 0.1, "sex": "F"}, time=0.0, action={"dose": 1.5})
    advisor.observe({"x": 0.4, "y": 0.1}, time=2.0)
    found, obs = advisor.advise(), jnp.array([0.4, 0.1, 0.0])
    expected, _ = dataclasses.replace(policy, explores=False).act(
        policy.start(key=jax.random.key(0)), obs, jnp.asarray(2.0), key=jax.random.key(0)
    )
    assert not isinstance(found.action, str)
    assert found.action["dose"] == pytest.approx(float(expected[0]), rel=1e-5)
    usual = np.asarray(data.action)[data.mask].mean(0)
    for name, action in (("advised", expected), ("usual", jnp.asarray(usual, jnp.float32))):
        known = value(networks.critics, obs, actions(data.spec, action)) / 2.0
        assert found.values[name] == pytest.approx(float(known), rel=1e-4)
    assert advisor.advise_many(data).action.shape == (len(data), 1)
    advisor.save(tmp_path)
    np.testing.assert_allclose(
        kd.load_advisor(tmp_path).advise_many(data).action, advisor.advise_many(data).action, rtol=1e-5
    )


def test_a_saved_advisor_is_the_same(data: Trajectory, advisor: kd.Advisor, tmp_path: Path) -> None:
    advisor.save(tmp_path)
    again = kd.load_advisor(tmp_path)
    for one, other in zip(
        dataclasses.astuple(advisor.advise_many(data)), dataclasses.astuple(again.advise_many(data)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    kd.Advisor(advisor.models, advisor.policy, data=data, schedule=2.5).save(tmp_path)
    fixed = kd.load_advisor(tmp_path)
    fixed.observe({"x": 0.0, "sex": "M"}, time=1.0)
    assert fixed.advise().next_visit == 2.5
    with pytest.raises(KairodeError, match="neither price nor budget"):
        kd.load_advisor(tmp_path, price=1.0)
    (tmp_path / "task.json").write_text("{}")  # of an earlier advisor
    (tmp_path / "timed").mkdir(exist_ok=True)
    kept = [tmp_path / "tasks.csv", tmp_path / "task-backup.safetensors", tmp_path / "timed" / "notes.txt"]
    for path in kept:
        path.write_text("a user's own")
    advisor.save(tmp_path)
    assert not (tmp_path / "task.json").exists()
    assert all(path.exists() for path in kept)
    weights = next(tmp_path.glob("advisor-*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(KairodeError, match="digest"):
        kd.load_advisor(tmp_path)
    with pytest.raises(KairodeError, match="there is no advisor in"):
        kd.load_advisor(tmp_path / "fit")


@pytest.mark.parametrize("name", ["rnn", "decay-rnn", "latent-rnn", "ode-rnn", "variational-ode-rnn"])
def test_fitted_models_are_recognized(data: Trajectory, name: str) -> None:
    sizes = dataclasses.replace(SMALL, solver="midpoint:2", timer="continuous")
    found, of = recognize_model(build(name, data.spec, sizes, key=jax.random.key(0)))
    assert found == name
    again = build(found, data.spec, of, key=jax.random.key(0))
    assert jax.tree.structure(again) == jax.tree.structure(build(name, data.spec, sizes, key=jax.random.key(0)))


def test_an_action_that_was_not_recorded(advisor: kd.Advisor) -> None:
    advisor.reset()
    with pytest.raises(KairodeError, match="there is no visit yet"):
        advisor.advise()
    advisor.observe({"x": 0.3, "sex": "M"}, time=0.0)
    with pytest.raises(KairodeError, match=r"the action taken at the last visit, at 0, is not known"):
        advisor.observe({"x": 0.3}, time=1.0)
    advisor.record_action("b")
    advisor.observe({"x": 0.3}, time=1.0)
    assert not any("followed" in text for text in advisor.advise().warnings)


WRONG: list[tuple[Callable[[kd.Advisor], Any], str]] = [
    (lambda one: one.observe({"z": 1.0}, time=2.0), r"unknown variable 'z'.*Known: x, y, sex=M, sex"),
    (lambda one: one.observe({"sex": "X"}, time=2.0), r"unknown category of 'sex' 'X'.*Known: F, M"),
    (lambda one: one.observe({"x": "high"}, time=2.0), "'x' must be a number"),
    (lambda one: one.observe({"x": math.inf}, time=2.0), "'x' must be a finite number"),
    (lambda one: one.observe({"x": 1.0}, time=math.nan), "time must be a number"),
    (lambda one: one.observe({"x": 1.0}, time=0.5), "in the order of time"),
    (lambda one: one.observe({"x": 1.0}, time=2.0, action="c"), r"unknown action 'c'.*Known: a, b"),
    (lambda one: one.observe({"x": 1.0}, time=2.0, action=2), "an index from 0 to 1"),
]


def test_actions_that_are_numbers_are_given_by_value() -> None:
    """Never by position: the second of the doses 5, 1 and 3 is not dose 1."""
    given = {"episode": [0] * 4, "t": [0.0, 1.0, 2.0, 3.0], "x": [0.0] * 4, "action": [5, 1, 3, 1]}
    spec = kd.load_table(given).spec
    for dose in (1, 3.0, np.int64(5), "3"):
        assert spec.actions.names[encode_named_action(spec, dose)] == str(int(dose))
    for dose in (0, 2, 1.5, math.nan):
        with pytest.raises(KairodeError, match="unknown action"):
            encode_named_action(spec, dose)


@pytest.mark.parametrize(("wrong", "complaint"), WRONG)
def test_what_is_wrong_is_named(advisor: kd.Advisor, wrong: Callable[[kd.Advisor], Any], complaint: str) -> None:
    """And changes nothing."""
    advisor.reset()
    advisor.observe({"x": 0.1, "sex": "F"}, time=1.0, action="a")
    before = str(advisor.advise())
    with pytest.raises(KairodeError, match=complaint):
        wrong(advisor)
    assert str(advisor.advise()) == before


def test_what_is_no_advisor(data: Trajectory) -> None:
    models, policy = ensemble(data), linear_policy(data, WEIGHTS)
    other = dataclasses.replace(data.spec, observations=data.spec.observations[:2])
    for arguments, options, complaint in (
        (([], policy), {}, "needs a fitted model"),
        ((models, None), {}, "needs a policy of kairode.learn"),
        ((models, dataclasses.replace(policy, spec=other)), {}, "the policy has 2 observations"),
        ((models, policy), {"schedule": -1.0}, "must be a positive"),
        ((models, policy), {"data": records(controls=True)}, "actions"),
    ):
        with pytest.raises(KairodeError, match=complaint):
            kd.Advisor(*arguments, **options)  # type: ignore[arg-type]
    timeless = [build("rnn", data.spec, dataclasses.replace(SMALL, timer="none"), key=jax.random.key(0))]
    advisor = kd.Advisor(timeless, policy)
    advisor.observe({"x": 0.0}, time=0.0)
    with pytest.raises(KairodeError, match="the models predict no intervals"):
        advisor.advise()


def test_advice_is_compiled_once_for_similar_histories(data: Trajectory) -> None:
    """Two to four visits share their programs."""
    advisor = kd.Advisor(ensemble(data), linear_policy(data, WEIGHTS), data=data)
    count = type(advisor._outlooks).of._cached._cache_size  # type: ignore[attr-defined]
    sizes = []
    for visit in range(4):
        advisor.observe({"x": 0.1, "sex": "F"}, time=float(visit))
        advisor.advise()
        sizes.append(count())
    assert len(set(sizes)) == 1


def test_teacher_forcing_agrees_with_the_disagreement_of_the_data(data: Trajectory, advisor: kd.Advisor) -> None:
    """The limit is on the same scale as what is compared with it."""
    each = np.stack([predict_with_states(one, data, teacher_forcing=True)[0] for one in advisor.models])
    spread = (each.std(0) / np.array(advisor.models[0].scale.std)).mean(-1)[data.mask]
    found = advisor.advise_many(data).disagreement
    assert 0.2 < np.median(found) / np.median(spread) < 5
