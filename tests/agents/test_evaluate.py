"""Evaluation: returns worked out from the collected episodes, many policies at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import abreast

import kairode
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.evaluate import episode_keys, evaluate, mean_return, objective_return, score, score_many
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.data.policy import Constant
from kairode.envs.core import Environment
from kairode.envs.hiv import HEALTHY, UNHEALTHY
from kairode.envs.schedule import FixedOrOwn
from kairode.errors import KairodeError
from kairode.records_migration import evaluation_figures
from kairode.result import short_number
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
    gamma = 0.995 if name == "hiv" else 0.99
    for n in range(12):
        total = discounted = time = 0.0
        for k in range(int(seen.length[n])):
            reward, tau = float(seen.reward[n, k]), float(seen.interval[n, k])
            total += reward
            discounted += gamma**time * reward
            time += tau
        assert found.scores.total[n] == pytest.approx(total, rel=1e-4)
        assert found.scores.discounted[n] == pytest.approx(discounted, rel=1e-4)
        assert found.returns[n] == pytest.approx(discounted if name == "hiv" else total, rel=1e-4)
        assert found.scores.time[n] == time
        assert found.scores.decisions[n] == seen.length[n]
        assert found.scores.reached[n] == seen.terminated[n]
    np.testing.assert_allclose(found.returns, seen.discounted if name == "hiv" else seen.undiscounted, rtol=1e-4)
    assert (found.figures()["healthy"] is None) == (name == "gridworld")
    assert (0 < seen.terminated.mean() < 1) == (name == "gridworld")  # some reach the goal, some do not
    assert found.figures()["reached"] == pytest.approx(seen.terminated.mean())
    result = found.result
    assert result.returns["return"] == pytest.approx(seen.undiscounted.mean(), rel=1e-4)
    assert result.returns["discounted_return"] == pytest.approx(seen.discounted.mean(), rel=1e-4)
    assert result.objective == ("discounted_return" if name == "hiv" else "return")
    assert (result.value, (result.spread.low, result.spread.high)) == (found.mean, found.interval)
    assert list(result.measures) == (["healthy"] if name == "hiv" else [])
    old = evaluation_figures(found.figures())
    new = result.figures()
    assert {name for name in new if new[name] != old[name]} == {
        "iqm",
        "return" if name == "hiv" else "discounted_return",
    }
    said = result.objective.replace("_", " ")
    assert str(found).startswith(f"{said} {short_number(found.mean)} (95 % CI {short_number(found.interval[0])} to ")


def test_the_share_of_time_in_health() -> None:
    """By time, not by decisions; what follows the end of an episode counts for nothing."""
    well, ill = (HIV.observe(jnp.array(state)) for state in (HEALTHY, UNHEALTHY))
    after = jnp.stack([jnp.stack([ill, well, ill, well]), jnp.stack([well, well, well, ill])], axis=1)
    interval = jnp.array([[1.0, 5.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0]]).T
    none, end = jnp.zeros((4, 2)), jnp.zeros(2, bool)
    found = score(HIV.task, after, interval, none, jnp.array([3, 4]), end)
    np.testing.assert_allclose(found.healthy, [5 / 8, 9 / 12])


@pytest.mark.slow
def test_many_policies_are_each_alone() -> None:
    """Two policies, one under the system's own schedule, one that looks every five seconds."""
    policies, seed, episodes = [make_policy(GRIDWORLD, 1), make_policy(GRIDWORLD, 2)], 4, 6
    keys = episode_keys(derive(seed, Purpose.TEST), episodes)
    schedules = [FixedOrOwn(jnp.array(tau), least=1.0) for tau in (0.0, 5.0)]
    together = score_many(GRIDWORLD, abreast(*policies), abreast(*schedules), keys, 60, 2)
    for i, schedule in enumerate(schedules):
        alone = evaluate(GRIDWORLD, policies[i], episodes=episodes, schedule=schedule, seed=seed)
        for name, many in together._asdict().items():
            np.testing.assert_allclose(many[i], getattr(alone.scores, name), rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(objective_return(GRIDWORLD.task, together)[i], alone.returns, rtol=1e-5)
        np.testing.assert_allclose(mean_return(GRIDWORLD.task, together)[i], alone.mean, rtol=1e-5)
    assert len(np.unique(together.decisions[0])) > 1


def test_a_schedule_of_five_seconds() -> None:
    """The last interval goes beyond the horizon."""
    found = evaluate(kairode.make("gridworld", horizon=37), Constant(0), episodes=20, schedule=5)
    np.testing.assert_array_equal(found.scores.decisions, 8)
    np.testing.assert_array_equal(found.scores.time, 40)
    np.testing.assert_allclose(found.scores.discounted, -5 * sum(0.99 ** (5 * k) for k in range(8)), rtol=1e-5)


def test_seeds_that_make_no_sense() -> None:
    for seed in (-1, 2**30):
        with pytest.raises(KairodeError, match="seed must be"):
            evaluate(HIV, episodes=2, seed=seed)
