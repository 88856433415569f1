"""Deep Q-learning in continuous time (Mnih et al. 2015; Bradtke and Duff 1995): the discount is gamma^tau."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from kairode.agents.network import ReLUNetwork
from kairode.config.agents import DQNConfig
from kairode.data.replay import PrioritizedReplay, add_prioritized, draw, empty_prioritized, update_priorities
from kairode.trees import choose


class ReplayTransition(NamedTuple):
    """One transition as stored in the replay buffer."""

    features: Any
    action: Any
    reward: Any
    """Scaled by `reward_scale`."""
    discount: Any
    """gamma^tau; 0 if the process terminated."""
    next_features: Any


def pack_transition(transition: ReplayTransition) -> Float[Array, "*n row"]:
    """Pack a transition into one row: the buffer is then one array, which XLA updates in place."""
    s, a, r, gamma, s_next = transition
    return jnp.concatenate([s, s_next, jnp.stack([a.astype(s.dtype), r, gamma], axis=-1)], axis=-1)


def unpack_transition(rows: Float[Array, "n row"]) -> ReplayTransition:
    """Inverse of `pack_transition`."""
    f = (rows.shape[1] - 3) // 2
    return ReplayTransition(rows[:, :f], rows[:, -3].astype(jnp.int32), rows[:, -2], rows[:, -1], rows[:, f : 2 * f])


class Learner(eqx.Module):
    """Networks, optimizer state and replay buffer."""

    q: ReLUNetwork
    target: ReLUNetwork
    optimizer: Any
    replay: PrioritizedReplay


def init_learner(features: int, actions: int, settings: DQNConfig, *, key: Key[Array, ""]) -> Learner:
    """A random Q-network, the same one as target, an empty replay buffer."""
    q = ReLUNetwork.new(features, *settings.hidden, actions, key=key)
    row = jnp.zeros(2 * features + 3)
    replay = empty_prioritized(settings.replay_capacity, row, alpha=settings.alpha, beta=settings.beta)
    return Learner(q, q, q_optimizer(settings).init(q), replay)


def q_optimizer(settings: DQNConfig) -> optax.GradientTransformation:
    """Adam with elementwise gradient clipping."""
    return optax.chain(optax.clip(settings.gradient_clip), optax.adam(settings.learning_rate))


def epsilon(settings: DQNConfig, decisions: Int[Array, ""]) -> Float[Array, ""]:
    """Probability of a random action after k decisions: e + (1 - e) exp(-k / decay)."""
    last = settings.final_epsilon
    return last + (1 - last) * jnp.exp(-decisions / settings.epsilon_decay)


def epsilon_greedy(
    values: Float[Array, " a"], share: Float[Array, ""] | float, *, key: Key[Array, ""]
) -> Int[Array, ""]:
    """The greedy action; with probability `share`, a uniformly random one."""
    chance_key, any_key = jax.random.split(key)
    anything = jax.random.randint(any_key, (), 0, values.shape[0])
    return jnp.where(jax.random.uniform(chance_key) < share, anything, jnp.argmax(values))


def td_target(
    reward: Float[Array, " n"], discount: Float[Array, " n"], next_value: Float[Array, " n"]
) -> Float[Array, " n"]:
    """r + gamma^tau max_a' Q(s', a'), the paper's Q-learning for semi-Markov processes."""
    return reward + discount * next_value


def td_errors(q: ReLUNetwork, target: ReLUNetwork, batch: ReplayTransition, double: bool) -> Float[Array, " n"]:
    """Q(s, a) minus its target."""
    rows = jnp.arange(batch.action.shape[0])
    values = q(batch.features)[rows, batch.action]
    next_values = target(batch.next_features)
    best = jnp.argmax(q(batch.next_features) if double else next_values, axis=1)
    targets = td_target(batch.reward, batch.discount, next_values[rows, best])
    return values - jax.lax.stop_gradient(targets)


def huber(error: Float[Array, " n"]) -> Float[Array, " n"]:
    """Quadratic up to 1, linear beyond."""
    size = jnp.abs(error)
    return jnp.where(size < 1, 0.5 * error**2, size - 0.5)


def store_transitions(learner: Learner, transitions: ReplayTransition) -> Learner:
    """Add transitions to the replay buffer, with the highest priority so far."""
    return dataclasses.replace(learner, replay=add_prioritized(learner.replay, pack_transition(transitions)))


def learning_rate_factor(settings: DQNConfig, done: Float[Array, ""]) -> Float[Array, ""] | float:
    """Factor of the learning rate after the fraction `done` of the episodes."""
    return jnp.clip((1 - done) / settings.cooldown, 0.0, 1.0) if settings.cooldown else 1.0


def update_q(
    learner: Learner,
    settings: DQNConfig,
    going: Bool[Array, ""],
    speed: Float[Array, ""] | float = 1.0,
    *,
    key: Key[Array, ""],
) -> tuple[Learner, Bool[Array, ""]]:
    """One update from a replay batch if `going`; also whether all values were finite (if not, nothing is changed)."""
    drawn = draw(learner.replay, settings.batch_size, key=key)
    ready = going & (learner.replay.replay.size >= settings.batch_size)
    learner, errors = gradient_step(learner, settings, unpack_transition(drawn.items), drawn.weights, ready, speed)
    replay = update_priorities(learner.replay, drawn.where, errors)
    return dataclasses.replace(learner, replay=replay), jnp.isfinite(errors).all()


def gradient_step(
    learner: Learner,
    settings: DQNConfig,
    batch: ReplayTransition,
    weights: Float[Array, " n"],
    ready: Bool[Array, ""],
    speed: Float[Array, ""] | float = 1.0,
) -> tuple[Learner, Float[Array, " n"]]:
    """One Adam step on the weighted Huber loss, applied if `ready` and everything is finite; also the TD errors.

    `speed` is a factor of the learning rate.
    """

    def loss(q: ReLUNetwork) -> tuple[Array, Array]:
        errors = td_errors(q, learner.target, batch, settings.double_q)
        return jnp.mean(weights * huber(errors)), errors

    gradient, errors = jax.grad(loss, has_aux=True)(learner.q)
    changes, state = q_optimizer(settings).update(gradient, learner.optimizer, learner.q)
    # If the loss is not finite, neither are the errors: checking them is cheaper than checking all gradients.
    moves = ready & jnp.isfinite(errors).all()
    q = jax.tree.map(lambda x, change: x + jnp.where(moves, speed * change, 0.0), learner.q, changes)
    return Learner(q, learner.target, choose(moves, state, learner.optimizer), learner.replay), errors


def update_target(learner: Learner, now: Bool[Array, ""]) -> Learner:
    """Copy the network to the target network, where `now`."""
    return dataclasses.replace(learner, target=choose(now, learner.q, learner.target))
