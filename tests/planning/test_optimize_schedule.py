"""Chosen intervals against brute force with closed forms: a linear system, a switching one, models by hand."""

import dataclasses
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

import kairode
from kairode.agents.encoder import IdentityEncoder, LatentEncoder, LatentMemory, TrackedMemory
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.config.models import ModelConfig
from kairode.data.rollout import rollout_compiled
from kairode.data.trajectory import Trajectory
from kairode.envs.accrual import AccruedRewards
from kairode.envs.core import Discrete, Environment, Intervals, Spec, Task, Variable
from kairode.envs.integrate import integrate
from kairode.envs.schedule import Decision, Fixed
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.initial import Zeros
from kairode.models.networks import Linear as LinearLayer
from kairode.models.timer import NoTimer
from kairode.models.transition import Transition
from kairode.models.zoo import build
from kairode.planning.calibrate import calibrate_model, mean_residuals, shrunk_mean
from kairode.planning.lookahead import ModelLookahead, TrueLookahead
from kairode.planning.optimize_schedule import check_candidates, optimize_schedule, schedule_for_learning, trial_env
from kairode.planning.optimized_schedule import OptimizedSchedule, PredictedRewards, later_decisions
from kairode.planning.penalties import PenaltySweep, sweep_penalties
from kairode.seeds import Purpose, derive

KEY = jax.random.key(0)
A = np.array([[-0.1, 1.0], [-0.8, -0.05]])
B = np.array([0.0, 0.6])
P = np.array([[6.0, 0.4], [0.4, 4.0]])
"""A rotation that dies out slowly, pushed by the action; the value after it is -s'Ps."""
GAMMA = 0.97


class LinearTask(Task):
    """R(s, a, s') = -|s'|^2."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs: Any, action: Any, next_obs: Any, tau: Any) -> Any:
        return -(next_obs**2).sum()

    def terminal(self, obs: Any) -> Any:
        return jnp.zeros((), bool)


class Linear(Environment):
    """ds/dt = A s + B (a - 1), integrated by RK4."""

    step: float = eqx.field(static=True, default=1.0)

    @property
    def task(self) -> LinearTask:
        return LinearTask(
            Spec(
                "linear",
                (Variable("x", ""), Variable("v", "")),
                Discrete(("left", "nothing", "right")),
                Intervals(self.step, 10.0, self.step),
                "second",
                horizon=60.0,
                discount=GAMMA,
                discounted_objective=True,
            )
        )

    def reset(self, *, key: Any) -> Any:
        return jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)

    def observe(self, state: Any) -> Any:
        return state

    def interval(self, state: Any, action: Any, *, key: Any) -> Any:
        return jnp.asarray(1.0)

    def transition(self, state: Any, action: Any, tau: Any, *, key: Any) -> Any:
        push = (action - 1.0) * jnp.array(B, state.dtype)
        return integrate(lambda s: jnp.array(A, s.dtype) @ s + push, state, tau, lambda s: jnp.asarray(20.0, s.dtype))


class Quadratic(ReLUNetwork):
    """V(s) = -s'Ps for every action."""

    def __call__(self, features: Any) -> Any:
        value = -jnp.einsum("...i,ij,...j->...", features, jnp.array(P, features.dtype), features)
        return jnp.repeat(value[..., None], 3, axis=-1)


def at(state: np.ndarray, action: int, tau: float) -> np.ndarray:
    """The closed form: one matrix exponential of the system and its constant push."""
    whole = np.zeros((3, 3))
    whole[:2, :2], whole[:2, 2] = A, B * (action - 1)
    return (scipy.linalg.expm(whole * tau) @ np.append(state, 1.0))[:2]


def value_by_hand(state: np.ndarray, action: int, tau: int) -> float:
    """The paper's equation, by hand."""
    rewards = sum(GAMMA ** (i - 1) * -float((at(state, action, i) ** 2).sum()) for i in range(1, tau + 1))
    end = at(state, action, tau)
    return rewards - GAMMA**tau * float(end @ P @ end)


def decision(state: np.ndarray, action: int, time: float = 0.0, count: int = 0) -> Decision:
    obs = jnp.asarray(state, jnp.float32)
    return Decision(obs, jnp.array(action), jnp.array(time), jnp.array(count), (), obs)


def chosen(env: Environment, q: ReLUNetwork | None = None, **options: Any) -> OptimizedSchedule:
    policy = QPolicy(q or Quadratic((), ()), IdentityEncoder(), env.task.spec, 0.0, accrues=True)
    return optimize_schedule(env, policy, env, **{"tolerance": 0, **options})


def starts(count: int) -> list[tuple[np.ndarray, int]]:
    rng = np.random.default_rng(3)
    return [(rng.uniform(-1.5, 1.5, 2), int(rng.integers(3))) for _ in range(count)]


