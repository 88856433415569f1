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
from kairode.data.replay import PrioritizedReplay, add_prioritized, draw_at, empty_prioritized, update_priorities
from kairode.trees import choose

MEAN_DECAY, SQUARE_DECAY, ADAM_EPSILON = 0.9, 0.999, 1e-8
"""Adam's, as in optax by default."""


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
    """Adam with elementwise gradient clipping; `clipped_adam` is its step."""
    adam = optax.adam(settings.learning_rate, MEAN_DECAY, SQUARE_DECAY, ADAM_EPSILON)
    return optax.chain(optax.clip(settings.gradient_clip), adam)


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
    uniform: Float[Array, " n"],
) -> tuple[Learner, Bool[Array, ""]]:
    """One update from a replay batch if `going`; also whether all values were finite (if not, nothing is changed).

    `uniform` has a random number from [0, 1) for each of the `batch_size` transitions, which selects it.
    """
    drawn = draw_at(learner.replay, uniform)
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
    # If the loss is not finite, neither are the errors: checking them is cheaper than checking all gradients.
    moves = ready & jnp.isfinite(errors).all()
    q, state = clipped_adam(settings, gradient, learner.optimizer, learner.q, moves, speed)
    return Learner(q, learner.target, state, learner.replay), errors


def clipped_adam(
    settings: DQNConfig,
    gradient: ReLUNetwork,
    state: Any,
    q: ReLUNetwork,
    moves: Bool[Array, ""],
    speed: Float[Array, ""] | float,
) -> tuple[ReLUNetwork, Any]:
    """A step of `q_optimizer`, where `moves`; also its next state.

    Written out so that XLA updates weights and moments in place: where nothing moves, the factors are 1 and 0, in place
    of a choice between old and new arrays.
    """
    clip_state, (adam, rate_state) = state
    count = adam.count + moves.astype(jnp.int32)
    keep_mean, keep_square = jnp.where(moves, MEAN_DECAY, 1.0), jnp.where(moves, SQUARE_DECAY, 1.0)
    limit, new_mean, new_square = settings.gradient_clip, 1 - MEAN_DECAY, 1 - SQUARE_DECAY
    slope = jax.tree.map(lambda g: jnp.where(moves, jnp.clip(g, -limit, limit), 0.0), gradient)
    mean = jax.tree.map(lambda m, g: keep_mean * m + new_mean * g, adam.mu, slope)
    square = jax.tree.map(lambda v, g: keep_square * v + new_square * g**2, adam.nu, slope)
    k = jnp.maximum(count, 1).astype(jnp.float32)
    rate = jnp.where(moves, speed * settings.learning_rate, 0.0) / (1 - MEAN_DECAY**k)
    share = 1 / (1 - SQUARE_DECAY**k)
    q = jax.tree.map(lambda x, m, v: x - rate * m / (jnp.sqrt(share * v) + ADAM_EPSILON), q, mean, square)
    return q, (clip_state, (adam._replace(count=count, mu=mean, nu=square), rate_state))


def update_target(learner: Learner, now: Bool[Array, ""]) -> Learner:
    """Copy the network to the target network, where `now`."""
    return dataclasses.replace(learner, target=choose(now, learner.q, learner.target))
