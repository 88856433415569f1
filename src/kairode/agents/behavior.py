"""The behaviour policy of a data set, b(a | s), estimated by a classifier; and the probabilities of a policy on it."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.agents.support import BehaviorPolicy
from kairode.data.normalize import mean_and_std
from kairode.data.policy import Constant, Policy, Random
from kairode.data.trajectory import Trajectory, carried_forward, join
from kairode.envs.core import Discrete, Spec
from kairode.errors import KairodeError
from kairode.text import listed
from kairode.trees import choose

FOLDS = 5
"""Parts of the episodes: the probabilities of one part are those of a classifier fitted to the others."""
ITERATIONS, CHUNK, BATCH = 2000, 100, 256
HIDDEN = (64, 64)
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-3
DRAWS = 64
"""Actions drawn from a policy whose probabilities are not known."""


def behavior_features(data: Trajectory, history: bool = True) -> Float[np.ndarray, "n T f"]:
    """[s, previous action (none at the start), log(1 + time since it)] at every decision; s alone without history."""
    seen = np.asarray(carried_forward(data).observation, np.float32)[:, :-1]
    if not history:
        return seen
    actions = np.eye(data.spec.actions.n, dtype=np.float32)[np.asarray(data.action)]
    waits = np.log1p(np.asarray(data.interval, np.float32) / np.float32(data.spec.tick))[..., None]
    previous = np.concatenate([actions, waits], axis=-1)
    previous = np.concatenate([np.zeros_like(previous[:, :1]), previous[:, :-1]], axis=1)
    return np.concatenate([seen, previous], axis=-1)


class BehaviorFit(NamedTuple):
    """An estimated behaviour policy."""

    policy: BehaviorPolicy
    """Fitted to all episodes."""
    probabilities: Float[np.ndarray, "n T a"]
    """Of every decision of the data, by a classifier that has not seen its episode."""
    log_likelihood: float
    """Mean log probability of the actions taken, of episodes that were not seen."""
    marginal_log_likelihood: float
    """The same of the actions' frequencies."""


def fit_behavior(
    data: Trajectory,
    *,
    others: Trajectory | None = None,
    seed: int = 0,
    iterations: int = ITERATIONS,
    history: bool = True,
) -> BehaviorFit:
    """Estimate the behaviour policy, with cross-fitting by episode, from `others` too: further episodes of the policy.

    With `history`, given the previous action too, as estimates need it: who chose the actions knew it. Without, given
    the observation alone: whether an action was ever tried in such a state.
    """
    if not isinstance(data.spec.actions, Discrete):
        raise KairodeError(
            f"a behaviour policy is estimated for discrete actions; those of '{data.spec.name}' are not."
        )
    if others is not None:
        count, decisions = data.interval.shape
        both = join([data, others[_new_episodes(others, data)]])
        fit = fit_behavior(both, seed=seed, iterations=iterations, history=history)
        return fit._replace(probabilities=fit.probabilities[:count, :decisions])
    features, mask = behavior_features(data, history), np.asarray(data.mask)
    x, y = features[mask], np.asarray(data.action)[mask]
    folds = min(FOLDS, len(data))
    fold = np.random.default_rng(seed).permutation(len(data)) % folds
    part = np.broadcast_to(fold[:, None], mask.shape)[mask]
    # Classifier k is fitted to all parts but k, the last one to all; one part tells when to stop.
    fits = [np.flatnonzero((part != k) & (part != (k + 1) % folds)) for k in range(folds)]
    stops = [np.flatnonzero(part == (k + 1) % folds) for k in range(folds)]
    rng = np.random.default_rng([seed, 1])
    if folds < 3:  # too few episodes to hold any out
        fits, stops = [np.arange(len(x))] * folds, [np.arange(len(x))] * folds
    fits, stops = [*fits, np.flatnonzero(part != 0)], [*stops, np.flatnonzero(part == 0)]
    chosen = np.stack([rows[rng.integers(0, len(rows), (iterations, BATCH))] for rows in fits])
    most = min(4096, max(map(len, stops)))
    checked = np.stack([rng.choice(rows, most) for rows in stops])
    policies = _fit(data.spec, jnp.asarray(x), jnp.asarray(y, jnp.int32), chosen, checked, seed)
    each = np.asarray(eqx.filter_vmap(lambda one: one.probabilities(jnp.asarray(features)))(policies))
    found = each[fold, np.arange(len(data))]
    probability = np.take_along_axis(found, np.asarray(data.action)[..., None], -1)[..., 0][mask]
    frequency = np.bincount(y, minlength=data.spec.actions.n) / len(y)
    return BehaviorFit(
        policy=jax.tree.map(lambda leaf: leaf[-1], policies),
        probabilities=found.astype(np.float64),
        log_likelihood=float(np.log(probability).mean()),
        marginal_log_likelihood=float(np.log(frequency[y]).mean()),
    )


