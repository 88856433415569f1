"""Off-policy estimates against returns known in closed form."""

import dataclasses
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.agents.behavior import fit_behavior, policy_probabilities
from kairode.agents.fitted_q import fit_action_values
from kairode.agents.importance import (
    bootstrap_counts,
    cumulative_ratios,
    decisions_with_weight,
    doubly_robust,
    effective_sample_size,
    per_decision,
)
from kairode.algorithms import evaluate_offline, model_estimate
from kairode.algorithms.model_estimate import record_ends, returns_within
from kairode.data.policy import Constant, Memoryless, Policy, Random
from kairode.data.trajectory import Trajectory
from kairode.errors import KairodeError, KairodeWarning
from kairode.models.dynamics import Scale
from kairode.models.outcomes import OutcomeModel
from kairode.models.zoo import build
from kairode.planning.table_task import TableTask

GAMMA, STEPS = 0.9, 6
GO = np.array([0.4, 0.7])
"""Probability of `go` under the behaviour policy, by x."""


def records(episodes: int, seed: int = 0, cut: bool = False) -> Trajectory:
    """x is 0 or 1 by chance; `go` earns x, `stay` earns 0.3; intervals are 1 or 3."""
    rng = np.random.default_rng(seed)
    size = episodes * (STEPS + 1)
    x = rng.integers(0, 2, size)
    go = rng.random(size) < GO[x]
    elapsed = np.where(np.arange(size) % (STEPS + 1) == 0, 0.0, rng.choice([1.0, 3.0], size))
    table = {
        "who": np.repeat(np.arange(episodes), STEPS + 1),
        "t": np.cumsum(elapsed.reshape(episodes, -1), axis=1).ravel(),
        "x": x.astype(float),
        "action": np.where(go, "go", "stay"),
        "gain": np.where(go, x, 0.3) + rng.normal(0, 0.1, size),
        "failed": np.arange(size) % (STEPS + 1) == STEPS,
    }
    if cut:
        del table["failed"]
    terminal = None if cut else "failed"
    return kairode.load_table(table, episode="who", reward="gain", terminal=terminal, discount=GAMMA)


def value(go: np.ndarray) -> float:
    """Mean return of a policy that takes `go` with these probabilities."""
    reward = np.mean([(1 - go[0]) * 0.3, go[1] + (1 - go[1]) * 0.3])
    step = (GAMMA + GAMMA**3) / 2  # E[gamma^tau]
    return float(reward * (1 - step**STEPS) / (1 - step))


class Chance(Policy):
    """Takes `go`, the first action, with a probability for each x."""

    go: tuple[float, float]

    def act(self, memory: Any, obs: Any, elapsed: Any, *, key: Any) -> tuple[Any, Any]:
        chance = jnp.where(obs[0] > 0.5, self.go[1], self.go[0])
        return jnp.where(jax.random.uniform(key) < chance, 0, 1), memory


class Cycle(Policy):
    def start(self, *, key: Any) -> Any:
        return jnp.zeros((), jnp.int32)

    def act(self, memory: Any, obs: Any, elapsed: Any, *, key: Any) -> Any:
        return memory % 2, memory + 1


@pytest.fixture(scope="module")
def data() -> Trajectory:
    return records(1000)


@pytest.fixture(scope="module")
def behavior(data):
    return fit_behavior(data)


def test_the_behaviour_policy_is_estimated(data, behavior) -> None:
    at = np.asarray(data.observation)[:, :-1, 0][data.mask].astype(int)
    np.testing.assert_allclose(behavior.probabilities[data.mask][:, 0], GO[at], atol=0.1)
    best = np.mean([p * np.log(p) + (1 - p) * np.log(1 - p) for p in GO])
    assert behavior.log_likelihood == pytest.approx(best, abs=0.03)
    assert behavior.marginal_log_likelihood < behavior.log_likelihood - 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("go", "cut"),
    [((0.0, 1.0), False), ((0.5, 0.5), False), ((1.0, 0.0), False), ((0.2, 0.9), False), ((0.2, 0.9), True)],
)
def test_estimates_are_those_of_the_closed_form(data, behavior, go, cut) -> None:
    """Also of records that are cut off: what lies within them counts."""
    true = value(np.array(go))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KairodeWarning)
        found = kairode.evaluate_offline(Chance(go), records(1000, cut=True) if cut else data, behavior=behavior)
    assert any("records were cut off" in text for text in found.warnings) == cut
    for name, one in found.estimates.items():
        assert one.mean == pytest.approx(true, abs=0.15), name
        if name != "fitted_q" and not np.isfinite(one.low):  # of 1000 episodes two follow the opposite policy
            assert go == (1.0, 0.0)
            assert any("no estimate by importance" in text for text in found.warnings)
            continue
        assert one.low - 0.05 < true < one.high + 0.05, name
    assert found.behavior.mean == pytest.approx(value(GO), abs=0.05)
    assert found.behavior.low < value(GO) < found.behavior.high


