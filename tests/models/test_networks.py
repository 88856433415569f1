"""The parts of models against formulas written out, and their gradients against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kairode.models.initial import Gaussian, Variational, kl_to_standard_normal
from kairode.models.networks import GRU, MLP, Linear, unfold
from kairode.models.ode import FixedSteps
from kairode.models.transition import DecayGated, Gated, GatedWithInterval, LinearFlow


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gru_by_hand(cell: GRU, z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Cho et al. 2014 in the form that PyTorch documents: the reset gate multiplies the hidden part with its bias."""
    wi, bi, wh, bh = (
        np.asarray(a, np.float64) for a in (cell.input.weight, cell.input.bias, cell.hidden.weight, cell.hidden.bias)
    )
    n = len(z)
    r = sigmoid(wi[:n] @ x + bi[:n] + wh[:n] @ z + bh[:n])
    u = sigmoid(wi[n : 2 * n] @ x + bi[n : 2 * n] + wh[n : 2 * n] @ z + bh[n : 2 * n])
    new = np.tanh(wi[2 * n :] @ x + bi[2 * n :] + r * (wh[2 * n :] @ z + bh[2 * n :]))
    return (1 - u) * new + u * z


def test_gru_by_hand() -> None:
    rng = np.random.default_rng(0)
    cell = GRU.new(3, 4, key=jax.random.key(0))
    z, x = rng.normal(size=4), rng.normal(size=3)
    found = cell.move(jnp.asarray(z, jnp.float32), cell.input(jnp.asarray(x, jnp.float32)))
    np.testing.assert_allclose(found, gru_by_hand(cell, z, x), atol=1e-6)


def test_recurrent_transitions_by_hand() -> None:
    rng = np.random.default_rng(1)
    z, x, tau = rng.normal(size=4), rng.normal(size=3), 2.5
    zj, xj, tj = jnp.asarray(z, jnp.float32), jnp.asarray(x, jnp.float32), jnp.float32(tau)
    plain = Gated.new(3, 4, key=jax.random.key(0))
    np.testing.assert_allclose(plain.move(zj, plain.inputs(xj, tj), tj), gru_by_hand(plain.cell, z, x), atol=1e-6)
    timed = GatedWithInterval.new(3, 4, key=jax.random.key(1))
    expected = gru_by_hand(timed.cell, z, np.append(x, tau))
    np.testing.assert_allclose(timed.move(zj, timed.inputs(xj, tj), tj), expected, atol=1e-6)
    decay = DecayGated.new(3, 4, key=jax.random.key(2))
    w, b = float(decay.rate.weight[0, 0]), float(decay.rate.bias[0])
    faded = np.exp(-max(0.0, w * tau + b)) * z
    np.testing.assert_allclose(decay.move(zj, decay.inputs(xj, tj), tj), gru_by_hand(decay.cell, faded, x), atol=1e-6)


@pytest.mark.parametrize(("w", "b", "factor"), [(0.5, 0.1, np.exp(-(0.5 * 3 + 0.1))), (-1.0, 0.2, 1.0)])
def test_decay_never_grows(w: float, b: float, factor: float) -> None:
    decay = DecayGated.new(2, 3, key=jax.random.key(0))
    rate = Linear(jnp.array([[w]]), jnp.array([b]))
    decay = DecayGated(rate, decay.cell)
    z, drive, tau = jnp.array([1.0, -2.0, 0.5]), decay.inputs(jnp.ones(2), jnp.float32(3.0)), jnp.float32(3.0)
    expected = decay.cell.move(jnp.float32(factor) * z, drive)
    np.testing.assert_allclose(decay.move(z, drive, tau), expected, atol=1e-6)


def test_jump_is_linear_in_everything() -> None:
    """z~ = W [z a s] + b, the paper's equation, with W in two parts."""
    flow = LinearFlow.new(5, 3, 4, FixedSteps(), key=jax.random.key(0))
    z, x = jnp.arange(3.0), jnp.arange(5.0) / 10
    whole = jnp.concatenate([flow.mix.weight, flow.drive.weight], axis=1)
    expected = whole @ jnp.concatenate([z, x]) + flow.mix.bias
    np.testing.assert_allclose(flow.entry(z, flow.drive(x)), expected, atol=1e-6)
    np.testing.assert_allclose(flow.move(z, flow.drive(x), jnp.float32(0.0)), expected, atol=1e-6)


def test_lanes_are_examples_side_by_side() -> None:
    net = MLP.new(3, 5, 2, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (3, 7))
    one_by_one = jnp.stack([net(x[:, i]) for i in range(7)], axis=1)
    np.testing.assert_allclose(net(x), one_by_one, atol=1e-6)
    np.testing.assert_allclose(unfold(net, 7)(x), one_by_one, atol=1e-6)
    np.testing.assert_allclose(net(x.reshape(3, 7, 1))[..., 0], one_by_one, atol=1e-6)


def test_unfolded_gradient_is_the_plain_one() -> None:
    net = MLP.new(3, 5, 2, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (3, 7))

    def plain(net: MLP, x: jax.Array) -> jax.Array:
        return (net(x) ** 2).sum()

    def laid_out(net: MLP, x: jax.Array) -> jax.Array:
        return (unfold(net, 7)(x) ** 2).sum()

    for a, b in zip(
        jax.tree.leaves(jax.grad(plain, argnums=(0, 1))(net, x)),
        jax.tree.leaves(jax.grad(laid_out, argnums=(0, 1))(net, x)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_kl_against_an_integral() -> None:
    """KL[N(m, v) || N(0, 1)] by numerical integration."""
    grid = np.linspace(-12, 12, 200_001)
    for mean, log_variance in ((0.0, 0.0), (0.7, -1.0), (-1.5, 0.8)):
        std = np.exp(0.5 * log_variance)
        log_q = -0.5 * ((grid - mean) / std) ** 2 - np.log(std)
        integrand = np.exp(log_q) / np.sqrt(2 * np.pi) * (log_q + 0.5 * grid**2)
        found = kl_to_standard_normal(Gaussian(jnp.array([mean]), jnp.array([log_variance])))
        np.testing.assert_allclose(found[0], np.trapezoid(integrand, grid), atol=1e-5)


def test_encoder_ignores_padding() -> None:
    start = Variational.new(3, 4, 5, key=jax.random.key(0))
    h = jax.random.normal(jax.random.key(1), (4, 2))
    gates = start.gates(jax.random.normal(jax.random.key(2), (3, 2)))
    moved = start.read(h, gates, jnp.array([True, False]))
    assert not np.allclose(moved[:, 0], h[:, 0])
    np.testing.assert_array_equal(moved[:, 1], h[:, 1])
    q = start.posterior(h)
    np.testing.assert_allclose(q.draw(jnp.zeros_like(q.mean)), q.mean)
    np.testing.assert_allclose(q.draw(jnp.ones_like(q.mean)), q.mean + jnp.exp(q.log_variance / 2), rtol=1e-6)
