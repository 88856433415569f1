"""The HIV simulator against scipy's BDF in float64, along random and along good treatment."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import fsolve

import kairode
from kairode.data import Policy
from kairode.envs.hiv import HEALTHY, MARKERS, UNHEALTHY

EFFICACY = [(0.0, 0.0), (0.7, 0.0), (0.0, 0.3), (0.7, 0.3)]
DAYS = np.arange(1.0, 15.0)
KEY = jax.random.key(0)
HARDEST = np.array([[5.8506e5, 1704.83, 0.470, 0.434, 3.271, 10.087]], np.float32)
"""Met after a long treatment: with 16 steps a day, not 24, it had the largest error of thousands of states."""


def reference_field(t, y, e1, e2):
    """The equations once more, written from the protocol in plain Python."""
    T1, T2, T1s, T2s, V, E = map(float, y)
    return [
        1e4 - 0.01 * T1 - (1 - e1) * 8e-7 * V * T1,
        31.98 - 0.01 * T2 - (1 - 0.34 * e1) * 1e-4 * V * T2,
        (1 - e1) * 8e-7 * V * T1 - 0.7 * T1s - 1e-5 * E * T1s,
        (1 - 0.34 * e1) * 1e-4 * V * T2 - 0.7 * T2s - 1e-5 * E * T2s,
        (1 - e2) * 100 * 0.7 * (T1s + T2s) - 13 * V - ((1 - e1) * 8e-7 * T1 + (1 - 0.34 * e1) * 1e-4 * T2) * V,
        1 + 0.3 * (T1s + T2s) / ((T1s + T2s) + 100) * E - 0.25 * (T1s + T2s) / ((T1s + T2s) + 500) * E - 0.1 * E,
    ]


def reference(state, action):
    """The states after 1 to 14 days."""
    span = (0.0, DAYS[-1])
    y = np.asarray(state, np.float64)
    solved = solve_ivp(reference_field, span, y, "BDF", t_eval=DAYS, rtol=1e-10, atol=1e-10, args=EFFICACY[action])
    return solved.y.T


class Cycles(Policy):
    """Long treatment with both drugs, then a long pause, over and over: the virus nearly goes, then rebounds."""

    def start(self, *, key):
        treated, paused = jax.random.uniform(key, (2,), minval=5.0, maxval=120.0)
        return jnp.zeros(()), treated, paused

    def act(self, memory, obs, elapsed, *, key):
        time, treated, paused = memory
        time = time + elapsed
        return jnp.where(time % (treated + paused) < treated, 3, 0), (time, treated, paused)


class Steered(Policy):
    """Treat while many cells are infected, pause while few are: the immune response grows towards health."""

    def start(self, *, key):
        return ()

    def act(self, memory, obs, elapsed, *, key):
        infected = kairode.make("hiv").task.marker("T1*", obs)
        return jnp.where(infected > 400.0, 3, 0), memory


@functools.cache
def states(treatment: str, episodes: int = 10) -> np.ndarray:
    """20 states for each episode, met under a treatment."""
    env = kairode.make("hiv")
    if treatment == "random":
        seen = [kairode.collect(env, episodes=episodes, seed=1)]
    else:
        seen = [
            kairode.collect(env, Cycles(), episodes=3 * episodes, seed=2, schedule=2),
            kairode.collect(env, Steered(), episodes=episodes, seed=3, schedule=[1, 2, 5]),
        ]
    rows = [t.observation[:, :-1][t.mask] for t in seen]
    pick = np.random.default_rng(0)
    rows = [r[pick.choice(len(r), 20 * episodes // len(rows), replace=False)] for r in rows]
    obs = np.concatenate(rows)
    met = np.stack([np.asarray(env.task.marker(name, obs)) for name in MARKERS], axis=1)
    return met if treatment == "random" else np.concatenate([met, HARDEST])


@functools.cache
def some_states() -> np.ndarray:
    """Eight of the states met under good treatment, those with most and with least virus among them."""
    met = states("good", 1)
    order = np.argsort(met[:-1, 4])
    return np.concatenate([met[order[[0, 1, len(order) // 3, len(order) // 2, -4, -2, -1]]], HARDEST])


@eqx.filter_jit
def lanes(env, start, actions, days):
    return jax.vmap(lambda s, a, d: env.transition(s, a, d, key=KEY))(start, actions, days)


def after(env, start, actions, days, dtype):
    """States with axes (start, action, days)."""
    i, a, d = (x.ravel() for x in np.meshgrid(np.arange(len(start)), actions, days, indexing="ij"))
    found = lanes(env, jnp.asarray(start[i], dtype), jnp.asarray(a.astype(np.int32)), jnp.asarray(d, dtype))
    return np.asarray(found).reshape(len(start), len(actions), len(days), 6)


@pytest.mark.slow
@pytest.mark.parametrize("action", range(4))
@pytest.mark.parametrize("treatment", ["random", "good"])
def test_transition_equals_bdf(treatment: str, action: int) -> None:
    start = states(treatment)
    assert len(start) >= 200
    expected = np.stack([reference(state, action) for state in start])
    if action == 0:
        assert expected[..., 4].max() > (8e5 if treatment == "random" else 1.2e6), "the rebounds must be among them"

    got = after(kairode.make("hiv"), start, [action], DAYS, jnp.float32)[:, 0]

    np.testing.assert_allclose(got, expected, rtol=1e-4)


@pytest.fixture(scope="module")
def some_expected() -> np.ndarray:
    """After each treatment, by BDF."""
    return np.stack([[reference(state, action) for action in range(4)] for state in some_states()])


def test_some_transitions_equal_bdf(some_expected: np.ndarray) -> None:
    assert some_expected[:, 0, :, 4].max() > 8e5, "the rebounds must be among them"
    got = after(kairode.make("hiv"), some_states(), range(4), DAYS, jnp.float32)
    np.testing.assert_allclose(got, some_expected, rtol=1e-4)


def test_transition_in_float64_is_closer(some_expected: np.ndarray) -> None:
    start = some_states().astype(np.float64)
    with jax.enable_x64(True):
        got = after(kairode.make("hiv", steps_per_day=64.0, steps_per_virus=8e-4), start, range(4), DAYS, jnp.float64)
    np.testing.assert_allclose(got, some_expected, rtol=1e-6)


def test_steady_states_stay_put() -> None:
    rounded = (UNHEALTHY, HEALTHY)
    steady = np.stack([fsolve(lambda y: reference_field(0.0, y, 0.0, 0.0), state, xtol=1e-12) for state in rounded])
    np.testing.assert_allclose(steady, rounded, atol=0.5, rtol=1e-4)
    whole = after(kairode.make("hiv"), steady, [0], [100.0], jnp.float32)[:, 0, 0]
    np.testing.assert_allclose(whole, steady, rtol=1e-3)


def test_untreated_patients_stay_as_they_are() -> None:
    # Every episode starts at the rounded steady state, and settles onto the exact one.
    env = kairode.make("hiv")
    steady = fsolve(lambda y: reference_field(0.0, y, 0.0, 0.0), UNHEALTHY, xtol=1e-12)
    visits = kairode.collect(env, lambda obs, key: 0, episodes=1, schedule=5)
    settled = [float(env.task.marker(name, visits.observation[0, -1])) for name in MARKERS]
    np.testing.assert_allclose(settled, steady, rtol=1e-3)


def test_interval_splits() -> None:
    # Whole, halved or in uneven parts, the same days lead to the same state.
    env, start, actions = kairode.make("hiv"), np.repeat(some_states(), 2, axis=0), jnp.array([0, 3] * 8)
    whole = lanes(env, jnp.asarray(start), actions, jnp.full(16, 7.0))
    parts = jnp.asarray(start)
    for days in (0.5, 2.25, 4.25):
        parts = lanes(env, parts, actions, jnp.full(16, days))
    np.testing.assert_allclose(parts, whole, rtol=1e-4)


def test_reward_and_observation() -> None:
    env = kairode.make("hiv")
    state = jnp.array(HEALTHY)
    obs = env.observe(state)
    mean = np.array([5.41947795, 1.59751311, 3.03701108, 1.45943164, 3.7256933, 1.73064582])
    std = np.array([0.1913442, 0.86731865, 1.19517352, 0.48159324, 1.16411527, 0.20234819])
    np.testing.assert_allclose(obs, (np.log10(HEALTHY) - mean) / std, rtol=1e-5)
    for action, (e1, e2) in enumerate(EFFICACY):
        expected = -0.1 * HEALTHY[4] - 20000 * e1**2 - 2000 * e2**2 + 1000 * HEALTHY[5]
        got = env.task.reward(obs, jnp.asarray(action), obs, jnp.asarray(5.0))
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert not env.task.terminal(obs)


def test_partial_hides_the_infected_cells() -> None:
    full, partial = kairode.make("hiv"), kairode.make("hiv-partial")
    state = jnp.array(UNHEALTHY)
    np.testing.assert_array_equal(partial.observe(state), np.asarray(full.observe(state))[[0, 1, 4, 5]])
    rewards = [
        env.task.reward(env.observe(state), jnp.asarray(3), env.observe(state), jnp.asarray(5.0))
        for env in (full, partial)
    ]
    np.testing.assert_allclose(rewards[0], rewards[1], rtol=1e-6)
    names = [v.name for v in partial.task.spec.observations]
    assert names == ["T1", "T2", "V", "E"]
