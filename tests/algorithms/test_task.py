"""The task of a table: rewards as expressions, learned rewards, and terminations as a hazard, against closed forms."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.data.describe import spec_from_dict, spec_identity, spec_to_dict
from kairode.data.policy import Constant
from kairode.data.rollout import episode_keys, rollout
from kairode.data.trajectory import Trajectory
from kairode.envs import Own
from kairode.envs.core import Environment, Task
from kairode.errors import KairodeError, KairodeWarning
from kairode.models.zoo import build
from kairode.planning.table_task import TableTask
from kairode.training.outcomes import check_outcomes, held_out_episodes, intervals_of


def table(episodes: int = 60, rows: int = 12, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A level that drifts, doses, unequal intervals."""
    rng = np.random.default_rng(seed)
    size = episodes * rows
    found = {
        "who": np.repeat(np.arange(episodes), rows),
        "t": np.concatenate([np.cumsum(rng.integers(1, 6, rows)) for _ in range(episodes)]).astype(float),
        "x": rng.normal(size=size),
        "y": rng.normal(5.0, 2.0, size),
        "dose": rng.choice([0.0, 0.5, 2.0], size),
        "device": rng.choice(["a", "b"], size),
    }
    return {**found, **changes}


def loaded(given: dict[str, Any], reward: Any, **options: Any) -> Trajectory:
    options = {"action": "dose", "ignore": ["device"], **options}
    return kairode.load_table(given, episode="who", reward=reward, **options)


def rewards(task: Task, data: Trajectory) -> np.ndarray:
    """Of every decision, as in imagination."""
    one = jax.vmap(jax.vmap(task.reward))
    return np.asarray(
        one(*map(jnp.asarray, (data.observation[:, :-1], data.action, data.observation[:, 1:], data.interval)))
    )


FORMULAS = [
    "x - 0.1 * before(dose) ** 2",
    "where(x > before(x), min(y, 4), -abs(x)) * tau",
    "sqrt(exp(-x)) + log10(max(y, 1)) / 3 - (y >= before(y))",
]


@pytest.mark.parametrize("text", FORMULAS)
@pytest.mark.parametrize(
    "options", [{}, {"action": ["dose", "device"], "ignore": []}, {"action": [], "controls": ["dose"]}]
)
def test_an_expression_is_the_reward_of_the_task(text: str, options: dict[str, Any]) -> None:
    """The same numbers in imagination as NumPy gave when the table was loaded; also after writing and reading."""
    data = loaded(table(), text, **options)
    assert data.spec.reward_expression == text
    task = kairode.learn_task(data)
    assert isinstance(task, TableTask)
    assert task.outcomes is None
    np.testing.assert_allclose(rewards(task, data)[data.mask], data.reward[data.mask], rtol=2e-5, atol=2e-5)
    assert spec_from_dict(spec_to_dict(data.spec)) == data.spec
    plain = dataclasses.replace(data.spec, reward_expression=None, action_values=())
    assert {"reward_expression", "action_values"}.isdisjoint(spec_identity(plain))


def test_the_action_of_the_next_row_is_refused() -> None:
    with pytest.raises(KairodeError, match=r"dose is the action of the row .* write before\(dose\)"):
        loaded(table(), "x - dose")


def test_a_reward_of_other_columns_is_learned() -> None:
    """y is not an observation here, so only its mean can be known."""
    data = loaded(table(), "x + 0 * y", ignore=["device", "y"])
    assert data.spec.reward_expression is None
    assert any("The reward uses y, which models do not predict" in note for note in data.spec.notes)


