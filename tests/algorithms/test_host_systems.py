"""Systems whose rewards and terminations are their simulator's own: learned from data; returns of those with a task."""

import signal
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import kairode
from kairode.callbacks import Progress
from kairode.envs.core import Spec, Task
from kairode.errors import KairodeError, Stopped
from kairode.planning.learned_task import task_of_system
from kairode.seeds import Purpose, derive

GAMMA = 0.95


class Balance(gymnasium.Env):
    """x' = 1.1 x + 0.15 u from near 0; every step earns 1, and beyond 1 the process ends. Random actions last for about
    15 steps."""

    observation_space, action_space = spaces.Box(-3.0, 3.0, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-0.3, 0.3))
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x = 1.1 * self.x + (0.15 if action else -0.15)
        return np.array([self.x], np.float32), 1.0, abs(self.x) > 1, False, {}


class Park(gymnasium.Env):
    """x' = x + 0.2 u from 1.5 or -1.5, for -x^2: at best -(1.3^2 + 1.1^2 + .. + 0.1^2) = -4.55."""

    observation_space, action_space = spaces.Box(-9.0, 9.0, (1,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
    stop_at = -1

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.choice([-1.5, 1.5]))
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.stop_at:
            signal.raise_signal(signal.SIGINT)
        self.x += 0.2 * float(action[0])
        return np.array([self.x], np.float32), -(self.x**2), False, False, {}


class Drift(Park):
    """Its seeds do not say where it goes."""

    def step(self, action):
        self.x += 1e-3 * np.random.default_rng().normal()
        return super().step(action)


def balance() -> Any:
    return kairode.from_gymnasium(Balance, intervals=(1, 2), discount=GAMMA, horizon=60)


SMALL: dict[str, Any] = {"latent_size": 4, "field_hidden": 16}
LEARN: dict[str, Any] = {"episodes": 300, "hidden": (32,), "batch_size": 32, "replay_capacity": 4096}


@pytest.fixture(scope="module")
def fitted() -> tuple[Any, Any, list[Any]]:
    """The system, data of random actions, and models of them."""
    env = balance()
    data = kairode.collect(env, episodes=150)
    assert data.undiscounted.mean() < 20
    return env, data, kairode.fit("dt-rnn", data, iterations=400, seeds=2, **SMALL)


@pytest.mark.slow
def test_rewards_and_ends_are_learned(fitted) -> None:
    env, data, _ = fitted
    task = task_of_system(env, data)
    x, u = np.linspace(-0.8, 0.8, 9), 1
    first = 1.1 * x + 0.15
    ends = np.abs(first) > 1
    judge = jax.vmap(lambda obs, after: task.reward(obs, jnp.asarray(u), after, jnp.asarray(1.0)))
    chance = jax.vmap(lambda obs, after: task.end_probability(obs, jnp.asarray(u), after, jnp.asarray(1.0)))
    arrays = [jnp.asarray(v, jnp.float32)[:, None] for v in (x, first)]
    np.testing.assert_allclose(judge(*arrays), 1.0, atol=0.2)
    found = np.asarray(chance(*arrays))
    assert (found[ends] > 0.5).all()
    assert (found[~ends & (np.abs(first) < 0.85)] < 0.3).all()


@pytest.mark.slow
def test_learned_in_models_of_random_data_it_balances(fitted) -> None:
    env, data, models = fitted
    policy = kairode.learn(models, env, data=data, rollout_length=10, **LEARN)
    assert kairode.evaluate(env, policy, episodes=30).score > 50


@pytest.mark.slow
def test_intervals_are_chosen_for_a_host_system(fitted) -> None:
    env, data, models = fitted
    policy = kairode.learn(models, env, data=data, accrue=True, **LEARN)
    own = kairode.evaluate(env, policy, episodes=30)
    found = []
    for price in (0.0, 0.5):
        schedule = kairode.optimize_schedule(models, policy, env, data=data, price=price)
        found.append(kairode.evaluate(env, policy, episodes=30, schedule=schedule))
    assert found[0].score > 50 or found[0].score >= own.score
    assert found[1].score > 40
    assert found[1].decisions < found[0].decisions or found[1].decisions <= 31, "a price makes them fewer"
    with pytest.raises(KairodeError, match=r"the rewards of 'Balance' are its simulator's own, .*: pass data="):
        kairode.optimize_schedule(models, policy, env)
    with pytest.raises(KairodeError, match=r"on its own schedule or a fixed one: learn it in models"):
        kairode.learn(None, env, schedule=schedule)


@pytest.mark.slow
def test_dyna_rounds_balance(tmp_path: Path) -> None:
    options = {"fit_iterations": 300, "imagined_episodes": 300, "ensemble_size": 2, "initial_episodes": 30}
    options |= {"model": "dt-rnn", "episodes_per_round": 5, **SMALL}
    made = kairode.train_dyna(balance(), rounds=1, folder=tmp_path, **options)
    found = kairode.evaluate(balance(), made.policy, episodes=30)
    assert found.score > 50
    assert found.terminated < 0.2
    again = kairode.train_dyna(balance(), rounds=1, folder=tmp_path, **options)
    assert again.rounds == made.rounds
    np.testing.assert_array_equal(again.data.observation, made.data.observation)


PLAN: dict[str, Any] = {
    "decisions": 450,
    "refit_every": 150,
    "candidates": 50,
    "horizon": 5,
    "agent": {"warmup": 150, "hidden": (32, 32)},
    "sizes": {"latent_size": 6, "field_hidden": 16},
}


def park(kind: type[Park] = Park, stop_at: int = -1) -> Any:
    made: list[Park] = []

    def make() -> Park:
        env = kind()
        env.stop_at = stop_at if len(made) == 2 else -1  # the first two are looked at only
        made.append(env)
        return env

    return kairode.from_gymnasium(make, intervals=(1, 3), discount=GAMMA, horizon=30, name="park")


@pytest.mark.slow
def test_plans_with_a_learned_reward_park() -> None:
    policy = kairode.train_mpc(park(), "dt-rnn", max_fit_iterations=150, **PLAN)
    assert kairode.evaluate(park(), None, episodes=30).score < -50
    assert kairode.evaluate(park(), policy, episodes=30).score > -9


@pytest.mark.slow
def test_plans_resume_within_an_episode(tmp_path: Path) -> None:
    options = {**PLAN, "decisions": 190, "max_fit_iterations": 10}
    options["agent"] = {"warmup": 100, "hidden": (16, 16)}
    whole = kairode.train_mpc(park(), "dt-rnn", **options)
    with pytest.raises(Stopped, match=r"interrupted after \d+ decisions, saved"):
        kairode.train_mpc(park(stop_at=291), "dt-rnn", folder=tmp_path / "same", **options)
    done = kairode.train_mpc(park(), "dt-rnn", folder=tmp_path / "same", **options)
    for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(done), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    # What cannot be repeated begins its episode again, and says so.
    with pytest.raises(Stopped, match=r"interrupted after \d+ decisions, saved"):
        kairode.train_mpc(park(Drift, stop_at=291), "dt-rnn", folder=tmp_path / "other", **options)
    told: list[Progress] = []
    kairode.train_mpc(park(Drift), "dt-rnn", folder=tmp_path / "other", callback=told.append, **options)
    assert any("cannot be continued" in report.message for report in told)


# Returns with a task


class Upright(Task):
    """Written for JAX and for one example: the logarithm of the distance to the end, which is terminal below 0.4."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs, action, next_obs, tau):
        return tau * jnp.where(action > 0, jnp.log(1.1 - jnp.minimum(jnp.abs(next_obs[0]), 1.0)), -0.1)

    def terminal(self, obs):
        return jnp.where(jnp.abs(obs[0]) > 1.0, True, jnp.abs(obs[0]) > 0.7)


def judged(x: float, action: int) -> float:
    """The reward of a step."""
    return float(np.log(1.1 - min(abs(x), 1.0))) if action > 0 else -0.1


@pytest.mark.parametrize("schedule", [4, [1, 5]])
def test_rewards_accrue_on_every_step(schedule: Any) -> None:
    env = kairode.from_gymnasium(Balance, intervals=(1, 4), discount=GAMMA, horizon=11, task=Upright)
    found = kairode.evaluate(
        env, lambda obs, key: (obs[0] < 0.1).astype(jnp.int32), episodes=12, schedule=schedule, accrue=True
    )
    totals, discounted, decisions, ends = [], [], [], []
    taus = [schedule] if isinstance(schedule, int) else schedule
    for seed in np.random.SeedSequence(derive(0, Purpose.TEST)).generate_state(12).tolist():
        gym, total, worth, count, time, over = Balance(), 0.0, 0.0, 0, 0, False
        obs, _ = gym.reset(seed=seed)
        while not over and time < 11:
            action = int(obs[0] < 0.1)
            for _ in range(taus[count % len(taus)]):
                obs, *_ = gym.step(action)
                total += judged(float(obs[0]), action)
                worth += GAMMA**time * judged(float(obs[0]), action)
                time += 1
                over = abs(float(obs[0])) > 0.7
                if over or time == 11:
                    break
            count += 1
        totals.append(total)
        discounted.append(worth)
        decisions.append(count)
        ends.append(over)
    assert found.returns["accrued_return"] == pytest.approx(np.mean(totals), rel=1e-5)
    assert found.returns["discounted_accrued_return"] == pytest.approx(np.mean(discounted), rel=1e-5)
    assert found.decisions == pytest.approx(np.mean(decisions))
    assert found.terminated == pytest.approx(np.mean(ends))
    assert 0 < np.mean(ends) < 1


def test_a_simulators_own_rewards_accrue_always() -> None:
    env = balance()
    plain, accrued = (kairode.evaluate(env, None, episodes=10, schedule=2, accrue=accrue) for accrue in (False, True))
    assert accrued.returns["accrued_return"] == plain.returns["return"]
    found = kairode.collect(env, episodes=10, seed=derive(0, Purpose.TEST), schedule=2)
    assert plain.returns["return"] == pytest.approx(found.interval.sum(1).mean()), "1 for every step"


def test_what_imagination_needs() -> None:
    env = balance()
    with pytest.raises(KairodeError, match=r"begins where its data do: pass data=.., such as"):
        kairode.learn([], env)
    with pytest.raises(KairodeError, match=r"the reward of 'Balance' is its simulator's own, and a model cannot"):
        env.task.reward(jnp.zeros(1), jnp.asarray(0), jnp.zeros(1), jnp.ones(()))
    with pytest.raises(KairodeError, match=r"continuous: use kairode.train_mpc"):
        kairode.train_dyna(park())
    with pytest.raises(KairodeError, match=r"are discrete: use kairode.learn"):
        kairode.train_mpc(env)
