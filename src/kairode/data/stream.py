"""Episodes of a Parquet file that does not fit into memory.

The file is read once, part by part, with the checks of `read`. Its numbers go to a scratch file, from which episodes
are read in any order: Parquet compresses many episodes together, so shuffled batches would decode most of it every
time.
"""

import dataclasses
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
from kairode.data.table import described_spec, open_file, parse_rows, reading, refuse_unmeasured
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Spec
from kairode.errors import KairodeError
from kairode.files import file_digest

ROWS = 65_536
"""Rows that are parsed at once."""
PADDED = 2**20
"""Rows of episodes that are parsed at once, with their padding."""
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

    def read(self, first: int, count: int) -> np.ndarray:
        """`count` numbers from number `first` on."""
        return np.frombuffer(os.pread(self.number, 4 * count, 4 * first), np.float32)


@dataclasses.dataclass(frozen=True)
class EpisodeStream:
    """Episodes on disk. `stream[index]` reads some of them into memory, as a `Trajectory`."""

    spec: Spec
    digest: str
    """SHA-256 of the Parquet file."""
    longest: int
    """Decisions in the longest episode of the file."""
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
        rows = np.empty((len(episode), most + 1, _width(self.spec)), np.float32)
        width = rows.shape[-1]
        for place, begin, n in zip(rows, self.start[episode] + first, length.tolist(), strict=True):
            place[: n + 1] = self.rows.read(int(begin) * width, (n + 1) * width).reshape(n + 1, width)
            place[n + 1 :] = place[n]
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

    def observations(self) -> Iterator[np.ndarray]:
        """Observations at all decisions, [decisions, variables], in blocks."""
        for block in self.blocks():
            yield np.asarray(block.observation)[:, :-1][block.mask]

    def blocks(self) -> Iterator[Trajectory]:
        """All episodes in order, some at a time."""
        some = max(1, BLOCK // (4 * _width(self.spec) * self.longest))
        for first in range(0, len(self), some):
            yield self[first : first + some]


def stream(path: str | Path, spec: Spec | None = None, *, scratch: str | Path | None = None) -> EpisodeStream:
    """Open a Parquet file whose episodes need not fit into memory, for `kairode.fit`.

    Args:
        path: a file in the format of `kairode.read`, validated in the same way.
        spec: names, units and discount, for files that Kairode did not write.
        scratch: folder for the decoded numbers (as large as the file is uncompressed, removed at the end); by default
            the system's temporary folder, TMPDIR.
    """
    spec = spec or stream_spec(path)
    rows = ScratchFile(scratch)
    found: list[tuple[np.ndarray, ...]] = []
    unmeasured = np.ones(len(spec.observations), bool)
    for part in _parse(path, spec):
        rows.append(_rows(part))
        unmeasured &= np.isnan(part.observation).all((0, 1))
        found.append(tuple(np.asarray(x) for x in (part.length, part.terminated, part.truncated)))
    refuse_unmeasured(path, spec, unmeasured)
    length, terminated, truncated = (np.concatenate(column) for column in zip(*found, strict=True))
    start = np.concatenate([[0], np.cumsum(length[:-1].astype(np.int64) + 1)])
    return EpisodeStream(spec, file_digest(path), int(length.max()), rows, start, length, terminated, truncated)


def stream_spec(path: str | Path) -> Spec:
    """The description of its variables that a file contains; raises if it has none."""
    with reading(path), open_file(path, streamed=True) as file:
        found = described_spec(path, file.schema_arrow)
    if found is None:
        raise KairodeError(
            f"{path} does not describe its variables, which a stream does not infer from the numbers: pass a spec to "
            "kairode.stream, stream a file that kairode.write or kairode collect has written, or read it into memory "
            "(without --stream)."
        )
    return found


def count_episodes(path: str | Path) -> int:
    """Number of episodes of a file, from its column `episode` alone."""
    count, last = 0, object()
    with reading(path), open_file(path, streamed=True) as file:
        if "episode" not in file.schema_arrow.names:
            raise KairodeError(f"{path}: the column 'episode' is missing.")
        for batch in file.iter_batches(ROWS, columns=["episode"]):
            numbers = np.asarray(batch["episode"].to_pylist(), object)
            count += int(numbers[0] != last) + int((numbers[1:] != numbers[:-1]).sum())
            last = numbers[-1]
    return count


def _width(spec: Spec) -> int:
    """Numbers of a row: observations, action, interval, reward."""
    return len(spec.observations) + (1 if isinstance(spec.actions, Discrete) else spec.actions.n) + 2


def _rows(part: Trajectory) -> np.ndarray:
    """Rows of whole episodes, without padding; the last row of an episode has an observation alone."""
    action = np.asarray(part.action, np.float32)
    if action.ndim == 2:
        action = action[..., None]
    taken = np.concatenate([action, part.interval[..., None], part.reward[..., None]], axis=-1)
    taken = np.concatenate([taken, np.zeros_like(taken[:, :1])], axis=1)
    kept = np.arange(taken.shape[1]) <= np.asarray(part.length)[:, None]
    return np.concatenate([part.observation, taken], axis=-1).astype(np.float32)[kept]


def _parse(path: str | Path, spec: Spec) -> Iterator[Trajectory]:
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
                yield from _parse_parts(path, table[:whole], spec, first, seen)
            first, waiting = first + whole, table[whole:]
        verify(path, metadata, content)
        assert waiting is not None
        yield from _parse_parts(path, waiting, spec, first, seen)


def _whole_episodes(table: pa.Table) -> int:
    """Rows before the last episode, which may go on."""
    if "episode" not in table.column_names:
        return table.num_rows
    others = pc.fill_null(pc.not_equal(table["episode"], table["episode"][-1]), True)
    found = np.flatnonzero(np.asarray(others))
    return int(found[-1]) + 1 if len(found) else 0


def _parse_parts(path: str | Path, table: pa.Table, spec: Spec, first: int, seen: set[Any]) -> Iterator[Trajectory]:
    """Whole episodes in parts that do not grow large when they are padded to their longest."""
    begin = 0
    for end in _ends(table):
        yield _parse_part(path, table[begin:end], spec, first + begin, seen)
        begin = end


def _ends(table: pa.Table) -> list[int]:
    """Where parts of whole episodes end: as many episodes as fit into `PADDED` rows, at least one."""
    if "episode" not in table.column_names or table.num_rows == 0:
        return [table.num_rows]
    changes = np.asarray(pc.fill_null(pc.not_equal(table["episode"][1:], table["episode"][:-1]), True))
    rows = np.diff([0, *(np.flatnonzero(changes) + 1).tolist(), table.num_rows]).tolist()
    ends, done, count, longest = [], 0, 0, 0
    for size in rows:
        if count and (count + 1) * max(longest, size) > PADDED:
            ends.append(done)
            count = longest = 0
        count, longest, done = count + 1, max(longest, size), done + size
    return [*ends, done]


def _parse_part(path: str | Path, table: pa.Table, spec: Spec, first: int, seen: set[Any]) -> Trajectory:
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
