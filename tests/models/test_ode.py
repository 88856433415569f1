"""Flows against scipy, gradients against finite differences in float64, and what happens at the limits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from kairode.errors import KairodeError
from kairode.models.field import HiddenField, VectorField
from kairode.models.networks import MLP, unfold
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


@pytest.mark.parametrize("method", METHODS)
def test_steps_in_hidden_coordinates_are_those_in_z(method: str) -> None:
    """The same states, and the same gradients as autodiff's of z, tau and every weight (float64)."""
    solver = FixedSteps(method, 3)
    with jax.enable_x64(True):
        net = jax.tree.map(lambda x: x.astype(jnp.float64), VectorField.new(4, 6, 6, 4, key=jax.random.key(0)))
        z, c = jax.random.normal(jax.random.key(1), (2, 4, 5), jnp.float64)
        tau = jnp.linspace(0.0, 3.0, 5)

        def after(net: VectorField, z: jax.Array, tau: jax.Array, hidden: bool) -> tuple[jax.Array, jax.Array]:
            end = solver.solve(unfold(net, 5) if hidden else net, z, tau)
            return (c * end).sum(), end

        both = [
            jax.jit(jax.value_and_grad(after, (0, 1, 2), has_aux=True), static_argnums=3)(net, z, tau, hidden)
            for hidden in (False, True)
        ]
        assert isinstance(unfold(net, 5), HiddenField)
        for plain, hidden in zip(*map(jax.tree.leaves, both), strict=True):
            np.testing.assert_allclose(hidden, plain, rtol=1e-11, atol=1e-13)


def test_wide_fields_keep_their_coordinates() -> None:
    """With far more hidden units than latent dimensions the product M would cost more than it saves."""
    assert not isinstance(unfold(VectorField.new(4, 64, 64, 4, key=jax.random.key(0)), 5), HiddenField)


@pytest.mark.slow
def test_adaptive_steps_in_hidden_coordinates() -> None:
    """Against scipy for several fields at once, each with its own steps; gradients against diffrax's."""
    solver = Adaptive(1e-9, 1e-9, 512)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 3)
        nets = jax.vmap(lambda key: VectorField.new(4, 6, 6, 4, key=key))(keys)
        nets = jax.tree.map(
            lambda x: x.astype(jnp.float64) * jnp.array([1.0, 2.0, 3.0]).reshape(3, *[1] * (x.ndim - 1)), nets
        )
        z = jax.random.normal(jax.random.key(1), (3, 4, 5), jnp.float64)
        taus = jnp.linspace(0.0, 3.0, 5)

        def after(net: VectorField, z: jax.Array, taus: jax.Array, hidden: bool) -> tuple[jax.Array, jax.Array]:
            end = solver.solve(unfold(net, 5) if hidden else net, z, taus)
            return (end**2).sum(), end

        def run(hidden: bool):
            differentiate = jax.value_and_grad(lambda *a: after(*a, hidden), (0, 1, 2), has_aux=True)
            return jax.jit(jax.vmap(differentiate, in_axes=(0, 0, None)))(nets, z, taus)

        ((_, ends), own), (_, reference) = run(True), run(False)
        for found, expected in zip(jax.tree.leaves(own), jax.tree.leaves(reference), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        for i in range(3):
            field = numpy_field(jax.tree.map(lambda x, i=i: x[i], nets))
            for n, tau in enumerate(taus[1:], start=1):
                exact = solve_ivp(field, (0, float(tau)), z[i, :, n], rtol=1e-10, atol=1e-10).y[:, -1]
                np.testing.assert_allclose(ends[i, :, n], exact, atol=1e-6)


def test_adaptive_steps_in_hidden_coordinates_run_out() -> None:
    net = unfold(VectorField.new(4, 6, 6, 4, key=jax.random.key(0)), 2)
    z, tau, short = jnp.ones((4, 2)), jnp.array([1.0, 50.0]), Adaptive(1e-6, 1e-6, 3)
    assert np.isnan(short.solve(net, z, tau)).all()
    assert int(short.count(net, z, tau)) == 4


def test_steps_are_counted_for_each_field() -> None:
    solver = Adaptive(1e-6, 1e-6, 512)
    nets = jax.vmap(lambda key: VectorField.new(4, 6, 6, 4, key=key))(jax.random.split(jax.random.key(0), 3))
    nets = jax.tree.map(lambda x: x * jnp.array([0.1, 2.0, 5.0]).reshape(3, *[1] * (x.ndim - 1)), nets)
    z, tau = jnp.ones((4, 2)), jnp.array([1.0, 3.0])

    def count(net: VectorField) -> jax.Array:
        return solver.count(unfold(net, 2), z, tau)

    alone = [int(count(jax.tree.map(lambda x, i=i: x[i], nets))) for i in range(3)]
    assert len(set(alone)) > 1
    assert jax.vmap(count)(nets).tolist() == alone
