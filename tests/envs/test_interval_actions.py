"""An agent that chooses intervals: the same as holding its actions in the system itself; the best interval by hand."""

import dataclasses
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.algorithms.learn import learn_policy
from kairode.algorithms.mpc import MPCTraining
from kairode.config.agents import ActorCriticConfig, DQNConfig
from kairode.config.algorithms import LearnConfig, MPCConfig
from kairode.config.models import ModelConfig
from kairode.data import collect
from kairode.envs.accrual import AccruedRewards
from kairode.envs.core import Continuous, Discrete, Environment, Intervals, Spec, Task, Variable
from kairode.envs.interval_actions import IntervalActions, split_controls, split_product, within_bound
from kairode.errors import KairodeError
from kairode.models.zoo import build
from kairode.planning.model_env import make_model_env

HIV = kairode.make("hiv", horizon=40.0)
PENDULUM = kairode.make("pendulum", horizon=2.0)
WEAR, GAMMA = 0.2, 0.9


class MachineTask(Task):
    """1 - 0.2 w for every hour with wear w at its end; with a level, less the square of its distance from 0.5."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs: Any, action: Any, next_obs: Any, tau: Any) -> Any:
        level = 0.0 if isinstance(self.spec.actions, Discrete) else (action[0] - 0.5) ** 2
        return 1.0 - WEAR * next_obs[0] - level

    def terminal(self, obs: Any) -> Any:
        return jnp.zeros((), bool)


class Machine(Environment):
    """Every decision services a machine, which then wears by 1 in an hour."""

    continuous: bool = False
    horizon: float = 40.0

    @property
    def action_mode(self) -> Any:
        return "once"

    @property
    def task(self) -> MachineTask:
        actions = Continuous(("level",), (-1.0,), (1.0,)) if self.continuous else Discrete(("service",))
        intervals = Intervals(1.0, 8.0, 0.0 if self.continuous else 1.0)
        variables = (Variable("wear", "hour"),)
        return MachineTask(Spec("machine", variables, actions, intervals, "hour", horizon=self.horizon, discount=GAMMA))

    def reset(self, *, key: Any) -> Any:
        return jnp.zeros(1)

    def observe(self, state: Any) -> Any:
        return state

    def interval(self, state: Any, action: Any, *, key: Any) -> Any:
        return jnp.ones(())

    def transition(self, state: Any, action: Any, tau: Any, *, key: Any) -> Any:
        return jnp.zeros(1) + tau


def value_by_hand(tau: float, price: float) -> float:
    """(sum_i gamma^(i-1) (1 - 0.2 w_i) - p) / (1 - gamma^tau), forever; a part of an hour counts in proportion."""
    starts = np.arange(math.ceil(tau))
    ends = np.minimum(starts + 1, tau)
    earned = (GAMMA**starts * (1 - WEAR * ends) * (ends - starts)).sum() - price
    return float(earned / (1 - GAMMA**tau))


@pytest.mark.parametrize(
    ("env", "intervals"),
    [pytest.param(HIV, (1, 3, 7), marks=pytest.mark.slow), (PENDULUM, (0.05, 0.25))],
    ids=["discrete", "continuous"],
)
def test_the_same_as_holding_its_actions_in_the_system(env: Environment, intervals: tuple[float, ...]) -> None:
    price = 3.0
    place = IntervalActions(env, intervals, price=price)
    found = collect(place, episodes=2, seed=1)
    held, taus = place.task.decode(np.asarray(found.action))
    np.testing.assert_allclose(np.where(found.mask, taus, 0.0), found.interval, rtol=1e-6)
    steps = round(intervals[-1] / env.task.spec.finest)

    @jax.jit
    def by_hand(state: Any, action: Any, tau: Any, passed: Any) -> Any:
        """Every finest step on its own, up to the horizon."""
        spec, obs, key = env.task.spec, env.observe(state), jax.random.key(0)
        left, total = jnp.minimum(tau, spec.horizon - passed), jnp.zeros(())
        for i in range(steps):
            wait = jnp.clip(left - i * spec.finest, 0.0, spec.finest)
            state = env.transition(state, action, wait, key=key)
            after = env.observe(state)
            step = env.task.reward(obs, action, after, jnp.asarray(float(spec.finest))) * wait / spec.finest
            total, obs = total + spec.discount ** (i * spec.finest / spec.tick) * step, after
        return state, obs, total

    for episode in range(2):
        first = env.reset(key=jax.random.key(0)) if env is HIV else _pendulum_state(found.observation[episode, 0])
        state, passed = first, 0.0
        for k in range(int(found.length[episode])):
            tau = jnp.asarray(taus[episode, k], jnp.float32)
            state, obs, total = by_hand(state, jnp.asarray(held[episode, k]), tau, jnp.asarray(passed))
            passed += float(tau)
            np.testing.assert_allclose(found.observation[episode, k + 1], obs, rtol=2e-3, atol=2e-3)
            assert found.reward[episode, k] == pytest.approx(float(total) - price, rel=2e-3, abs=2e-2)


def _pendulum_state(obs: Any) -> Any:
    return jnp.array([math.atan2(obs[1], obs[0]), obs[2]])


@pytest.mark.slow
def test_without_the_price_and_the_same_whatever_the_intervals() -> None:
    """accrue=True counts the rewards of the system alone."""
    env = kairode.make("pendulum", horizon=2.0, intervals=(0.1, 0.4))
    dear = IntervalActions(env, price=5.0)
    still = lambda obs, key: jnp.array([0.3, 0.2])  # noqa: E731  a torque, for 0.2 s
    true = kairode.evaluate(dear, still, episodes=3, accrue=True)
    alone = kairode.evaluate(env, lambda obs, key: jnp.array([0.3]), episodes=3, schedule=0.2, accrue=True)
    assert true.decisions == alone.decisions == 10
    np.testing.assert_allclose(true.episode_scores, alone.episode_scores, rtol=1e-4)
    assert true.objective == "accrued_return"
    free, priced = (collect(place, still, episodes=3) for place in (IntervalActions(env), dear))
    np.testing.assert_allclose(free.reward - priced.reward, 5.0 * free.mask, rtol=1e-4)


def test_a_bound_on_the_decisions_reaches_the_horizon() -> None:
    place = IntervalActions(Machine(horizon=20.0), (1, 2, 4), max_decisions=6)
    found = collect(place, lambda obs, key: jnp.array(0), episodes=1)
    np.testing.assert_array_equal(found.interval[0], [1, 3, 4, 4, 4, 4])
    np.testing.assert_allclose(found.observation[0, :, 1], 1 - np.arange(7) / 6, atol=1e-6)
    np.testing.assert_allclose(found.observation[0, :, 2], np.array([0, 1, 4, 8, 12, 16, 20]) / 20, atol=1e-6)
    assert found.terminated.all()  # no value after it
    assert not found.truncated.any()
    long = collect(place, lambda obs, key: jnp.array(2), episodes=1)
    np.testing.assert_array_equal(long.interval[0], [4] * 5)
    assert kairode.evaluate(place, lambda obs, key: jnp.array(2), episodes=1, accrue=True).decisions == 5


def test_the_names_of_choices_and_what_they_mean_in_numpy_and_jax() -> None:
    place = IntervalActions(HIV, (1, 3))
    names = place.task.spec.actions.names
    assert names[:3] == ("none for 1 day", "none for 3 days", "RTI for 1 day")
    for library in (np, jnp):
        action, tau = split_product(library.arange(8), (1.0, 3.0))
        np.testing.assert_array_equal(action, [0, 0, 1, 1, 2, 2, 3, 3])
        np.testing.assert_array_equal(tau, [1, 3] * 4)
        controls, tau = split_controls(library.array([[0.5, 2.6], [0.1, 9.0]]), 1.0, 4.0, whole=1.0)
        np.testing.assert_allclose(controls, [[0.5], [0.1]], rtol=1e-6)
        np.testing.assert_array_equal(tau, [3.0, 4.0])
        longer = within_bound(library.array([1.0, 3.0]), library.array([2.0, 2.0]), 1, 8.0, 4.0)
        np.testing.assert_array_equal(longer, [2.0, 3.0])
    assert IntervalActions(HIV).intervals == tuple(float(day) for day in range(1, 15))
    control = IntervalActions(PENDULUM).task.spec.actions
    assert (control.names, control.low, control.high) == (("torque", "interval"), (-2.0, 0.05), (2.0, 0.25))


@pytest.mark.slow
def test_around_a_model_environment() -> None:
    """The same accrued rewards as the model environment's own."""
    env = kairode.make("gridworld")
    model = build("rnn", env.task.spec, ModelConfig(latent_size=3), key=jax.random.key(0))
    place = IntervalActions(env, (1, 3)).around(make_model_env(model, env))
    key = jax.random.key(1)
    state = place.reset(key=key)
    after = place.transition(state, jnp.array(3), jnp.array(3.0), key=key)
    inner = AccruedRewards.of(place.env, 3.0)
    wanted = inner.transition(inner.reset(key=key), jnp.array(1), jnp.array(3.0), key=key)
    np.testing.assert_allclose(place.observe(after), inner.observe(wanted), rtol=1e-5)
    assert float(after.earned) == pytest.approx(float(wanted.earned))
    assert float(after.inner.disagreement) == 0.0


