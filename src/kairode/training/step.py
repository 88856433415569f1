"""Fitting dynamics models: one compiled step, many iterations per call, all seeds at once.

A `FitState` holds everything that changes; `run_iterations` advances it. `loop.py` validates, saves and stops. A fit is
a pure function of its config, its seeds and the data.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, UInt32

from kairode.config.training import TrainingConfig
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import Episodes, open_loop
from kairode.training.batches import batch_numbers
from kairode.training.losses import Terms, objective, state_error
from kairode.trees import choose

VALIDATION = 2**31 - 1
"""Folded into a seed's key for validation; iterations fold in their number."""


class FitState(eqx.Module):
    """State of the fits of several seeds; seeds are the first axis of every array (absent inside a vmap)."""

    params: Any
    """Weights of the models."""
    optimizer: Any
    key: UInt32[Array, "*seeds 2"]
    """Key data of the seed's random key."""
    iteration: Int[Array, "*seeds"]
    skipped: Int[Array, "*seeds"]
    """Batches skipped because loss or gradient was not finite."""
    in_a_row: Int[Array, "*seeds"]
    longest_row: Int[Array, "*seeds"]
    """Longest run of skipped batches so far."""
    best: Any
    """Weights with the lowest validation error so far."""
    best_error: Float[Array, "*seeds"]
    stale: Int[Array, "*seeds"]
    """Validations since then."""
    active: Bool[Array, "*seeds"]


def init_fit_state(models: DynamicsModel, settings: TrainingConfig, seeds: Sequence[int]) -> FitState:
    """State before the first iteration; seeds are the first axis of every weight in `models`."""
    params = eqx.filter(models, eqx.is_array)
    count = len(seeds)
    zeros = jnp.zeros(count, jnp.int32)
    keys = np.stack([np.asarray(jax.random.key_data(jax.random.key(seed))) for seed in seeds])
    return FitState(
        params=params,
        optimizer=jax.jit(jax.vmap(make_optimizer(settings).init))(params),
        key=jnp.asarray(keys),
        iteration=zeros,
        skipped=zeros,
        in_a_row=zeros,
        longest_row=zeros,
        best=params,
        best_error=jnp.full(count, jnp.inf, jnp.float32),
        stale=zeros,
        active=jnp.ones(count, bool),
    )


def make_optimizer(settings: TrainingConfig, cooling: "Cooling | None" = None) -> optax.GradientTransformation:
    """Adam with L2 regularisation added to the gradient."""
    rate: Any = settings.learning_rate
    if settings.cooldown > 0:
        begin, count = cooldown_of(settings) if cooling is None else cooling

        def rate(k: Any) -> Any:
            return settings.learning_rate * (1 - jnp.clip(k - begin, 0, count) / count)

    return optax.chain(optax.add_decayed_weights(settings.weight_decay), optax.adam(rate))


Cooling = tuple[Any, Any]
"""First iteration of the cooldown, and how many there are: numbers of a compiled program, so that it serves fits with
other numbers of iterations."""


def cooldown_of(settings: TrainingConfig) -> Cooling:
    """The cooldown of these settings."""
    count = round(settings.cooldown * settings.iterations)
    return settings.iterations - count, max(count, 1)


def compiled_settings(settings: TrainingConfig) -> TrainingConfig:
    """The settings with the defaults of those that the compiled step does not depend on."""
    same = {name: getattr(TrainingConfig, name) for name in ("iterations", "validate_every", "patience", "max_skipped")}
    cooldown = 1.0 if settings.cooldown > 0 else 0.0
    return dataclasses.replace(settings, **same, chunk_length=None, cooldown=cooldown)


def batch_indices(
    settings: TrainingConfig, seeds: Sequence[int], count: int, first: int, iterations: int
) -> np.ndarray:
    """Episode indices of the batches: [iterations, seeds, batch]."""
    drawn = [batch_numbers(seed, count, settings.batch_size, first, iterations) for seed in seeds]
    return np.stack(drawn, axis=1)