def test_the_discrete_choice_is_that_of_brute_force() -> None:
    env = Linear()
    schedule = chosen(env)
    choose = eqx.filter_jit(
        lambda d: (schedule.candidate_values(d, key=KEY), schedule.interval(jnp.zeros(()), d, key=KEY))
    )
    picks = set()
    for state, action in starts(60):
        by_hand = np.array([value_by_hand(state, action, tau) for tau in range(1, 11)])
        values, tau = choose(decision(state, action))
        np.testing.assert_allclose(values, by_hand, rtol=1e-4, atol=1e-4)
        assert float(tau) == 1 + int(by_hand.argmax())
        picks.add(float(tau))
    assert len(picks) > 4


@pytest.mark.slow
def test_the_continuous_choice_is_that_of_brute_force() -> None:
    env = Linear()
    schedule = chosen(env, continuous=True, candidates=(0.3, 8.0))
    choose = eqx.filter_jit(lambda d: schedule.interval(jnp.zeros(()), d, key=KEY))

    def integral(state: np.ndarray, action: int, tau: float) -> float:
        def rate(t: float) -> float:
            return GAMMA**t * -float((at(state, action, t) ** 2).sum())

        end = at(state, action, tau)
        return scipy.integrate.quad(rate, 0.0, tau, epsabs=1e-10)[0] - GAMMA**tau * float(end @ P @ end)

    inside = 0
    for state, action in starts(12):
        grid = np.linspace(0.3, 8.0, 300)
        coarse = np.array([integral(state, action, tau) for tau in grid])
        k = int(coarse.argmax())
        bounds = (grid[max(k - 1, 0)], grid[min(k + 1, 299)])
        best = scipy.optimize.minimize_scalar(
            lambda t, s=state, a=action: -integral(s, a, t), bounds=bounds, method="bounded", options={"xatol": 1e-7}
        )
        found = float(choose(decision(state, action)))
        assert found == pytest.approx(best.x, abs=3e-3)
        assert integral(state, action, found) >= -best.fun - 1e-5 * abs(best.fun)
        inside += 0.31 < found < 7.9
    assert inside > 5


class Goal(Linear):
    """Along a line to the right at one a second, over 5 a goal that is worth ten."""

    @property
    def task(self) -> "GoalTask":
        return GoalTask(dataclasses.replace(Linear().task.spec, name="goal", observations=(Variable("x", ""),)))

    def reset(self, *, key: Any) -> Any:
        return jnp.zeros(1)

    def transition(self, state: Any, action: Any, tau: Any, *, key: Any) -> Any:
        return state + tau