def test_probabilities_of_policies(data) -> None:
    few = data[:20]
    assert (policy_probabilities(Random(few.spec.actions), few) == 0.5).all()
    np.testing.assert_array_equal(policy_probabilities(Constant(jnp.asarray(1)), few)[..., 1], 1.0)
    found = policy_probabilities(Chance((0.2, 0.9)), few)
    x = np.asarray(few.observation)[..., 0]
    np.testing.assert_allclose(found[..., 0], np.where(x > 0.5, 0.9, 0.2), atol=0.25)
    plain = policy_probabilities(Memoryless(lambda obs, key: jnp.where(obs[0] > 0.5, 0, 1)), few)
    np.testing.assert_array_equal(plain[..., 0], x > 0.5)
    with pytest.raises(KairodeError, match="a policy with a memory of its own"):
        policy_probabilities(Cycle(), few)


def test_what_only_training_episodes_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that rarely changes is constant in few test episodes, and is not kept constant in imagination."""
    made: list[Any] = []
    asked: list[Trajectory] = []

    def learned(data: Trajectory, members: Any) -> TableTask:
        asked.append(data)
        outcomes = OutcomeModel.new(data.spec, Scale((0.0,), (1.0,)), (0.0, 1.0), False, 2, key=jax.random.key(0))
        return TableTask(data.spec, jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, outcomes))

    def stop(model: Any, task: Any, **options: Any) -> Any:
        made.append(options["constant"])
        raise KairodeError("enough")

    monkeypatch.setattr(model_estimate, "learn_task", learned)
    monkeypatch.setattr(model_estimate, "make_model_env", stop)
    train = records(12)
    first = np.asarray(train.observation)[:, :1]
    test = dataclasses.replace(train, observation=np.broadcast_to(first, train.observation.shape).copy())
    model = build("dt-rnn", train.spec, key=jax.random.key(0))
    for known in (None, train):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            task = model_estimate.model_task(test, [model], known)
            with pytest.raises(KairodeError, match="enough"):
                model_estimate.estimate_in_models(Random(test.spec.actions), test, [model], task, known, 0, 2)
        assert any("the very episodes" in str(one.message) for one in caught) == (known is None)
    assert asked[0] is test
    assert asked[1] is train
    assert made[0].tolist() == [True]
    assert made[1] is None


def test_actions_that_do_not_exist(data) -> None:
    for policy, match in (
        (lambda obs, key: jnp.asarray(2), "takes action 2, and actions are indices from 0 to 1, of go, stay"),
        (Constant(jnp.asarray(-1)), "takes action -1"),
    ):
        with pytest.raises(KairodeError, match=match):
            kairode.evaluate_offline(policy, data)


def test_importance_sampling_by_hand() -> None:
    """Two episodes, of two decisions and one; the weight of the ended one stays."""
    mask = np.array([[True, True], [True, False]])
    target, own = np.array([[0.5, 1.0], [1.0, 1.0]]), np.array([[0.5, 0.5], [0.25, 1.0]])
    ratios = cumulative_ratios(target, own, mask)
    np.testing.assert_allclose(ratios / ratios[:1], [[1, 1], [4, 2]])
    rewards, discounts = np.array([[1.0, 2.0], [3.0, 0.0]]), np.array([[1.0, 0.9], [1.0, 0.5]])
    found = per_decision(ratios, rewards, discounts).estimate(np.ones((1, 2)))
    np.testing.assert_allclose(found, (1 + 4 * 3) / 5 + (0.9 * 2) / 3)
    np.testing.assert_allclose(effective_sample_size(ratios), [25 / 17, 9 / 5])
    once = per_decision(ratios, rewards, discounts).estimate(np.array([[2.0, 0.0], [0.0, 2.0]]))
    np.testing.assert_allclose(once, [1 + 0.9 * 2, 3])
    assert bootstrap_counts(7, 5).sum(1).tolist() == [7.0] * 5


def test_where_no_weight_is_left_there_is_no_estimate() -> None:
    """The second action of the only episode drawn is never taken by the policy."""
    ratios = cumulative_ratios(np.array([[1.0, 0.0], [1.0, 1.0]]), np.ones((2, 2)), np.ones((2, 2), bool))
    found = per_decision(ratios, np.full((2, 2), 5.0), np.ones((2, 2))).estimate(np.array([[2.0, 0.0], [1.0, 1.0]]))
    assert np.isnan(found[0])
    assert found[1] == 10.0


def test_where_no_weight_is_left_values_stand_uncorrected() -> None:
    """By hand: of two episodes of three decisions, the policy does what only the first one does, and that once."""
    mask, ones = np.ones((2, 3), bool), np.ones((2, 3))
    ratios = cumulative_ratios(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), 0.5 * ones, mask)
    rewards, discounts = np.array([[5.0, 7.0, 7.0], [6.0, 7.0, 7.0]]), np.array([[1.0, 0.9, 0.8], [1.0, 0.5, 0.4]])
    q, v = np.array([[4.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), np.array([[3.0, 20.0, 50.0], [2.0, 30.0, 60.0]])
    found = doubly_robust(ratios, rewards, discounts, q, v, mask).estimate(np.ones((1, 2)))
    np.testing.assert_allclose(found, (3 + 2) / 2 + (5 - 4) + 0.9 * 20)
    assert decisions_with_weight(ratios) == 1


def test_imagined_returns_end_where_records_do() -> None:
    """Records that begin alike end at the times of any of these; one that terminated, with one that lasted longer."""
    rows = {"episode": [0, 0, 1, 1, 1, 2, 2], "t": [0.0, 2.0, 0.0, 3.0, 9.0, 0.0, 1.0], "x": [1.0, 0, 1, 0, 0, 5, 0]}
    table = {**rows, "action": ["a", "b"] * 3 + ["a"], "reward": [1.0] * 7, "terminated": [0, 0, 0, 0, 0, 0, 1]}
    data = kairode.load_table(table, discount=0.5)
    ends, numbers = record_ends(data, np.array([[1.0]] * 200 + [[5.0]] * 2), np.random.default_rng(0))
    assert 60 < (ends[:200] == 2.0).sum() < 140
    later = {(2.0, np.inf), (np.inf, 2.0)}
    assert {*zip(ends[200:].tolist(), numbers[200:].tolist(), strict=True)} <= later
    assert set(numbers[:200][np.isinf(ends[:200])]) == {2.0}  # the longest record: half of those that were cut off
    any_number = np.full(3, np.inf)
    found = returns_within(data, np.array([2.0, 3.0, np.inf]), any_number)
    np.testing.assert_allclose(found, [1.0, 1.0, 1.0])  # a decision at the end itself counts no longer
    found = returns_within(data, np.array([0.5, 6.0, np.inf]), any_number)
    np.testing.assert_allclose(found, [0.25, 1 + 0.5 * 0.5**3, 1.0])
    np.testing.assert_allclose(returns_within(data, any_number, np.array([1, 1, np.inf])), [1.0, 1.0, 1.0])


@pytest.mark.parametrize("cut", ["at a time", "by number"])
@pytest.mark.parametrize("size", [4, 20])
def test_returns_within_of_a_perfect_model(cut: str, size: int) -> None:
    """The system itself, followed for longer than the records: the return within these is the records' own."""

    def table(episodes: int, long: bool, seed: int) -> Trajectory:
        rng, rows = np.random.default_rng(seed), []
        for who in range(episodes):
            times = np.concatenate([[0.0], np.cumsum(rng.uniform(1, 6, 3 * size))])
            if not long:
                end = 3.5 * size
                times = times[: size + 1] if cut == "by number" else np.append(times[times < end - 1e-6], end)
            rows += [(who, t, float(t == 0)) for t in times]
        who, time, x = (list(column) for column in zip(*rows, strict=True))
        reward = [b - a if b > a else 0.0 for a, b in zip(time, [*time[1:], 0.0], strict=True)]
        return kairode.load_table({"episode": who, "t": time, "x": x, "action": ["a"] * len(who), "reward": reward})

    data, found = table(1500, False, 0), table(1500, True, 1)
    rng = np.random.default_rng(2)
    returns = returns_within(found, *record_ends(data, np.asarray(found.observation)[:, 0], rng))
    assert returns.mean() == pytest.approx(float(np.asarray(data.undiscounted).mean()), rel=0.02)


