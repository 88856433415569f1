"""A run folder: its manifest (`manifest.json`: config, seeds, digests of the files), times and record.

```python
with RunFolder.open(path, "fit", config) as folder:
    if folder.finished:
        return folder.record
    with folder.stage("fit"):
        models = train(..., folder=folder.path)
    folder.finish(record)
```

Reading takes no lock: `RunFolder(path).check().record`.
"""

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kairode._lock import LOCK, OWNER, locked
from kairode._version import __version__
from kairode.config.serialize import first_difference, from_dict, to_dict, with_effect
from kairode.errors import MALFORMED, KairodeError, KairodeWarning, Stopped, resume_with
from kairode.files import (
    JSON_DIGEST,
    PARTS,
    check_regular,
    check_target,
    file_digest,
    has_digest,
    inside,
    load_json,
    remove_parts,
    save_json,
    with_digest,
)
from kairode.runs.migrate import FORMAT, is_finished, migrate_config
from kairode.runs.record import read_record

T = TypeVar("T")
MANIFEST, RECORD, OLD_CONFIG = "manifest.json", "record.json", "config.json"
_OWN = {MANIFEST, LOCK, OWNER, OLD_CONFIG, "system.json", "log.txt"}
"""Files that do not count as results."""
_DIGESTED = {".safetensors", ".parquet", ".json", ".jsonl"}
"""Kinds of files with a digest in the manifest: not pages, figures and logs."""
_LATER = {"schedule", "gait.json", "advice"}
"""Folders and files that are written after a run is finished."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Contents of a run folder."""

    format: int
    kind: str
    """Kind of run: fit, run, .."""
    kairode: str
    """Version that wrote it last."""
    created: str
    config: dict[str, Any]
    seeds: tuple[int, ...] = ()
    artefacts: dict[str, str] = dataclasses.field(default_factory=dict)
    """SHA-256 of each file of a finished run, by its path in the folder."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Time of each stage, including earlier processes."""
    finished: bool = False
    others: tuple[str, ...] = ()
    """What the folder held before the run: not a part of it."""


