"""Where the batches of a fit come from: episodes in memory, or a file that is read while iterations run."""

import abc
import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from kairode._xla import for_threads
from kairode.config.training import TrainingConfig
from kairode.data.stream import EpisodeStream
from kairode.data.trajectory import Trajectory
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import Episodes, prepare
from kairode.training.batches import LENGTHS, pad, pad_lengths, split_chunks
from kairode.training.step import batch_indices

CHUNK = 50
"""Iterations per compiled call."""
CHUNKS = 1024
"""Chunks of episodes that training data are padded to, if there are fewer: growing data then keep one shape, and a
program that is compiled once."""
MOST_BYTES = 2**28
"""Of the batches of one call that are read from a file. Larger ones take fewer iterations per call, which gives the
same weights to rounding."""

LONG, LONG_CHUNK = 2000, 500
"""Episodes of more decisions than this are cut into chunks of so many, unless the settings name another length: a
gradient through more is slow, and takes memory for every decision."""
STEPS = 50_000
"""Decisions in a row of one compiled call, at most, so that an interrupt is noticed soon."""

RAGGED_CHUNK = 10
"""Iterations per compiled call where a call takes batches of similar lengths alone; those that do not fill one are
calls of their own, since every number of iterations is compiled, which takes longer than short calls cost."""
WASTE = 1.5
"""Steps of a call in multiples of those that each of its iterations needs, at most."""

Batches = tuple[Episodes, Int[Array, "k seeds batch"]]
"""Episodes, and the indices among them of each iteration's batches."""


class BatchSource(abc.ABC):
    """Batches of a fit, as a function of the iteration."""

    @abc.abstractmethod
    def iterations(self, done: int) -> int:
        """Iterations of the next compiled call, which ends at a validation."""

    @abc.abstractmethod
    def batches(self, done: int) -> Batches:
        """Batches of that call."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free what the source holds."""


def longest(data: Trajectory | EpisodeStream) -> int:
    """Decisions in the longest episode."""
    return int(data.interval.shape[1] if isinstance(data, Trajectory) else data.longest)


def cut_long(settings: TrainingConfig, data: Trajectory | EpisodeStream) -> TrainingConfig:
    """The settings for these data: a chunk length where episodes are long and the settings have none."""
    if settings.chunk_length is None and longest(data) > LONG:
        return dataclasses.replace(settings, chunk_length=LONG_CHUNK)
    return settings


def batch_source(
    models: DynamicsModel, settings: TrainingConfig, data: Trajectory | EpisodeStream, seeds: Sequence[int]
) -> BatchSource:
    """The source of a fit to these data."""
    if isinstance(data, Trajectory):
        least = 1 if settings.chunk_length is None else CHUNKS
        return MemoryBatches(settings, seeds, *prepare_padded(models, settings, data, least))
    return StreamBatches(models, settings, data, seeds)


def prepare_padded(
    models: DynamicsModel, settings: TrainingConfig, data: Trajectory, least: int = 1
) -> tuple[Episodes, int]:
    """Padded episodes (or chunks of them, at least so many) on the device, and their number without padding."""
    episodes = prepare(models, data)
    if settings.chunk_length is not None:
        episodes = split_chunks(episodes, settings.chunk_length)
    return pad(episodes, least), len(episodes.tau)


