"""Atomic file writes: under a temporary name first, then renamed."""

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kairode.errors import KairodeError

PARTS = ".*.part"
"""Temporary names; a killed process leaves such a file behind."""


def check_target(path: str | Path) -> Path:
    """Raise if a path cannot be written to, before any work is done."""
    path = Path(path)
    if path.name == "" or path.is_dir():
        raise KairodeError(f"cannot write '{path}': it is a folder. Add the name of a file.")
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise KairodeError(f"cannot write {path}: {parent} is a file, not a folder.")
    return path


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to, renamed to the target when the block ends without error."""
    path = check_target(path)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with open(part, "r+b") as file:  # Windows flushes only files open for writing
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise KairodeError(f"cannot write {path}: {reason}. Choose another location, or free some space.") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def save_json(path: str | Path, content: Any) -> None:
    """Write JSON with one line per list of numbers."""

    def one_line(found: re.Match[str]) -> str:
        return re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]")

    with atomic_write(path) as part:
        text = re.sub(r"\[[\s\d.,eE+\-]*\]", one_line, json.dumps(content, indent=1))
        part.write_text(text + "\n", encoding="utf-8")


def load_json(path: str | Path, advice: str = "remove it, and run the command again.") -> Any:
    """Read a JSON file; `advice` is appended to the error if it is damaged."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise KairodeError(f"{path} does not exist.") from error
    except ValueError as error:
        raise KairodeError(f"{path} is damaged: {advice}") from error
