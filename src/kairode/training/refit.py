"""Refitting to growing data: each seed to its own, with early stopping."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kairode.config.training import TrainingConfig
from kairode.errors import KairodeError
from kairode.models.predict import Episodes
from kairode.seeds import Purpose, derive
from kairode.training.batches import batch_numbers
from kairode.training.step import FitState, record_validation, validate
from kairode.training.threads import run_on_cores
from kairode.trees import choose

CHUNK = 10
"""Iterations per compiled call."""


class Refitted(NamedTuple):
    """Result of a refit."""

    fit_state: FitState
    """With the best weights of each seed."""
    error: list[float]
    """Lowest validation error of each seed: open loop, mean over steps and dimensions, normalised units."""
    iterations: int
    """Iterations of the seed that took longest."""


class TrainValidSplit(NamedTuple):
    """Training and validation chunks of each seed, [seed, chunk, ..], padded to one size."""

    train: Episodes
    valid: Episodes
    counts: list[int]
    """Number of training chunks of each seed, without padding."""
    every: int
    """Iterations of about one pass through the data, the same for all seeds; a multiple of CHUNK."""


def refit(
    fit_state: FitState,
    static: Any,
    settings: TrainingConfig,
    split: TrainValidSplit,
    seeds: Sequence[int],
    *,
    number: int,
    most: int,
) -> Refitted:
    """Fit until the validation error has not improved for `settings.patience` passes through the data, at most `most`
    iterations.

    Iterations run in multiples of CHUNK. `number` (of this refit) only seeds the order of the batches.
    """
    compiled = dataclasses.replace(settings, patience=None)  # no recompilation when only the patience changes
    fresh = jnp.zeros_like(fit_state.stale)
    fit_state = dataclasses.replace(
        fit_state,
        best=fit_state.params,
        best_error=jnp.full(fresh.shape, jnp.inf),
        stale=fresh,
        active=fresh == 0,
        in_a_row=fresh,
        longest_row=fresh,
    )
    done = 0
    while bool(fit_state.active.any()) and done < most:
        for _ in range(max(1, min(split.every, most - done) // CHUNK)):
            drawn = [
                batch_numbers(derive(seed, Purpose.REFIT_BATCHES, number), count, settings.batch_size, done, CHUNK)
                for seed, count in zip(seeds, split.counts, strict=True)
            ]
            fit_state, _ = run_on_cores(
                fit_state, split.train, jnp.asarray(np.stack(drawn, axis=1)), static, compiled, own=True
            )
            done += CHUNK
        error = validate(fit_state, split.valid, static, own=True)
        fit_state = record_validation(fit_state, error, settings.patience)
        if int(fit_state.longest_row.max()) >= settings.max_skipped:
            raise KairodeError(
                f"the loss of {settings.max_skipped} batches in a row was not finite in refit {number}: try a smaller "
                "learning rate or a fixed-step solver."
            )
    known = jnp.isfinite(fit_state.best_error)
    params = jax.vmap(choose)(known, fit_state.best, fit_state.params)
    return Refitted(dataclasses.replace(fit_state, params=params), np.asarray(fit_state.best_error).tolist(), done)