class MemoryBatches(BatchSource):
    """Batches of episodes that are all on the device."""

    def __init__(self, settings: TrainingConfig, seeds: Sequence[int], data: Episodes, count: int) -> None:
        self.settings, self.seeds, self.data, self.count = settings, seeds, data, count

    def iterations(self, done: int) -> int:
        most = max(1, min(CHUNK, STEPS // self.data.tau.shape[1]))
        return _until_validation(self.settings, done, most)

    def batches(self, done: int) -> Batches:
        numbers = batch_indices(self.settings, self.seeds, self.count, done, self.iterations(done))
        return self.data, jnp.asarray(numbers)

    def close(self) -> None:
        pass


class StreamBatches(BatchSource):
    """The same batches, read from disk: those of the next call while the current one runs.

    Batches of a ragged stream are padded to half, a quarter, .. of the longest episode where theirs are no longer, and
    iterations that need much longer ones are calls of their own: a few long episodes then take time in the few
    iterations that they are in. There are few lengths and numbers of iterations, because each compiles a program.
    """

    def __init__(
        self, models: DynamicsModel, settings: TrainingConfig, data: EpisodeStream, seeds: Sequence[int]
    ) -> None:
        self.models, self.settings, self.data, self.seeds = models, settings, data, seeds
        self.most = settings.chunk_length or data.longest
        # The order of `split_chunks`: the first chunk of every episode, then the second of those that have one.
        starts = range(0, data.longest, self.most)
        has = [np.flatnonzero(data.length > first).astype(np.int32) for first in starts]
        self.episode = np.concatenate(has)
        self.first = np.repeat(np.asarray(starts, np.int32), [len(episodes) for episodes in has])
        row = 4 * (len(data.spec.observations) + data.spec.actions.n + 2)
        self.steps = max(1, MOST_BYTES // (row * len(seeds) * settings.batch_size))
        """Decisions in a row of one call, at most."""
        self.bucket = self._buckets() if data.ragged else None
        self._reader = ThreadPoolExecutor(1, "batches")
        self._ahead: dict[int, Future[Batches]] = {}

    def iterations(self, done: int) -> int:
        if self.bucket is None:
            return _until_validation(self.settings, done, max(1, min(CHUNK, self.steps // self.most)))
        usual = min(RAGGED_CHUNK, self.settings.validate_every, self.settings.iterations)
        if _until_validation(self.settings, done, usual) < usual:
            return 1
        needed = self.bucket[self._chosen(done, usual)].max((1, 2))
        taken = usual * int(needed.max())
        return usual if taken <= min(WASTE * needed.sum(), self.steps) else 1

    def batches(self, done: int) -> Batches:
        found = self._ahead.pop(done, None)
        batches = self._read(done) if found is None else found.result()
        after = done + self.iterations(done)
        if after < self.settings.iterations:
            self._ahead[after] = self._reader.submit(for_threads(self._read), after)
        return batches

    def close(self) -> None:
        self._reader.shutdown(cancel_futures=True)

    def _read(self, done: int) -> Batches:
        numbers = self._chosen(done, self.iterations(done))
        chosen = numbers.ravel()
        first = self.first[chosen]
        most = self.most if self.bucket is None else int(self.bucket[chosen].max())
        episodes = prepare(self.models, self.data.parts(self.episode[chosen], first, most))
        # As in memory, where actions are encoded before chunks are filled up.
        beyond = first[:, None] + np.arange(most) >= self.data.longest
        if beyond.any():
            episodes = dataclasses.replace(episodes, action=jnp.where(beyond[..., None], 0.0, episodes.action))
        return pad_lengths(episodes), jnp.asarray(np.arange(len(chosen), dtype=np.int32).reshape(numbers.shape))

    def _chosen(self, done: int, iterations: int) -> np.ndarray:
        """The parts in the batches of some iterations, [iterations, seeds, batch]."""
        return batch_indices(self.settings, self.seeds, len(self.episode), done, iterations)

    def _buckets(self) -> np.ndarray:
        """The length that each part is padded to."""
        length = np.minimum(self.data.length[self.episode] - self.first, self.most)
        edges = [self.most]
        while edges[-1] > LENGTHS:
            edges.append(LENGTHS * -(-edges[-1] // (2 * LENGTHS)))
        ordered = np.array(edges[::-1], np.int32)
        return ordered[np.searchsorted(ordered, length)]


def _until_validation(settings: TrainingConfig, done: int, most: int) -> int:
    return min(most, settings.iterations - done, settings.validate_every - done % settings.validate_every)
