"""Q-learning from records, against value iteration on a process that is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kairode.agents.dqn import ReplayTransition
from kairode.agents.network import ReLUNetwork
from kairode.agents.offline_q import OfflineSettings, cql_penalty, train_offline_q
from kairode.agents.support import ActionSupport, BehaviorPolicy
from kairode.envs.core import Discrete, Intervals, Spec, Variable

GAMMA = 0.9
NEXT = np.array([[1, 0, 2], [2, 1, 0], [0, 2, 1]])
"""The next of three states, by state and action."""
REWARD = np.array([[0.0, 0.2, 0.1], [0.5, 0.0, 0.3], [1.0, 0.1, -1.0]])
TAU = np.array([[1.0, 3.0, 2.0], [2.0, 1.0, 1.0], [4.0, 1.0, 2.0]])
SPEC = Spec("three", tuple(Variable(f"s{i}", "") for i in range(3)), Discrete(("a", "b", "c")), Intervals(1, 4, 1), "s")


def optimal(allowed: np.ndarray) -> np.ndarray:
    """Q* where only some actions are allowed, by value iteration."""
    q = np.zeros((3, 3))
    for _ in range(500):
        v = np.where(allowed, q, -np.inf).max(1)
        q = REWARD + GAMMA**TAU * v[NEXT]
    return q


def records(chances: np.ndarray, count: int = 6000) -> ReplayTransition:
    rng = np.random.default_rng(0)
    state = rng.integers(0, 3, count)
    action = np.array([rng.choice(3, p=chances[s]) for s in state])
    one_hot = np.eye(3, dtype=np.float32)
    return ReplayTransition(
        jnp.asarray(one_hot[state]),
        jnp.asarray(action, jnp.int32),
        jnp.asarray(REWARD[state, action], jnp.float32),
        jnp.asarray(GAMMA ** TAU[state, action], jnp.float32),
        jnp.asarray(one_hot[NEXT[state, action]]),
    )


def support(chances: np.ndarray) -> ActionSupport:
    """Of a behaviour policy with these probabilities, exactly."""
    net = ReLUNetwork((jnp.eye(3), jnp.asarray(np.log(chances).T, jnp.float32)), (jnp.zeros(3), jnp.zeros(3)))
    behavior = BehaviorPolicy(net, jnp.zeros(3), jnp.ones(3), jnp.full(3, 1 / 3), SPEC)
    return ActionSupport(behavior, 0.0)


def test_support_is_relative_to_the_most_frequent_action() -> None:
    chances = np.array([[0.6, 0.3, 0.1], [0.34, 0.33, 0.33], [0.98, 0.01, 0.01]])
    for threshold, expected in (
        (0.0, np.ones((3, 3))),
        (0.3, [[1, 1, 0], [1, 1, 1], [1, 0, 0]]),
        (1.0, np.eye(3)[[0] * 3]),
    ):
        mask = ActionSupport(support(chances).behavior, threshold).mask(jnp.eye(3))
        np.testing.assert_array_equal(mask, np.asarray(expected, bool))


def test_values_are_those_of_value_iteration() -> None:
    """Two agents at once: one that may take every action, one that is kept to what is often taken."""
    chances = np.array([[0.45, 0.45, 0.1], [0.1, 0.45, 0.45], [0.1, 0.45, 0.45]])
    settings = OfflineSettings(jnp.array([0.0, 0.5]), jnp.zeros(2))
    found = train_offline_q(
        records(chances), support(chances).behavior, settings, hidden=(32, 32), iterations=6000, snapshots=2, seed=0
    )
    values = np.asarray(jax.vmap(lambda q: q(jnp.eye(3)))(jax.tree.map(lambda x: x[-1], found)))
    np.testing.assert_allclose(values[0], optimal(np.ones((3, 3), bool)), atol=0.05)
    np.testing.assert_allclose(values[1], optimal(chances > 0.2), atol=0.05)
    assert values[0].max() > values[1].max() + 0.5


def test_cql_is_below_the_values_of_what_was_not_done() -> None:
    """The penalty alone is E[log sum exp Q - Q(s, a)]; with it, actions that are rare lose value."""
    assert float(cql_penalty(jnp.array([[1.0, 2.0]]), jnp.array([1.0]))) == pytest.approx(
        np.log(np.exp(1) + np.exp(2)) - 1
    )
    chances = np.array([[0.49, 0.49, 0.02], [0.02, 0.49, 0.49], [0.02, 0.49, 0.49]])
    settings = OfflineSettings(jnp.zeros(2), jnp.array([0.0, 1.0]))
    found = train_offline_q(
        records(chances), support(chances).behavior, settings, hidden=(32, 32), iterations=3000, snapshots=1, seed=0
    )
    plain, careful = np.asarray(jax.vmap(lambda q: q(jnp.eye(3)))(jax.tree.map(lambda x: x[0], found)))
    rare, common = careful[2, 0] - plain[2, 0], (careful[2, 1:] - plain[2, 1:]).mean()
    assert rare < common - 1