def test_returns_within_records_that_terminated() -> None:
    """A perfect model of a constant hazard: records of any length, of which terminations hide how long they would have
    been kept, have the return of imagined episodes that terminate too and end where records do."""

    def table(episodes: int, kept: tuple[float, float], seed: int) -> Trajectory:
        rng = np.random.default_rng(seed)
        rows: dict[str, list[Any]] = {name: [] for name in ("episode", "t", "x", "action", "reward", "terminated")}
        for who in range(episodes):
            died, cut = rng.exponential(20.0), rng.uniform(*kept)
            end = min(died, cut)
            times = [*np.arange(0.0, end - 1e-6), end]
            for k, t in enumerate(times):
                gain = times[k + 1] - t if k + 1 < len(times) else 0.0
                last = k + 1 == len(times) and died < cut
                for column, value in zip(rows.values(), (who, t, 0.0, "a", gain, last), strict=True):
                    column.append(value)
        return kairode.load_table(rows)

    data, found = table(2000, (5.0, 40.0), 0), table(6000, (400.0, 401.0), 1)
    ends = record_ends(data, np.asarray(found.observation)[:, 0], np.random.default_rng(2))
    assert 0.3 < np.mean(data.terminated) < 0.8
    expected = 20 * (1 - 20 / 35 * (np.exp(-5 / 20) - np.exp(-40 / 20)))  # the mean of min(died, cut)
    assert data.undiscounted.mean() == pytest.approx(expected, rel=0.04)
    assert returns_within(found, *ends).mean() == pytest.approx(expected, rel=0.03)


