"""Files that are whole or not there: written beside, then renamed."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from kairode.errors import KairodeError


@contextlib.contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """A path beside the wanted one to write to; it takes the wanted name once the block ends without error."""
    path = Path(path)
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