class GoalTask(Task):
    """-1 a second, and 10 where the goal is reached."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs: Any, action: Any, next_obs: Any, tau: Any) -> Any:
        return 10.0 * self.terminal(next_obs) - tau

    def terminal(self, obs: Any) -> Any:
        return obs[0] > 5.0


class Nothing(ReLUNetwork):
    """V(s) = -20: waiting for it is not worth while."""

    def __call__(self, features: Any) -> Any:
        return jnp.full((*features.shape[:-1], 3), -20.0)


@pytest.mark.slow
def test_a_goal_on_the_way_counts_once_and_nothing_after_it() -> None:
    env = Goal()
    task = env.task
    policy = QPolicy(Nothing((), ()), IdentityEncoder(), task.spec, 0.0, accrues=True)
    here = Decision(jnp.array([0.7]), jnp.array(2), jnp.zeros(()), jnp.array(0), (), jnp.array([0.7]))
    values = optimize_schedule(env, policy, env).candidate_values(here, key=KEY)
    # Over the line after 4.3 s: from the fifth second on nothing more is earned or lost.
    rewards = [GAMMA ** (i - 1) * (-1 + 10 * (i == 5)) for i in range(1, 6)]
    by_hand = [sum(rewards[:tau]) + (GAMMA**tau * -20 if tau < 5 else 0) for tau in range(1, 6)]
    np.testing.assert_allclose(values[:5], by_hand, rtol=1e-5)
    np.testing.assert_allclose(values[5:], values[4], rtol=1e-5)
    flowing = optimize_schedule(env, policy, env, continuous=True, candidates=(0.5, 9.0), tolerance=0)
    assert float(flowing.interval(jnp.zeros(()), here, key=KEY)) >= 4.3
    # Where the goal is not worth it, stop short of it.
    keen = dataclasses.replace(policy, q=Quadratic((), ()))
    far = dataclasses.replace(
        optimize_schedule(env, keen, env, continuous=True, candidates=(0.5, 9.0), tolerance=0), q=Worth((), ())
    )
    assert float(far.interval(jnp.zeros(()), here, key=KEY)) < 4.3


class Worth(ReLUNetwork):
    """V(s) = 30 wherever the process goes on."""

    def __call__(self, features: Any) -> Any:
        return jnp.full((*features.shape[:-1], 3), 30.0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"budget": 9}, {"quantile": 0.5}, {"price": 0.01}])
def test_continuous_intervals_with_other_wishes(line: tuple["Line", QPolicy], options: dict[str, Any]) -> None:
    env, policy = line
    schedule = optimize_schedule(env, policy, env, continuous=True, candidates=(1.0, 10.0), tolerance=0, **options)
    keys = jax.random.split(jax.random.key(6), 16)
    found = rollout_compiled(env, policy, schedule, keys, 60)
    assert np.isfinite(found.records.interval).all()
    assert np.max(found.length) <= options.get("budget", 60)
    taus = np.asarray(found.records.interval)
    assert (np.abs(taus - np.round(taus)) > 1e-3)[taus > 0].any()


def test_candidates_are_multiples_of_the_finest_step() -> None:
    spec = Linear().task.spec
    assert check_candidates(None, spec) == tuple(float(k) for k in range(1, 11))
    odd = dataclasses.replace(spec, intervals=Intervals(0.5, 3.0, 0.0))
    with pytest.warns(UserWarning, match=r"the shortest is 1, not 0\.5: set step of its Intervals or tick"):
        assert check_candidates(None, odd) == (1.0, 2.0, 3.0)
    assert check_candidates(None, odd, continuous=True) == (0.5, 3.0)
    none = dataclasses.replace(spec, intervals=Intervals(0.2, 0.5, 0.0))
    with pytest.raises(KairodeError, match="use continuous=True"):
        check_candidates(None, none)


@pytest.mark.slow
def test_latent_states_are_carried_along_as_by_hand() -> None:
    """Under a schedule that models choose, in collected episodes and in training."""
    env = kairode.make("gridworld", horizon=20.0)
    models = [
        build("dt-rnn", env.task.spec, ModelConfig(latent_size=3, timer="none"), key=jax.random.key(i))
        for i in range(2)
    ]
    q = ReLUNetwork.new(2, 8, 8, key=KEY)
    policy = QPolicy(q, IdentityEncoder(), env.task.spec, 0.0, accrues=True)
    schedule = optimize_schedule(models, policy, env)
    found = kairode.collect(env, policy, episodes=1, schedule=schedule)
    choose = eqx.filter_jit(lambda d: schedule.interval(jnp.zeros(()), d, key=KEY))
    step = eqx.filter_jit(lambda model, *x: model.step(*x)[0])
    z = [jnp.zeros(3) for _ in models]
    for k in range(int(found.length[0])):
        obs, action = jnp.asarray(found.observation[0, k]), jnp.asarray(found.action[0, k])
        memory = TrackedMemory((), LatentMemory(jnp.stack(z), obs, action))
        here = Decision(obs, action, jnp.asarray(found.time[0, k], jnp.float32), jnp.array(k), memory, ())
        tau = choose(here)
        assert float(tau) == found.interval[0, k]
        z = [step(model, state, obs, action, tau) for model, state in zip(models, z, strict=True)]
    sees = LatentEncoder(models[0])
    latent = QPolicy(ReLUNetwork.new(5, 8, 8, key=KEY), sees, env.task.spec, 0.0, accrues=True)
    for options in ({}, {"price": 0.1}, {"budget": 5}):
        timed = optimize_schedule(models, latent, env, **options)
        assert kairode.evaluate(env, latent, schedule=timed, episodes=2).episode_scores.shape == (2,)


@pytest.mark.slow
def test_returns_of_a_chosen_schedule_are_of_every_second(line: tuple["Line", QPolicy]) -> None:
    env, policy = line
    schedule = optimize_schedule(env, policy, env, price=0.003)
    found = kairode.evaluate(env, policy, schedule=schedule, episodes=8)
    accrued = kairode.evaluate(AccruedRewards.of(env, 10.0), policy, schedule=schedule, episodes=8, accrue=False)
    np.testing.assert_allclose(found.episode_scores, accrued.episode_scores)
    assert found.score < 1.5 * kairode.evaluate(env, policy, schedule=schedule, episodes=8, accrue=False).score
    figures = found.figures()
    assert figures["time"] == pytest.approx(60.0)
    assert figures["accrued_return"] < figures["discounted_accrued_return"]  # costs, the later ones in full


@pytest.mark.slow
def test_models_as_by_hand() -> None:
    """Every candidate by a step of the model alone, sums in NumPy; quantiles over several models."""
    env = kairode.make("hiv")
    spec, task = env.task.spec, env.task
    models = [build("latent-ode", spec, ModelConfig(latent_size=4), key=jax.random.key(i)) for i in range(3)]
    q = ReLUNetwork.new(6, 8, 4, key=KEY)
    policy = QPolicy(q, IdentityEncoder(), spec, 0.0, 1e-3, accrues=True)
    obs, action = env.observe(env.reset(key=KEY)), jnp.array(2)
    zs = jnp.stack([model.start(key=jax.random.key(7 + i)) for i, model in enumerate(models)])
    here = Decision(
        obs, action, jnp.zeros(()), jnp.zeros((), int), TrackedMemory((), LatentMemory(zs, obs, action)), ()
    )
    each = np.zeros((3, 14))
    for m, model in enumerate(models):
        before, earned = obs, 0.0
        for tau in range(1, 15):
            seen = model.step(zs[m], obs, action, jnp.array(float(tau)))[1]
            earned += 0.995 ** (tau - 1) * float(task.reward(before, action, seen, jnp.array(1.0)))
            each[m, tau - 1] = earned + 0.995**tau * float(q(seen).max()) / 1e-3
            before = seen
    schedule = optimize_schedule(models, policy, env)
    np.testing.assert_allclose(schedule.candidate_values(here, key=KEY), each.mean(0), rtol=1e-4)
    cautious = optimize_schedule(models, policy, env, quantile=0.25)
    waiting = np.quantile(each - each[:, :1], 0.25, axis=0)
    np.testing.assert_allclose(
        cautious.candidate_values(here, key=KEY), each[:, 0].mean() + waiting, rtol=1e-3, atol=2.0
    )
    priced = optimize_schedule(models, policy, env.task, price=50.0)
    count = np.array([sum(0.995 ** (tau * k) for k in range(1, math.ceil(1000 / tau))) for tau in range(1, 15)])
    lost = np.asarray(schedule.candidate_values(here, key=KEY) - priced.candidate_values(here, key=KEY))
    np.testing.assert_allclose(lost, 50 * count, rtol=0.02, atol=2.0)


def test_later_decisions() -> None:
    spec = Linear().task.spec
    taus = jnp.array([1.0, 7.0, 60.0])
    wanted = [sum(GAMMA ** (tau * k) for k in range(1, 61) if tau * k < 60) for tau in (1, 7, 60)]
    np.testing.assert_allclose(later_decisions(spec, jnp.zeros(()), taus), wanted, rtol=1e-5)
    plain = dataclasses.replace(spec, discount=1.0)
    np.testing.assert_allclose(later_decisions(plain, jnp.array(50.0), taus), [9, 1, 0])
    endless = dataclasses.replace(spec, horizon=math.inf)
    np.testing.assert_allclose(later_decisions(endless, jnp.zeros(()), taus[:1]), [GAMMA / (1 - GAMMA)], rtol=1e-5)


class Line(Linear):
    """One position, moved by -1, 0 or 1 a second against a drift away from 0: acting often is harmless."""

    @property
    def task(self) -> LinearTask:
        spec = dataclasses.replace(Linear().task.spec, name="line", observations=(Variable("x", ""),))
        return LinearTask(spec)

    def reset(self, *, key: Any) -> Any:
        return jax.random.uniform(key, (1,), minval=-1.5, maxval=1.5)

    def transition(self, state: Any, action: Any, tau: Any, *, key: Any) -> Any:
        # dx/dt = 0.05 x + 0.3 u, in closed form.
        u = action - 1.0
        return jnp.clip(state * jnp.exp(0.05 * tau) + 6.0 * u * (jnp.exp(0.05 * tau) - 1), -4.0, 4.0)


class Table(ReLUNetwork):
    """Action values on a grid of the line, straight between its points."""

    values: jax.Array

    def __call__(self, features: Any) -> Any:
        grid = jnp.linspace(-4.0, 4.0, self.values.shape[1])
        validate = jax.vmap(lambda v: jnp.interp(features[..., 0], grid, v))
        return jnp.moveaxis(validate(self.values), 0, -1)


def solved() -> Table:
    """Q of acting every second, by value iteration."""
    grid = np.linspace(-4.0, 4.0, 4001)
    after = [np.clip(grid * np.exp(0.05) + 6.0 * u * (np.exp(0.05) - 1), -4, 4) for u in (-1.0, 0.0, 1.0)]
    q = np.zeros((3, len(grid)))
    for _ in range(600):
        v = q.max(0)
        q = np.stack([-(s**2) + GAMMA * np.interp(s, grid, v) for s in after])
    return Table((), (), jnp.asarray(q, jnp.float32))


@pytest.fixture(scope="module")
def line() -> tuple[Line, QPolicy]:
    env = Line()
    return env, QPolicy(solved(), IdentityEncoder(), env.task.spec, 0.0, accrues=True)


def returned(env: Environment, policy: QPolicy, schedule: Any) -> tuple[float, float]:
    """Mean return, rewards on every second, and visits of episodes from 64 starts."""
    keys = jax.random.split(jax.random.key(5), 64)
    found = rollout_compiled(AccruedRewards.of(env, 10.0), schedule.track(policy), schedule, keys, 60)
    times = np.cumsum(found.records.interval, axis=0) - found.records.interval
    return float((GAMMA**times * found.records.reward).sum(0).mean()), float(np.mean(found.length))


@pytest.mark.slow
def test_choosing_with_the_true_dynamics_loses_nothing(line: tuple[Line, QPolicy]) -> None:
    env, policy = line
    often, all_visits = returned(env, policy, Fixed(1.0))
    free, visits = returned(env, policy, optimize_schedule(env, policy, env, tolerance=0))
    assert free >= often - 1e-3 * abs(often)
    assert visits < all_visits == 60
    some, fewer = returned(env, policy, optimize_schedule(env, policy, env, tolerance=0, price=0.003))
    assert some >= often - 0.02 * abs(often)
    assert fewer < 0.25 * all_visits  # the paper's three quarters
    # Fixed intervals with as few visits lose several times as much.
    assert returned(env, policy, Fixed(5.0))[0] < 5 * often


def test_rising_prices_never_raise_the_visits(line: tuple[Line, QPolicy]) -> None:
    env, policy = line
    prices = (0.0, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0)
    visits = [
        returned(env, policy, optimize_schedule(env, policy, env, tolerance=0, price=price))[1] for price in prices
    ]
    assert all(later <= 1.05 * sooner + 0.5 for sooner, later in itertools.pairwise(visits))
    assert visits[-1] < 7  # hardly anything but the longest
    assert visits[0] > 50


@pytest.mark.parametrize("budget", [6, 10, 25])
def test_a_budget_is_kept_whatever_happens(line: tuple[Line, QPolicy], budget: int) -> None:
    env, policy = line
    schedule = optimize_schedule(env, policy, env, tolerance=0, budget=budget)
    keys = jax.random.split(jax.random.key(6), 64)
    found = rollout_compiled(env, policy, schedule, keys, 60)
    assert np.max(found.length) <= budget
    assert np.all(np.sum(found.records.interval, axis=0) >= 60 - 1e-3)
    value, _ = returned(env, policy, schedule)
    every, _ = returned(env, policy, Fixed(float(math.ceil(60 / budget))))
    assert value >= every - 1e-3 * abs(every)


def test_what_shadow_prices_come_to(line: tuple[Line, QPolicy]) -> None:
    env, policy = line
    tried = sweep_penalties(optimize_schedule(env, policy, env, tolerance=0), policy, env)
    # A rising price moves the choice to fewer (discounted) visits, never to more.
    chosen_at = [np.flatnonzero(tried.prices == tried.at_price(price))[0] for price in np.logspace(-4, 3, 30)]
    assert (np.diff(tried.discounted_decisions[chosen_at]) <= 0).all()
    assert len(set(chosen_at)) > 3
    obs_bounds = sweep_penalties(schedule_for_learning(env, env, budget=12).with_q(policy.q), policy, env)
    assert obs_bounds.decisions.max() <= 12 < tried.decisions.max()
    assert obs_bounds.returns.max() > np.median(obs_bounds.returns)
    # By hand, at one of them, decision by decision.
    now = dataclasses.replace(
        optimize_schedule(env, policy, env, tolerance=0), decision_penalty=jnp.asarray(tried.prices[8], jnp.float32)
    )
    choose = eqx.filter_jit(lambda d: now.interval(jnp.zeros(()), d, key=KEY))
    few = sweep_penalties(optimize_schedule(env, policy, env, tolerance=0), policy, env, episodes=3)
    returns, visits = [], []
    now = dataclasses.replace(now, decision_penalty=jnp.asarray(few.prices[8], jnp.float32))
    for key in jax.random.split(jax.random.key(derive(0, Purpose.SCHEDULE_TRIAL)), 3):
        start = kairode.data.rollout.start(env, policy, key)
        x, time, total, count = np.asarray(start.moment.state, np.float64), 0.0, 0.0, 0
        while time < 60:
            action = int(policy.q(jnp.asarray(x, jnp.float32)).argmax())
            tau = float(choose(decision(x, action, time, count)))
            for _ in range(int(min(tau, 60 - time))):
                x = np.clip(x * np.exp(0.05) + 6.0 * (action - 1) * (np.exp(0.05) - 1), -4, 4)
                total -= GAMMA**time * float(x[0] ** 2)
                time += 1
            count += 1
        returns.append(total)
        visits.append(count)
    assert few.decisions[8] == pytest.approx(np.mean(visits), rel=0.02)
    assert few.returns[8] == pytest.approx(np.mean(returns), rel=0.02)


class Still(Linear):
    """Nothing moves, and every second costs 1."""

    @property
    def task(self) -> "StillTask":
        return StillTask(dataclasses.replace(Linear().task.spec, name="still", observations=(Variable("x", ""),)))

    def reset(self, *, key: Any) -> Any:
        return jnp.zeros(1)

    def transition(self, state: Any, action: Any, tau: Any, *, key: Any) -> Any:
        return state


class StillTask(Task):
    """R = -tau."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs: Any, action: Any, next_obs: Any, tau: Any) -> Any:
        return -tau

    def terminal(self, obs: Any) -> Any:
        return jnp.zeros((), bool)


