"""A lock on a run folder: one process writes to it at a time.

The lock is the file `.lock` inside the folder: it needs no permission on the parent, and moves with the folder. The
operating system releases it when its process ends, however that happens. `.owner.json` names the process.
"""

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from kairode.errors import KairodeError
from kairode.files import load_json, save_json

LOCK, OWNER = ".lock", ".owner.json"


class FolderBusy(KairodeError):
    """Another process is writing to the run folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of an existing folder; raises `FolderBusy` if another process holds it."""
    import filelock  # here, as reading a folder needs no lock and importing this takes 50 ms

    lock = filelock.FileLock(folder / LOCK, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise FolderBusy(_busy(folder)) from None
    except (OSError, NotImplementedError) as error:
        raise KairodeError(f"cannot lock {folder}: {error}. Choose another folder with --out.") from error
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        save_json(folder / OWNER, {"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / OWNER).unlink()
        lock.release()


def remove(folder: Path) -> None:
    """Remove a run folder, unless a process is writing to it."""
    if not folder.exists():
        return
    with locked(folder):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                path.unlink(missing_ok=True)
        if os.name != "nt":  # while the lock is held: waiting processes see that the file is gone and create a new one
            (folder / LOCK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        if os.name == "nt":
            (folder / LOCK).unlink(missing_ok=True)
        folder.rmdir()


def _busy(folder: Path) -> str:
    who = "another process"
    with contextlib.suppress(KairodeError, KeyError, TypeError, OSError):
        owner = load_json(folder / OWNER)
        who += f" (pid {owner['pid']} on {owner['host']}, since {owner['since']})"
    return f"{folder} is being written by {who}: wait for it, or choose another folder with --out."
