"""Continuous actions from records alone, on a system whose best action is known: x' = x + a tau after irregular
intervals, reward -(x'^2 + a^2 / 10)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.agents.actor_critic import critic_values, greedy, init_actor_critic
from kairode.agents.actor_policy import ActorPolicy
from kairode.agents.dqn import ReplayTransition
from kairode.agents.fitted_q import lasting_bounds, value_bounds
from kairode.agents.fitted_q_controls import control_support, fit_control_values, policy_controls
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.agents.offline_actor import OfflineAgents, cloning_loss, offline_records, train_offline_actors
from kairode.algorithms.evaluate_offline import SELECTION
from kairode.algorithms.learn_offline_controls import CONTROL_RECIPES, learn_controls
from kairode.config.agents import ActorCriticConfig, OfflineActorConfig
from kairode.data.policy import Constant, Policy, Random, as_policy
from kairode.data.trajectory import Trajectory
from kairode.errors import KairodeError

GAMMA, STEPS, NOISE, LIMIT = 0.9, 12, 0.3, 1.2
BEST = -0.8
"""Gain of the best linear policy, about."""
SMALL = OfflineActorConfig(
    agent=ActorCriticConfig("td3", (32, 32), 1e-3, 1e-3, batch_size=64, polyak=0.01, replay_capacity=512),
    updates=1500,
    imagined=16,
    period=25,
)


def simulate(
    policy: Callable[[np.ndarray], np.ndarray], episodes: int, seed: int, noise: float = 0.0
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A table, and the discounted return of every episode."""
    rng = np.random.default_rng(seed)
    x, t, total, rows = rng.uniform(-2, 2, episodes), np.zeros(episodes), np.zeros(episodes), []
    for k in range(STEPS + 1):
        a = np.clip(policy(x) + noise * rng.normal(size=episodes), -LIMIT, LIMIT)
        tau = rng.choice([0.5, 1.0, 1.5], episodes)
        later = x + a * tau + 0.05 * rng.normal(size=episodes)
        reward = -(later**2 + 0.1 * a**2)
        rows.append((np.arange(episodes), t, x, a, reward))
        total += GAMMA**t * reward * (k < STEPS)
        x, t = later, t + tau
    columns = (np.stack(column, 1).ravel() for column in zip(*rows, strict=True))
    return dict(zip(("who", "t", "x", "dose", "gain"), columns, strict=True)), total


def linear(gain: float) -> Callable[[Any, Any], Any]:
    """A policy with this gain, within the range of the data's actions."""
    return lambda obs, key: jnp.clip(gain * obs, -1.0, 1.0)


def true_return(policy: Callable[[np.ndarray], np.ndarray]) -> float:
    return float(simulate(policy, 4000, 1)[1].mean())


def acting(policy: ActorPolicy) -> Callable[[np.ndarray], np.ndarray]:
    """The policy as a function of x."""

    def act(x: np.ndarray) -> np.ndarray:
        obs = jnp.asarray(x, jnp.float32)[:, None]
        key, zero = jax.random.key(0), jnp.zeros(())
        return np.asarray(jax.vmap(lambda one: policy.act(policy.start(key=key), one, zero, key=key)[0])(obs))[:, 0]

    return act


def records(episodes: int, gain: float = -0.3) -> Trajectory:
    table, _ = simulate(lambda x: gain * x, episodes, 0, NOISE)
    return kairode.load_table(table, episode="who", controls=["dose"], reward="gain", discount=GAMMA)


@pytest.fixture(scope="module")
def data() -> Trajectory:
    return records(150)


def test_the_loss_is_that_of_the_paper() -> None:
    """-lambda mean Q(s, pi(s)) + mean (pi(s) - a)^2 of the first rows, lambda = alpha / mean |Q|."""
    settings = ActorCriticConfig("td3", (8, 9))
    networks = init_actor_critic(3, 2, settings, key=jax.random.key(0)).networks
    rng = np.random.default_rng(0)
    features, action = (jnp.asarray(rng.normal(size=(16, n)), jnp.float32) for n in (3, 2))
    batch = ReplayTransition(features, action, jnp.zeros(16), jnp.zeros(16), features)
    key = jax.random.key(0)
    loss, _ = cloning_loss(jnp.asarray(2.5), 10, *_parts(networks), settings, batch, key=key)
    chosen = greedy(settings, networks.actor, features)
    q = np.asarray(critic_values(networks.critics, features, chosen)[0])
    clone = np.mean(np.asarray(chosen - action)[:10] ** 2)
    assert float(loss) == pytest.approx(clone - 2.5 * q.mean() / np.abs(q).mean(), rel=1e-5)


