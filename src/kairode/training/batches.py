"""Batches of shuffled epochs, as a pure function of seed and iteration."""

import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kairode.models.predict import Episodes

LENGTHS = 10
"""Episodes are padded to a multiple of this many decisions, so that new lengths rarely need a new compilation."""


def pad(episodes: Episodes) -> Episodes:
    """Pad lengths to a multiple of `LENGTHS` and the number of episodes to a power of two."""
    count, length = episodes.tau.shape
    longer, more = -length % LENGTHS, (1 << (count - 1).bit_length()) - count
    return Episodes(
        obs=_longer(episodes.obs, longer, "edge", more),
        action=_longer(episodes.action, longer, more=more),
        tau=_longer(episodes.tau, longer, more=more),
        real=_longer(episodes.real, longer, more=more),
    )


def _longer(x: Array, moments: int, mode: Literal["edge", "constant"] = "constant", more: int = 0) -> Array:
    """Pad steps (and episodes) with zeros, or with the last value."""
    return jnp.asarray(np.pad(np.asarray(x), [(0, more), (0, moments), *[(0, 0)] * (x.ndim - 2)], mode=mode))


def split_chunks(episodes: Episodes, most: int) -> Episodes:
    length = episodes.tau.shape[1]
    blocks = -(-length // most)
    whole = Episodes(
        obs=_longer(episodes.obs, blocks * most - length, "edge"),
        action=_longer(episodes.action, blocks * most - length),
        tau=_longer(episodes.tau, blocks * most - length),
        real=_longer(episodes.real, blocks * most - length),
    )

    def cut(x: Array, extra: int = 0) -> Array:
        return jnp.concatenate([x[:, k * most : (k + 1) * most + extra] for k in range(blocks)])

    found = Episodes(cut(whole.obs, 1), cut(whole.action), cut(whole.tau), cut(whole.real))
    some = np.asarray(found.real)[:, 0]
    return Episodes(found.obs[some], found.action[some], found.tau[some], found.real[some])


def batch_numbers(seed: int, count: int, batch: int, first: int, iterations: int) -> np.ndarray:
    """Episode indices of the batches of several iterations: [iterations, batch].

    Every epoch is a new shuffle; the remainder that does not fill a batch is dropped.
    """
    size = min(batch, count)
    per_epoch = count // size
    last = first + iterations - 1
    rows = []
    for epoch in range(first // per_epoch, last // per_epoch + 1):
        order = np.random.default_rng([seed, epoch]).permutation(count)[: per_epoch * size].reshape(per_epoch, size)
        begin = max(first - epoch * per_epoch, 0)
        rows.append(order[begin : min(last - epoch * per_epoch, per_epoch - 1) + 1])
    numbers = np.concatenate(rows)
    short = math.ceil(batch / size)
    return np.tile(numbers, (1, short))[:, :batch].astype(np.int32)
