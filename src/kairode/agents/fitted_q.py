"""Fitted Q evaluation: the action values of a given policy, from data of another.

An ensemble of networks, each fitted to a bootstrap sample of the episodes, so that their spread shows what the data
leave open. Intervals are irregular: Q(s, a) = r + gamma^tau sum_a' pi(a' | s') Q(s', a').
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from kairode.agents.network import ReLUNetwork
from kairode.data.normalize import mean_and_std
from kairode.data.trajectory import Trajectory, carried_forward

MEMBERS, ITERATIONS, CHUNK, BATCH = 10, 10_000, 500, 256
HIDDEN = (64, 64)
EPOCHS, LEAST_ITERATIONS = 400, 1000
"""Passes over the decisions, at most, and the iterations that are allowed in any case: more of them fit the rewards of
single decisions, and the values of other episodes become noise (`iterations_for`)."""
LEARNING_RATE, POLYAK = 1e-3, 0.02
"""Of Adam, and of the target networks' moving average."""
MARGIN = 0.5
"""Values are bounded by the returns that follow any decision of the data, widened by this multiple of their range:
where the data show nothing of a policy, they would grow without bound."""

LEAST_CUT = 0.1
"""Least 1 - gamma^T that bounds are divided by, for values beyond the end of the records."""


class QInputs(NamedTuple):
    """Inputs of the networks: [episodes, decisions, ..]."""

    features: Any
    action: Any
    """Which output is the value of what was done."""
    next_features: Any
    next_probabilities: Any
    """Weights of the outputs in the value of the next decision, pi(a' | s')."""
    moments: Any
    """Inputs for which values are wanted, [episodes, moments, f]."""


class FQEData(NamedTuple):
    """Decisions of all episodes, [decisions, ..]; rewards are scaled."""

    features: Any
    action: Any
    reward: Any
    discount: Any
    """gamma^tau; 0 where nothing follows."""
    next_features: Any
    next_probabilities: Any
    """pi(a' | s')."""
    bounds: Any
    """Of the values at the next decision, the same for all."""


class ActionValues(NamedTuple):
    """Q^pi of every member, in units of the reward."""

    q: Float[np.ndarray, "members n moments a"]
    """At every moment of the data."""
    samples: Float[np.ndarray, "members n"]
    """How often each episode is in a member's bootstrap sample."""


def fit_action_values(
    data: Trajectory,
    probabilities: Float[np.ndarray, "n moments a"],
    *,
    seed: int = 0,
    members: int = MEMBERS,
    iterations: int = ITERATIONS,
) -> ActionValues:
    """Fit Q^pi, given pi's probabilities at every moment of the data. Values count what lies within the records."""
    features = moment_features(data)
    action = np.asarray(data.action, np.int32)
    inputs = QInputs(features[:, :-1], action, features[:, 1:], probabilities[:, 1:], features)
    return fit_values(data, inputs, seed=seed, members=members, iterations=iterations)


def moment_features(data: Trajectory) -> Float[np.ndarray, "n moments f"]:
    """Standardised observations, elapsed time and number of decisions, at every moment of the data."""
    mask = np.asarray(data.mask)
    seen = np.asarray(carried_forward(data).observation, np.float64)
    numbers = np.broadcast_to(np.arange(seen.shape[1]), seen.shape[:2])
    # Records often end after a time or a number of decisions, which the observation does not tell.
    seen = np.concatenate([seen, np.stack([data.time, numbers], axis=-1)], axis=-1)
    mean, std = mean_and_std(seen[:, :-1][mask])
    return ((seen - mean) / std).astype(np.float32)


def fit_values(
    data: Trajectory, inputs: QInputs, *, seed: int = 0, members: int = MEMBERS, iterations: int = ITERATIONS
) -> ActionValues:
    """Fit the ensemble, given the inputs of its networks."""
    spec, mask = data.spec, np.asarray(data.mask)
    scale, bounds = _scale(data), value_bounds(data)
    last = np.arange(mask.shape[1]) == np.asarray(data.length)[:, None] - 1
    discount = np.where(last, 0.0, spec.discount ** (np.asarray(data.interval, np.float64) / spec.tick))
    columns = FQEData(
        inputs.features,
        inputs.action,
        np.asarray(data.reward / scale, np.float32),
        discount.astype(np.float32),
        inputs.next_features,
        inputs.next_probabilities.astype(np.float32),
        np.broadcast_to(np.asarray(bounds, np.float32) / np.float32(scale), (*mask.shape, 2)),
    )
    flat = FQEData(*(jnp.asarray(x[mask]) for x in columns))
    rng = np.random.default_rng([seed, 2])
    samples = rng.multinomial(len(data), np.full(len(data), 1 / len(data)), members).astype(float)
    episode = np.nonzero(mask)[0]
    keys = jax.random.split(jax.random.key(seed), members)
    sizes = (inputs.features.shape[-1], *HIDDEN, inputs.next_probabilities.shape[-1])
    q = eqx.filter_vmap(lambda key: ReLUNetwork.new(*sizes, key=key))(keys)
    target, state = q, jax.vmap(optax.adam(LEARNING_RATE).init)(q)
    iterations = iterations_for(data, iterations)
    drawn = [np.repeat(np.arange(len(episode)), sample[episode].astype(int)) for sample in samples]
    for done in range(0, iterations, CHUNK):
        batches = np.stack([some[rng.integers(0, len(some), (CHUNK, BATCH))] for some in drawn])
        speed = min(1.0, 2 * (1 - done / iterations))  # halfway through, the step begins to shrink
        q, target, state = _advance(q, target, state, flat, jnp.asarray(batches), jnp.asarray(speed, jnp.float32))
    values = eqx.filter_vmap(lambda net: net(jnp.asarray(inputs.moments)))(q)
    return ActionValues(np.clip(np.asarray(values, np.float64) * scale, *bounds), samples)