def _new_episodes(others: Trajectory, data: Trajectory) -> np.ndarray:
    """Mask of the others that are none of the data's: a classifier would see the episode it must not see."""

    def contents(some: Trajectory) -> list[bytes]:
        columns = [np.asarray(x) for x in (some.observation, some.action, some.interval)]
        lengths = np.asarray(some.length)
        return [b"".join(np.ascontiguousarray(x[i, :n]).tobytes() for x in columns) for i, n in enumerate(lengths)]

    known = set(contents(data))
    return np.array([one not in known for one in contents(others)], bool)


def _fit(spec: Spec, x: Any, y: Any, chosen: np.ndarray, checked: np.ndarray, seed: int) -> BehaviorPolicy:
    """Classifiers with their lowest loss on the checked rows; the first axis of rows is that of classifiers."""
    count, actions = len(chosen), spec.actions.n
    keys = jax.random.split(jax.random.key(seed), count)
    nets = eqx.filter_vmap(lambda key: ReLUNetwork.new(x.shape[1], *HIDDEN, actions, key=key))(keys)
    mean, std = mean_and_std(np.asarray(x))
    marginal = np.bincount(np.asarray(y), minlength=actions) / len(y)

    def for_each(values: np.ndarray) -> Array:
        return jnp.tile(jnp.asarray(values, jnp.float32), (count, 1))

    policies = BehaviorPolicy(nets, for_each(mean), for_each(std), for_each(marginal), spec)
    state = jax.vmap(_optimizer().init)(policies.net)
    best, best_loss = policies.net, jnp.full(count, jnp.inf)
    for first in range(0, chosen.shape[1], CHUNK):
        part = jnp.asarray(chosen[:, first : first + CHUNK])
        policies, state, loss = _advance(policies, state, x, y, part, jnp.asarray(checked))
        better = loss < best_loss
        best, best_loss = jax.vmap(choose)(better, policies.net, best), jnp.where(better, loss, best_loss)
    return eqx.tree_at(lambda p: p.net, policies, best)


def _optimizer() -> optax.GradientTransformation:
    return optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)


def _loss(net: ReLUNetwork, policy: BehaviorPolicy, x: Float[Array, "n f"], y: Int[Array, " n"]) -> Float[Array, ""]:
    probabilities = eqx.tree_at(lambda p: p.net, policy, net).probabilities(x)
    return -jnp.log(jnp.take_along_axis(probabilities, y[:, None], -1)).mean()


@eqx.filter_jit
def _advance(
    policies: BehaviorPolicy,
    state: Any,
    x: Float[Array, "n f"],
    y: Int[Array, " n"],
    rows: Int[Array, "classifiers k batch"],
    checked: Int[Array, "classifiers m"],
) -> tuple[BehaviorPolicy, Any, Float[Array, " classifiers"]]:
    def one(policy: BehaviorPolicy, state: Any, rows: Any, checked: Any) -> tuple[BehaviorPolicy, Any, Any]:
        def step(carry: tuple[Any, Any], batch: Int[Array, " n"]) -> tuple[tuple[Any, Any], None]:
            net, state = carry
            gradient = jax.grad(_loss)(net, policy, x[batch], y[batch])
            changes, state = _optimizer().update(gradient, state, net)
            return (optax.apply_updates(net, changes), state), None

        (net, state), _ = jax.lax.scan(step, (policy.net, state), rows)
        return eqx.tree_at(lambda p: p.net, policy, net), state, _loss(net, policy, x[checked], y[checked])

    return eqx.filter_vmap(one)(policies, state, rows, checked)


