"""Files that are whole or not there: written beside, then renamed."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from kairode.errors import KairodeError


def check_target(path: str | Path) -> Path:
    """Refuse a place that no file can be written to, before any work is done for it."""
    path = Path(path)
    if path.name == "" or path.is_dir():
        raise KairodeError(f"cannot write '{path}': it is a folder. Add the name of a file.")
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise KairodeError(f"cannot write {path}: {parent} is a file, not a folder.")
    return path


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A path beside the wanted one to write to; it takes the wanted name once the block ends without error."""
    path = check_target(path)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise KairodeError(f"cannot write {path}: {reason}. Choose another place, or make room there.") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
