"""Fitting again and again to experience that grows: every seed to its own, with early stopping."""

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
from kairode.training.step import FitState, record_validation, run_iterations, validate
from kairode.trees import choose

CHUNK = 10
"""Iterations in one compiled call."""


class Refitted(NamedTuple):
    """What came out, for each seed."""

    fit_state: FitState
    """With the best weights."""
    error: list[float]
    """The lowest open-loop error on the pieces held back, mean over steps and dimensions, in normalised units."""
    iterations: int
    """Of the seed that took longest."""


class TrainValidSplit(NamedTuple):
    """Pieces to fit to and pieces held back, each seed's own: [seed, piece, ..], padded to one size."""

    train: Episodes
    valid: Episodes
    counts: list[int]
    """How many of each seed's training pieces are real."""
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
    """Go on until the error has not fallen for `settings.patience` passes through the data, or for `most` iterations.

    Iterations are done in tens. The number of the refit only fixes the order of the batches.
    """
    compiled = dataclasses.replace(settings, patience=None)  # patience changes, what is compiled does not
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
            fit_state, _ = run_iterations(
                fit_state, split.train, jnp.asarray(np.stack(drawn, axis=1)), static, compiled, own=True
            )
            done += CHUNK
        error = validate(fit_state, split.valid, static, own=True)
        fit_state = record_validation(fit_state, error, settings.patience)
        if int(fit_state.longest_row.max()) >= settings.max_skipped:
            raise KairodeError(
                f"{settings.max_skipped} batches in a row gave a loss that is not finite, in refit {number}: try a "
                "smaller learning rate or a solver with fixed steps."
            )
    known = jnp.isfinite(fit_state.best_error)
    params = jax.vmap(choose)(known, fit_state.best, fit_state.params)
    return Refitted(dataclasses.replace(fit_state, params=params), np.asarray(fit_state.best_error).tolist(), done)