@eqx.filter_jit
def _greedy(policy: QPolicy, obs: Any, action: Any, elapsed: Any, keys: Any) -> Any:
    """Greedy action at every moment of episodes [n, T + 1] in which these actions were taken."""

    def episode(obs: Any, action: Any, elapsed: Any, key: Any) -> Any:
        def moment(memory: Any, row: Any) -> tuple[Any, Any]:
            obs, action, elapsed = row
            features, memory = policy.encoder.encode(memory, obs, elapsed)
            return policy.encoder.remember(memory, obs, action), jnp.argmax(policy.values(features, obs))

        return jax.lax.scan(moment, policy.start(key=key), (obs, action, elapsed))[1]

    return jax.vmap(episode)(obs, action, elapsed, keys)


def policy_probabilities(policy: Policy, data: Trajectory, *, seed: int = 0) -> Float[np.ndarray, "n moments a"]:
    """pi(a | s) of a policy at every moment of the data (the last observation too), where their actions were taken.

    Probabilities of other policies than `QPolicy`, `Constant` and `Random` are estimated from draws; such a policy must
    have no memory.
    """
    n, moments = np.shape(data.observation)[:2]
    count, seen = data.spec.actions.n, carried_forward(data).observation
    if isinstance(policy, Random):
        return np.full((n, moments, count), 1 / count)
    if isinstance(policy, Constant):
        _check_drawn(np.asarray(policy.action), data.spec)
        return np.broadcast_to(np.eye(count)[int(policy.action)], (n, moments, count))
    obs, keys = jnp.asarray(seen, jnp.float32), jax.random.split(jax.random.key(seed), n)
    if isinstance(policy, QPolicy):
        last = np.zeros((n, 1))
        action = np.concatenate([np.asarray(data.action), last], axis=1).astype(np.int32)
        elapsed = np.concatenate([last, np.asarray(data.interval)], axis=1).astype(np.float32)
        greedy = np.asarray(_greedy(policy, obs, jnp.asarray(action), jnp.asarray(elapsed), keys))
        return (1 - policy.epsilon) * np.eye(count)[greedy] + policy.epsilon / count
    if jax.tree.leaves(policy.start(key=keys[0])):
        raise KairodeError(
            "off-policy estimates need the probabilities of a policy's actions, and those of a policy with a memory of "
            "its own are not known: give one from kairode.learn, or a function of (observation, key)."
        )
    frequencies, low, high = _drawn(policy, obs, keys, count)
    for extreme in (low, high):
        _check_drawn(np.asarray(extreme)[np.arange(moments) <= np.asarray(data.length)[:, None]], data.spec)
    return np.asarray(frequencies)


def _check_drawn(actions: np.ndarray, spec: Spec) -> None:
    """Raise unless a policy's actions are indices of the system's."""
    if not np.issubdtype(actions.dtype, np.integer):
        raise KairodeError(f"the policy's actions must be integers, the indices of {listed(spec.actions.names)}.")
    wrong = actions[(actions < 0) | (actions >= spec.actions.n)]
    if wrong.size:
        raise KairodeError(
            f"the policy takes action {wrong.flat[0]}, and actions are indices from 0 to {spec.actions.n - 1}, of "
            f"{listed(spec.actions.names)}."
        )


@eqx.filter_jit
def _drawn(policy: Policy, obs: Any, keys: Any, count: int) -> Any:
    """Frequencies of the actions of a policy without memory, and the lowest and the highest index."""

    def moment(obs: Any, key: Any) -> Any:
        zero = jnp.zeros((), obs.dtype)
        taken = jax.vmap(lambda key: policy.act((), obs, zero, key=key)[0])(jax.random.split(key, DRAWS))
        return jax.nn.one_hot(taken, count).mean(0), taken.min(0), taken.max(0)

    return jax.vmap(lambda row, key: jax.vmap(moment)(row, jax.random.split(key, row.shape[0])))(obs, keys)