def _parts(networks: Any) -> tuple[Any, Any, Any]:
    return networks.actor, networks.critics, jnp.ones(())


def test_values_beyond_cut_records_are_bounded(data) -> None:
    low, high = value_bounds(data)
    left = GAMMA ** np.asarray(data.time)[:, -1].mean()
    np.testing.assert_allclose(lasting_bounds(data), np.array([low, high]) / (1 - left))
    ended = dataclasses.replace(data, truncated=np.zeros(len(data), bool), terminated=np.ones(len(data), bool))
    assert lasting_bounds(ended) == (low, high)


def test_records_are_normalised(data) -> None:
    found = offline_records(data, SMALL.agent)
    seen = np.asarray(data.observation)[:, :-1][data.mask]
    np.testing.assert_allclose(found.real.features, (seen - seen.mean(0)) / seen.std(0), atol=1e-5)
    middle, half = np.mean([data.spec.actions.low, data.spec.actions.high]), np.ptp(np.asarray(data.action)) / 2
    np.testing.assert_allclose(found.real.action, (np.asarray(data.action)[data.mask] - middle) / half, atol=1e-5)
    size = np.abs(data.discounted).mean()
    np.testing.assert_allclose(found.real.reward, np.asarray(data.reward)[data.mask] / size, rtol=1e-5)
    np.testing.assert_allclose(found.real.discount, GAMMA ** np.asarray(data.interval)[data.mask], rtol=1e-5)


@pytest.mark.slow
def test_without_values_the_actor_imitates_and_with_them_it_improves(data) -> None:
    """Two agents that differ in alpha alone; a resumed training is the same one."""
    found = train_offline_actors(
        SMALL, offline_records(data, SMALL.agent), OfflineAgents(jnp.array([0.0, 2.5])), [0, 0]
    )
    assert found.diverged == [False, False]
    clone, better = (acting(policies[-1]) for policies in found.policies)
    x = np.linspace(-1.5, 1.5, 7)
    np.testing.assert_allclose(clone(x), -0.3 * x, atol=0.12)
    behaviour, best = float(data.discounted.mean()), true_return(lambda x: BEST * x)
    assert true_return(better) > best + 0.3 * (behaviour - best)
    assert true_return(clone) < true_return(better)


def test_training_resumes(data, tmp_path) -> None:
    few, agents = dataclasses.replace(SMALL, updates=100), OfflineAgents(jnp.array([2.5]))
    given = offline_records(data, few.agent)
    first = train_offline_actors(few, given, agents, [3], folder=tmp_path, identity={"data": 1})
    again = train_offline_actors(few, given, agents, [3], folder=tmp_path, identity={"data": 1})
    assert eqx.tree_equal(first.policies, again.policies)
    with pytest.raises(KairodeError, match="another run"):
        train_offline_actors(few, given, agents, [3], folder=tmp_path, identity={"data": 2})


def test_divergence_is_said(data) -> None:
    given = offline_records(data, SMALL.agent)
    broken = eqx.tree_at(lambda r: r.real.reward, given, jnp.full_like(given.real.reward, jnp.nan))
    with pytest.raises(KairodeError, match="the policy of seed 5 diverged"):
        train_offline_actors(SMALL, broken, OfflineAgents(jnp.array([2.5])), [5])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kairode.KairodeWarning")
def test_every_recipe_improves_on_the_records(data) -> None:
    """Also in the imagination of an ensemble."""
    models = kairode.fit("decay-rnn", data, seeds=2, iterations=200)
    config = dataclasses.replace(SMALL, updates=2000)
    found = learn_controls(models, data, task=kairode.learn_task(data, models), config=config)
    assert [name for name, _ in found] == [f"{name} {k}/2" for name in CONTROL_RECIPES for k in (1, 2)]
    behaviour, best = float(data.discounted.mean()), true_return(lambda x: BEST * x)
    for name, policy in found[1::2]:
        assert true_return(acting(policy)) > best + 0.5 * (behaviour - best), name
    few = dataclasses.replace(SMALL, updates=50)
    alone = learn_controls(models[0], data, task=kairode.learn_task(data, models[0]), config=few)
    assert {name for name, _ in alone} == {
        f"{name} {k}/2"
        for name in ("cloning", "values", "cloning-small-penalty", "values-small-penalty")
        for k in (1, 2)
    }


