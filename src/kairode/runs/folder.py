"""A run folder: its manifest (`manifest.json`), artefacts, times and record.

```python
with RunFolder.open(path, "fit", config, system=spec_to_dict(spec)) as folder:
    if folder.finished:
        return folder.record
    with folder.stage("fit"):
        models = train(..., folder=folder.path)
        folder.add("models", "models.safetensors")
    folder.finish(record)
```

Reading takes no lock: `RunFolder(path).record`, `RunFolder(path).artefact("models")`.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kairode._version import __version__
from kairode.config.serialize import first_difference, from_dict, to_dict
from kairode.errors import KairodeError, Stopped, resume_with
from kairode.files import PARTS, check_target, load_json, save_json
from kairode.runs.lock import LOCK, OWNER, locked
from kairode.runs.migrate import FORMAT, earlier_name, is_finished, migrate, migrate_record, migrate_spec

T = TypeVar("T")
MANIFEST, RECORD = "manifest.json", "record.json"
_OWN = {MANIFEST, LOCK, OWNER, "config.json", "system.json", "log.txt"}
"""Files that do not count as results."""


@dataclasses.dataclass(frozen=True)
class Artefact:
    """A file created by a run."""

    file: str
    """Path inside the folder."""
    sha256: str
    bytes: int


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
    system: dict[str, Any] | None = None
    """Description of the system, if it is not created by name."""
    artefacts: dict[str, Artefact] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Time of each stage, including earlier processes."""
    finished: bool = False


