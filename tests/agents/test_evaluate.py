"""Evaluation: returns worked out from the collected episodes, many policies at once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import abreast

import kairode
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.evaluate import (
    Scores,
    evaluate,
    mean_return,
    objective_scores,
    score,
    score_episodes,
    score_many,
    to_result,
)
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.data.policy import Constant
from kairode.data.rollout import episode_keys
from kairode.envs.core import Environment
from kairode.envs.hiv import HEALTHY, UNHEALTHY
from kairode.envs.schedule import FixedOrOwn
from kairode.errors import KairodeError
from kairode.result import Spread, rounded, short_number
from kairode.seeds import Purpose, derive

HIV = kairode.make("hiv", horizon=60)
GRIDWORLD = kairode.make("gridworld", horizon=60, noise=0.3)


def make_policy(env: Environment, seed: int) -> QPolicy:
    spec = env.task.spec
    q = ReLUNetwork.new(len(spec.observations), 8, spec.actions.n, key=jax.random.key(seed))
    return QPolicy(q, IdentityEncoder(), spec, epsilon=0.2)


@pytest.mark.parametrize("name", ["hiv", "gridworld"])
def test_returns_by_hand(name: str) -> None:
    env = HIV if name == "hiv" else GRIDWORLD
    policy = (
        make_policy(env, 0) if name == "hiv" else lambda obs, key: jnp.where(obs[0] > 0, 7, 3)
    )  # right against wind
    found = evaluate(env, policy, episodes=12, seed=3)
    seen = kairode.collect(env, policy, episodes=12, seed=derive(3, Purpose.TEST))
    scores = score_episodes(env.task, seen)
    gamma = 0.995 if name == "hiv" else 0.99
    for n in range(12):
        total = discounted = time = 0.0
        for k in range(int(seen.length[n])):
            reward, tau = float(seen.reward[n, k]), float(seen.interval[n, k])
            total += reward
            discounted += gamma**time * reward
            time += tau
        assert scores.total[n] == pytest.approx(total, rel=1e-4)
        assert scores.discounted[n] == pytest.approx(discounted, rel=1e-4)
        assert found.episode_scores[n] == pytest.approx(discounted if name == "hiv" else total, rel=1e-4)
        assert scores.time[n] == time
        assert scores.decisions[n] == seen.length[n]
        assert scores.terminated[n] == seen.terminated[n]
    np.testing.assert_allclose(found.episode_scores, seen.discounted if name == "hiv" else seen.undiscounted, rtol=1e-4)
    assert (0 < seen.terminated.mean() < 1) == (name == "gridworld")  # some reach the goal, some do not
    assert found.terminated == pytest.approx(seen.terminated.mean())
    assert found.returns["return"] == pytest.approx(seen.undiscounted.mean(), rel=1e-4)
    assert found.returns["discounted_return"] == pytest.approx(seen.discounted.mean(), rel=1e-4)
    assert found.objective == ("discounted_return" if name == "hiv" else "return")
    assert list(found.measures) == (["healthy"] if name == "hiv" else [])
    figures = found.figures()
    assert figures["accrued_return"] is None
    assert figures[figures["objective"]] == found.score == found.episode_scores.mean()
    assert (figures["low"], figures["high"]) == found.interval
    said = found.objective.replace("_", " ")
    assert str(found).startswith(f"{said} {short_number(found.score)} (95 % CI {short_number(found.interval[0])} to ")


def test_the_share_of_time_in_health() -> None:
    """By time, not by decisions; what follows the end of an episode counts for nothing."""
    well, ill = (HIV.observe(jnp.array(state)) for state in (HEALTHY, UNHEALTHY))
    after = jnp.stack([jnp.stack([ill, well, ill, well]), jnp.stack([well, well, well, ill])], axis=1)
    interval = jnp.array([[1.0, 5.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0]]).T
    none, end = jnp.zeros((4, 2)), jnp.zeros(2, bool)
    found = score(HIV.task, after, interval, none, jnp.array([3, 4]), end)
    np.testing.assert_allclose(found.measures["healthy"], [5 / 8, 9 / 12])


@pytest.mark.slow
def test_many_policies_are_each_alone() -> None:
    """Two policies, one under the system's own schedule, one that looks every five seconds."""
    policies, seed, episodes = [make_policy(GRIDWORLD, 1), make_policy(GRIDWORLD, 2)], 4, 6
    keys = episode_keys(derive(seed, Purpose.TEST), episodes)
    schedules = [FixedOrOwn(jnp.array(tau), least=1.0) for tau in (0.0, 5.0)]
    together = score_many(GRIDWORLD, abreast(*policies), abreast(*schedules), keys, 60, 2)
    for i, schedule in enumerate(schedules):
        alone = evaluate(GRIDWORLD, policies[i], episodes=episodes, schedule=schedule, seed=seed)
        for value, many in ((alone.decisions, together.decisions), (alone.time, together.time)):
            np.testing.assert_allclose(value, many[i].mean(), rtol=1e-5)
        assert alone.terminated == together.terminated[i].mean()
        np.testing.assert_allclose(objective_scores(GRIDWORLD.task.spec, together)[i], alone.episode_scores, rtol=1e-5)
        np.testing.assert_allclose(mean_return(GRIDWORLD.task, together)[i], alone.score, rtol=1e-5)
    assert len(np.unique(together.decisions[0])) > 1