@pytest.mark.parametrize(("price", "best"), [pytest.param(0.3, 2.0, marks=pytest.mark.slow), (2.0, 4.0)])
def test_dqn_finds_the_best_interval(price: float, best: float) -> None:
    intervals = (1.0, 2.0, 4.0, 8.0)
    assert best == max(intervals, key=lambda tau: value_by_hand(tau, price))
    dqn = DQNConfig(hidden=(16,), learning_rate=3e-3, batch_size=32, replay_capacity=2000, target_decisions=50)
    policy = learn_policy(None, IntervalActions(Machine(), intervals, price), LearnConfig(episodes=60, dqn=dqn)).policy
    values = policy.q(jnp.array([[0.0], [best]]))
    assert [intervals[i] for i in np.argmax(values, axis=1)] == [best, best]


@pytest.mark.slow
def test_learning_in_imagination() -> None:
    """The choices are those of the system, the model is fitted to data of the system's own schedule."""
    env = kairode.make("gridworld", horizon=30.0)
    data = collect(env, episodes=12)
    model = kairode.fit("rnn", data, seeds=1, iterations=10)
    place = IntervalActions(env, (1, 2, 4), price=0.1)
    options: dict[str, Any] = {"hidden": (16, 16), "batch_size": 16, "replay_capacity": 512}
    policy = kairode.learn(model, place, data=data, episodes=3, **options)
    assert policy.spec.actions.n == 3 * env.task.spec.actions.n
    assert kairode.evaluate(place, policy, episodes=2, accrue=True).decisions >= 1


