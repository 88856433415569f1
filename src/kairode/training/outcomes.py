"""Fitting rewards and terminations to the intervals of a data set: an ensemble in one compiled step."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from kairode.data.trajectory import Trajectory, carried_forward
from kairode.envs.core import Spec
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.outcomes import OutcomeModel
from kairode.models.predict import predict
from kairode.trees import choose

ITERATIONS, CHUNK, BATCH, HIDDEN = 5000, 250, 256, 64
"""Iterations, of which so many lie between two validations; intervals per batch; tanh units per layer."""
LEARNING_RATE = 1e-3


class IntervalRows(NamedTuple):
    """Intervals of all episodes, [intervals, ..]."""

    obs: Any
    action: Any
    next_obs: Any
    tau: Any
    reward: Any
    ended: Any
    """Whether the process terminated in it."""


def intervals_of(data: Trajectory, model: DynamicsModel | None = None) -> IntervalRows:
    """The intervals of episodes; missing values are a model's predictions, or carried forward without one."""
    seen = np.asarray(carried_forward(data).observation, np.float32)
    lost = np.isnan(data.observation)
    if model is not None and lost.any():
        predicted = predict(model, data, teacher_forcing=True)
        seen = seen.copy()
        seen[:, 1:] = np.where(lost[:, 1:], predicted, seen[:, 1:])
    last = np.arange(data.interval.shape[1]) == np.asarray(data.length)[:, None] - 1
    ended = last & np.asarray(data.terminated)[:, None]
    columns = (seen[:, :-1], data.action, seen[:, 1:], data.interval, data.reward, ended)
    return IntervalRows(*(np.asarray(x)[data.mask] for x in columns))


def rows_of(intervals: IntervalRows, data: Trajectory, episodes: np.ndarray) -> IntervalRows:
    """The intervals of some of the episodes that they are of."""
    chosen = np.broadcast_to(episodes[:, None], np.shape(data.interval))[data.mask]
    return IntervalRows(*(x[chosen] for x in intervals))


def held_out_episodes(terminated: np.ndarray) -> np.ndarray:
    """Mask of every tenth episode, at least one, of those that terminated and of the others alike: terminations are
    rare, and all must not be held out."""
    rank = np.where(terminated, np.cumsum(terminated), np.cumsum(~terminated)) - 1
    found = rank % 10 == 9
    if not found.any():
        larger = terminated if terminated.sum() > (~terminated).sum() else ~terminated
        found[np.flatnonzero(larger)[-1]] = True
    return found


def fit_outcomes(
    train: IntervalRows,
    valid: IntervalRows,
    data: Trajectory,
    *,
    seeds: Sequence[int],
    rewards: bool,
    iterations: int = ITERATIONS,
) -> OutcomeModel:
    """Fit an ensemble, one member per seed, stacked; each is the one with the lowest validation loss.

    `rewards` says whether rewards are learned; terminations are where an episode of the training data terminated.
    """
    mean, std = float(train.reward.mean()), float(train.reward.std())
    known = (mean, std or 1.0) if rewards else None
    models = new_outcomes(data.spec, Scale.of(train.obs), known, bool(train.ended.any()), seeds)
    return advance_outcomes(models, train, valid, seeds, iterations)


def new_outcomes(
    spec: Spec, scale: Scale, rewards: tuple[float, float] | None, hazard: bool, seeds: Sequence[int]
) -> OutcomeModel:
    """Random networks, one member per seed, stacked; `rewards` are the mean and standard deviation of those to
    learn."""
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    return eqx.filter_vmap(lambda key: OutcomeModel.new(spec, scale, rewards, hazard, HIDDEN, key=key))(keys)