class RunFolder:
    """A folder that holds one run. `kind` is needed to read an unfinished one of format 0, which does not name it."""

    def __init__(self, path: str | Path, kind: str = "") -> None:
        self.path = Path(path)
        self._kind = kind
        self.resumed = False
        """True if the folder held a part of this run when it was opened."""
        self._manifest: Manifest | None = None
        self._writing = False

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: str | Path, kind: str, config: Any, command: str = "", *, mutable: Sequence[str] = ()
    ) -> Iterator["RunFolder"]:
        """Open a folder for writing: a new one, or one that holds a part of the same run.

        Args:
            path: the folder.
            kind: kind of run.
            config: a dataclass; a folder with another config is refused.
            command: resumes the run; added to the message of an interrupt.
            mutable: fields that may change when a run is continued ("rounds").
        """
        folder = cls(path, kind)
        check_target(folder.path / MANIFEST)
        if folder.path.is_symlink() and not folder.path.exists():
            raise KairodeError(
                f"{path} is a link to a folder that does not exist: create it, or choose another folder."
            )
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise KairodeError(f"cannot create the folder {path}: {reason}. Choose another with --out.") from error
        with locked(folder.path):
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            manifest = Manifest(FORMAT, kind, __version__, now, to_dict(config), _seeds(config))
            before = _read_manifest(folder.path, kind)
            if before is None:
                manifest = dataclasses.replace(manifest, others=_entries(folder.path))
            if before is not None and _holds_anything(folder.path, before):
                folder.resumed = True
                same = with_effect(_checked(folder.path, before, kind, config, mutable)) == with_effect(manifest.config)
                done = before.finished and same
                manifest = dataclasses.replace(
                    manifest,
                    created=before.created,
                    artefacts=before.artefacts if done else {},
                    seconds=before.seconds,
                    finished=done,
                    others=before.others,
                )
            for file in _results(folder.path, manifest.others):  # one that is a pipe or device would be read at the end
                _check_regular(file)
            _remove_parts(folder.path, manifest.others)
            folder._writing = True
            if manifest.finished and (folder.path / MANIFEST).exists():  # nothing is to change
                folder._manifest = manifest
            else:
                folder._write(manifest)
            try:
                yield folder
            except KairodeWarning:  # with --strict
                written = set(_entries(folder.path)) - set(folder.manifest.others)
                if not folder.resumed and not written:  # otherwise the manifest says whose files these are
                    (folder.path / MANIFEST).unlink(missing_ok=True)
                raise
            except (Stopped, KeyboardInterrupt) as stopped:
                raise resume_with(stopped, command) from None
            finally:
                folder._writing = False

    @property
    def manifest(self) -> Manifest:
        """The manifest; raises if the folder holds no run."""
        found = self._manifest or _read_manifest(self.path, self._kind)
        if found is None:
            raise KairodeError(f"{self.path} holds no run: give a folder that `kairode run` or `kairode fit` wrote.")
        return found

    @property
    def exists(self) -> bool:
        return (self.path / MANIFEST).exists() or (self.path / OLD_CONFIG).exists()

    @property
    def finished(self) -> bool:
        """Whether `finish` was called for this config."""
        return self.manifest.finished and (self.path / RECORD).exists()

    @property
    def total_seconds(self) -> float:
        return sum(self.manifest.seconds.values())

    @property
    def record(self) -> dict[str, Any] | None:
        """The record in today's format; None if there is none. Raises if it was changed after the run."""
        if not (self.path / RECORD).exists():
            return None
        self.check(RECORD)
        return read_record(self.path / RECORD)

    def config(self, cls: type[T]) -> T:
        """The config, converted to its dataclass."""
        return from_dict(cls, self.manifest.config, file=self.path / MANIFEST)

    def load_json(self, file: str) -> Any:
        return load_json(self.path / file, _advice(self.path))

    def save_json(self, file: str, content: Any) -> None:
        """Write a JSON file atomically."""
        if not self._writing:
            raise RuntimeError(f"{self.path} is not open for writing: use RunFolder.open")
        save_json(self.path / file, content)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage, also if it is interrupted."""
        started = time.perf_counter()
        try:
            yield
        finally:
            if not self.manifest.finished:
                earlier = self.manifest.seconds
                spent = round(earlier.get(name, 0.0) + time.perf_counter() - started, 1)
                self._write(dataclasses.replace(self.manifest, seconds={**earlier, name: spent}))

    def finish(self, record: dict[str, Any]) -> dict[str, Any]:
        """Write the record and mark the run as finished; returns the record as read back."""
        self.save_json(RECORD, {"format": FORMAT, **record})
        artefacts = {
            path.relative_to(self.path).as_posix(): file_digest(path)
            for path in _results(self.path, self.manifest.others)
        }
        self._write(dataclasses.replace(self.manifest, artefacts=artefacts, finished=True))
        return self.load_json(RECORD)

    def check(self, *files: str) -> "RunFolder":
        """Raise if a file of a finished run (by default any) is missing or differs from what the run wrote."""
        for name, digest in (self.manifest.artefacts if self.exists else {}).items():
            if files and name not in files:
                continue
            path = inside(self.path, name)
            if not path.is_file():
                raise KairodeError(f"{path} is missing: remove {self.path}, and run its command again.")
            if file_digest(path) != digest:
                raise KairodeError(
                    f"{path} was changed after the run (its digest differs from the one in {MANIFEST}): remove "
                    f"{self.path}, and run its command again."
                )
        return self

    def _write(self, manifest: Manifest) -> None:
        self.save_json(MANIFEST, with_digest(to_dict(manifest)))
        self._manifest = manifest


def _seeds(config: Any) -> tuple[int, ...]:
    first = getattr(config, "seed", 0)
    return tuple(range(first, first + getattr(config, "seeds", 1)))


def _entries(folder: Path) -> tuple[str, ...]:
    """What a folder holds, except what runs write for themselves."""
    return tuple(sorted(path.name for path in folder.iterdir() if path.name not in _OWN and not path.match(PARTS)))


def _walk(folder: Path, others: Sequence[str]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Folders and files of a run, except those of nested run folders and those that are not a part of it."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        skipped = set(others) if here == folder else set()
        folders[:] = sorted(name for name in set(folders) - skipped if not (here / name / LOCK).exists())
        yield here, folders, sorted(set(files) - skipped)


def _results(folder: Path, others: Sequence[str]) -> Iterator[Path]:
    """The files that a run wrote and that its manifest has digests of."""
    for here, folders, files in _walk(folder, others):
        folders[:] = [name for name in folders if name not in _LATER]
        yield from (here / name for name in files if name not in _OWN | _LATER and Path(name).suffix in _DIGESTED)


def _check_regular(path: Path) -> None:
    try:
        check_regular(path)
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise KairodeError(f"cannot read {path}: {error.strerror}. Remove it, or choose another folder.") from error


def _advice(folder: Path) -> str:
    return f"remove {folder}, or choose another folder with --out."


def _read_manifest(folder: Path, kind: str) -> Manifest | None:
    """The manifest of a folder; for format 0 it is assembled, with the given kind if no record names one."""
    path, old = folder / MANIFEST, folder / OLD_CONFIG
    if not path.exists():
        return _read_old(folder, load_json(old, _advice(folder)), kind) if old.exists() else None
    found = load_json(path, _advice(folder))
    version = found.get("format") if isinstance(found, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise KairodeError(
            f"{path} was written by a newer version of kairode ({found.get('kairode')}): update kairode, or choose "
            "another folder with --out."
        )
    if isinstance(found, dict) and {JSON_DIGEST, "others"} & found.keys():  # older versions wrote neither
        if not has_digest(found):
            raise KairodeError(f"{path} was changed after it was written (its digest differs): {_advice(folder)}")
        del found[JSON_DIGEST]
    return from_dict(Manifest, found, file=path)


def _read_old(folder: Path, config: Any, kind: str) -> Manifest:
    def content(name: str) -> dict[str, Any]:
        return load_json(folder / name, _advice(folder)) if (folder / name).exists() else {}

    if not isinstance(config, dict):
        raise KairodeError(f"{folder / OLD_CONFIG} is damaged: {_advice(folder)}")
    record = content(RECORD)
    try:
        kind = record.get("kind") or kind
        return Manifest(
            FORMAT,
            kind,
            record.get("versions", {}).get("kairode", ""),
            record.get("made", ""),
            migrate_config(kind, config),
            seconds=content("stages.json"),
            finished=is_finished(record),
        )
    except MALFORMED as error:
        raise KairodeError(
            f"{folder} is damaged, its config or record is not that of a run: {_advice(folder)}"
        ) from error


def _holds_anything(folder: Path, manifest: Manifest) -> bool:
    """Whether the folder holds more than a manifest; otherwise any run may replace it."""
    return manifest.finished or any(path.name not in _OWN and not path.match(PARTS) for path in folder.iterdir())


def _checked(folder: Path, before: Manifest, kind: str, config: Any, mutable: Sequence[str]) -> dict[str, Any]:
    """The config in the folder, if it is that of the same run; fields that it lacks have their defaults."""
    try:
        if before.kind not in ("", kind):
            raise KairodeError(f"of kind '{before.kind}', this is a '{kind}'")
        found = to_dict(from_dict(type(config), before.config))
        there, here = (
            with_effect({name: x for name, x in one.items() if name not in mutable}) for one in (found, to_dict(config))
        )
        if there != here:
            only_data = {**there, "digest": None} == {**here, "digest": None}
            raise KairodeError("the data have changed" if only_data else first_difference(there, here))
    except KairodeError as error:
        reason = str(error).rstrip(".")
        raise KairodeError(
            f"{folder} holds another run ({reason}): choose another folder with --out, or remove it."
        ) from error
    return found


def _remove_parts(folder: Path, others: Sequence[str]) -> None:
    """Remove the temporary files of killed processes."""
    for here, _, _ in _walk(folder, others):
        remove_parts(here)
