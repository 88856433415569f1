"""Targets, losses, priorities and updates against NumPy."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kairode.agents.dqn import (
    Learner,
    ReplayTransition,
    clipped_adam,
    epsilon,
    epsilon_greedy,
    huber,
    init_learner,
    q_optimizer,
    store_transitions,
    td_errors,
    unpack_transition,
    update_q,
    update_target,
)
from kairode.agents.network import ReLUNetwork
from kairode.config.agents import DQNConfig
from kairode.data.replay import draw
from kairode.errors import KairodeError

KEY = jax.random.key(0)
YES, NO = jnp.array(True), jnp.array(False)


@eqx.filter_jit
def gradient_step(learner: Learner, settings: DQNConfig, going: jax.Array, *, key: jax.Array) -> tuple:
    return update_q(learner, settings, going, uniform=jax.random.uniform(key, (settings.batch_size,)))


def transitions(count: int, seed: int = 0) -> ReplayTransition:
    rng = np.random.default_rng(seed)
    return ReplayTransition(
        features=rng.normal(size=(count, 3)).astype(np.float32),
        action=rng.integers(4, size=count).astype(np.int32),
        reward=3 * rng.normal(size=count).astype(np.float32),
        discount=(rng.random(count) * (rng.random(count) < 0.7)).astype(np.float32),
        next_features=rng.normal(size=(count, 3)).astype(np.float32),
    )


def forward(q: ReLUNetwork, x: np.ndarray) -> np.ndarray:
    """The network in NumPy."""
    for i, (weight, bias) in enumerate(zip(q.weights, q.biases, strict=True)):
        x = x.astype(np.float64) @ np.asarray(weight, np.float64).T + np.asarray(bias)
        x = np.maximum(x, 0) if i < len(q.weights) - 1 else x
    return x


def errors_of(q: ReLUNetwork, target: ReLUNetwork, batch: ReplayTransition, double: bool) -> np.ndarray:
    """Q(s, a) - (r + gamma^tau Q(s', a'))."""
    found = []
    for features, action, reward, discount, after in zip(*map(np.asarray, batch), strict=True):
        choosing = q if double else target
        best = np.argmax(forward(choosing, after))
        found.append(forward(q, features)[action] - reward - discount * forward(target, after)[best])
    return np.array(found)


@pytest.mark.parametrize("double", [False, True])
def test_errors(double: bool) -> None:
    q, target = (ReLUNetwork.new(3, 8, 9, 4, key=jax.random.key(i)) for i in range(2))
    batch = transitions(64)
    found = td_errors(q, target, jax.tree.map(jnp.asarray, batch), double)
    np.testing.assert_allclose(found, errors_of(q, target, batch, double), atol=1e-5)
    # The two kinds differ somewhere, or the comparison says nothing.
    assert np.abs(found - errors_of(q, target, batch, not double)).max() > 1e-2


def test_the_network_takes_any_batch() -> None:
    q = ReLUNetwork.new(3, 8, 9, 4, key=KEY)
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    for shown in (x, x[0], x[0, 0]):
        np.testing.assert_allclose(q(jnp.asarray(shown)), forward(q, shown), atol=1e-5)


def test_huber() -> None:
    np.testing.assert_allclose(
        huber(jnp.array([-3.0, -1.0, -0.5, 0.0, 0.2, 1.0, 7.0])), [2.5, 0.5, 0.125, 0, 0.02, 0.5, 6.5]
    )


def test_epsilon_falls_from_one() -> None:
    settings = DQNConfig(final_epsilon=0.1, epsilon_decay=50)
    for k in (0, 1, 50, 300, 10_000):
        assert epsilon(settings, jnp.array(k)) == pytest.approx(0.1 + 0.9 * np.exp(-k / 50), rel=1e-5)


def test_the_share_of_random_actions() -> None:
    values, keys = jnp.array([0.0, 2.0, 1.0]), jax.random.split(KEY, 6000)
    for share in (0.0, 0.3, 1.0):
        counts = np.bincount(
            jax.vmap(lambda key, share=share: epsilon_greedy(values, share, key=key))(keys), minlength=3
        )
        expected = 6000 * (share / 3 + (1 - share) * np.array([0, 1, 0]))
        assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def learner_with(settings: DQNConfig, items: ReplayTransition) -> Learner:
    """A learner that has seen these, with a target network of its own."""
    learner = init_learner(3, 4, settings, key=KEY)
    learner = eqx.tree_at(lambda a: a.target, learner, ReLUNetwork.new(3, *settings.hidden, 4, key=jax.random.key(9)))
    return store_transitions(learner, jax.tree.map(jnp.asarray, items))


@pytest.mark.parametrize("double", [False, True])
def test_updates_are_adam_on_clipped_gradients(double: bool) -> None:
    """Of a linear network, whose gradient is written down at once; three updates, since Adam's first ignores sizes."""
    settings = DQNConfig(
        hidden=(), batch_size=16, replay_capacity=64, gradient_clip=0.05, learning_rate=0.01, alpha=0.7, double_q=double
    )
    learner = learner_with(settings, transitions(40))
    moments = [np.zeros((2, *x.shape)) for x in (learner.q.weights[0], learner.q.biases[0])]
    clipped = []
    for k, key in enumerate(jax.random.split(KEY, 3)):
        drawn = draw(learner.replay, 16, key=key)
        batch = unpack_transition(drawn.items)
        errors = errors_of(learner.q, learner.target, batch, double)
        slope = np.asarray(drawn.weights) * np.clip(errors, -1, 1) / 16
        chosen = np.eye(4)[np.asarray(batch.action)] * slope[:, None]
        gradients = [chosen.T @ np.asarray(batch.features), chosen.sum(0)]
        wanted = []
        for x, gradient, moment in zip((learner.q.weights[0], learner.q.biases[0]), gradients, moments, strict=True):
            clipped.append(np.abs(gradient).ravel() > 0.05)
            gradient = np.clip(gradient, -0.05, 0.05)
            moment[0] = 0.9 * moment[0] + 0.1 * gradient
            moment[1] = 0.999 * moment[1] + 0.001 * gradient**2
            first, second = moment[0] / (1 - 0.9 ** (k + 1)), moment[1] / (1 - 0.999 ** (k + 1))
            wanted.append(np.asarray(x) - 0.01 * first / (np.sqrt(second) + 1e-8))
        learner, fine = gradient_step(learner, settings, YES, key=key)
        assert fine
        np.testing.assert_allclose(learner.q.weights[0], wanted[0], atol=2e-6)
        np.testing.assert_allclose(learner.q.biases[0], wanted[1], atol=2e-6)
        powers = np.asarray(learner.replay.powers).ravel()[np.asarray(drawn.where)]
        np.testing.assert_allclose(powers, (np.abs(errors) + 1e-6) ** 0.7, rtol=1e-4)
    share = np.concatenate(clipped).mean()
    assert 0.1 < share < 0.9  # some elements are clipped, others are not


