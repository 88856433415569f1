"""Plans against Riccati's equation, against a loop in NumPy, and against themselves one by one."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import kairode
from kairode.agents.actor_critic import Critic, Networks, greedy, init_actor_critic, value
from kairode.agents.network import ReLUNetwork
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.config.agents import ActorCriticConfig
from kairode.config.models import ModelConfig
from kairode.config.planning import PlanConfig
from kairode.data.normalize import RunningStatistics
from kairode.envs.core import Continuous, Environment, Intervals, Spec, Task, Variable
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.zoo import MODELS, build
from kairode.planning.mpc import LearnedDynamics, Planner, TrueDynamics
from kairode.trees import one, stack

LEARNING = ActorCriticConfig(hidden=(8, 8))
# Compiled once for all tests with one kind of system.
plan, sequences = eqx.filter_jit(Planner.plan), eqx.filter_jit(Planner.evaluate_sequences)
interval, step = eqx.filter_jit(DynamicsModel.interval), eqx.filter_jit(DynamicsModel.step)
make_model, init_agent = eqx.filter_jit(build), eqx.filter_jit(init_actor_critic)


def spec_of(name, observed, reach=1.0, gamma=1.0, **given):
    return Spec(
        name=name,
        observations=tuple(Variable(n, "") for n in observed),
        actions=Continuous(("push",), (-reach,), (reach,)),
        intervals=Intervals(0.5, 3.0, step=0),
        time_unit="second",
        max_decisions=60,
        discount=gamma,
        **given,
    )


def planner(env, settings, networks=None, learning=LEARNING):
    spec = env.task.spec
    if networks is None:  # an actor that does nothing, a critic that knows nothing
        agent = init_agent(len(spec.observations), spec.actions.n, learning, key=jax.random.key(0))
        networks = jax.tree.map(jnp.zeros_like, agent.networks)
    return Planner(TrueDynamics(env), env.task, networks, ObsNormalizer.new(spec), learning, settings)


# A linear-quadratic system: a cart pushed to the middle.

A, B = np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([[0.125], [0.5]])
Q, R = np.diag([1.0, 0.1]), np.array([[0.3]])


class CartTask(Task):
    spec: Spec = eqx.field(static=True)

    def reward(self, obs, action, next_obs, tau):
        return -(obs @ jnp.asarray(Q, jnp.float32) @ obs + R[0, 0] * (action**2).sum())

    def terminal(self, obs):
        return jnp.zeros((), bool)


class Cart(Environment):
    @property
    def task(self):
        return CartTask(spec_of("cart", ("x", "v"), reach=3.0, gamma=0.95))

    def reset(self, *, key):
        return jnp.array([2.0, 0.0])

    def observe(self, state):
        return state

    def interval(self, state, action, *, key):
        return jnp.ones(())

    def transition(self, state, action, tau, *, key):
        return jnp.asarray(A, jnp.float32) @ state + jnp.asarray(B, jnp.float32) @ action


@pytest.mark.slow
def test_a_linear_quadratic_system_costs_what_riccati_says() -> None:
    env = Cart()
    gamma = env.task.spec.discount
    cost = scipy.linalg.solve_discrete_are(np.sqrt(gamma) * A, np.sqrt(gamma) * B, Q, R)
    start = np.array([2.0, 0.0])
    optimal = start @ cost @ start
    policy = planner(env, PlanConfig(horizon=12, noise=0.5, iterations=8))
    state, paid = start, 0.0
    for k in range(60):
        push = np.asarray(plan(policy, jnp.asarray(state, jnp.float32), (), key=jax.random.key(k)), np.float64)
        paid += gamma**k * (state @ Q @ state + push @ R @ push)
        state = A @ state + B @ push
    assert optimal <= paid < 1.05 * optimal
    # One round around an actor that does nothing is what the paper does with an actor that knows: not enough here.
    lazy = planner(env, PlanConfig(candidates=500, horizon=15, noise=0.05, elites=25))
    push = plan(lazy, jnp.asarray(start, jnp.float32), (), key=jax.random.key(0))
    best = -np.linalg.solve(R + gamma * B.T @ cost @ B, gamma * B.T @ cost @ A) @ start
    assert abs(push[0]) < 0.2 * abs(best[0])


# What pays lies far away, and going there costs: a critic sees it, a short plan does not.


class FarTask(Task):
    spec: Spec = eqx.field(static=True)

    def reward(self, obs, action, next_obs, tau):
        return (next_obs[0] > 0.6) * 1.0 - 0.01 * (action**2).sum()

    def terminal(self, obs):
        return jnp.zeros((), bool)


class Far(Environment):
    @property
    def task(self):
        return FarTask(spec_of("far", ("x",), gamma=0.98))

    def reset(self, *, key):
        return jnp.zeros(1)

    def observe(self, state):
        return state

    def interval(self, state, action, *, key):
        return jnp.ones(())

    def transition(self, state, action, tau, *, key):
        return state + 0.1 * action


def hand_made(slope: float) -> Networks:
    """An actor that does nothing, and Q(s, a) = slope (x + 10)."""
    nothing = ReLUNetwork((jnp.zeros((1, 1)),) * 3, (jnp.zeros(1),) * 3)
    first = ReLUNetwork((jnp.ones((1, 1)),), (jnp.full(1, 10.0),))
    rest = ReLUNetwork((jnp.array([[1.0, 0.0]]), jnp.full((1, 1), slope)), (jnp.zeros(1), jnp.zeros(1)))
    return Networks(nothing, stack([Critic(first, rest)]))


@pytest.mark.slow
def test_the_critics_tail_lets_a_short_horizon_match_a_long_one() -> None:
    env, learning = Far(), ActorCriticConfig(hidden=(1, 1))

    def earned(horizon, slope):
        settings = PlanConfig(candidates=200, horizon=horizon, noise=0.7, elites=10, iterations=4)
        policy = planner(env, settings, hand_made(slope), learning)
        return kairode.evaluate(env, policy, episodes=1).score

    short, long, seeing = earned(5, 0.0), earned(50, 0.0), earned(5, 10.0)
    assert short < 1.0  # stays where it is
    assert long > 45.0  # 60 decisions, of which 7 lead there at best
    assert seeing > 0.97 * long


# Every part of a sequence's return, against a loop.


class OddTask(Task):
    spec: Spec = eqx.field(static=True)

    def reward(self, obs, action, next_obs, tau):
        return 3.0 * next_obs[0] - obs[1] + tau * action[0]

    def terminal(self, obs):
        return obs[0] > 0.8


class Odd(Environment):
    """The interval depends on the action; some sequences end, others do not."""

    @property
    def task(self):
        return OddTask(spec_of("odd", ("x", "y"), reach=2.0, gamma=0.9, tick=0.5))

    def reset(self, *, key):
        return jnp.zeros(2)

    def observe(self, state):
        return state

    def interval(self, state, action, *, key):
        return 1.0 + 0.5 * jnp.abs(action[0])

    def transition(self, state, action, tau, *, key):
        return state + tau * jnp.stack([0.3 * action[0], 0.1 * state[0]])


@pytest.mark.parametrize("kind", ["ddpg", "td3", "sac"])
def test_worth_discounts_by_elapsed_time_and_stops_at_the_end(kind: str) -> None:
    env = Odd()
    learning = ActorCriticConfig(kind=kind, hidden=(8, 8), reward_scale=0.1)
    networks = init_agent(2, 1, learning, key=jax.random.key(1)).networks
    normalizer = ObsNormalizer(RunningStatistics(jnp.asarray(10.0), jnp.array([0.1, -0.2]), jnp.array([40.0, 2.5])), ())
    settings = PlanConfig(candidates=40, horizon=4, noise=0.6, elites=5)
    policy = dataclasses.replace(planner(env, settings, networks, learning), normalizer=normalizer)
    noise = np.asarray(jax.random.normal(jax.random.key(2), (4, 1, 40)))
    start = jnp.array([0.3, 0.1])
    tried, returns = sequences(policy, start, (), jnp.asarray(noise))

    def pi(obs):
        return np.asarray(greedy(learning, networks.actor, normalizer.features(jnp.asarray(obs, jnp.float32))))

    ends = 0
    for k in range(40):
        obs, t, total, alive = np.array(start), 0.0, 0.0, True
        for h in range(4):
            action = np.clip(pi(obs) + 0.6 * noise[h, :, k], -1, 1)
            np.testing.assert_allclose(tried[h, :, k], action, atol=1e-5)
            push = 2.0 * action
            tau = 1.0 + 0.5 * abs(push[0])
            after = obs + tau * np.array([0.3 * push[0], 0.1 * obs[0]])
            if alive:
                total += 0.9 ** (t / 0.5) * (3 * after[0] - obs[1] + tau * push[0])
            alive = alive and not after[0] > 0.8
            obs, t = after, t + tau
        if alive:
            features = normalizer.features(jnp.asarray(obs, jnp.float32))
            tail = value(networks.critics, features, jnp.asarray(pi(obs)))
            total += 0.9 ** (t / 0.5) * float(tail) / 0.1
        ends += not alive
        np.testing.assert_allclose(returns[k], total, rtol=1e-4, atol=1e-4)
    assert 5 < ends < 35
    best = np.argsort(np.asarray(returns))[-5:]
    chosen = plan(policy, start, (), key=jax.random.key(5))
    again = np.asarray(jax.random.normal(jax.random.split(jax.random.key(5), 1)[0], (4, 1, 40)))
    tried, returns = sequences(policy, start, (), jnp.asarray(again))
    best = np.argsort(np.asarray(returns))[-5:]
    np.testing.assert_allclose(chosen, 2.0 * np.asarray(tried)[0][:, best].mean(-1), atol=1e-5)


def test_what_is_no_number_is_never_chosen() -> None:
    env = Odd()
    networks = init_agent(2, 1, LEARNING, key=jax.random.key(1)).networks
    policy = planner(env, PlanConfig(candidates=40, horizon=2, elites=5), networks)

    class Broken(TrueDynamics):
        def step(self, belief, seen_obs, control):
            state, seen, tau = TrueDynamics.step(self, belief, seen_obs, control)
            return state, jnp.where(jnp.arange(40)[None] % 2 == 0, jnp.nan, seen), tau

    broken = dataclasses.replace(policy, dynamics=Broken(env))
    chosen = plan(broken, jnp.zeros(2), (), key=jax.random.key(0))
    noise = jax.random.normal(jax.random.split(jax.random.key(0), 1)[0], (2, 1, 40))
    tried, returns = sequences(policy, jnp.zeros(2), (), noise)
    known = np.arange(1, 40, 2)
    best = known[np.argsort(np.asarray(returns)[known])[-5:]]
    np.testing.assert_allclose(chosen, 2.0 * np.asarray(tried)[0][:, best].mean(-1), atol=1e-5)


# With learned models.


def learned(name: str, seed: int, settings: PlanConfig) -> Planner:
    env = kairode.make("pendulum")
    spec = env.task.spec
    model_key, agent_key = jax.random.split(jax.random.key(seed))
    model = make_model(name, spec, ModelConfig(latent_size=6, field_hidden=7, timer_hidden=5), key=model_key)
    normalizer = ObsNormalizer(
        RunningStatistics(jnp.asarray(100.0), 0.1 * jnp.ones(3), jnp.array([50.0, 50.0, 900.0])), ()
    )
    networks = init_agent(3, 1, LEARNING, key=agent_key).networks
    return Planner(LearnedDynamics(model, normalizer), env.task, networks, normalizer, LEARNING, settings)


QUICK = ("dt-rnn", "latent-ode")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
def test_sequences_follow_the_model_and_its_timer(name: str) -> None:
    policy = learned(name, 0, PlanConfig(candidates=8, horizon=3, elites=2))
    model, task, normalizer = policy.dynamics.model, policy.task, policy.normalizer
    noise = jax.random.normal(jax.random.key(3), (3, 1, 8))
    obs, z = jnp.array([0.2, 0.9, -1.0]), model.start(key=jax.random.key(4))
    tried, returns = sequences(policy, obs, z, noise)
    for k in range(8):
        here, belief, t, total = obs, z, 0.0, 0.0
        for h in range(3):
            push = 2.0 * tried[h, :, k]
            features = normalizer.features(here)
            tau = float(interval(model, belief, features, push))
            belief, seen = step(model, belief, features, push, jnp.asarray(tau))
            after = normalizer.unnormalized(seen)
            total += 0.99 ** (t / 0.05) * float(task.reward(here, push, after, jnp.asarray(tau)))
            here, t = after, t + tau
        action = greedy(LEARNING, policy.networks.actor, normalizer.features(here))
        total += 0.99 ** (t / 0.05) * float(value(policy.networks.critics, normalizer.features(here), action))
        np.testing.assert_allclose(returns[k], total, rtol=2e-4)


def test_a_reward_of_places_is_that_of_their_changes() -> None:
    """On the hopper, whose x is seen by its changes: the plan's reward is of x' - x, wherever it is."""
    env = kairode.make("hopper")
    spec, task = env.task.spec, env.task
    normalizer = ObsNormalizer(
        RunningStatistics(jnp.asarray(10.0), 0.1 * jnp.ones(12), 10.0 * jnp.ones(12)), ObsNormalizer.new(spec).places
    )
    model = make_model("rnn", spec, ModelConfig(latent_size=6, timer_hidden=5), key=jax.random.key(0))
    networks = init_agent(12, 3, LEARNING, key=jax.random.key(1)).networks
    policy = Planner(
        LearnedDynamics(model, normalizer),
        task,
        networks,
        normalizer,
        LEARNING,
        PlanConfig(candidates=6, horizon=1, elites=2),
    )
    seen_obs = jnp.zeros(12).at[0].set(1.2).at[-1].set(0.7)  # it has just moved on by 0.7
    z = model.start(key=jax.random.key(2))
    tried, returns = sequences(policy, seen_obs, z, jax.random.normal(jax.random.key(3), (1, 3, 6)))
    for k in range(6):
        tau = interval(model, z, normalizer.features(seen_obs), tried[0, :, k])
        after = normalizer.unnormalized(step(model, z, normalizer.features(seen_obs), tried[0, :, k], tau)[1])
        here, there = np.array(seen_obs), np.array(after)
        here[-1], there[-1] = 3.0, 3.0 + float(after[-1])
        total = task.reward(here, np.array(tried[0, :, k]), there, float(tau))
        if not task.terminal(there):
            action = greedy(LEARNING, networks.actor, normalizer.features(after))
            total += 0.99 ** float(tau) * float(value(networks.critics, normalizer.features(after), action))
        np.testing.assert_allclose(returns[k], total, rtol=1e-3, atol=1e-3)


def test_a_fixed_interval_replaces_the_timers() -> None:
    policy = learned("latent-ode", 0, PlanConfig(candidates=8, horizon=2, elites=2))
    _, _, tau = dataclasses.replace(policy.dynamics, held=0.2).step(
        jnp.zeros((6, 4)), jnp.zeros((3, 4)), jnp.zeros((1, 4))
    )
    np.testing.assert_allclose(tau, 0.2)


def test_chance_differs_from_decision_to_decision() -> None:
    env = kairode.make("pendulum")
    dynamics = TrueDynamics(env, lambda obs: jnp.stack([jnp.arctan2(obs[1], obs[0]), obs[2]]))
    belief, taus = dynamics.spread((), jnp.array([1.0, 0.0, 0.0]), 3), []
    for _ in range(8):
        belief, _, tau = dynamics.step(belief, jnp.zeros((3, 3)), jnp.zeros((1, 3)))
        assert len(set(np.asarray(tau).tolist())) == 1
        taus.append(float(tau[0]))
    assert len(set(taus)) > 1


@pytest.mark.slow
def test_plans_together_equal_plans_one_by_one() -> None:
    settings = PlanConfig(candidates=50, horizon=4, elites=5, iterations=2)
    policies = [learned("latent-ode", seed, settings) for seed in range(3)]
    together = stack(policies)
    keys = jax.random.split(jax.random.key(9), 3)
    obs = jax.random.normal(jax.random.key(8), (3, 3))
    z = jax.random.normal(jax.random.key(7), (3, 6))
    arrays, rest = eqx.partition(together, eqx.is_array)

    @jax.jit
    def plan(arrays, obs, z, keys):
        return jax.vmap(lambda a, o, z, k: eqx.combine(a, rest).plan(o, z, key=k))(arrays, obs, z, keys)

    found = plan(arrays, obs, z, keys)
    for i, policy in enumerate(policies):
        np.testing.assert_allclose(found[i], policy.plan(obs[i], z[i], key=keys[i]), atol=2e-5)
        np.testing.assert_allclose(found[i], one(together, i).plan(obs[i], z[i], key=keys[i]), atol=2e-5)


def test_a_planner_carries_the_latent_state_of_what_really_happened() -> None:
    policy = learned("latent-ode", 0, PlanConfig(candidates=20, horizon=2, elites=5))
    model = policy.dynamics.model
    memory = policy.start(key=jax.random.key(0))
    z, obs = memory.belief, jnp.array([1.0, 0.0, 0.5])
    control, memory = policy.act(memory, obs, jnp.zeros(()), key=jax.random.key(1))
    np.testing.assert_array_equal(memory.belief, z)
    later = jnp.array([0.9, 0.1, 0.4])
    _, memory = policy.act(memory, later, jnp.asarray(0.15), key=jax.random.key(2))
    expected = model.step(z, policy.normalizer.features(obs), control, jnp.asarray(0.15))[0]
    np.testing.assert_allclose(memory.belief, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(memory.seen_obs, later)


def test_bad_settings_are_refused() -> None:
    for wrong in ({"candidates": 0}, {"horizon": -1}, {"elites": 2000}, {"noise": -1.0}):
        with pytest.raises(KairodeError):
            PlanConfig(**wrong)
    timeless = build("rnn", kairode.make("pendulum").task.spec, ModelConfig(timer="none"), key=jax.random.key(0))
    with pytest.raises(KairodeError, match="timer"):
        LearnedDynamics(timeless, ObsNormalizer.new(timeless.spec))
    own = build("rnn", timeless.spec, scale=Scale((1.0,) * 3, (2.0,) * 3), key=jax.random.key(0))
    with pytest.raises(KairodeError, match="standardises"):
        LearnedDynamics(own, ObsNormalizer.new(own.spec))