class Level(ReLUNetwork):
    """The same value everywhere."""

    value: float = 0.0

    def __call__(self, features: Any) -> Any:
        return jnp.full((*features.shape[:-1], 3), self.value)


EXACT = -1 / (1 - GAMMA)
"""What a cost of 1 a second comes to for ever: with it, -sum_(i<tau) gamma^i + gamma^tau V = V for every tau."""


def still_choice(value: float, **options: Any) -> float:
    schedule = chosen(Still(), Level((), (), value), **options)
    return float(schedule.interval(jnp.zeros(()), decision(np.zeros(1), 1), key=KEY))


@pytest.mark.slow
def test_of_equal_candidates_the_longest() -> None:
    for tolerance in (1e-6, 0.05, 1.0):
        assert still_choice(EXACT, tolerance=tolerance) == 10
    assert still_choice(EXACT, tolerance=0.05, candidates=(1.0, 3.0, 4.0)) == 4
    assert still_choice(EXACT, tolerance=0.05, candidates=(1.0, 8.0), continuous=True) == pytest.approx(8.0, abs=1e-3)


def test_without_a_tolerance_only_exactly_equal_candidates_tie() -> None:
    """And a candidate after the one at which all models predict termination saves no decision."""
    schedule = chosen(Still(), Level((), (), EXACT), candidates=(1.0, 2.0, 3.0, 4.0))
    alive, goal = jnp.zeros((2, 4), bool), jnp.array([[False, True, True, True]] * 2)

    def pick(worths: list[float], ended: Any) -> int:
        worth = jnp.array(worths)
        return int(schedule.pick(worth, PredictedRewards(worth[None], worth[None], ended), worth.max()))

    assert pick([2.0, 2.0, 2.0, 1.0], alive) == 2
    assert pick([2.0, 2.0 - 1e-6, 1.0, 1.0], alive) == 0
    assert pick([2.0, 2.0, 2.0, 2.0], goal) == 1