@pytest.mark.slow
def test_a_learned_reward_is_that_of_the_data() -> None:
    """Mean 2 x' - dose, standard deviation 0.3, and an ensemble that is less sure where there are no data."""
    given = table(300)
    given["gain"] = np.append(2 * given["x"][1:] - given["dose"][:-1], 0.0)
    given["gain"] += np.random.default_rng(1).normal(0, 0.3, len(given["gain"]))
    data = loaded(given, "gain")
    task = kairode.learn_task(data, members=3)
    assert task.outcomes is not None
    assert task.outcomes.hazard is None
    found = check_outcomes(task.outcomes, intervals_of(loaded(table(50, seed=5) | _gain(5), "gain")))
    assert found.reward_error == pytest.approx(0.3**2 / (4 + 0.3**2 + np.var([0, 0.5, 2])), rel=0.35)
    assert found.within == pytest.approx(0.954, abs=0.03)
    obs = jnp.array([0.0, 5.0])
    mean, std = task.rewards(obs, jnp.asarray(2), jnp.array([0.7, 5.0]), jnp.asarray(3.0))
    np.testing.assert_allclose(mean.mean(), 2 * 0.7 - 2.0, atol=0.15)
    np.testing.assert_allclose(std.mean(), 0.3, rtol=0.25)
    careful = dataclasses.replace(task, caution=1.0)
    near, far = jnp.array([0.7, 5.0]), jnp.array([9.0, 40.0])

    def given_up(next_obs):
        arguments = (obs, jnp.asarray(2), next_obs, jnp.asarray(3.0))
        return float(task.reward(*arguments) - careful.reward(*arguments))

    assert given_up(far) > 3 * given_up(near) > 0


def _gain(seed: int) -> dict[str, Any]:
    given = table(50, seed=seed)
    gain = np.append(2 * given["x"][1:] - given["dose"][:-1], 0.0)
    return {"gain": gain + np.random.default_rng(seed).normal(0, 0.3, len(gain))}


@pytest.mark.slow
def test_a_reward_that_cannot_be_learned_is_said() -> None:
    given = table()
    given["gain"] = np.random.default_rng(3).normal(size=len(given["x"]))
    with pytest.warns(KairodeWarning, match="of the variance of the rewards of held-out episodes unexplained"):
        kairode.learn_task(loaded(given, "gain"), members=2)
    with pytest.raises(KairodeError, match="all rewards of 'table' are 0"):
        kairode.learn_task(loaded(given, "0 * gain", ignore=["device", "gain"]))


HAZARD = 0.04


class Level(Environment):
    """A model environment's stand-in: the observation stays, and intervals are 1 or 5."""

    task: Task

    def reset(self, *, key):
        return jnp.zeros(2)

    def observe(self, state):
        return state

    def interval(self, state, action, *, key):
        return jnp.where(jax.random.uniform(key) < 0.5, 1.0, 5.0)

    def transition(self, state, action, tau, *, key):
        return state