@pytest.mark.slow
@pytest.mark.parametrize("price", [0.5, 2.0])
def test_sac_finds_the_best_interval(price: float) -> None:
    agent = ActorCriticConfig(
        kind="sac",
        hidden=(32, 32),
        actor_learning_rate=3e-3,
        critic_learning_rate=3e-3,
        polyak=0.02,
        warmup=300,
        batch_size=64,
    )
    config = MPCConfig(env="machine", model="free", agent=agent, decisions=4000)
    place = IntervalActions(Machine(continuous=True), price=price)
    with MPCTraining(config, place, None) as training:
        training.run()
        (policy,) = training.policies()
    found = collect(place, policy, episodes=1)
    level, tau = (float(x) for x in np.asarray(found.action[0, 2]))
    best = max(np.linspace(1, 8, 200), key=lambda tau: value_by_hand(tau, price))
    assert value_by_hand(tau, price) > value_by_hand(best, price) - 0.25  # of a range of 3 and more
    assert abs(level - 0.5) < 0.15


@pytest.mark.slow
def test_refused() -> None:
    for wrong, message in (
        ({"intervals": ()}, "intervals of IntervalActions are empty"),
        ({"intervals": (3, 1)}, "strictly ascending, got 3, 1"),
        ({"intervals": (-1, 2)}, "must be a positive, finite time, got -1"),
        ({"intervals": (1, 2.5)}, "must be multiples of 1 days"),
        ({"intervals": (1, 400)}, "must not be longer than an episode"),
        ({"price": -1.0}, "price must be a number of at least 0"),
        ({"price": math.nan}, "price must be a number of at least 0"),
        ({"max_decisions": 0}, "max_decisions must be an integer of at least 1"),
        ({"intervals": (1, 7), "max_decisions": 5}, "increase max_decisions to at least 6"),
    ):
        with pytest.raises(KairodeError, match=message):
            IntervalActions(HIV, **wrong)
    for env, message in (
        (kairode.make("hopper"), "'hopper' runs on the host"),
        (IntervalActions(HIV), "counts accrued rewards already"),
        (AccruedRewards.of(HIV, 7.0), "counts accrued rewards already"),
    ):
        with pytest.raises(KairodeError, match=message):
            IntervalActions(env)
    with pytest.raises(KairodeError, match="the shortest and the longest"):
        IntervalActions(PENDULUM, (0.05, 0.1, 0.2))
    bounded = IntervalActions(HIV, max_decisions=10)
    model = build("rnn", HIV.task.spec, ModelConfig(latent_size=2), key=jax.random.key(0))
    data = collect(HIV, episodes=1)
    with pytest.raises(KairodeError, match="rollout_length=None"):
        kairode.learn(model, bounded, data=data)
    for options in ({"schedule": 5}, {"accrue": True}):
        with pytest.raises(KairodeError, match="leave out schedule and accrue"):
            kairode.learn(None, bounded, **options)
    assert [a < b for a, b in itertools.pairwise(bounded.intervals)]
    assert dataclasses.replace(bounded, price=2.0).price == 2.0