def test_clipped_adam_is_optax() -> None:
    """Ten steps, two of them not taken, with a learning rate that falls."""
    settings = DQNConfig(gradient_clip=0.5, learning_rate=0.01)
    q, wanted = (ReLUNetwork.new(3, 8, 9, 4, key=KEY) for _ in range(2))
    optimizer = q_optimizer(settings)
    state = expected = optimizer.init(q)
    step = jax.jit(functools.partial(clipped_adam, settings))
    for k, key in enumerate(jax.random.split(KEY, 10)):
        gradient = ReLUNetwork.new(3, 8, 9, 4, key=key)
        if k in (0, 6):
            broken = jax.tree.map(lambda x: x * jnp.nan, gradient)
            q, state = step(broken, state, q, NO, 0.1)
            continue
        speed = 1 / (k + 1)
        q, state = step(gradient, state, q, YES, speed)
        changes, expected = optimizer.update(gradient, expected, wanted)
        wanted = jax.tree.map(lambda x, change, speed=speed: x + speed * change, wanted, changes)
    for found, known in zip(jax.tree.leaves((q, state)), jax.tree.leaves((wanted, expected)), strict=True):
        np.testing.assert_allclose(found, known, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("inputs", [3, 40])
def test_gradients_of_the_network(inputs: int) -> None:
    """Those of the same layers without our derivative; few inputs and many take different ways."""
    q = ReLUNetwork.new(inputs, 8, 50, 4, key=KEY)
    x = jax.random.normal(jax.random.key(1), (16, inputs))

    def plain(q: ReLUNetwork, x: jax.Array) -> jax.Array:
        for weight, bias in zip(q.weights[:-1], q.biases[:-1], strict=True):
            x = jax.nn.relu(x @ weight.T + bias[None])
        return x @ q.weights[-1].T + q.biases[-1][None]

    found = jax.grad(lambda q, x: (q(x) ** 3).sum(), argnums=(0, 1))(q, x)
    wanted = jax.grad(lambda q, x: (plain(q, x) ** 3).sum(), argnums=(0, 1))(q, x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def same(a: ReLUNetwork, b: ReLUNetwork) -> bool:
    return all(bool((x == y).all()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_when_nothing_moves() -> None:
    """Before there is a batch, when told not to, and when an error is no number."""
    settings = DQNConfig(hidden=(), batch_size=16, replay_capacity=64)
    items = transitions(16)
    enough, few = learner_with(settings, items), learner_with(settings, transitions(15))
    broken = learner_with(settings, items._replace(reward=np.full(16, np.nan, np.float32)))
    for learner, going, moves in ((enough, YES, True), (enough, NO, False), (few, YES, False), (broken, YES, False)):
        after, fine = gradient_step(learner, settings, going, key=KEY)
        assert same(after.q, learner.q) != moves
        assert same(after.optimizer, learner.optimizer) != moves
        assert same(after.target, learner.target)
        assert bool(fine) == (learner is not broken)
    assert same(update_target(enough, YES).target, enough.q)
    assert same(update_target(enough, NO).target, enough.target)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"target_period": 0},
        {"learning_rate": 0.0},
        {"gradient_clip": -1.0},
        {"reward_scale": 0.0},
        {"alpha": 1.5},
        {"final_epsilon": -0.1},
        {"disagreement_penalty": -1.0},
    ],
)
def test_settings_that_make_no_sense(wrong: dict) -> None:
    with pytest.raises(KairodeError, match=next(iter(wrong))):
        DQNConfig(**wrong)
    with pytest.raises(KairodeError, match="does not hold a batch"):
        DQNConfig(batch_size=9, replay_capacity=8)