@pytest.mark.slow
def test_the_behavior_policy_is_estimated_from_the_training_episodes_too() -> None:
    """Of ten episodes alone it is hardly known; importance sampling of the behaviour itself then has no weight."""
    few, many = records(10, seed=1), records(400, seed=2)
    behave, effort = Chance((float(GO[0]), float(GO[1]))), evaluate_offline.Effort(2, 500, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = kairode.evaluate_offline(behave, few, effort=effort)
        found = kairode.evaluate_offline(behave, few, train=many, effort=effort)
    assert found.effective_sample_size > alone.effective_sample_size
    assert found.effective_sample_size > 8


@pytest.mark.parametrize("true", [True, False])
def test_models_that_are_wrong_about_the_records_are_warned_of(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards are the observation at the end of the interval, which the predictions have right or too high by 1."""
    rng = np.random.default_rng(0)
    table = {"episode": np.repeat(np.arange(50), 6), "t": np.tile(np.arange(6.0), 50), "x": rng.normal(5, 1, 300)}
    data = kairode.load_table({**table, "action": ["a", "b"] * 150}, reward="1 * x")
    off = 0.0 if true else 1.0
    monkeypatch.setattr(model_estimate, "predict", lambda model, some: np.asarray(some.observation)[:, 1:] + off)
    monkeypatch.setattr(model_estimate, "MODEL_MARGIN", 1.0)
    counts = np.random.default_rng(1).multinomial(50, np.full(50, 1 / 50), 200).astype(float)
    models = kairode.fit("rnn", data, seeds=2, iterations=2)
    said = model_estimate.model_bias(data, models, kairode.learn_task(data), None, counts)
    assert len(said) == (not true)
    if said:
        assert "(difference 5, 95 % CI" in said[0]


@pytest.mark.slow
def test_the_gain_over_the_behaviour_is_compared_on_the_same_episodes(data, behavior) -> None:
    """Of the behaviour itself it is 0, with an interval much narrower than those of the two returns."""
    behave = Chance((float(GO[0]), float(GO[1])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = kairode.evaluate_offline(behave, data, behavior=behavior, effort=evaluate_offline.Effort(3, 2000, 5))
    gain, own = found.gain, found.behavior
    assert gain is not None
    assert gain.low < 0 < gain.high
    assert gain.mean == pytest.approx(found.estimates["doubly_robust"].mean - own.mean)
    assert gain.high - gain.low < 0.7 * (own.high - own.low)


def test_the_episodes_themselves_among_the_training_episodes() -> None:
    """Classifiers have still not seen the episode whose probabilities they give."""
    some = records(40, seed=1)
    alone, found = (fit_behavior(some, others=others, iterations=200) for others in (None, some[10:]))
    np.testing.assert_array_equal(found.probabilities, alone.probabilities)


def test_training_episodes_of_another_system() -> None:
    some = records(20, seed=1)
    other = kairode.load_table(
        {"episode": [0, 0], "t": [0.0, 1.0], "x": [0.0, 1.0], "action": ["b", "c"], "reward": [1.0, 1.0]}
    )
    with pytest.raises(KairodeError, match="they must match"):
        kairode.evaluate_offline(None, some, train=other)


@pytest.mark.slow
def test_values_reach_the_start_of_long_episodes() -> None:
    """A reward of 1 for every decision, without a discount, from few records."""
    rng, episodes, decisions = np.random.default_rng(0), 10, 100
    rows = episodes * (decisions + 1)
    table = {
        "episode": np.repeat(np.arange(episodes), decisions + 1),
        "t": np.tile(np.arange(decisions + 1.0), episodes),
        "x": rng.normal(size=rows),
        "action": rng.choice(["a", "b"], rows),
        "reward": np.ones(rows),
    }
    some = kairode.load_table(table)
    found = fit_action_values(some, np.full((episodes, decisions + 1, 2), 0.5), members=2, iterations=2500)
    assert found.q[:, :, 0].mean() == pytest.approx(decisions, rel=0.1)


@pytest.mark.parametrize("hazard", [0.1, 0.2])
def test_records_of_a_fixed_number_of_visits_that_terminated(hazard: float) -> None:
    """All of them would have had ten decisions."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[Any]] = {name: [] for name in ("episode", "t", "x", "action", "reward", "terminated")}
    for who in range(300):
        died = rng.geometric(hazard)
        length = min(died, 10)
        times = np.concatenate([[0.0], np.cumsum(rng.uniform(0.5, 2.0, length))])
        for k, t in enumerate(times):
            last = k == length and died <= 10
            for column, value in zip(rows.values(), (who, t, 0.0, "a", 1.0, last), strict=True):
                column.append(value)
    some = kairode.load_table(rows)
    ends, numbers = record_ends(some, np.asarray(some.observation)[:, 0], rng)
    assert np.isinf(ends).all()
    assert set(numbers) == {10.0}


def test_doubly_robust_estimates() -> None:
    """Right with right ratios, whatever the values; with values of 0 it is importance sampling."""
    data = records(4000, seed=3)
    mask, x, go = np.asarray(data.mask), np.asarray(data.observation)[:, :-1, 0], np.array([0.2, 0.9])
    goes = np.asarray(data.action) == 0
    chance, usual = (np.where(x > 0.5, p[1], p[0]) for p in (go, GO))
    ratios = cumulative_ratios(np.where(goes, chance, 1 - chance), np.where(goes, usual, 1 - usual), mask)
    discounts, rewards = GAMMA ** np.asarray(data.time)[:, :-1], np.asarray(data.reward, np.float64)
    mean, step = np.mean([(1 - go[0]) * 0.3, go[1] + (1 - go[1]) * 0.3]), (GAMMA + GAMMA**3) / 2
    later = mean * (step - step ** (STEPS - np.arange(STEPS)[None])) / (1 - step)
    q, v = np.where(goes, x, 0.3) + later, chance * x + (1 - chance) * 0.3 + later
    one, zero = np.ones((1, len(data))), np.zeros_like(q)
    for values in ((zero, zero), (zero + 1, zero + 1), (q, v)):
        found = doubly_robust(ratios, rewards, discounts, *values, mask).estimate(one)
        assert found[0] == pytest.approx(value(go), abs=0.06)
    plain = doubly_robust(ratios, rewards, discounts, zero, zero, mask).estimate(one)
    np.testing.assert_allclose(plain, per_decision(ratios, rewards, discounts).estimate(one))
    exact = doubly_robust(ratios, rewards, discounts, q, v, mask).estimate(bootstrap_counts(len(data), 200))
    without = doubly_robust(ratios, rewards, discounts, zero, zero, mask).estimate(bootstrap_counts(len(data), 200))
    assert exact.std() < without.std()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kairode.KairodeWarning")
def test_what_cannot_be_estimated_is_said(data) -> None:
    few = data[:12]
    found = kairode.evaluate_offline(Constant(jnp.asarray(0)), few)
    assert np.isfinite(found.lower_bound)
    assert any("12 episodes are too few for an estimate" in text for text in found.warnings)
    assert any("rests on" in text for text in found.warnings)
    assert "warning: 12 episodes are too few" in str(found)
    with pytest.raises(KairodeError, match="need several episodes"):
        kairode.evaluate_offline(None, data[:1])