def test_a_loss_within_the_tolerance_is_taken_and_no_larger_one() -> None:
    """Values that are too high by e make waiting seem to cost e (gamma - gamma^tau)."""
    for error in (0.5, 2.0, 4.0, 8.0):
        for tolerance in (0.01, 0.05, 0.2):
            taus = np.arange(1, 11)
            values = -(1 - GAMMA**taus) / (1 - GAMMA) + GAMMA**taus * (EXACT + error)
            size = (1 - GAMMA**taus) / (1 - GAMMA)
            wanted = taus[values >= values.max() - tolerance * size].max(initial=1)
            assert still_choice(EXACT + error, tolerance=tolerance) == wanted, (error, tolerance)
        assert still_choice(EXACT + error) == 1
    assert still_choice(EXACT - 1.0) == still_choice(EXACT - 1.0, tolerance=0.05) == 10


def test_the_tolerance_bounds_what_is_lost(line: tuple["Line", QPolicy]) -> None:
    env, policy = line
    best, often = returned(env, policy, optimize_schedule(env, policy, env, tolerance=0))
    before = often
    for tolerance in (0.02, 0.1, 0.5):
        found, visits = returned(env, policy, optimize_schedule(env, policy, env, tolerance=tolerance))
        assert found >= (1 + tolerance) * best, "rewards are negative"
        assert visits <= before
        before = visits
    assert before < 0.85 * often


