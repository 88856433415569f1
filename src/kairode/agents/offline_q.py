"""Q-learning from records alone, without a model and without exploration.

Double Q-learning with discount gamma^tau; the action at the next decision may be restricted to those that the data
support (BCQ, Fujimoto et al. 2019), and values of actions that were not taken may be pushed down (CQL, Kumar et al.
2020). Several agents, which differ in numbers alone, are trained side by side.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from kairode.agents.dqn import ReplayTransition, huber, td_target
from kairode.agents.network import ReLUNetwork
from kairode.agents.support import ActionSupport, BehaviorPolicy
from kairode.callbacks import Callback, Progress, no_callback

CHUNK, BATCH = 500, 256
LEARNING_RATE, POLYAK = 1e-3, 0.01
"""Of Adam, and of the target networks' moving average."""


class OfflineSettings(NamedTuple):
    """What agents differ in, [agents]."""

    threshold: Any
    """Of the support of actions; 0 for all actions."""
    cql: Any
    """Weight of CQL's penalty."""


def cql_penalty(values: Float[Array, "n a"], taken: Float[Array, " n"]) -> Float[Array, ""]:
    """E[log sum_a exp Q(s, a) - Q(s, a_data)] (Kumar et al. 2020, equation 4)."""
    return (jax.nn.logsumexp(values, axis=-1) - taken).mean()


def offline_loss(
    q: ReLUNetwork, target: ReLUNetwork, support: ActionSupport, cql: Float[Array, ""], rows: ReplayTransition
) -> Float[Array, ""]:
    """Huber loss of Q(s, a) against r + gamma^tau Q'(s', a'), a' the best supported action; plus CQL's penalty."""
    values = q(rows.features)
    taken = jnp.take_along_axis(values, rows.action[:, None], -1)[:, 0]
    best = jnp.argmax(support.restrict(rows.next_features, q(rows.next_features)), axis=-1)
    following = jnp.take_along_axis(target(rows.next_features), best[:, None], -1)[:, 0]
    errors = taken - jax.lax.stop_gradient(td_target(rows.reward, rows.discount, following))
    return huber(errors).mean() + cql * cql_penalty(values, taken)


def train_offline_q(
    data: ReplayTransition,
    behavior: BehaviorPolicy,
    settings: OfflineSettings,
    *,
    hidden: tuple[int, ...],
    iterations: int,
    snapshots: int,
    seed: int,
    callback: Callback = no_callback,
) -> ReLUNetwork:
    """Q-networks of every agent at evenly spaced times of the training, [snapshots, agents, ..]; `behavior` is a
    function of the same features."""
    agents, actions = len(settings.cql), len(behavior.spec.actions.names)
    sizes = (data.features.shape[1], *hidden, actions)
    keys = jnp.stack([jax.random.key(seed)] * agents)
    q = eqx.filter_vmap(lambda key: ReLUNetwork.new(*sizes, key=key))(keys)
    target, state = q, jax.vmap(optax.adam(LEARNING_RATE).init)(q)
    rng, each, kept = np.random.default_rng([seed, 3]), max(1, iterations // snapshots), []
    for stop in range(snapshots):
        for first in range(0, each, CHUNK):
            callback(Progress("learning from the records", stop * each + first, each * snapshots))
            batches = jnp.asarray(rng.integers(0, len(data.reward), (min(CHUNK, each - first), BATCH)))
            q, target, state = _advance(q, target, state, data, behavior, settings, batches)
        kept.append(q)
    callback(Progress("learning from the records", each * snapshots, each * snapshots))
    return jax.tree.map(lambda *x: jnp.stack(x), *kept)


@eqx.filter_jit
def _advance(
    q: ReLUNetwork,
    target: ReLUNetwork,
    state: Any,
    data: ReplayTransition,
    behavior: BehaviorPolicy,
    settings: OfflineSettings,
    batches: Int[Array, "k n"],
) -> tuple[ReLUNetwork, ReLUNetwork, Any]:
    def agent(q: Any, target: Any, state: Any, threshold: Any, cql: Any) -> tuple[Any, Any, Any]:
        own = ActionSupport(behavior, threshold)

        def step(carry: tuple[Any, Any, Any], batch: Int[Array, " n"]) -> tuple[tuple[Any, Any, Any], None]:
            q, target, state = carry
            rows = jax.tree.map(lambda x: x[batch], data)
            changes, state = optax.adam(LEARNING_RATE).update(jax.grad(offline_loss)(q, target, own, cql, rows), state)
            q = optax.apply_updates(q, changes)
            target = jax.tree.map(lambda old, new: old + POLYAK * (new - old), target, q)
            return (q, target, state), None

        return jax.lax.scan(step, (q, target, state), batches)[0]

    return eqx.filter_vmap(agent)(q, target, state, *settings)
