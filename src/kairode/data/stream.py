"""Episodes on disk, for data that do not fit into memory, or not when they are padded to the longest episode.

A file that Kairode wrote is read once, part by part, with the checks of `read`; of any other table the rows are loaded
as `load_table` does, without padding. The numbers go to a scratch file, from which episodes are read in any order:
Parquet compresses many episodes together, so shuffled batches would decode most of it every time.
"""

import dataclasses
import hashlib
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kairode.data.content import DIGEST_KEY, ContentDigest, verify
from kairode.data.table import (
    EpisodeRows,
    described_spec,
    is_ragged,
    open_file,
    parse_rows,
    reading,
    refuse_unmeasured,
    row_width,
)
from kairode.data.tables.decisions import Reward
from kairode.data.tables.load import FlatTable, in_own_format, load_flat, table_options
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Spec
from kairode.errors import KairodeError
from kairode.files import file_digest

ROWS = 65_536
"""Rows that are parsed at once."""
BLOCK = 2**23
"""Bytes of padded episodes that are read at once in a pass through all."""


class ScratchFile:
    """A file without a name: its space is freed when nothing refers to it any more, or the process ends."""

    def __init__(self, folder: str | Path | None) -> None:
        self.number, name = tempfile.mkstemp(prefix="kairode-", dir=folder)
        os.unlink(name)
        weakref.finalize(self, os.close, self.number)

    def append(self, rows: np.ndarray) -> None:
        with open(self.number, "ab", closefd=False) as file:
            file.write(rows.tobytes())

    def read_into(self, rows: np.ndarray, first: int) -> None:
        """Fill an array with the rows from row `first` on."""
        wanted, place = rows.data.cast("B"), first * rows[:1].nbytes
        while wanted:  # a call reads 2 GiB at most
            some = os.pread(self.number, len(wanted), place)
            wanted[: len(some)] = some
            wanted, place = wanted[len(some) :], place + len(some)


