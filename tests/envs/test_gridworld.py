"""The windy gridworld against courses worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import kairode
from kairode.envs.gridworld import MOVES, wind

KEY = jax.random.key(0)
WEAK, STRONG = 0.17 / 4, 0.17 / 2


def move(start, action: str, tau: float, env=None):
    env = env or kairode.make("gridworld")
    index = jnp.asarray(list(MOVES).index(action))
    return np.asarray(env.transition(jnp.array(start), index, jnp.asarray(float(tau)), key=KEY))


@pytest.mark.parametrize(
    ("start", "action", "tau", "end"),
    [
        ((0.0, -4.5), "right", 7, (0.0, -4.5 + 7 * 0.17)),  # no wind there
        ((0.0, -4.5), "up-left", 2, (2 * 0.17 / 2**0.5, -4.5 - 2 * 0.17 / 2**0.5)),
        ((0.0, -2.6), "right", 3, (2 * WEAK, -2.6 + 3 * 0.17)),  # enters the wind after a second
        ((0.0, 1.0), "down", 2, (2 * (STRONG - 0.17), 1.0)),  # the strong wind replaces the weak one
        ((0.0, 0.5), "up", 1, (0.17 + WEAK, 0.5)),  # the strong band is open, the weak one closed
        ((0.0, 2.5), "up", 1, (0.17 + WEAK, 2.5)),
        ((0.0, 3.4), "right", 2, (WEAK, 3.4 + 2 * 0.17)),  # and out of it again
        ((3.4, 1.0), "up", 3, (3.5, 1.0)),  # walls
        ((0.0, -4.9), "down-left", 4, (-4 * 0.17 / 2**0.5, -5.0)),
        ((0.0, -4.5), "right", 0.5, (0.0, -4.5 + 0.5 * 0.17)),  # half a second does half
        ((0.0, 1.0), "left", 2.5, (2.5 * STRONG, 1.0 - 2.5 * 0.17)),
    ],
)
def test_courses(start, action, tau, end) -> None:
    np.testing.assert_allclose(move(start, action, tau), end, atol=1e-6)


def test_the_wall_clips_every_second() -> None:
    # Pushed against the wall under noise, the state never lies further off than one second's noise would bring it.
    # Clipped only at the end, sums of five seconds' noise would.
    env = kairode.make("gridworld", noise=0.05)
    keys = jax.random.split(KEY, 20_000)
    step = jax.vmap(lambda k: env.transition(jnp.array([3.5, -4.0]), jnp.asarray(0), jnp.asarray(5.0), key=k))
    inside = np.asarray(3.5 - step(keys)[:, 0])
    # The last second starts at the wall at best, moves 0.17 into it, and needs noise of -0.17 or less to leave it:
    # P(N(0, 0.05) < -0.17) = 3.4e-4. A sum of five seconds clipped once would leave it with P = 2e-14.
    left = (inside > 0).sum()
    assert stats.binomtest(int(left), len(inside), stats.norm.cdf(-0.17 / 0.05)).pvalue > 1e-3
    assert left > 0


@pytest.mark.parametrize("tau", [0.0, 0.3, 1.0, 2.5, 7.0, 8.0, 20.0])
def test_any_interval_equals_seconds_in_numpy(tau: float) -> None:
    """Shorter and longer ones than its own of 1 to 7 s, 300 at once."""
    rng = np.random.default_rng(0)
    state = rng.uniform([-3.5, -5], [3.5, 5], (300, 2)).astype(np.float32)
    action = rng.integers(8, size=300)
    env = kairode.make("gridworld")
    step = jax.jit(jax.vmap(lambda s, a: env.transition(s, a, jnp.float32(tau), key=KEY)))
    expected, left = state.astype(np.float64), tau
    while left > 1e-5:
        part, y = min(left, 1.0), expected[:, 1]
        strong, weak = (y > 0.5) & (y < 2.5), (y >= -2.5) & (y <= 3.5)
        moved = np.array(list(MOVES.values()))[action]
        moved[:, 0] += np.where(strong, STRONG, np.where(weak, WEAK, 0.0))
        expected = np.clip(expected + part * moved, [-3.5, -5], [3.5, 5])
        left -= part
    np.testing.assert_allclose(step(state, action), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("y", "push"),
    [
        (-2.51, 0),
        (-2.5, WEAK),
        (0.5, WEAK),
        (0.51, STRONG),
        (2.49, STRONG),
        (2.5, WEAK),
        (3.5, WEAK),
        (3.51, 0),
    ],
)
def test_wind_bands(y, push) -> None:
    np.testing.assert_allclose(wind(jnp.asarray(y)), push, atol=1e-7)


def test_goal_counts_at_decision_times_only() -> None:
    env = kairode.make("gridworld")
    start = (-0.3, 1.45)
    inside = move(start, "right", 3)
    assert bool(env.task.terminal(jnp.asarray(inside)))
    through = move(start, "right", 7)  # in the goal after each of the first six seconds, behind it after the seventh
    assert not bool(env.task.terminal(jnp.asarray(through)))
    reward = env.task.reward(jnp.array(start), jnp.asarray(3), jnp.asarray(inside), jnp.asarray(3.0))
    assert float(reward) == 10 - 3
    reward = env.task.reward(jnp.array(start), jnp.asarray(3), jnp.asarray(through), jnp.asarray(7.0))
    assert float(reward) == -7


@pytest.mark.parametrize(
    ("x", "y", "goal"), [(0.5, 1.5, True), (-0.5, 2.5, True), (0.51, 2.0, False), (0.0, 2.51, False)]
)
def test_goal_edges(x, y, goal) -> None:
    assert bool(kairode.make("gridworld").task.terminal(jnp.array([x, y]))) == goal


def test_starts() -> None:
    env = kairode.make("gridworld")
    starts = np.asarray(jax.vmap(lambda k: env.reset(key=k))(jax.random.split(KEY, 4000)))
    for values, (low, high) in zip(starts.T, ((-0.5, 0.5), (-5.0, -4.0)), strict=True):
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-3


def test_published_noise_of_one_second_and_of_five() -> None:
    env = kairode.make("gridworld", setting="paper")
    assert env.noise == 0.05
    count = 20_000
    keys = jax.random.split(KEY, count)
    for seconds in (1, 5):
        ends = jax.vmap(
            lambda k, t=seconds: env.transition(jnp.array([0.0, -4.0]), jnp.asarray(0), jnp.asarray(float(t)), key=k)
        )(keys)
        ends = np.asarray(ends, np.float64)
        spread = 0.05 * seconds**0.5
        error = spread / count**0.5
        np.testing.assert_allclose(ends.mean(0), (0.17 * seconds, -4.0), atol=4 * error)
        for coordinate in ends.T:  # the sample variance follows a chi-square law
            scaled = coordinate.var(ddof=1) * (count - 1) / spread**2
            assert 1e-3 < stats.chi2(count - 1).cdf(scaled) < 1 - 1e-3
        assert abs(np.corrcoef(ends.T)[0, 1]) < 4 / count**0.5