def test_actions_of_policies_at_the_data(data) -> None:
    few = data[:5]
    moments = np.asarray(few.observation).shape[1]
    fixed = policy_controls(Constant(jnp.array([0.5])), few)
    np.testing.assert_array_equal(fixed, np.full((5, moments, 1), 0.5, np.float32))
    drawn = policy_controls(Random(few.spec.actions), few)
    assert len(np.unique(drawn)) == drawn.size
    normalizer = dataclasses.replace(ObsNormalizer.new(few.spec), places=(0,))
    settings = ActorCriticConfig("td3", (4, 4))
    networks = init_actor_critic(1, 1, settings, key=jax.random.key(0)).networks
    policy = ActorPolicy(networks, normalizer, settings, few.spec)
    change = np.diff(np.asarray(few.observation), axis=1, prepend=np.asarray(few.observation)[:, :1])
    plain = dataclasses.replace(policy, normalizer=dataclasses.replace(normalizer, places=()))
    wanted = [acting(plain)(row) for row in change[..., 0]]
    np.testing.assert_allclose(policy_controls(policy, few)[..., 0], wanted, atol=1e-5)
    with pytest.raises(KairodeError, match="chose an action outside"):
        policy_controls(Constant(jnp.array([9.0])), few)
    with pytest.raises(KairodeError, match="memory of its own"):
        policy_controls(Growing(), few)


class Growing(Policy):
    """Its action depends on how often it acted."""

    def start(self, *, key: Any) -> Any:
        return jnp.zeros(1)

    def act(self, memory: Any, obs: Any, elapsed: Any, *, key: Any) -> Any:
        return memory, memory + 0.01


def test_support_is_that_of_the_nearest_states(data) -> None:
    x = np.asarray(data.observation)
    assert control_support(data, -0.3 * x) > 0.95
    assert control_support(data, -0.3 * x + 3 * NOISE) < 0.15
    # Doses of 0.9 are given, though not to negative x.
    right = control_support(data, np.full_like(x, 0.9))
    assert control_support(data, -0.3 * x + np.where(x > 1, 3 * NOISE, 0.0)) < 0.95
    assert right < 0.5


@pytest.mark.filterwarnings("ignore::kairode.KairodeWarning")
def test_estimates_of_the_fitted_values(data) -> None:
    """Of few iterations: in order, and that of the data's own policy near its return."""
    kind, own = {"members": 2, "iterations": 1000}, []
    for gain in (0.2, -0.3, -0.8):
        chosen = policy_controls(as_policy(linear(gain), data.spec), data)
        own.append(float(fit_control_values(data, chosen, **kind).q[:, :, 0].mean()))
    assert own == sorted(own)


@pytest.mark.slow
@pytest.mark.parametrize("gain", [-0.3, -0.6, -0.8])
@pytest.mark.filterwarnings("ignore::kairode.KairodeWarning")
def test_offline_estimates_hold_the_truth(data, gain) -> None:
    found = kairode.evaluate_offline(linear(gain), records(300))
    assert set(found.estimates) == {"fitted_q"}
    true, one = true_return(lambda x: np.clip(gain * x, -1, 1)), found.estimates["fitted_q"]
    assert one.low < true < one.high
    assert np.isnan(found.effective_sample_size)
    assert "effective" not in str(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kairode.KairodeWarning")
def test_what_the_records_do_not_show_is_said() -> None:
    found = kairode.evaluate_offline(Constant(jnp.array([0.9])), records(40), effort=SELECTION)
    assert any("outside of what was done in the most similar states" in text for text in found.warnings)
    assert found.supported < 0.5
    assert np.isfinite(found.lower_bound)


def test_a_saved_policy_is_the_same(data, tmp_path) -> None:
    settings = ActorCriticConfig("td3", (5, 4), reward_scale=0.1234567)
    given = offline_records(data, settings)
    networks = init_actor_critic(1, 1, settings, key=jax.random.key(1)).networks
    policy = ActorPolicy(networks, given.normalizer, given.settings, data.spec)
    kairode.save_policy(tmp_path, policy)
    found = kairode.load_policy(tmp_path)
    assert eqx.tree_equal(policy, found)
    assert found.spec == policy.spec
    (tmp_path / "policy.json").write_text((tmp_path / "policy.json").read_text().replace('"td3"', '"td4"'))
    with pytest.raises(KairodeError, match="was changed after it was written"):
        kairode.load_policy(tmp_path)