def test_the_fewest_visits_that_trials_cannot_tell_from_the_best() -> None:
    visits = np.array([[9.0, 11.0], [5.0, 5.0], [2.0, 2.0], [1.0, 1.0]])
    returns = np.array([[10.0, 12.0], [9.0, 12.9], [7.0, 12.0], [0.0, 0.0]])
    tried = PenaltySweep(np.arange(4.0), returns.mean(1), visits.mean(1), visits.mean(1), returns, visits)
    # Lost against the first: 0.05 (standard error 0.95) by the second, 1.5 (1.5) by the third, 11 (1) by the fourth.
    assert tried.at_price(0.0) == 0
    assert tried.at_price(0.0, errors=0.5) == 1
    assert tried.at_price(0.0, errors=1.0) == 2
    assert tried.at_price(0.1) == 1
    assert tried.at_price(2.0) == 2
    assert tried.at_price(20.0) == tried.at_price(20.0, errors=1.0) == 3


def test_nobody_waits_beyond_the_end() -> None:
    """The goal is passed in the fifth second: then waiting longer saves no decision."""
    env = Goal()
    policy = QPolicy(Nothing((), ()), IdentityEncoder(), env.task.spec, 0.0, accrues=True)
    here = Decision(jnp.array([0.7]), jnp.array(2), jnp.zeros(()), jnp.array(0), (), jnp.array([0.7]))
    for tolerance in (0.0, 0.05, 0.5):
        schedule = optimize_schedule(env, policy, env, tolerance=tolerance)
        assert float(schedule.interval(jnp.zeros(()), here, key=KEY)) == 5


def test_a_price_reduces_visits_that_bring_little(line: tuple["Line", QPolicy]) -> None:
    env, policy = line
    prices = (0.0, 1e-3, 0.01, 0.1, 1.0, 10.0)
    visits = [returned(env, policy, optimize_schedule(env, policy, env, price=price))[1] for price in prices]
    assert all(later <= sooner + 0.5 for sooner, later in itertools.pairwise(visits))
    assert visits[-1] < 0.5 * visits[0]


class Walk(Line):
    """x moves by -1, 0 or 1 a second; every second costs x^2."""

    def reset(self, *, key: Any) -> Any:
        return jax.random.uniform(key, (1,), minval=-8.0, maxval=8.0)

    def interval(self, state: Any, action: Any, *, key: Any) -> Any:
        return jax.random.randint(key, (), 1, 11).astype(jnp.float32)

    def transition(self, state: Any, action: Any, tau: Any, *, key: Any) -> Any:
        return state + (action - 1.0) * tau


class Towards(ReLUNetwork):
    """Q(s, a) = -(x + a - 1)^2 / (1 - gamma): a step, then rest."""

    def __call__(self, features: Any) -> Any:
        return EXACT * jnp.concatenate([features - 1, features, features + 1], axis=-1) ** 2