def test_a_schedule_of_five_seconds() -> None:
    """The last interval goes beyond the horizon."""
    found = evaluate(kairode.make("gridworld", horizon=37), Constant(0), episodes=20, schedule=5)
    assert (found.decisions, found.time) == (8, 40)
    assert found.returns["discounted_return"] == pytest.approx(-5 * sum(0.99 ** (5 * k) for k in range(8)), rel=1e-5)


def test_seeds_that_make_no_sense() -> None:
    for seed in (-1, 2**30):
        with pytest.raises(KairodeError, match="seed must be"):
            evaluate(HIV, episodes=2, seed=seed)


def test_rewards_that_accrue_are_named_so() -> None:
    found = evaluate(HIV, Constant(3), episodes=2, schedule=5, accrue=True)
    daily = evaluate(HIV, Constant(3), episodes=2, schedule=1)
    assert found.objective == "discounted_accrued_return"
    assert set(found.returns) == {"accrued_return", "discounted_accrued_return"}
    assert found.score == pytest.approx(daily.score, rel=1e-4)
    assert found.returns["accrued_return"] == pytest.approx(daily.returns["return"], rel=1e-4)
    assert (found.decisions, daily.decisions) == (12, 60)


def test_several_seeds_in_one_result() -> None:
    """Lists with one entry for each seed; the spread is over them."""
    spec = GRIDWORLD.task.spec
    total = np.array([[1.0, 3.0], [5.0, 7.0]])
    scores = Scores(total, 0.5 * total, 10 * total, 2 * total, total > 4, {"well": total / 8})
    found = to_result(spec, scores)
    assert found.returns == {"return": [2.0, 6.0], "discounted_return": [1.0, 3.0]}
    assert (found.score, found.spread.std, found.episodes) == (4.0, 2.0, 2)
    assert (found.decisions, found.time, found.terminated) == ([20.0, 60.0], [4.0, 12.0], [0.0, 1.0])
    assert found.measures == {"well": [0.25, 0.75]}
    accrued = to_result(dataclasses.replace(spec, discounted_objective=True), scores, accrued=True)
    assert (accrued.objective, accrued.score) == ("discounted_accrued_return", 2.0)
    diverged = to_result(spec, scores._replace(total=np.array([[1.0, np.nan], [5.0, 7.0]])))
    assert diverged.spread == Spread()
    assert rounded(diverged.figures())["return"] == [None, 6.0]