class RunFolder:
    """A folder that holds one run. `kind` is needed to read an unfinished one of format 0, which does not name it."""

    def __init__(self, path: str | Path, kind: str | None = None) -> None:
        self.path = Path(path)
        self._kind = kind
        self.resumed = False
        """True if the folder held a part of this run when it was opened."""
        self._manifest: Manifest | None = None
        self._writing = False

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        path: str | Path,
        kind: str,
        config: Any,
        *,
        mutable: Sequence[str] = (),
        system: dict[str, Any] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Iterator["RunFolder"]:
        """Open a folder for writing: a new one, or one that holds a part of the same run.

        Args:
            path: the folder.
            kind: kind of run.
            config: a dataclass; a folder with another config is refused.
            mutable: fields that may change when a run is continued ("rounds").
            system: JSON that describes the system; a folder of another system is refused.
            seeds: seeds of the run; by default `config.seed` and the following ones.
        """
        folder = cls(path, kind)
        check_target(folder.path / MANIFEST)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KairodeError(
                f"cannot create the folder {path}: {error.strerror}. Choose another with --out."
            ) from error
        with locked(folder.path):
            before = _read_manifest(folder.path, kind)
            if before is not None and not _holds_anything(folder.path, before):
                before = None
            new = _new_manifest(kind, config, system, _seeds(config) if seeds is None else seeds)
            if before is not None:
                new = _continued(_same_run(folder.path, before, new, config, mutable), new)
            folder.resumed = before is not None
            _remove_parts(folder.path)
            folder._writing = True
            folder._write(new)
            try:
                yield folder
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
        return (self.path / MANIFEST).exists() or (self.path / "config.json").exists()

    @property
    def kind(self) -> str:
        return self.manifest.kind

    @property
    def finished(self) -> bool:
        """Whether `finish` was called for this config."""
        return self.manifest.finished and (self.path / RECORD).exists()

    @property
    def seconds(self) -> dict[str, float]:
        """Time of each stage, including earlier processes."""
        return dict(self.manifest.seconds)

    @property
    def total_seconds(self) -> float:
        return sum(self.manifest.seconds.values())

    @property
    def record(self) -> dict[str, Any] | None:
        """The record in today's format; None if there is none."""
        return migrate_record(self.load_json(RECORD)) if (self.path / RECORD).exists() else None

    def config(self, cls: type[T]) -> T:
        """The config, converted to its dataclass."""
        return from_dict(cls, self.manifest.config, file=self.path / MANIFEST)

    def load_json(self, file: str) -> Any:
        return load_json(self.path / file, f"remove {self.path}, or choose another folder with --out.")

    def save_json(self, file: str, content: Any) -> None:
        """Write a JSON file atomically."""
        self._check_writing()
        save_json(self.path / file, content)

    def add(self, name: str, file: str | Path) -> Path:
        """Register a file in the manifest, with its digest.

        For files that do not change: a checkpoint keeps its own digest.
        """
        self._check_writing()
        path = self.path / file
        inside = Path(os.path.relpath(path, self.path)).as_posix()
        if inside.startswith("../"):
            raise ValueError(f"{file} is not inside {self.path}")
        entry = Artefact(inside, _digest(path), path.stat().st_size)
        self._change(artefacts={**self.manifest.artefacts, name: entry})
        return path

    def has(self, name: str) -> bool:
        """Whether an artefact exists and is intact."""
        try:
            self.artefact(name)
        except KairodeError:
            return False
        return True

    def artefact(self, name: str) -> Path:
        """Path of an artefact, after checking its digest."""
        entry = self.manifest.artefacts.get(name)
        if entry is None:
            known = ", ".join(self.manifest.artefacts) or "none"
            raise KairodeError(f"{self.path} has no artefact '{name}' (it has {known}): run its command again.")
        path = self.path / entry.file
        if not path.is_file():
            raise KairodeError(f"{path} is missing: run the command of {self.path} again.")
        if path.stat().st_size != entry.bytes or _digest(path) != entry.sha256:
            raise KairodeError(
                f"{path} is damaged (its digest differs from the one in {MANIFEST}): remove it, and run the command "
                "again."
            )
        return path

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage, also if it is interrupted."""
        self._check_writing()
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = self.manifest.seconds.get(name, 0.0) + time.perf_counter() - started
            self._change(seconds={**self.manifest.seconds, name: round(spent, 1)})

    @contextlib.contextmanager
    def resumable(self, command: str) -> Iterator[None]:
        """Add how to resume to the message of an interrupt."""
        try:
            yield
        except (Stopped, KeyboardInterrupt) as stopped:
            raise resume_with(stopped, command) from None

    def finish(self, record: dict[str, Any]) -> dict[str, Any]:
        """Write the record and mark the run as finished; returns the record as read back."""
        self.save_json(RECORD, {"format": FORMAT, **record})
        self._change(finished=True)
        return self.load_json(RECORD)

    def _change(self, **fields: Any) -> None:
        self._write(dataclasses.replace(self.manifest, **fields))

    def _write(self, manifest: Manifest) -> None:
        self._check_writing()
        save_json(self.path / MANIFEST, to_dict(manifest))
        self._manifest = manifest

    def _check_writing(self) -> None:
        if not self._writing:
            raise RuntimeError(f"{self.path} is not open for writing: use RunFolder.open")


def _new_manifest(kind: str, config: Any, system: dict[str, Any] | None, seeds: Sequence[int]) -> Manifest:
    plain = to_dict(config) if dataclasses.is_dataclass(config) else json.loads(json.dumps(config))
    described = None if system is None else json.loads(json.dumps(system, default=str))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Manifest(FORMAT, kind, __version__, now, plain, tuple(seeds), described)


def _continued(before: Manifest, new: Manifest) -> Manifest:
    """The manifest of a resumed run: its artefacts, with the new config."""
    return dataclasses.replace(
        new,
        created=before.created,
        system=before.system if new.system is None else new.system,
        artefacts=before.artefacts,
        seconds=before.seconds,
        finished=before.finished and before.config == new.config,
    )


def _seeds(config: Any) -> list[int]:
    first = getattr(config, "seed", None)
    if not isinstance(first, int):
        return []
    count = getattr(config, "seeds", 1)
    return list(range(first, first + (count if isinstance(count, int) else 1)))


def _read_manifest(folder: Path, kind: str | None) -> Manifest | None:
    """The manifest of a folder; for format 0 it is assembled, with the given kind if no record names one."""
    path, old = folder / MANIFEST, folder / "config.json"
    advice = f"remove {folder}, or choose another folder with --out."
    if path.exists():
        found = load_json(path, advice)
        version = found.get("format") if isinstance(found, dict) else None
        if isinstance(version, int) and version > FORMAT:
            raise KairodeError(
                f"{path} was written by a newer version of kairode ({found.get('kairode')}): update kairode, or choose "
                "another folder with --out."
            )
        manifest = from_dict(Manifest, found, file=path)
        kind, config = migrate(manifest.kind, manifest.config, manifest.format)
        return dataclasses.replace(manifest, format=FORMAT, kind=kind, config=config)
    if not old.exists():
        return None
    return _read_old(folder, load_json(old, advice), kind, advice)


def _read_old(folder: Path, config: Any, kind: str | None, advice: str) -> Manifest:
    def optional(name: str) -> Any:
        return load_json(folder / name, advice) if (folder / name).exists() else None

    if not isinstance(config, dict):
        raise KairodeError(f"{folder / 'config.json'} is damaged: {advice}")
    record = optional(RECORD)
    named, config = migrate((record or {}).get("kind") or earlier_name(kind or ""), config)
    made = (record or {}).get("made", "")
    version = (record or {}).get("versions", {}).get("kairode", "")
    seconds = optional("stages.json") or {}
    system = optional("system.json")
    system = None if system is None else migrate_spec(system)
    return Manifest(FORMAT, named, version, made, config, (), system, {}, seconds, is_finished(record))


def _holds_anything(folder: Path, manifest: Manifest) -> bool:
    """Whether the folder holds more than a manifest; otherwise any run may replace it."""
    if manifest.artefacts or manifest.finished:
        return True
    return any(path.name not in _OWN and not path.match(PARTS) for path in folder.iterdir())


def _same_run(folder: Path, before: Manifest, new: Manifest, config: Any, mutable: Sequence[str]) -> Manifest:
    """The manifest if the folder holds the same run; fields unknown to its config have their defaults."""
    reason = "" if before.kind in ("", new.kind) else f"of kind '{before.kind}', this is a '{new.kind}'"
    if not reason and dataclasses.is_dataclass(config) and not isinstance(config, type):
        try:
            before = dataclasses.replace(before, config=to_dict(from_dict(type(config), before.config)))
        except KairodeError as error:
            reason = str(error).rstrip(".")
    there, here = _without(before.config, mutable), _without(new.config, mutable)
    if not reason and there != here:
        reason = first_difference(there, here)
    if reason:
        raise KairodeError(f"{folder} holds another run ({reason}): choose another folder with --out, or remove it.")
    if before.system is not None and new.system is not None and before.system != new.system:
        raise KairodeError(
            f"{folder} holds a run on another system ({first_difference(before.system, new.system)}): choose another "
            "folder with --out, or remove it."
        )
    return before


def _without(config: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    found = dict(config)
    for name in names:
        first, _, rest = name.partition(".")
        if rest and isinstance(found.get(first), dict):
            found[first] = _without(found[first], [rest])
        elif not rest:
            found.pop(first, None)
    return found


def _remove_parts(folder: Path) -> None:
    """Remove temporary files of killed processes, except those of nested run folders."""
    taken = (folder / OWNER).stat().st_mtime_ns
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [name for name in folders if not (here / name / LOCK).exists()]
        for path in (here / name for name in files if Path(name).match(PARTS)):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime_ns < taken:
                    path.unlink()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
