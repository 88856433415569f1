"""Files: atomic writes (under a temporary name, then renamed), and reading with bounds on size and depth.

A temporary file is locked while it is written, so that the one of a killed process is known by its free lock: the next
write into its folder removes it.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kairode.errors import KairodeError

if os.name == "posix":
    import fcntl

PARTS = ".*.part"
"""Temporary names; a killed process leaves such a file behind."""
_PART = re.compile(r"\..*\.[0-9a-f]{8}\.part", re.DOTALL)
_STRING_OR_NUMBERS = re.compile(r'"(?:\\.|[^"\\])*"|\[[\s\d.,eE+\-]*\]')
STALE_SECONDS = 24 * 3600
"""Age of an abandoned temporary file, where the system has no locks."""
MOST_JSON = 2**28
"""Bytes of the largest JSON file that is read."""
MOST_DEPTH = 64
"""Depth of nesting in JSON."""
JSON_DIGEST = "json_sha256"
"""Name of a JSON object's own digest."""
_cleaned: set[Path] = set()


def check_target(path: str | Path) -> Path:
    """Raise if a path cannot be written to, before any work is done; the target of a symbolic link is returned."""
    path = Path(path)
    if "\0" in str(path):
        raise KairodeError(f"cannot write {path}: the name has a null character. Choose another.")
    try:
        path = path.resolve() if path.is_symlink() else path
        kind = path.stat().st_mode if path.exists() else None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a long name, a null character
        raise KairodeError(f"cannot write {path}: {_reason(error)}. Choose another location.") from error
    if path.name == "" or (kind is not None and stat.S_ISDIR(kind)):
        raise KairodeError(f"cannot write '{path}': it is a folder. Add the name of a file.")
    if kind is not None and not stat.S_ISREG(kind):
        raise KairodeError(f"cannot write {path}: it is not a regular file. Choose another location.")
    for parent in path.parents:
        if os.path.exists(parent) and not parent.is_dir():
            raise KairodeError(f"cannot write {path}: {parent} is a file, not a folder.")
    return path


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to, renamed to the target when the block ends without error."""
    path = check_target(path)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            place = path.parent.resolve()
            if place not in _cleaned:  # by this process
                remove_parts(place)
                _cleaned.add(place)
            stack.callback(_discard, part)
            file = stack.enter_context(_locked_file(part))
            yield part
            os.fsync(file.fileno())
            if os.name != "posix":  # Windows renames no open files
                file.close()
            os.replace(part, path)
        except OSError as error:
            raise KairodeError(
                f"cannot write {path}: {_reason(error)}. Choose another location, or free some space."
            ) from error


def remove_parts(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _PART.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_abandoned(entry.path)


def _locked_file(path: Path) -> BinaryIO:
    """Create a file with a lock on it, which ends with the process."""
    while True:
        file = open(path, "xb")  # noqa: SIM115  the caller closes it
        if os.name != "posix":
            return file
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return file
        file.close()  # removed by another process, which found it before it was locked


def _remove_abandoned(path: str) -> None:
    """Remove a temporary file, unless a process is writing it."""
    if os.name == "posix":
        with open(path, "r+b") as file:  # NFS locks only what is open for writing
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            except OSError:  # a file system without locks
                pass
            else:
                os.unlink(path)  # while it is locked: who has just created it creates another
                return
    if time.time() - os.stat(path).st_mtime > STALE_SECONDS:
        os.unlink(path)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


def read_bytes(path: str | Path, most: int) -> bytes:
    """The content of a regular file of at most so many bytes; `FileNotFoundError` if there is none."""
    try:
        size = check_regular(path)
        if size > most:
            raise KairodeError(f"{path} is larger than expected ({size:,} bytes, at most {most:,}).")
        with open(path, "rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise KairodeError(f"cannot read {path}: {_reason(error)}.") from error


def check_regular(path: str | Path) -> int:
    """The size of a file; raises if it is a folder, a pipe or a device, which must not be read."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or device"
        raise KairodeError(f"{path} is {kind}, not a file.")
    return found.st_size


def save_json(path: str | Path, content: Any) -> None:
    """Write JSON with one line per list of numbers."""

    def one_line(found: re.Match[str]) -> str:
        if found[0].startswith('"'):
            return found[0]
        return re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]")

    with atomic_write(path) as part:
        text = _STRING_OR_NUMBERS.sub(one_line, json.dumps(content, indent=1))
        part.write_text(text + "\n", encoding="utf-8")


def load_json(path: str | Path, advice: str = "remove it, and run the command again.") -> Any:
    """Read a JSON file; `advice` is appended to the error if it is damaged."""
    try:
        return parse_json(read_bytes(path, MOST_JSON))
    except FileNotFoundError as error:
        raise KairodeError(f"{path} does not exist.") from error
    except KairodeError as error:
        raise KairodeError(f"{str(error).rstrip('.')}: {advice}") from error
    except ValueError as error:
        raise KairodeError(f"{path} is damaged: {advice}") from error


def parse_json(raw: str | bytes) -> Any:
    """Parse JSON whose depth is bounded; `ValueError` if it is invalid."""
    try:
        found = json.loads(raw)
    except RecursionError as error:
        raise ValueError(f"nested more than {MOST_DEPTH} levels deep") from error
    level = [found]
    for _ in range(MOST_DEPTH):
        nested = [x for x in level if isinstance(x, dict | list)]
        if not nested:
            return found
        level = [y for x in nested for y in (x.values() if isinstance(x, dict) else x)]
    raise ValueError(f"nested more than {MOST_DEPTH} levels deep")


def with_digest(content: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with its own digest."""
    return {**content, JSON_DIGEST: _json_digest(content)}


def has_digest(content: dict[str, Any]) -> bool:
    """Whether an object has the digest that `with_digest` gave it: False if it was changed, or has none."""
    return content.get(JSON_DIGEST) == _json_digest(content)


def _json_digest(content: dict[str, Any]) -> str:
    """SHA-256 of an object, without its digest, in one form that reading and writing again does not change."""
    plain = json.loads(json.dumps({name: value for name, value in content.items() if name != JSON_DIGEST}))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_digest(path: str | Path) -> str:
    """SHA-256 of a regular file."""
    try:
        check_regular(path)
        with open(path, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise KairodeError(f"cannot read {path}: {_reason(error)}.") from error


def inside(folder: str | Path, name: Any) -> Path:
    """The path of a file in a folder; raises if the name, read from a file, leads out of it."""
    try:
        valid = isinstance(name, str) and b"\0" not in os.fsencode(name) and name != ""
    except UnicodeEncodeError:
        valid = False
    if not valid or os.path.isabs(name) or Path(name).drive or ".." in Path(name).parts:
        raise KairodeError(f"{folder}: the file name {name!r} leads out of the folder.")
    return Path(folder) / name
