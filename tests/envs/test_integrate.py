"""The loop as one kernel: what Pallas computes, lane by lane, is what the plain function does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kairode.envs import hiv
from kairode.envs.integrate import _elementwise, integrate


def held(x: jax.Array, v: jax.Array, tau: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An oscillator, x'' = -x - x^3, in more steps where it is fast: lanes differ in their number of turns."""
    return integrate(lambda y: (y[1], -y[0] - y[0] ** 3), (x, v), tau, lambda y: 2 + 5 * jnp.abs(y[1]))


ELEMENTWISE = _elementwise(held, interpret=True)


def values(*shape: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(2, *shape)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(v), jnp.asarray(rng.uniform(0.1, 3, shape).astype(np.float32))


def close(found: tuple[jax.Array, ...], wanted: tuple[jax.Array, ...]) -> None:
    assert isinstance(found, tuple)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_one_lane() -> None:
    close(ELEMENTWISE(*values()), held(*values()))


def test_under_a_vmap() -> None:
    x, v, tau = values(7)
    close(jax.vmap(ELEMENTWISE)(x, v, tau), jax.vmap(held)(x, v, tau))
    # One time for all lanes.
    axes = (0, 0, None)
    close(jax.vmap(ELEMENTWISE, axes)(x, v, tau[0]), jax.vmap(held, axes)(x, v, tau[0]))


@pytest.mark.parametrize("axes", [(0, 0, 0), (None, 0, 1), (0, None, None)])
def test_under_two_vmaps(axes: tuple) -> None:
    """With arguments that have neither axis, one of them, or both, the outer one in any place."""
    arrays = values(3, 3)
    inner = (0, 0, None) if axes[2] is None else (0, 0, 0)
    arrays = [x if axis is not None else x[0] for x, axis in zip(arrays, axes, strict=True)]
    if axes[2] is None:
        arrays[2] = arrays[2][0]
    both = [jax.jit(jax.vmap(jax.vmap(one, inner), axes))(*arrays) for one in (ELEMENTWISE, held)]
    close(*both)


def test_elementwise_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator that is run so on a GPU, under the two vmaps of agents and patients."""
    env, keys = hiv.HIV(), jax.random.split(jax.random.key(0), 2)
    states = jnp.array(hiv.UNHEALTHY)[None, None] * jnp.array([[0.5, 1.0, 2.0], [0.9, 1.1, 1.5]])[..., None]
    actions, taus = jnp.array([[0, 1, 2], [3, 0, 1]]), jnp.array([[1.0, 2.0, 1.5], [0.3, 1.0, 0.7]])

    def after() -> jax.Array:
        one = jax.vmap(lambda state, action, tau: env.transition(state, action, tau, key=keys[0]))
        return jax.jit(jax.vmap(one))(states, actions, taus)

    plain = after()
    monkeypatch.setattr(hiv, "one_loop", partial(_elementwise, interpret=True))
    np.testing.assert_allclose(after(), plain, rtol=1e-4)
    assert (np.abs(np.asarray(plain) / np.asarray(states) - 1) > 1e-3).any(-1).all()