def ending(seed: int, episodes: int) -> dict[str, Any]:
    """Records that terminate at a constant hazard: in each interval with probability 1 - exp(-h tau)."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {name: [] for name in ("who", "t", "x", "y", "dose", "device", "failed")}
    for who in range(episodes):
        t, ended = 0.0, False
        for step in range(30):
            last = ended or step == 29
            values = (who, t, rng.normal(), rng.normal(), 0.0 if step % 2 else 1.0, "a", ended)
            for name, value in zip(columns, values, strict=True):
                columns[name].append(value)
            if last:
                break
            tau = float(rng.choice([1.0, 5.0]))
            t += tau
            ended = rng.random() < -np.expm1(-HAZARD * tau)
    return columns


@pytest.mark.slow
def test_a_long_interval_is_more_likely_to_end_the_episode() -> None:
    """Learned probabilities against 1 - exp(-h tau), and episodes in imagination against the same."""
    data = loaded(ending(0, 600), "1 * x", terminal="failed")
    task = kairode.learn_task(data, members=3)
    chance = [
        float(task.end_probability(jnp.zeros(2), jnp.asarray(0), jnp.zeros(2), jnp.asarray(t))) for t in (1.0, 5.0)
    ]
    np.testing.assert_allclose(chance, -np.expm1(-HAZARD * np.array([1.0, 5.0])), rtol=0.3)
    assert task.outcomes is not None
    found = check_outcomes(task.outcomes, intervals_of(loaded(ending(1, 300), "1 * x", terminal="failed")))
    assert found.reward_error is None
    assert found.expected == pytest.approx(found.terminations, rel=0.15)
    keys = episode_keys(0, 2000)
    env = Level(task)
    ended = rollout(env, Constant(jnp.asarray(0)), Own(), keys, 3)
    survival = np.mean([np.exp(-HAZARD), np.exp(-5 * HAZARD)])
    assert np.mean(np.asarray(ended.terminated)) == pytest.approx(1 - survival**3, rel=0.3)


def test_predictions_beyond_an_expression_earn_the_least() -> None:
    """A model may predict a negative value where the records have none."""
    given = table()
    given["y"] = np.exp(given["x"])
    data = loaded(given, "-log10(y)")
    task = kairode.learn_task(data)
    arguments = (jnp.zeros(2), jnp.asarray(0))
    found = [float(task.reward(*arguments, jnp.array([0.0, y]), jnp.asarray(1.0))) for y in (10.0, -1.0, 0.0)]
    least = float(data.reward[data.mask].min())
    assert found == pytest.approx([-1.0, least, least])


def test_a_category_in_an_expression_is_learned() -> None:
    data = loaded(table(arm=np.tile([0, 1, 2], 240)), "x - arm", categorical=["arm"])
    assert data.spec.reward_expression is None
    assert any("The reward uses arm" in note for note in data.spec.notes)


def test_merged_rows_count_the_last_action() -> None:
    """Of two rows of one time, dose 7 and dose 0, the dose taken is 0, in the rewards too."""
    given = {"who": [0, 0, 0, 0], "t": [0.0, 0.0, 1.0, 2.0], "x": [1.0, 3.0, 5.0, 6.0], "dose": [7.0, 0.0, 1.0, 0.0]}
    data = kairode.load_table(given, episode="who", action="dose", reward="x - before(dose)", same_time="merge")
    np.testing.assert_allclose(data.reward[0], [5.0, 5.0])
    assert data.spec.action_values == (("dose", (0.0, 1.0)),)


def test_episodes_that_are_held_out() -> None:
    """Never all that terminated."""
    for terminated in ([False] * 11 + [True], [True] * 12, [False] * 12, [True, False], [False] * 30 + [True] * 30):
        found = held_out_episodes(np.array(terminated))
        assert 0 < found.sum() < len(terminated)
        assert not any(terminated) or np.any(np.array(terminated) & ~found)
    given = ending(0, 12)
    given["failed"] = [failed and who == 9 for failed, who in zip(given["failed"], given["who"], strict=True)]
    task = kairode.learn_task(loaded(given, "1 * x", terminal="failed"), members=1)
    assert task.outcomes is not None


@pytest.mark.slow
def test_a_variable_that_the_held_out_episodes_lack() -> None:
    given = table(40)
    given["y"] = np.where(np.isin(given["who"], [9, 19, 29, 39]), np.nan, given["y"])
    given["gain"] = np.append(2 * given["x"][1:], 0.0)
    task = kairode.learn_task(loaded(given, "gain"), members=1)
    obs = jnp.array([0.0, 5.0])
    found = [float(task.reward(obs, jnp.asarray(0), jnp.array([x, 5.0]), jnp.asarray(2.0))) for x in (-1.0, 1.0)]
    np.testing.assert_allclose(found, [-2.0, 2.0], atol=0.5)


def test_schedules_of_learned_rewards_are_warned_of() -> None:
    data = loaded(ending(0, 30), "1 * x", terminal="failed")
    task = kairode.learn_task(data, members=1)
    model = build("rnn", data.spec, key=jax.random.key(0))
    with pytest.warns(KairodeWarning, match="schedules count the reward on every finest time step"):
        kairode.schedule_for_learning(model, task, data=data)


def test_what_is_no_data_is_refused() -> None:
    data = loaded(table(), "1 * x")
    for given, options, complaint in (
        (data, {"members": 0}, "members must be"),
        (data, {"caution": -1.0}, "caution must not be negative"),
        (data, {"caution": 1.0}, "caution is for learned rewards"),
        (data[:1], {}, "a single episode"),
    ):
        with pytest.raises(KairodeError, match=complaint):
            kairode.learn_task(given, **options)  # type: ignore[arg-type]
