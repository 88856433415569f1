"""Flows against scipy, gradients against finite differences in float64, and what happens at the limits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from kairode.errors import KairodeError
from kairode.models.networks import MLP
from kairode.models.ode import METHODS, TIGHT, Adaptive, FixedSteps, Solver, parse_solver

SOLVERS = [FixedSteps(method, 2) for method in METHODS] + [Adaptive(1e-8, 1e-8, 512)]
EXACT = 2 * np.arctan(np.e * np.tan(0.5))
"""z(1) of dz/dt = sin z from z(0) = 1."""


new_net = eqx.filter_jit(MLP.new)


def name(solver: Solver) -> str:
    return solver.method if isinstance(solver, FixedSteps) else "dopri5"


def numpy_field(net: MLP):
    layers = [(np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)) for layer in net.layers]

    def f(t: float, z: np.ndarray) -> np.ndarray:
        for w, b in layers[:-1]:
            z = np.tanh(w @ z + b)
        return layers[-1][0] @ z + layers[-1][1]

    return f


@pytest.mark.parametrize(
    "solver",
    [FixedSteps("rk4", 64), FixedSteps("bosh3", 128), FixedSteps("tsit5", 32), FixedSteps("midpoint", 2048), TIGHT],
    ids=["rk4", "bosh3", "tsit5", "midpoint", "dopri5"],
)
def test_flow_against_scipy(solver: Solver) -> None:
    z, taus = np.array([0.5, -1.0, 0.2, 0.8]), np.array([0.3, 1.0, 4.0])
    with jax.enable_x64(True):
        net = new_net(4, 8, 8, 4, key=jax.random.key(0))
        exact = solve_ivp(numpy_field(net), (0, taus[-1]), z, t_eval=taus, rtol=1e-10, atol=1e-10).y.T
        dtype = net.layers[0].weight.dtype
        lanes = jnp.asarray(np.repeat(z[:, None], 3, axis=1), dtype)
        found = solver.solve(net, lanes, jnp.asarray(taus, dtype))  # not compiled: thousands of steps, all unrolled
        np.testing.assert_allclose(found.T, exact, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_order_of_fixed_steps(method: str) -> None:
    """On dz/dt = sin z, twice as many steps divide the error by two to the order (or a little more)."""
    order = {"midpoint": 2, "heun": 2, "ralston": 2, "bosh3": 3, "rk4": 4, "tsit5": 5}[method]
    with jax.enable_x64(True):
        z, tau = jnp.ones(1, jnp.float64), jnp.asarray(1.0, jnp.float64)
        steps = (2, 4) if order == 5 else (8, 16)
        ends = jax.jit(lambda z, tau: [FixedSteps(method, n).solve(jnp.sin, z, tau)[0] for n in steps])(z, tau)
        errors = [abs(float(end) - EXACT) for end in ends]
    assert order - 0.4 < np.log2(errors[0] / errors[1]) < order + 1.5


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_gradients_against_finite_differences(solver: Solver) -> None:
    """With respect to the state, the interval and every weight, in float64."""
    with jax.enable_x64(True):
        net = jax.tree.map(lambda x: x.astype(jnp.float64), new_net(3, 4, 4, 3, key=jax.random.key(1)))
        z, tau = jnp.array([0.3, -0.7, 0.1]), jnp.asarray(1.7)
        flat, back = jax.flatten_util.ravel_pytree((net, z, tau))

        def end(flat: jax.Array) -> jax.Array:
            net, z, tau = back(flat)
            return jnp.sum(solver.solve(net, z, tau) * jnp.array([1.0, -2.0, 0.5]))

        gradient, h = jax.jit(jax.grad(end))(flat), 1e-6
        around = np.asarray(flat) + h * np.concatenate([np.eye(len(flat)), -np.eye(len(flat))])
        above, below = np.split(np.asarray(jax.jit(jax.vmap(end))(around)), 2)
        np.testing.assert_allclose(gradient, (above - below) / (2 * h), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("solver", [FixedSteps("rk4", 8), Adaptive(1e-6, 1e-6, 256)], ids=name)
def test_path_passes_through_the_flow(solver: Solver) -> None:
    net = new_net(4, 8, 8, 4, key=jax.random.key(0))
    z = jax.random.normal(jax.random.key(1), (4, 3))
    taus = jnp.array([[0.0, 0.1, 0.2], [0.5, 1.0, 2.0], [1.0, 2.0, 4.0]])
    path = jax.jit(lambda z, taus: solver.path(net, z, taus))(z, taus)
    np.testing.assert_allclose(path[0, :, 0], z[:, 0], atol=1e-6)
    flow = jax.jit(lambda z, tau: solver.solve(net, z, tau))
    for i in range(3):
        np.testing.assert_allclose(path[i], flow(z, taus[i]), atol=2e-4)


def test_steps_of_a_length() -> None:
    assert FixedSteps.of_length("rk4", 0.5, 7.0).steps == 14
    assert FixedSteps.of_length("rk4", 3.0, 7.0).steps == 3
    assert parse_solver("rk4:3t", 7.0) == FixedSteps("rk4", 3)
    assert parse_solver("bosh3", 7.0) == FixedSteps("bosh3", 1)
    assert parse_solver("dopri5:1e-5,1e-6", 7.0) == Adaptive(1e-5, 1e-6)


def test_too_many_steps_are_nan_and_counted() -> None:
    """A rotation a thousand times as fast as the interval is long: two steps cannot follow it."""
    few = Adaptive(1e-6, 1e-6, max_steps=2)
    turn = jnp.array([[0.0, 1000.0], [-1000.0, 0.0]])
    z, tau = jnp.array([1.0, 0.0]), jnp.float32(1.0)
    assert np.isnan(few.solve(lambda z: turn @ z, z, tau)).all()
    assert few.count(lambda z: turn @ z, z, tau) == 3
    assert Adaptive(1e-6, 1e-6, max_steps=16).count(lambda z: 0.0 * z, z, tau) <= 16


@pytest.mark.parametrize("text", ["rk5", "rk4:0", "rk4:x", "rk4:-1t", "dopri5:1", "dopri5:0,0", ""])
def test_solvers_that_are_none(text: str) -> None:
    with pytest.raises(KairodeError):
        parse_solver(text, 7.0)