@partial(jax.jit, static_argnames=("static", "settings", "own"))
def run_iterations(
    fit_state: FitState,
    data: Episodes,
    batches: Int[Array, "k seeds batch"],
    static: Any,
    settings: TrainingConfig,
    own: bool = False,
    cooling: Cooling | None = None,
) -> tuple[FitState, Terms]:
    """Run iterations; also each term's mean over them, for each seed.

    With `own`, the data have a first axis of seeds; otherwise all seeds share them. `cooling` replaces the cooldown of
    the settings.
    """
    each = jax.vmap(lambda p, b, d: fit_step(p, b, d, static, settings, cooling), in_axes=(0, 0, 0 if own else None))

    def step(fit_state: FitState, batch: Array) -> tuple[FitState, Terms]:
        return each(fit_state, batch, data)

    fit_state, terms = jax.lax.scan(step, fit_state, batches)
    return fit_state, jax.tree.map(lambda x: jnp.nanmean(x, axis=0), terms)


def fit_step(
    fit_state: FitState,
    batch: Int[Array, " batch"],
    data: Episodes,
    static: Any,
    settings: TrainingConfig,
    cooling: Cooling | None = None,
) -> tuple[FitState, Terms]:
    """One iteration of one seed. A batch whose loss or gradient is not finite is skipped and counted."""
    episodes = jax.tree.map(lambda x: x[batch], data).batch_last()
    k = fit_state.iteration
    key = jax.random.fold_in(jax.random.wrap_key_data(fit_state.key), k)
    truth = None if settings.sampling_decay == 0 else jnp.maximum(0.0, 1.0 - settings.sampling_decay * k)
    warmup = settings.weights.kl_warmup
    warm = jnp.minimum(1.0, k / warmup) if warmup else jnp.ones(())

    def loss(params: Any) -> tuple[Array, Terms]:
        model = eqx.combine(params, static)
        terms = objective(model, episodes, settings.weights, truth=truth, warm=warm, key=key)
        return terms.total, terms

    gradient, terms = jax.grad(loss, has_aux=True)(fit_state.params)
    fine = jnp.isfinite(terms.total) & jnp.isfinite(optax.tree.norm(gradient, squared=True))
    changes, state = make_optimizer(settings, cooling).update(gradient, fit_state.optimizer, fit_state.params)
    moves = fine & fit_state.active
    params = choose(moves, optax.apply_updates(fit_state.params, changes), fit_state.params)
    bad = (~fine & fit_state.active).astype(jnp.int32)
    in_a_row = jnp.where(fine, 0, fit_state.in_a_row + bad)
    after = dataclasses.replace(
        fit_state,
        params=params,
        optimizer=choose(moves, state, fit_state.optimizer),
        iteration=k + fit_state.active.astype(jnp.int32),
        skipped=fit_state.skipped + bad,
        in_a_row=in_a_row,
        longest_row=jnp.maximum(fit_state.longest_row, in_a_row),
    )
    return after, jax.tree.map(lambda x: jnp.where(moves, x, jnp.nan), terms)


@partial(jax.jit, static_argnames=("static", "own"))
def validate(fit_state: FitState, data: Episodes, static: Any, own: bool = False) -> Float[Array, " seeds"]:
    """Open-loop error of each seed, with the same draws of z_0 at every validation."""

    def error(params: Any, key: Array, data: Episodes) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(key), VALIDATION)
        episodes = data.batch_last()
        return state_error(open_loop(eqx.combine(params, static), episodes, key).obs, episodes)

    return jax.vmap(error, in_axes=(0, 0, 0 if own else None))(fit_state.params, fit_state.key, data)


@jax.jit
def record_validation(
    fit_state: FitState, error: Float[Array, " seeds"], patience: Int[Array, ""] | int | None
) -> FitState:
    """Update the best weights, and stop seeds whose patience is exhausted."""
    better = (error < fit_state.best_error) & fit_state.active
    stale = jnp.where(better, 0, fit_state.stale + fit_state.active.astype(jnp.int32))
    return dataclasses.replace(
        fit_state,
        best=jax.vmap(choose)(better, fit_state.params, fit_state.best),
        best_error=jnp.where(better, error, fit_state.best_error),
        stale=stale,
        active=fit_state.active if patience is None else fit_state.active & (stale < patience),
    )
