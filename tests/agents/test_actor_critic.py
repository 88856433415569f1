"""DDPG, TD3 and SAC against formulas by hand, NumPy and numerical integration; and on a pendulum."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import kairode
from kairode.agents import actor_critic as ac
from kairode.agents.actor_policy import ActorPolicy, actions, controls
from kairode.agents.dqn import ReplayTransition
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.config.agents import ACTOR_CRITICS, ActorCriticConfig
from kairode.config.presets import mpc_preset
from kairode.envs.core import Continuous
from kairode.errors import KairodeError
from kairode.runs.mpc import run_mpc

F, A, N = 3, 2, 16
# Compiled once for all tests of one kind of agent.
init, update = eqx.filter_jit(ac.init_actor_critic), eqx.filter_jit(ac.update_actor_critic)
next_values, actor_loss, critic_loss = map(eqx.filter_jit, (ac.next_values, ac.actor_loss, ac.critic_loss))
critic_values, drawn = eqx.filter_jit(ac.critic_values), eqx.filter_jit(ac.drawn)


def settings_of(kind: str, **given) -> ActorCriticConfig:
    return ActorCriticConfig(kind=kind, hidden=(8, 9), **given)


def agent_of(settings, seed=0):
    """An agent whose targets are not its networks."""
    agent = init(F, A, settings, key=jax.random.key(seed))
    other = init(F, A, settings, key=jax.random.key(seed + 100))
    return dataclasses.replace(agent, target=other.networks)


def batch_of(seed=0):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    ended = jnp.asarray(rng.random(N) < 0.3)
    tau = jnp.asarray(rng.integers(1, 8, N), jnp.float32)
    discount = 0.99**tau * (1.0 - ended)
    return ReplayTransition(draw(N, F), jnp.tanh(draw(N, A)), draw(N), discount, draw(N, F))


def by_hand(network, x):
    """A ReLU network in NumPy."""
    for i, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        x = x @ np.asarray(weight, np.float64).T + np.asarray(bias, np.float64)
        x = np.maximum(x, 0) if i < len(network.weights) - 1 else x
    return x


def critic_by_hand(critics, i, features, action):
    critic = jax.tree.map(lambda x: x[i], critics)
    seen = np.maximum(by_hand(critic.first, np.asarray(features, np.float64)), 0)
    return by_hand(critic.rest, np.concatenate([seen, np.asarray(action, np.float64)], -1))[:, 0]


def test_the_action_enters_the_critics_second_layer() -> None:
    agent, batch = agent_of(settings_of("td3")), batch_of()
    found = critic_values(agent.networks.critics, batch.features, batch.action)
    for i in range(2):
        expected = critic_by_hand(agent.networks.critics, i, batch.features, batch.action)
        np.testing.assert_allclose(found[i], expected, rtol=1e-4, atol=1e-5)
    assert agent.networks.critics.first.weights[0].shape == (2, 8, F)
    assert agent.networks.critics.rest.weights[0].shape == (2, 9, 8 + A)


def test_ddpgs_target_and_loss_by_hand() -> None:
    settings = settings_of("ddpg", noise=0.3)
    agent, batch = agent_of(settings), batch_of()
    action = np.tanh(by_hand(agent.target.actor, np.asarray(batch.next_features, np.float64)))
    following = critic_by_hand(agent.target.critics, 0, batch.next_features, action)
    np.testing.assert_allclose(
        next_values(agent, settings, batch, key=jax.random.key(0)), following, rtol=1e-4, atol=1e-5
    )
    wanted = np.asarray(batch.reward) + np.asarray(batch.discount) * following
    values = critic_by_hand(agent.networks.critics, 0, batch.features, batch.action)
    loss = critic_loss(agent.networks.critics, batch, jnp.asarray(wanted, jnp.float32))
    np.testing.assert_allclose(loss, np.mean((values - wanted) ** 2), rtol=1e-4)
    own = np.tanh(by_hand(agent.networks.actor, np.asarray(batch.features, np.float64)))
    objective = actor_loss(
        agent.networks.actor, agent.networks.critics, jnp.ones(()), settings, batch, key=jax.random.key(0)
    )[0]
    np.testing.assert_allclose(
        objective, -critic_by_hand(agent.networks.critics, 0, batch.features, own).mean(), rtol=1e-4
    )


def test_td3_takes_the_lesser_critic_and_a_noisy_action() -> None:
    settings, batch = settings_of("td3", target_noise=0.4, target_noise_clip=0.5), batch_of()
    agent, key = agent_of(settings), jax.random.key(3)
    noise = np.clip(0.4 * np.asarray(jax.random.normal(key, (N, A))), -0.5, 0.5)
    action = np.clip(np.tanh(by_hand(agent.target.actor, np.asarray(batch.next_features, np.float64))) + noise, -1, 1)
    both = [critic_by_hand(agent.target.critics, i, batch.next_features, action) for i in range(2)]
    found = next_values(agent, settings, batch, key=key)
    np.testing.assert_allclose(found, np.minimum(*both), rtol=1e-4, atol=1e-5)


def test_td3_moves_its_actor_every_second_time() -> None:
    settings, batch = settings_of("td3", polyak=0.1), batch_of()
    agents = [agent_of(settings)]
    for k in range(4):
        agents.append(update(agents[-1], settings, batch, key=jax.random.key(k))[0])

    def moved(part):
        return [
            not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, map(part, pair)), strict=True))
            for pair in itertools.pairwise(agents)
        ]

    assert moved(lambda agent: agent.networks.critics) == [True] * 4
    assert moved(lambda agent: agent.networks.actor) == [True, False, True, False]
    assert moved(lambda agent: agent.target) == [True, False, True, False]
    assert int(agents[-1].updates) == 4


def test_sacs_density_is_one() -> None:
    """The density of tanh of a normal draw, against the change of variables done by numerical integration."""
    settings = settings_of("sac")
    actor = init(F, 1, settings, key=jax.random.key(0)).networks.actor
    features = jnp.ones((2000, F))
    action, density = drawn(actor, features, key=jax.random.key(1))
    mean, log_std = np.asarray(actor(features[:1]), np.float64)[0]

    def p(a):
        raw = np.arctanh(a)
        normal = np.exp(-0.5 * ((raw - mean) / np.exp(log_std)) ** 2) / (np.exp(log_std) * np.sqrt(2 * np.pi))
        return normal / (1 - a**2)

    assert scipy.integrate.quad(p, -1, 1, epsabs=1e-8)[0] == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(density, np.log(p(np.asarray(action, np.float64)[:, 0])), atol=1e-3)
    entropy = scipy.integrate.quad(lambda a: -p(a) * np.log(p(a)), -0.999999, 0.999999)[0]
    assert -np.mean(density) == pytest.approx(entropy, abs=0.1)
    np.testing.assert_allclose(ac.greedy(settings, actor, features[:1])[0, 0], np.tanh(mean), rtol=1e-5)


def test_sac_pays_for_entropy_and_learns_its_price() -> None:
    settings, batch = settings_of("sac", actor_learning_rate=1e-2), batch_of()
    agent, key = agent_of(settings), jax.random.key(3)
    agent = dataclasses.replace(agent, log_temperature=jnp.log(0.2))
    action, density = drawn(agent.networks.actor, batch.next_features, key=key)
    expected = ac.value(agent.target.critics, batch.next_features, action) - 0.2 * density
    np.testing.assert_allclose(next_values(agent, settings, batch, key=key), expected, rtol=1e-4, atol=1e-5)
    # A policy that is too random pays less for entropy from now on, one that is too sure more.
    for spread, falls in ((1.0, True), (-4.0, False)):
        bias = agent.networks.actor.biases[-1].at[A:].set(spread)
        actor = dataclasses.replace(agent.networks.actor, biases=(*agent.networks.actor.biases[:-1], bias))
        one = dataclasses.replace(agent, networks=dataclasses.replace(agent.networks, actor=actor))
        after, _ = update(one, settings, batch, key=key)
        assert (after.log_temperature < agent.log_temperature) == falls


@pytest.mark.parametrize("kind", ACTOR_CRITICS)
def test_an_update_is_adam_and_a_soft_copy(kind: str) -> None:
    settings, batch = settings_of(kind, polyak=0.25), batch_of()
    agent = agent_of(settings)
    after, sane = update(agent, settings, batch, key=jax.random.key(0))
    assert bool(sane)
    for old, new, target, copied in zip(
        *map(jax.tree.leaves, (agent.networks, after.networks, agent.target, after.target)), strict=True
    ):
        # Adam's first step is its learning rate, wherever there is a slope at all.
        assert np.abs(new - old).max() == pytest.approx(1e-3, rel=0.01) or np.abs(new - old).max() < 1.01e-4
        np.testing.assert_allclose(copied, target + 0.25 * (new - target), rtol=1e-5, atol=1e-7)
    broken = batch._replace(reward=batch.reward.at[3].set(jnp.nan))
    same, sane = update(agent, settings, broken, key=jax.random.key(0))
    assert not bool(sane)
    for old, new in zip(*map(jax.tree.leaves, (agent, same)), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("kind", ACTOR_CRITICS)
def test_critics_move_against_the_slope_of_the_td_error(kind: str) -> None:
    """Adam's first step goes against the slope of (Q - (r + gamma^tau V'))^2, found by finite differences."""
    settings, batch, key = settings_of(kind), batch_of(), jax.random.key(0)
    agent = agent_of(settings)
    following = np.asarray(next_values(agent, settings, batch, key=jax.random.split(key)[0]), np.float64)
    wanted = np.asarray(batch.reward, np.float64) + np.asarray(batch.discount, np.float64) * following
    assert (np.asarray(batch.discount) == 0).any()
    after, _ = update(agent, settings, batch, key=key)
    old, new = agent.networks.critics, after.networks.critics

    def loss(shift: float, i: int) -> float:
        bias = old.rest.biases[-1].at[i, 0].add(shift)
        rest = dataclasses.replace(old.rest, biases=(*old.rest.biases[:-1], bias))
        values = critic_by_hand(dataclasses.replace(old, rest=rest), i, batch.features, batch.action)
        return float(np.mean((values - wanted) ** 2))

    for i in range(settings.critics):
        slope = (loss(0.01, i) - loss(-0.01, i)) / 0.02
        assert abs(slope) > 1e-3
        moved = float(new.rest.biases[-1][i, 0] - old.rest.biases[-1][i, 0])
        assert moved == pytest.approx(-1e-3 * np.sign(slope), rel=1e-2)
    # And Adam's memory of the slope is that slope.
    first = after.critic_state[0].mu.rest.biases[-1][:, 0]
    expected = [0.1 * (loss(0.01, i) - loss(-0.01, i)) / 0.02 for i in range(settings.critics)]
    np.testing.assert_allclose(first, expected, rtol=1e-3, atol=1e-5)


def test_the_actor_climbs_its_critic() -> None:
    settings = settings_of("ddpg", actor_learning_rate=1e-2, critic_learning_rate=1e-12)
    agent, batch = agent_of(settings), batch_of()
    objective = []
    for k in range(30):
        loss = actor_loss(
            agent.networks.actor, agent.networks.critics, jnp.ones(()), settings, batch, key=jax.random.key(0)
        )
        objective.append(-float(loss[0]))
        agent, _ = update(agent, settings, batch, key=jax.random.key(k))
    assert objective[-1] > objective[0] + 0.01


def test_exploration_has_its_width_and_stays_within_bounds() -> None:
    settings = settings_of("ddpg", noise=0.1)
    actor = init(F, A, settings, key=jax.random.key(0)).networks.actor
    features = jnp.zeros((4000, F))
    found = np.asarray(ac.explore(settings, actor, features, key=jax.random.key(1)))
    centre = np.asarray(ac.greedy(settings, actor, features))
    assert (found - centre).std() == pytest.approx(0.1, rel=0.05)
    assert np.abs(found).max() <= 1


def test_controls_and_actions_are_inverse() -> None:
    spec = kairode.make("pendulum").task.spec
    np.testing.assert_allclose(controls(spec, np.array([[-1.0], [0.5]])), [[-2.0], [1.0]])
    np.testing.assert_allclose(actions(spec, np.array([[-2.0], [1.0]])), [[-1.0], [0.5]])
    fixed = dataclasses.replace(spec, actions=Continuous(("dose",), (1.0,), (1.0,)))
    np.testing.assert_allclose(actions(fixed, np.array([[1.0]])), [[0.0]])
    np.testing.assert_allclose(controls(fixed, np.array([[0.7]])), [[1.0]])
    with pytest.raises(KairodeError, match="discrete"):
        controls(kairode.make("hiv").task.spec, np.zeros((1, 1)))


def test_places_are_seen_by_their_changes() -> None:
    spec = kairode.make("hopper").task.spec
    normalizer = ObsNormalizer.new(spec)
    assert normalizer.places == (11,) == (len(spec.observations) - 1,)
    assert ObsNormalizer.new(spec, changes=False).places == ()
    before, obs = np.full((2, 12), 5.0), np.full((2, 12), 7.0)
    for kind in (np.asarray, jnp.asarray):
        shown = np.asarray(normalizer.seen(kind(obs), kind(before), kind([False, True])))
        np.testing.assert_array_equal(shown[:, :-1], 7.0)
        np.testing.assert_array_equal(shown[:, -1], [2.0, 0.0])
    np.testing.assert_array_equal(normalizer.origin(jnp.asarray(shown))[:, -1], 0.0)
    # A reward of x' - x is the same, wherever the robot is.
    task = kairode.make("hopper").task
    rng = np.random.default_rng(0)
    x, then, action = rng.normal(1.0, 0.01, (5, 12)), rng.normal(1.0, 0.01, (5, 12)), rng.uniform(-1, 1, (5, 3))
    real = task.reward(x, action, then, 4.0)
    shown, following = normalizer.seen(x, x, np.ones(5, bool)), normalizer.seen(then, x, np.zeros(5, bool))
    found = task.reward(np.asarray(normalizer.origin(jnp.asarray(shown))), action, following, 4.0)
    np.testing.assert_allclose(found, real, rtol=1e-4)


def test_bad_settings_are_refused() -> None:
    for wrong in (
        {"kind": "ppo"},
        {"polyak": 0.0},
        {"batch_size": 0},
        {"actor_learning_rate": -1.0},
        {"hidden": (0, 3)},
        {"noise": -0.1},
    ):
        with pytest.raises(KairodeError):
            ActorCriticConfig(**wrong)


def test_a_pilot_acts_within_the_systems_bounds() -> None:
    env = kairode.make("pendulum")
    settings = settings_of("ddpg")
    networks = init(3, 1, settings, key=jax.random.key(0)).networks
    pilot = ActorPolicy(networks, ObsNormalizer.new(env.task.spec), settings, env.task.spec, explores=True)
    found = kairode.collect(env, pilot, episodes=2, seed=0)
    assert np.abs(found.action).max() <= 2.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ACTOR_CRITICS)
def test_all_three_solve_the_pendulum(kind: str, tmp_path) -> None:
    """Random actions earn about -1,250 an episode; upright after one swing is about -150."""
    config = mpc_preset("pendulum", "free", kind, test_episodes=50, seeds=2)
    made = run_mpc(config, tmp_path)
    for test in made["figures"]["tests"]:
        assert test["return"] > -250
    assert made["figures"]["random"]["return"] < -1000