class FourSteps(Transition):
    """A model that predicts four steps after any interval: right on average, wrong about waiting."""

    def inputs(self, x: Any, tau: Any) -> Any:
        return x[:1] + 4.0 * (x[3:4] - x[1:2])

    def move(self, z: Any, drive: Any, tau: Any) -> Any:
        return drive

    def path(self, z: Any, x: Any, taus: Any) -> Any:
        return jnp.repeat(self.inputs(x, taus)[None], len(taus), axis=0)


@pytest.fixture(scope="module")
def walk() -> tuple[Walk, DynamicsModel, QPolicy, Trajectory]:
    env = Walk()
    spec = env.task.spec
    decoder = LinearLayer(jnp.eye(1), jnp.zeros(1))
    model = DynamicsModel(Zeros(1), FourSteps(), decoder, NoTimer(), Scale.none(1), spec)
    policy = QPolicy(Towards((), ()), IdentityEncoder(), spec, 0.0, accrues=True)
    return env, model, policy, kairode.collect(env, episodes=100, seed=0)


def test_the_correction_of_a_model_that_ignores_the_interval(walk: Any) -> None:
    _, model, _, data = walk
    found = calibrate_model(model, data)
    assert found.correction is not None
    np.testing.assert_allclose(found.correction.taus, np.arange(1, 11))
    table = np.outer([-1, 0, 1], np.arange(1, 11) - 4)
    np.testing.assert_allclose(found.correction.table[..., 0], table, atol=1e-5)
    z, obs, taus = jnp.zeros(1), jnp.array([0.5]), jnp.array([0.5, 2.5, 6.0, 30.0])
    for action in range(3):
        # Linear between intervals, constant beyond.
        wanted = 0.5 + (action - 1) * np.array([1.0, 2.5, 6.0, 10.0])
        np.testing.assert_allclose(found.path(z, obs, jnp.array(action), taus)[1][:, 0], wanted, atol=1e-5)
        np.testing.assert_allclose(found.step(z, obs, jnp.array(action), taus[1])[1], wanted[1:2], atol=1e-5)
    again: Any = calibrate_model(found, data).correction
    np.testing.assert_array_equal(again.table, found.correction.table)


def test_the_calibrated_choice_is_that_of_the_true_dynamics(walk: Any) -> None:
    env, model, policy, data = walk
    corrected = optimize_schedule(model, policy, env, data=data, tolerance=0, calibrate=True)
    believed = optimize_schedule(model, policy, env, data=data, tolerance=0)
    choose = eqx.filter_jit(lambda s, d: (s.candidate_values(d, key=KEY), s.interval(jnp.zeros(()), d, key=KEY)))
    picks = set()
    # Predictions stay within a fifth of the range of the data beyond it, which is far away here.
    for x, action in itertools.product((-6.3, -2.1, 0.4, 3.7, 5.2), (0, 2)):
        obs = jnp.array([x], jnp.float32)
        memory = TrackedMemory((), LatentMemory(jnp.zeros((1, 1)), obs, jnp.array(action)))
        here = Decision(obs, jnp.array(action), jnp.zeros(()), jnp.array(0), memory)
        for schedule, ends in ((corrected, x + (action - 1) * np.arange(1, 11)), (believed, x + (action - 1) * 4.0)):
            path = np.broadcast_to(ends, 10)
            nearest = EXACT * np.min([(path + u) ** 2 for u in (-1, 0, 1)], axis=0)
            wanted = np.cumsum(GAMMA ** np.arange(10) * -(path**2)) + GAMMA ** np.arange(1, 11) * nearest
            values, tau = choose(schedule, here)
            np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-3)
            if schedule is corrected:
                assert wanted[round(float(tau)) - 1] == pytest.approx(wanted.max(), rel=1e-4), "two candidates tie"
                picks.add(float(tau))
    assert len(picks) > 3


class From(Walk):
    """Always from the same place."""

    def reset(self, *, key: Any) -> Any:
        return jnp.array([6.3])


@pytest.mark.slow
def test_calibrated_models_visit_as_the_true_dynamics_would(walk: Any) -> None:
    _, model, policy, data = walk
    env, corrected = From(), calibrate_model(model, data)
    wanted = returned(env, policy, optimize_schedule(env, policy, env))
    believed = returned(env, policy, optimize_schedule(model, policy, env, data=data, calibrate=False))
    schedule = optimize_schedule(model, policy, env, data=data)
    assert returned(env, policy, schedule) == pytest.approx(wanted, rel=1e-3)
    assert believed[1] > 1.5 * wanted[1]
    # A price is weighed in imagination, which with the calibrated model is as the system.
    assert returned(trial_env(corrected, env, data), policy, schedule) == pytest.approx(wanted, rel=1e-3)


