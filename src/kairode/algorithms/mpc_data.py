"""Training and validation data of MPC: chunks of episodes, a tenth of them for validation."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.config.training import TrainingConfig
from kairode.data.rows import Chunks, cut
from kairode.envs.core import Spec
from kairode.models.predict import Episodes
from kairode.training.refit import CHUNK, TrainValidSplit
from kairode.trees import one, stack


def split_rows(
    spec: Spec, rows: np.ndarray, normalizers: ObsNormalizer, settings: TrainingConfig, capacity: int
) -> TrainValidSplit:
    """Split the rows [seed, decision, number] of every seed, normalised for its model.

    Padded to the capacity of the replay buffer, so that more data need no new compilation.
    """
    length = settings.chunk_length or 10
    found = [cut(spec, one, length) for one in rows]
    masks = [validation_mask(chunks) for chunks in found]
    counts = [int((~mask).sum()) for mask in masks]
    most = capacity / length
    sizes = (
        max(next_power_of_two(1.3 * most), *map(next_power_of_two, counts)),
        max(next_power_of_two(0.13 * most), *(next_power_of_two(int(mask.sum())) for mask in masks)),
    )

    def stacked(masks: list[np.ndarray], size: int) -> Episodes:
        given = enumerate(zip(found, masks, strict=True))
        parts = [_episodes(spec, one(normalizers, i), chunks, mask, size) for i, (chunks, mask) in given]
        return stack(parts)

    every = max(CHUNK, CHUNK * round(0.9 * rows.shape[1] / length / settings.batch_size / CHUNK))
    return TrainValidSplit(stacked([~mask for mask in masks], sizes[0]), stacked(masks, sizes[1]), counts, every)


def validation_mask(chunks: Chunks) -> np.ndarray:
    """Every tenth episode; if there are few episodes, every tenth chunk."""
    if chunks.episode[-1] < 9:
        return np.arange(len(chunks.episode)) % 10 == 4
    return chunks.episode % 10 == 4


def next_power_of_two(number: float) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(int(np.ceil(number)) - 1, 0).bit_length()


def _episodes(spec: Spec, normalizer: ObsNormalizer, chunks: Chunks, mask: np.ndarray, size: int) -> Episodes:
    spare = size - int(mask.sum())

    def padded(x: np.ndarray) -> Any:
        return jnp.asarray(np.pad(x[mask], [(0, spare), *[(0, 0)] * (x.ndim - 1)]))

    return Episodes(
        obs=normalizer.features(padded(chunks.seen_obs)),
        action=padded(chunks.control),
        tau=padded(chunks.tau / np.float32(spec.tick)),
        real=padded(chunks.real),
    )
