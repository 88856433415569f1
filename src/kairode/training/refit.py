"""Fitting again and again to experience that grows: every seed to its own, with early stopping."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kairode.errors import KairodeError
from kairode.models.predict import Episodes
from kairode.training.batches import batch_numbers
from kairode.training.step import FitSettings, Progress, advance, look, validate
from kairode.trees import choose

CHUNK = 10
"""Iterations in one compiled call."""


class Refitted(NamedTuple):
    """What came out, for each seed."""

    progress: Progress
    """With the best weights."""
    error: list[float]
    """The lowest open-loop error on the pieces held back, mean over steps and dimensions, in normalised units."""
    iterations: int
    """Of the seed that took longest."""


class Shares(NamedTuple):
    """Pieces to fit to and pieces held back, each seed's own: [seed, piece, ..], padded to one size."""

    train: Episodes
    valid: Episodes
    counts: list[int]
    """How many of each seed's training pieces are real."""
    every: int
    """Iterations of about one pass through the data, the same for all seeds; a multiple of CHUNK."""


def refit(
    progress: Progress,
    static: Any,
    settings: FitSettings,
    shares: Shares,
    seeds: Sequence[int],
    *,
    number: int,
    most: int,
) -> Refitted:
    """Go on until the error has not fallen for `settings.patience` passes through the data, or for `most` iterations.

    Iterations are done in tens. The number of the refit only fixes the order of the batches.
    """
    compiled = dataclasses.replace(settings, patience=None)  # patience changes, what is compiled does not
    fresh = jnp.zeros_like(progress.stale)
    progress = dataclasses.replace(
        progress,
        best=progress.params,
        best_error=jnp.full(fresh.shape, jnp.inf),
        stale=fresh,
        active=fresh == 0,
        in_a_row=fresh,
        longest_row=fresh,
    )
    done = 0
    while bool(progress.active.any()) and done < most:
        for _ in range(max(1, min(shares.every, most - done) // CHUNK)):
            drawn = [
                batch_numbers(seed + 7919 * number, count, settings.batch, done, CHUNK)
                for seed, count in zip(seeds, shares.counts, strict=True)
            ]
            progress, _ = advance(
                progress, shares.train, jnp.asarray(np.stack(drawn, axis=1)), static, compiled, own=True
            )
            done += CHUNK
        error = validate(progress, shares.valid, static, own=True)
        progress = look(progress, error, settings.patience)
        if int(progress.longest_row.max()) >= settings.most_skipped:
            raise KairodeError(
                f"{settings.most_skipped} batches in a row gave a loss that is not finite, in refit {number}: try a "
                "smaller learning rate or a solver with fixed steps."
            )
    known = jnp.isfinite(progress.best_error)
    params = jax.vmap(choose)(known, progress.best, progress.params)
    return Refitted(dataclasses.replace(progress, params=params), np.asarray(progress.best_error).tolist(), done)