def iterations_for(data: Trajectory, iterations: int) -> int:
    """At most this many, and `EPOCHS` passes over the decisions; but as many as rewards need to reach the start of an
    episode, which takes about 1 / POLYAK for every decision, as far back as the discount lets them count."""
    gamma = float((data.spec.discount ** (np.asarray(data.interval, np.float64) / data.spec.tick))[data.mask].mean())
    horizon = min(float(np.max(data.length)), 1 / max(1 - gamma, 1e-9))
    allowed = min(iterations, max(LEAST_ITERATIONS, EPOCHS * int(np.sum(data.length)) // BATCH))
    return max(allowed, min(math.ceil(horizon / POLYAK), ITERATIONS))


def value_bounds(data: Trajectory) -> tuple[float, float]:
    """Bounds of all values: the smallest and the largest discounted return from any decision on, widened."""
    gamma = data.spec.discount ** (np.asarray(data.interval, np.float64) / data.spec.tick)
    mask, reward, following = np.asarray(data.mask), np.asarray(data.reward, np.float64), np.zeros(len(data))
    low, high = 0.0, 0.0
    for k in reversed(range(gamma.shape[1])):
        following = np.where(mask[:, k], reward[:, k] + gamma[:, k] * following, 0.0)
        low, high = min(low, float(following.min())), max(high, float(following.max()))
    width = MARGIN * (high - low)
    return low - width, high + width


def lasting_bounds(data: Trajectory) -> tuple[float, float]:
    """`value_bounds`, where records were cut off as if they went on for ever: b / (1 - gamma^T), T being the mean
    duration of the records."""
    low, high = value_bounds(data)
    if not np.any(data.truncated):
        return low, high
    left = data.spec.discount ** (float(data.time[:, -1].mean()) / data.spec.tick)
    more = 1 / max(1 - left, LEAST_CUT)
    return more * low, more * high


def least_value(data: Trajectory) -> float:
    """A value below all that the data show, also of going on for ever where records were cut off: that of the worst
    episode's rewards per unit of time, forever."""
    spec, low = data.spec, lasting_bounds(data)[0]
    if not np.any(data.truncated) or spec.discount >= 1:
        return low
    rates = np.asarray(data.undiscounted, np.float64) / np.maximum(data.time[:, -1] / spec.tick, 1.0)
    return min(low, float(rates.min()) / (1 - spec.discount))


def _scale(data: Trajectory) -> float:
    """Size of the returns, so that networks learn numbers of about 1."""
    returns = np.abs(data.discounted)
    return float(returns.mean()) or 1.0


@eqx.filter_jit
def _advance(
    q: ReLUNetwork,
    target: ReLUNetwork,
    state: Any,
    data: FQEData,
    batches: Int[Array, "members k n"],
    speed: Float[Array, ""],
) -> tuple[ReLUNetwork, ReLUNetwork, Any]:
    def member(q: Any, target: Any, state: Any, batches: Any) -> tuple[Any, Any, Any]:
        def step(carry: tuple[Any, Any, Any], batch: Int[Array, " n"]) -> tuple[tuple[Any, Any, Any], None]:
            q, target, state = carry
            rows = jax.tree.map(lambda x: x[batch], data)
            gradient = jax.grad(fqe_loss)(q, target, rows)
            changes, state = optax.adam(LEARNING_RATE).update(gradient, state, q)
            q = optax.apply_updates(q, jax.tree.map(lambda x: speed * x, changes))
            target = jax.tree.map(lambda old, new: old + POLYAK * (new - old), target, q)
            return (q, target, state), None

        return jax.lax.scan(step, (q, target, state), batches)[0]

    return eqx.filter_vmap(member)(q, target, state, batches)


def fqe_loss(q: ReLUNetwork, target: ReLUNetwork, rows: FQEData) -> Float[Array, ""]:
    """Mean squared error of Q(s, a) against r + gamma^tau sum_a' pi(a' | s') Q(s', a')."""
    next_values = jnp.clip(target(rows.next_features), rows.bounds[:, :1], rows.bounds[:, 1:])
    expected = (rows.next_probabilities * next_values).sum(-1)
    targets = jax.lax.stop_gradient(rows.reward + rows.discount * expected)
    values = jnp.take_along_axis(q(rows.features), rows.action[:, None], -1)[:, 0]
    return jnp.mean((values - targets) ** 2)
