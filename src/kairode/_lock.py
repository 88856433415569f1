"""A lock on a folder: one process writes to it at a time.

The lock is the file `.lock` inside the folder: it needs no permission on the parent, and moves with the folder. The
operating system releases it when its process ends, however that happens. `.owner.json` names the process.
"""

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kairode.errors import KairodeError
from kairode.files import load_json, save_json

LOCK, OWNER = ".lock", ".owner.json"
_held: dict[Path, tuple[int, int]] = {}
"""Process and thread that hold the lock of a folder; another process, forked from this one, does not hold it."""


class FolderBusy(KairodeError):
    """Another process is writing to the folder."""


@contextlib.contextmanager
def hold_file(path: Path, *, soft: bool = False) -> Iterator[bool]:
    """Hold a lock file; yields False if another process holds it.

    `soft` allows a file system without locks: the file alone is the lock then, which may outlive a killed process.
    """
    import filelock  # here, as reading a folder needs no lock and importing this takes 50 ms

    lock = filelock.FileLock(path, thread_local=False, blocking=False, fallback_to_soft=soft)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(filelock.Timeout):
            lock.acquire()
    except FileExistsError as error:
        raise KairodeError(f"{path.parent} is not a folder: choose another name.") from error
    except (OSError, NotImplementedError, ValueError) as error:  # a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise KairodeError(
            f"cannot lock {path}: {reason}. Choose another folder, on a file system with locks."
        ) from error
    try:
        yield lock.is_locked
    finally:
        lock.release()


@contextlib.contextmanager
def locked(folder: Path, *, reentrant: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, created if need be; raises `FolderBusy` if another process holds it.

    If `reentrant`, nothing is done where this thread holds the lock already, or that of a folder above.
    """
    try:
        place, me = folder.resolve(), (os.getpid(), threading.get_ident())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a null character
        raise KairodeError(f"cannot lock {folder}: {error}. Choose another folder.") from error
    if reentrant and any(_held.get(one) == me for one in (place, *place.parents)):
        yield
        return
    with hold_file(folder / LOCK, soft=True) as mine:
        if not mine:
            raise FolderBusy(_busy(folder))
        _held[place] = me
        try:
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            save_json(folder / OWNER, {"pid": os.getpid(), "host": socket.gethostname(), "since": since})
            yield
        finally:
            _held.pop(place, None)
            with contextlib.suppress(OSError):
                (folder / OWNER).unlink()


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


def _runs(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0) if os.name == "posix" else None
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def _busy(folder: Path) -> str:
    who = "another process"
    with contextlib.suppress(KairodeError, KeyError, TypeError, OSError):
        owner = load_json(folder / OWNER)
        if owner["host"] != socket.gethostname() or _runs(owner["pid"]):  # not a former one that was killed
            who += f" (pid {owner['pid']} on {owner['host']}, since {owner['since']})"
    return f"{folder} is being written by {who}: wait for it, or choose another folder."
