"""Acrobot against Gymnasium's, against itself in shorter intervals, and against the conservation of energy."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode

KEY = jax.random.key(0)


def hold(env, state, action, tau):
    return env.transition(state, jnp.asarray(action), jnp.asarray(tau, state.dtype), key=KEY)


def angle_difference(a, b):
    return (np.asarray(a) - np.asarray(b) + np.pi) % (2 * np.pi) - np.pi


def test_equals_gymnasium() -> None:
    theirs = gymnasium.make("Acrobot-v1").unwrapped
    theirs.reset(seed=0)
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        env = kairode.make("acrobot", substep=0.2)
        step = jax.jit(lambda state, action: hold(env, state, action, 0.2))
        state = jnp.asarray(theirs.state, jnp.float64)
        for _ in range(100):
            action = int(rng.integers(3))
            _, _, terminated, _, _ = theirs.step(action)
            state = step(state, jnp.asarray(action))
            np.testing.assert_allclose(angle_difference(state[:2], theirs.state[:2]), 0, atol=1e-8)
            np.testing.assert_allclose(state[2:], theirs.state[2:], atol=1e-8)
            assert bool(env.task.terminal(env.observe(state))) == terminated


def test_velocities_are_bounded_as_gymnasium_does() -> None:
    theirs = gymnasium.make("Acrobot-v1").unwrapped
    theirs.reset(seed=0)
    theirs.state = np.array([2.0, -3.0, 12.4, -28.2])
    with jax.enable_x64(True):
        env = kairode.make("acrobot", substep=0.2)
        state = hold(env, jnp.asarray(theirs.state), 2, 0.2)
        theirs.step(2)
        np.testing.assert_allclose(state, theirs.state, atol=1e-8)
        far = np.asarray(hold(env, jnp.array([2.0, -3.0, 4 * np.pi, 9 * np.pi]), 2, 0.2))
    assert abs(far[2]) <= 4 * np.pi
    assert abs(far[3]) <= 9 * np.pi


def test_one_long_interval_equals_five_short() -> None:
    env = kairode.make("acrobot")
    low, high = jnp.array([-3.0, -3.0, -3.0, -3.0]), jnp.array([3.0, 3.0, 3.0, 3.0])
    starts = jax.random.uniform(KEY, (100, 4), minval=low, maxval=high)
    for action in range(3):
        long = jax.jit(jax.vmap(lambda s, a=action: hold(env, s, a, 1.0)))(starts)
        fifth = jax.jit(jax.vmap(lambda s, a=action: hold(env, s, a, 0.2)))
        short = starts
        for _ in range(5):
            short = fifth(short)
        np.testing.assert_allclose(angle_difference(long[:, :2], short[:, :2]), 0, atol=1e-4)
        np.testing.assert_allclose(long[:, 2:], short[:, 2:], atol=2e-4)


def energy(state):
    """Kinetic and potential energy of two rods, from the positions and velocities of their centres of mass."""
    theta1, theta2, dtheta1, dtheta2 = np.asarray(state, np.float64).T
    both, spin = theta1 + theta2, dtheta1 + dtheta2
    vx = np.cos(theta1) * dtheta1 + 0.5 * np.cos(both) * spin
    vy = np.sin(theta1) * dtheta1 + 0.5 * np.sin(both) * spin
    kinetic = 0.5 * (0.25 * dtheta1**2 + vx**2 + vy**2 + dtheta1**2 + spin**2)
    return kinetic + 9.8 * (-0.5 * np.cos(theta1) - np.cos(theta1) - 0.5 * np.cos(both))


def test_energy_is_conserved_without_torque() -> None:
    env = kairode.make("acrobot")
    low, high = jnp.array([-3.0, -3.0, -2.0, -2.0]), jnp.array([3.0, 3.0, 2.0, 2.0])
    starts = jax.random.uniform(KEY, (200, 4), minval=low, maxval=high)
    ends = jax.vmap(lambda s: hold(env, s, 1, 10.0))(starts)
    assert np.abs(np.asarray(ends - starts)).max() > 1
    swing = 2 * 9.8 * 2.0  # joules between hanging and standing
    np.testing.assert_allclose(energy(ends) / swing, energy(starts) / swing, atol=1e-4)


def test_published_run_takes_one_step_an_interval() -> None:
    env, paper = kairode.make("acrobot", substep=1.0), kairode.make("acrobot", setting="paper")
    state = jnp.array([1.0, 0.5, 2.0, -1.0])
    np.testing.assert_array_equal(hold(env, state, 2, 1.0), hold(paper, state, 2, 1.0))
    fine = hold(kairode.make("acrobot"), state, 2, 1.0)
    assert np.abs(np.asarray(fine - hold(paper, state, 2, 1.0))).max() > 1e-2


@pytest.mark.parametrize(("angles", "height"), [((0.0, 0.0), -2.0), ((np.pi, 0.0), 2.0), ((np.pi / 2, np.pi / 2), 1.0)])
def test_reward_is_the_height_of_the_tip(angles, height) -> None:
    task = kairode.make("acrobot").task
    obs = jnp.array([*angles, 0.3, -0.2])
    np.testing.assert_allclose(task.reward(obs, jnp.asarray(0), obs, jnp.asarray(0.2)), height, atol=1e-6)
    assert bool(task.terminal(obs)) == (height > 1.5)