def advance_outcomes(
    models: OutcomeModel,
    train: IntervalRows,
    valid: IntervalRows,
    seeds: Sequence[int],
    iterations: int,
    *,
    padded: bool = False,
) -> OutcomeModel:
    """Fit the members; each is the one with the lowest validation loss. `padded` repeats rows, so that more of them
    need no new compilation."""
    params, static = eqx.partition(models, eqx.is_array)
    state = jax.vmap(optax.adam(LEARNING_RATE).init)(params)
    count = len(train.tau)
    on_device = tuple(jax.tree.map(jnp.asarray, _padded(part) if padded else part) for part in (train, valid))
    best, best_error = params, jnp.full(len(seeds), jnp.inf)
    random = [np.random.default_rng([seed, 1]) for seed in seeds]
    for _ in range(max(1, iterations // CHUNK)):
        batches = np.stack([draw.integers(0, count, (CHUNK, BATCH)) for draw in random])
        params, state, error = _advance(params, state, static, *on_device, jnp.asarray(batches))
        better = error < best_error
        best = jax.vmap(choose)(better, params, best)
        best_error = jnp.where(better, error, best_error)
    if not np.isfinite(best_error).all():
        raise KairodeError(
            f"the rewards of '{models.spec.name}' cannot be learned: the loss on held-out episodes is not finite. Are "
            "there values of a size that dominates all others?"
        )
    return eqx.combine(best, static)


def _padded(rows: IntervalRows) -> IntervalRows:
    """Repeated to a power of two, so that more data need no new compilation."""
    count = len(rows.tau)
    index = np.arange(1 << max(count - 1, 1).bit_length()) % count
    return IntervalRows(*(np.asarray(x)[index] for x in rows))


@partial(jax.jit, static_argnames="static")
def _advance(
    params: Any, state: Any, static: Any, train: IntervalRows, valid: IntervalRows, batches: Int[Array, "seeds k n"]
) -> tuple[Any, Any, Float[Array, " seeds"]]:
    """Some iterations of every member, and its validation loss after them."""

    def mean_loss(params: Any, rows: IntervalRows) -> Float[Array, ""]:
        return jax.vmap(eqx.combine(params, static).loss)(*rows).mean()

    def member(params: Any, state: Any, batches: Int[Array, "k n"]) -> tuple[Any, Any, Float[Array, ""]]:
        def step(carry: tuple[Any, Any], batch: Int[Array, " n"]) -> tuple[tuple[Any, Any], None]:
            params, state = carry
            gradient = jax.grad(mean_loss)(params, jax.tree.map(lambda x: x[batch], train))
            changes, state = optax.adam(LEARNING_RATE).update(gradient, state, params)
            return (optax.apply_updates(params, changes), state), None

        (params, state), _ = jax.lax.scan(step, (params, state), batches)
        return params, state, mean_loss(params, valid)

    return jax.vmap(member)(params, state, batches)


class OutcomeCheck(NamedTuple):
    """How well rewards and terminations are predicted on held-out episodes."""

    reward_error: float | None
    """Squared error of the mean reward, relative to the variance; None if it is not learned."""
    within: float | None
    """Fraction of the rewards within two standard deviations of their mean."""
    terminations: int
    """In the held-out episodes."""
    expected: float | None
    """Their number as predicted; None without a learned hazard."""


def check_outcomes(models: OutcomeModel, valid: IntervalRows) -> OutcomeCheck:
    """Compare the ensemble's predictions with held-out intervals."""
    rows = jax.tree.map(jnp.asarray, valid)[:4]
    error = within = expected = None
    if models.reward is not None:
        each = eqx.filter_vmap(lambda model: jax.vmap(model.reward_distribution)(*rows))(models)
        mean, std = (np.asarray(x, np.float64).mean(0) for x in each)
        variance = float(np.var(valid.reward))
        error = float(np.mean((mean - valid.reward) ** 2) / variance) if variance > 0 else 0.0
        within = float(np.mean(np.abs(mean - valid.reward) <= 2 * std + 1e-12))
    if models.hazard is not None:
        chance = eqx.filter_vmap(lambda model: jax.vmap(model.end_probability)(*rows))(models)
        expected = float(np.asarray(chance, np.float64).mean(0).sum())
    return OutcomeCheck(error, within, int(valid.ended.sum()), expected)
