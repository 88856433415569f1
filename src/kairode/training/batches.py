"""Batches of shuffled epochs, as a pure function of seed and iteration."""

import functools
import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kairode.models.predict import Episodes

LENGTHS = 10
"""Episodes are padded to a multiple of this many decisions, so that new lengths rarely need a new compilation."""


def pad(episodes: Episodes, least: int = 1) -> Episodes:
    """Pad lengths to a multiple of `LENGTHS` and the number of episodes to a power of two, at least `least`."""
    count, length = episodes.tau.shape
    return _padded(episodes, max(least, 1 << (count - 1).bit_length()) - count, -length % LENGTHS)


def pad_lengths(episodes: Episodes) -> Episodes:
    """Pad lengths alone."""
    return _padded(episodes, 0, -episodes.tau.shape[1] % LENGTHS)


def _padded(episodes: Episodes, more: int, longer: int) -> Episodes:
    """Add episodes and steps: observations repeat the last one, everything else is 0."""
    if not (more or longer):
        return episodes

    def pad(x: Array, mode: Literal["edge", "constant"] = "constant") -> Array:
        return jnp.asarray(np.pad(np.asarray(x), [(0, more), (0, longer), *[(0, 0)] * (x.ndim - 2)], mode=mode))

    observed = None if episodes.observed is None else pad(episodes.observed, "edge")
    return Episodes(pad(episodes.obs, "edge"), pad(episodes.action), pad(episodes.tau), pad(episodes.real), observed)


def split_chunks(episodes: Episodes, most: int) -> Episodes:
    """Episodes cut into chunks of at most `most` decisions; chunks without any are dropped.

    The first chunk of every episode comes first, then the second of those that have one.
    """
    count, length = episodes.tau.shape
    blocks = -(-length // most)
    whole = _padded(episodes, 0, blocks * most - length)

    # With NumPy: JAX would compile several programs whenever the data have grown.
    def cut(x: Array) -> np.ndarray:
        return np.asarray(x)[:, : blocks * most].reshape(count, blocks, most, *x.shape[2:])

    block, episode = np.nonzero(cut(whole.real)[:, :, 0].T)

    def moments(x: Array) -> Array:
        found = np.empty((len(block), most + 1, x.shape[-1]), x.dtype)
        found[:, :-1] = cut(x)[episode, block]
        found[:, -1] = np.asarray(x)[:, most::most][episode, block]
        return jnp.asarray(found)

    action, tau, real = (jnp.asarray(cut(x)[episode, block]) for x in (whole.action, whole.tau, whole.real))
    observed = None if whole.observed is None else moments(whole.observed)
    return Episodes(moments(whole.obs), action, tau, real, observed)


def batch_numbers(seed: int, count: int, batch: int, first: int, iterations: int) -> np.ndarray:
    """Episode indices of the batches of several iterations: [iterations, batch].

    Every epoch is a new shuffle; the remainder that does not fill a batch is dropped.
    """
    size = min(batch, count)
    per_epoch = count // size
    last = first + iterations - 1
    rows = []
    for epoch in range(first // per_epoch, last // per_epoch + 1):
        order = _shuffled(seed, epoch, count)[: per_epoch * size].reshape(per_epoch, size)
        begin = max(first - epoch * per_epoch, 0)
        rows.append(order[begin : min(last - epoch * per_epoch, per_epoch - 1) + 1])
    numbers = np.concatenate(rows)
    short = math.ceil(batch / size)
    return np.tile(numbers, (1, short))[:, :batch].astype(np.int32)


@functools.lru_cache(128)
def _shuffled(seed: int, epoch: int, count: int) -> np.ndarray:
    """Episodes in the order of an epoch; kept, because a long epoch takes many calls."""
    return np.random.default_rng([seed, epoch]).permutation(count).astype(np.int32)