@dataclasses.dataclass(frozen=True)
class EpisodeStream:
    """Episodes on disk. `stream[index]` reads some of them into memory, as a `Trajectory`."""

    spec: Spec
    digest: str
    """SHA-256 of the file, or of the rows of a table that Kairode did not write."""
    longest: int
    """Decisions in the longest episode of the file."""
    ragged: bool
    """Whether padding to the longest would take far more memory than the rows (`is_ragged`): parts of these episodes
    are padded no further than they need."""
    rows: ScratchFile
    """One row of numbers per decision time."""
    start: np.ndarray
    """First row of each episode."""
    length: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, index: Any) -> Trajectory:
        numbers = np.arange(len(self))[index]
        if np.ndim(numbers) == 0:
            return self[numbers[None]][0]
        return self.parts(numbers, np.zeros_like(numbers), self.longest)

    def select(self, index: np.ndarray) -> "EpisodeStream":
        """Some of the episodes, still on disk."""
        names = ("start", "length", "terminated", "truncated")
        return dataclasses.replace(self, **{name: getattr(self, name)[index] for name in names})

    def parts(self, episode: np.ndarray, first: np.ndarray, most: int) -> Trajectory:
        """Parts of episodes: at most `most` decisions, from decision number `first` on, padded like `read` does."""
        length = np.clip(self.length[episode] - first, 0, most)
        flat, ends = self._gather(self.start[episode] + first, length + 1), np.cumsum(length + 1)
        rows = flat[(ends - length - 1)[:, None] + np.minimum(np.arange(most + 1), length[:, None])]
        d, mask = len(self.spec.observations), np.arange(most) < length[:, None]
        action = np.where(mask[..., None], rows[:, :-1, d:-2], 0)
        discrete = isinstance(self.spec.actions, Discrete)
        whole = first + most >= self.length[episode]
        return Trajectory(
            spec=self.spec,
            observation=rows[..., :d],
            action=action[..., 0].astype(np.int32) if discrete else action,
            interval=np.where(mask, rows[:, :-1, -2], 0),
            reward=np.where(mask, rows[:, :-1, -1], 0),
            length=length.astype(np.int32),
            terminated=self.terminated[episode] & whole,
            truncated=self.truncated[episode] & whole,
        )

    def cut(self, index: np.ndarray, most: int) -> Trajectory:
        """Some episodes, those of more than `most` decisions in several parts."""
        parts = -(-self.length[index] // most)
        number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        return self.parts(np.repeat(index, parts), number * most, min(most, int(self.length[index].max())))

    def observations(self) -> Iterator[np.ndarray]:
        """Observations at all decisions, [decisions, variables], in blocks."""
        for block in self.blocks():
            yield np.asarray(block.observation)[:, :-1][block.mask]

    def blocks(self) -> Iterator[Trajectory]:
        """All episodes in order, some at a time, padded to the longest of these."""
        most = BLOCK // (4 * row_width(self.spec))
        first = longest = 0
        for number, length in enumerate(self.length.tolist()):
            if number > first and (number - first + 1) * max(longest, length) > most:
                yield self._block(first, number, longest)
                first, longest = number, 0
            longest = max(longest, length)
        yield self._block(first, len(self), longest)

    def _block(self, first: int, end: int, longest: int) -> Trajectory:
        return self.parts(np.arange(first, end), np.zeros(end - first, np.int64), longest)

    def _gather(self, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Rows of several places of the file, one after the other; neighbours are read at once."""
        rows = np.empty((int(count.sum()), row_width(self.spec)), np.float32)
        if not len(first):
            return rows
        heads = np.flatnonzero(np.append(True, first[1:] != first[:-1] + count[:-1]))
        places = (np.cumsum(count) - count)[heads].tolist()
        for place, end, begin in zip(places, [*places[1:], len(rows)], first[heads].tolist(), strict=True):
            self.rows.read_into(rows[place:end], begin)
        return rows


def stream(
    source: Any,
    spec: Spec | None = None,
    *,
    scratch: str | Path | None = None,
    reward: str | Reward | None = None,
    **columns: Any,
) -> EpisodeStream:
    """Open episodes on disk, for `kairode.fit`: of a file that does not fit into memory, or of a table whose episodes
    take far more memory padded to the longest than their rows do.

    A file that Kairode wrote is never in memory as a whole. Of other tables the rows are, while they are loaded.

    Args:
        source: a file in the format of `kairode.read`, or any table that `kairode.load_table` takes.
        spec: names, units and discount, for files in the format of `kairode.read` that Kairode did not write.
        scratch: folder for the decoded numbers (as large as the file is uncompressed, removed at the end); by default
            the system's temporary folder, TMPDIR.
        reward: as in `kairode.load_table`.
        columns: as in `kairode.load_table`: what the columns mean, of tables that Kairode did not write.

    Example: `kairode.stream("visits.csv", episode="subject", time="when", action="drug", static=["age"])`
    """
    named = reward is not None or bool(columns)
    if named and spec is not None:
        raise KairodeError(
            "a spec describes a file in the format of kairode.read, and columns any other table: give one of them."
        )
    if spec is not None or (not named and in_own_format(source)):
        return _stream_file(source, spec or stream_spec(source), scratch)
    return stream_rows(load_flat(source, *table_options(reward, columns, "kairode.stream")), scratch)


def stream_rows(table: FlatTable, scratch: str | Path | None = None) -> EpisodeStream:
    """The episodes of a table that is loaded, on disk."""
    packed = _packed(table.spec, table.episodes)
    rows = ScratchFile(scratch)
    rows.append(packed)
    return _stream(table.spec, hashlib.sha256(packed.data).hexdigest(), rows, *_ends(table.episodes))


def _stream_file(path: str | Path, spec: Spec, scratch: str | Path | None) -> EpisodeStream:
    """The episodes of a file in our format, of which a part at a time is in memory."""
    rows = ScratchFile(scratch)
    found: list[tuple[np.ndarray, ...]] = []
    unmeasured = np.ones(len(spec.observations), bool)
    for part in _parse(path, spec):
        rows.append(_packed(spec, part))
        unmeasured &= np.isnan(part.observed).all(0)
        found.append(_ends(part))
    refuse_unmeasured(path, spec, unmeasured)
    ends = (np.concatenate(column) for column in zip(*found, strict=True))
    return _stream(spec, file_digest(path), rows, *ends)


def _stream(
    spec: Spec, digest: str, rows: ScratchFile, length: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
) -> EpisodeStream:
    start = np.concatenate([[0], np.cumsum(length[:-1].astype(np.int64) + 1)])
    ragged = is_ragged(length, row_width(spec))
    return EpisodeStream(spec, digest, int(length.max()), ragged, rows, start, length, terminated, truncated)


def _ends(rows: EpisodeRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Length of each episode, and how it ended."""
    return rows.lengths.astype(np.int32), rows.terminated[rows.last], rows.truncated[rows.last]


def stream_spec(path: str | Path) -> Spec:
    """The description of its variables that a file contains; raises if it has none."""
    with reading(path), open_file(path, streamed=True) as file:
        found = described_spec(path, file.schema_arrow)
    if found is None:
        raise KairodeError(
            f"{path} does not describe its variables, and a stream does not infer the bounds of continuous actions: "
            "pass a spec to kairode.stream, name the columns of its actions (controls), or read it into memory "
            "(without --stream)."
        )
    return found


def episode_lengths(path: str | Path) -> np.ndarray:
    """Decisions of each episode of a file in our format, from its column `episode` alone."""
    heads, rows, last = [], 0, object()
    with reading(path), open_file(path, streamed=True) as file:
        if "episode" not in file.schema_arrow.names:
            raise KairodeError(f"{path}: the column 'episode' is missing.")
        for batch in file.iter_batches(ROWS, columns=["episode"]):
            names = np.asarray(batch["episode"].to_pylist(), object)
            heads.append(rows + np.flatnonzero(np.append(names[0] != last, names[1:] != names[:-1])))
            rows, last = rows + len(names), names[-1]
    return np.diff(np.append(np.concatenate(heads), rows)) - 1


def _packed(spec: Spec, rows: EpisodeRows) -> np.ndarray:
    """Rows as the scratch file has them; the last row of an episode has an observation alone."""
    packed, d = np.empty((len(rows.t), row_width(spec)), np.float32), len(spec.observations)
    packed[:, :d] = rows.observed
    packed[:, d:-2] = rows.action if rows.action.ndim == 2 else rows.action[:, None]
    packed[:-1, -2] = np.diff(rows.t)
    packed[:, -1] = rows.reward
    packed[rows.last, d:] = 0
    return packed


def _parse(path: str | Path, spec: Spec) -> Iterator[EpisodeRows]:
    """Whole episodes, some at a time, in the order of the file."""
    seen: set[Any] = set()
    first, waiting, content = 0, None, ContentDigest()
    with reading(path), open_file(path, streamed=True) as file:
        metadata = file.metadata.metadata or {}
        for batch in file.iter_batches(ROWS):
            table = pa.Table.from_batches([batch])
            if DIGEST_KEY in metadata:
                content.update(table)
            table = table if waiting is None else pa.concat_tables([waiting, table])
            whole = _whole_episodes(table)
            if whole:
                yield _parse_part(path, table[:whole], spec, first, seen)
            first, waiting = first + whole, table[whole:]
        verify(path, metadata, content)
        assert waiting is not None
        yield _parse_part(path, waiting, spec, first, seen)


def _whole_episodes(table: pa.Table) -> int:
    """Rows before the last episode, which may go on."""
    if "episode" not in table.column_names:
        return table.num_rows
    others = pc.fill_null(pc.not_equal(table["episode"], table["episode"][-1]), True)
    found = np.flatnonzero(np.asarray(others))
    return int(found[-1]) + 1 if len(found) else 0


def _parse_part(path: str | Path, table: pa.Table, spec: Spec, first: int, seen: set[Any]) -> EpisodeRows:
    part = parse_rows(path, table, spec, first)
    names = pc.unique(table["episode"]).to_pylist()
    again = next((name for name in names if name in seen), None)
    if again is not None:
        row = first + table["episode"].to_pylist().index(again)
        raise KairodeError(
            f"{path}, row {row}, column 'episode': episode {again} begins again: sort the rows by episode and t (rows "
            "are counted from 0)."
        )
    seen.update(names)
    return part
