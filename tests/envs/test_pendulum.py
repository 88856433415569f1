"""The pendulum against scipy's solution and against Gymnasium's own."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import kairode
from kairode.envs.vector_jax import JaxVectorEnv
from kairode.errors import KairodeError


def test_equals_scipys_solution() -> None:
    env = kairode.make("pendulum")
    rng = np.random.default_rng(0)
    step = jax.jit(lambda state, action, tau: env.transition(state, action, tau, key=jax.random.key(0)))
    for _ in range(20):
        state, torque, tau = rng.uniform([-np.pi, -2], [np.pi, 2]), rng.uniform(-2, 2), 0.05 * rng.integers(1, 6)

        def pendulum_field(t, y, torque=torque):
            return [y[1], 15 * np.sin(y[0]) + 3 * torque]

        truth = scipy.integrate.solve_ivp(pendulum_field, (0, tau), state, rtol=1e-10, atol=1e-10).y[:, -1]
        assert np.abs(truth[1]) < 8
        found = step(jnp.asarray(state, jnp.float32), jnp.array([torque], jnp.float32), jnp.asarray(tau, jnp.float32))
        np.testing.assert_allclose(found, truth, rtol=1e-4, atol=2e-5)


def test_is_gymnasiums_pendulum_but_for_its_coarse_steps() -> None:
    theirs, env = gymnasium.make("Pendulum-v1").unwrapped, kairode.make("pendulum")
    rng = np.random.default_rng(1)
    for _ in range(20):
        state, torque = rng.uniform([-np.pi, -4], [np.pi, 4]), rng.uniform(-3, 3)
        theirs.reset(seed=0)
        theirs.state = state.copy()
        seen, reward, *_ = theirs.step(np.array([torque], np.float32))
        action, tau = jnp.array([torque], jnp.float32), jnp.asarray(0.05, jnp.float32)
        after = env.transition(jnp.asarray(state, jnp.float32), action, tau, key=jax.random.key(0))
        np.testing.assert_allclose(env.observe(after), seen, atol=0.12)  # a step changes the velocity by up to 1
        # Its cost is that of the state before the step, ours of the one after.
        held = jnp.clip(action, -2.0, 2.0)
        ours = env.task.reward(jnp.asarray(seen), held, env.observe(jnp.asarray(state, jnp.float32)), tau)
        assert float(ours) == pytest.approx(float(reward), abs=1e-3)


def test_limits_and_fields() -> None:
    env = kairode.make("pendulum", intervals=(0.1, 0.1), horizon=1.0)
    found = kairode.collect(env, lambda obs, key: jnp.array([2.0]), episodes=3)
    assert (np.abs(found.observation[..., 2]) <= 8).all()
    assert found.length.tolist() == [10, 10, 10]
    one, other = (kairode.make("pendulum", substep=s) for s in (0.01, 0.002))
    state, torque, tau = jnp.array([3.0, 1.0]), jnp.array([1.0]), jnp.asarray(1.0)
    fine, finer = (env.transition(state, torque, tau, key=jax.random.key(0)) for env in (one, other))
    np.testing.assert_allclose(fine, finer, rtol=1e-4, atol=1e-4)
    for wrong in ({"substep": 0.0}, {"intervals": (0.07, 0.1)}):
        with pytest.raises(KairodeError):
            kairode.make("pendulum", **wrong)


def test_a_vector_env_continues_from_a_snapshot() -> None:
    vector_env, other = (JaxVectorEnv(kairode.make("pendulum"), 3) for _ in range(2))
    rng = np.random.default_rng(0)
    actions = rng.uniform(-2, 2, (8, 3, 1)).astype(np.float32)
    vector_env.reset([1, 2, 3])
    for action in actions[:4]:
        vector_env.step(action)
    obs = other.restore(vector_env.snapshot())
    np.testing.assert_array_equal(obs, np.asarray(vector_env.episodes.obs))
    for action in actions[4:]:
        for mine, theirs in zip(vector_env.step(action), other.step(action), strict=True):
            np.testing.assert_array_equal(mine, theirs)
