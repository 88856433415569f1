"""What models are fitted to while the experience grows: pieces of episodes, nine parts to fit to and one held back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.config.training import TrainingConfig
from kairode.data.rows import Chunks, cut
from kairode.envs.core import Spec
from kairode.models.predict import Episodes
from kairode.training.refit import CHUNK, TrainValidSplit
from kairode.trees import one


def split_rows(
    spec: Spec, rows: np.ndarray, normalizers: ObsNormalizer, settings: TrainingConfig, capacity: int
) -> TrainValidSplit:
    """The shares of every seed, from its rows [seed, decision, number], as its model sees them.

    Padded to what the replay can hold at most, so that more experience compiles nothing anew.
    """
    length = settings.chunk_length or 10
    found = [cut(spec, one, length) for one in rows]
    held = [validation_mask(pieces) for pieces in found]
    counts = [int((~mask).sum()) for mask in held]
    most = capacity / length
    sizes = (
        max(next_power_of_two(1.3 * most), *map(next_power_of_two, counts)),
        max(next_power_of_two(0.13 * most), *(next_power_of_two(int(mask.sum())) for mask in held)),
    )

    def stacked(masks: list[np.ndarray], size: int) -> Episodes:
        given = enumerate(zip(found, masks, strict=True))
        parts = [_episodes(spec, one(normalizers, i), pieces, mask, size) for i, (pieces, mask) in given]
        return jax.tree.map(lambda *x: jnp.stack(x), *parts)

    every = max(CHUNK, CHUNK * round(0.9 * rows.shape[1] / length / settings.batch_size / CHUNK))
    return TrainValidSplit(stacked([~mask for mask in held], sizes[0]), stacked(held, sizes[1]), counts, every)


def validation_mask(pieces: Chunks) -> np.ndarray:
    """Every tenth episode is for validation; of few episodes, every tenth piece."""
    if pieces.episode[-1] < 9:
        return np.arange(len(pieces.episode)) % 10 == 4
    return pieces.episode % 10 == 4


def next_power_of_two(number: float) -> int:
    """The next power of two."""
    return 1 << max(int(np.ceil(number)) - 1, 0).bit_length()


def _episodes(spec: Spec, normalizer: ObsNormalizer, pieces: Chunks, mask: np.ndarray, size: int) -> Episodes:
    """Some of a seed's pieces, normalised, padded with empty ones."""
    spare = size - int(mask.sum())

    def padded(x: np.ndarray) -> Any:
        return jnp.asarray(np.pad(x[mask], [(0, spare), *[(0, 0)] * (x.ndim - 1)]))

    return Episodes(
        obs=normalizer.features(padded(pieces.seen_obs)),
        action=padded(pieces.control),
        tau=padded(pieces.tau / np.float32(spec.tick)),
        real=padded(pieces.real),
    )