def test_when_models_are_calibrated(walk: Any) -> None:
    env, model, policy, data = walk
    for options, wanted in (
        ({"data": data}, True),
        ({}, False),
        ({"data": data, "tolerance": 0}, False),
        ({"data": data, "calibrate": False}, False),
        ({"data": data, "tolerance": 0, "calibrate": True}, True),
    ):
        for models in (model, [model, model]):
            schedule: Any = optimize_schedule(models, policy, env, **options)
            assert (schedule.lookahead.models.correction is not None) == wanted
    assert isinstance(optimize_schedule(env, policy, env, data=data).lookahead, TrueLookahead)
    with pytest.raises(KairodeError, match=r"pass data="):
        optimize_schedule(model, policy, env, calibrate=True)


def test_mean_residuals_by_action_and_interval() -> None:
    rng = np.random.default_rng(0)
    actions, steps = np.repeat([0, 0, 0, 0, 1], [30, 5, 40, 9, 3]), np.repeat([1, 2, 4, 6, 2], [30, 5, 40, 9, 3])
    residuals = np.stack([3.0 * steps, np.zeros(len(steps))], axis=1) + rng.normal(size=(len(steps), 2))
    found = mean_residuals(residuals, actions, steps, 3)
    groups = [residuals[:30], residuals[35:75]]
    ends = []
    for group in groups:
        mean, variance = group.mean(0), group.var(0, ddof=1) / len(group)
        ends.append(np.where(mean**2 > variance, mean - variance / mean, 0.0))
    np.testing.assert_allclose(found[0, 0], ends[0])
    np.testing.assert_allclose(found[0, 2], ends[1])
    # Of the second and last interval there are too few: between the neighbours, and as the neighbour.
    np.testing.assert_allclose(found[0, 1], ends[0] + (ends[1] - ends[0]) / 3)
    np.testing.assert_allclose(found[0, 3], ends[1])
    np.testing.assert_array_equal(found[1:], 0.0)
    # What may be chance is no bias.
    np.testing.assert_array_equal(shrunk_mean(np.array([[1.0], [-0.9]])), [0.0])
    np.testing.assert_array_equal(shrunk_mean(np.zeros((4, 1))), [0.0])
    np.testing.assert_array_equal(shrunk_mean(np.full((4, 1), 2.5)), [2.5])


@pytest.mark.slow
def test_a_policy_learned_under_its_own_schedule() -> None:
    """Algorithm 1: values learned while they choose the intervals, the price among the rewards."""
    env = Line()
    options = {"hidden": (32, 32), "batch_size": 32, "replay_capacity": 2000, "learning_rate": 2e-3, "double_q": True}
    cheap, dear = (
        kairode.learn(
            None,
            env,
            schedule=schedule_for_learning(env, env, price=price),
            episodes=60,
            cooldown=0.3,
            **options,
        )
        for price in (0.0, 5.0)
    )
    results = [returned(env, p, optimize_schedule(env, p, env, tolerance=0)) for p in (cheap, dear)]
    chance = returned(env, kairode.learn(None, env, schedule=1, episodes=1, **options), Fixed(1.0))[0]
    assert results[0][0] > 0.5 * chance  # returns are negative
    assert results[1][1] < 0.7 * results[0][1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"price": -1.0}, "price must be at least 0"),
        ({"price": math.nan}, "price must be"),
        ({"budget": 0}, "budget must be an integer of at least 1"),
        (
            {"budget": 5},
            "a budget of 5 cannot cover 60 seconds with intervals of at most 10: increase it to at least 6",
        ),
        ({"candidates": []}, "schedule of 'linear' is empty"),
        ({"candidates": [3.0, 1.0]}, "must be strictly ascending, got 3, 1"),
        ({"candidates": [1.0, 1.0]}, "must be strictly ascending"),
        ({"candidates": [1.5]}, "multiples of 1 seconds, got 1.5"),
        ({"candidates": [1.0, 2.0, 3.0], "continuous": True}, "must be the minimum and the maximum"),
        ({"quantile": 1.5}, "quantile must lie in"),
        ({"tolerance": -0.1}, "tolerance must lie in"),
        ({"tolerance": 2.0}, "tolerance must lie in"),
    ],
)
def test_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(KairodeError, match=said):
        chosen(Linear(), **options)


def test_refused_without_what_it_needs() -> None:
    env = kairode.make("hiv")
    model = build("latent-ode", env.task.spec, ModelConfig(latent_size=4), key=KEY)
    policy = QPolicy(ReLUNetwork.new(6, 8, 4, key=KEY), IdentityEncoder(), env.task.spec)
    with pytest.warns(UserWarning, match="values count one reward per decision"):
        schedule = optimize_schedule(model, policy, env)
    assert isinstance(schedule.lookahead, ModelLookahead)
    with pytest.raises(KairodeError, match=r"use it with kairode\.evaluate"):
        schedule.candidate_values(decision(np.zeros(6), 0), key=KEY)
    unlearned = schedule_for_learning(env, env)
    assert isinstance(unlearned.lookahead, TrueLookahead)
    with pytest.raises(KairodeError, match="no policy yet"):
        kairode.collect(env, lambda obs, key: jnp.array(0), episodes=1, schedule=unlearned)
    with pytest.raises(KairodeError, match="pass a fitted model"):
        optimize_schedule([], dataclasses.replace(policy, accrues=True), env)
