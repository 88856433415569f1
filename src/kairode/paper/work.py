"""A piece of work: one command in a process of its own, and how one sees that it is done."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from kairode.errors import KairodeError
from kairode.runs.record import completed, plain, read_record


def always_true() -> bool:
    """The record alone says that a piece of work is done."""
    return True


@dataclasses.dataclass(frozen=True)
class WorkItem:
    """One command that can be stopped at any moment and goes on from its checkpoint when it is given again."""

    name: str
    words: tuple[str, ...]
    """What Python is given; none where nothing is to be run: such a record is put together from those it needs."""
    folder: Path
    """Of the run: its checkpoint and its log."""
    record: Path
    """Where its record goes."""
    config: Any = None
    """What the record must be of; None for whatever it says."""
    seeds: int = 1
    """How many the record must hold, or more."""
    needs: tuple[str, ...] = ()
    """Names of the work that must be done before."""
    also: Callable[[], bool] = always_true
    """Whether what others take from the run's folder is there."""
    seconds: float | None = None
    """Estimated, on one core; None where nothing is known."""
    wide: bool = False
    """Whether it gains by more than one core, and by a GPU."""
    since: str = ""
    """Records made before this moment do not count."""

    @property
    def done(self) -> bool:
        """Whether its record is there, of this config and with as many seeds, and what others take from it."""
        try:
            made = read_record(self.record)
            return bool(made.get("made", "") >= self.since and self._fits(made) and self.also())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def _fits(self, made: dict[str, Any]) -> bool:
        if self.config is None:
            return True
        before, wanted = completed(made["config"], self.config), plain(self.config)
        several = before.get("seed")
        if isinstance(several, list):  # one record of several runs
            before, wanted = ({**config, "seed": None, "seeds": len(several)} for config in (before, wanted))
        if before.get("seeds", 1) < self.seeds:
            return False
        return _compared(before) == _compared(wanted)

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return any((place / "checkpoint.json").exists() for place in (self.folder, self.folder / "practice"))

    @property
    def state(self) -> str:
        """In words."""
        return "done" if self.done else "to go on" if self.begun else "to do"

    @property
    def log(self) -> Path:
        """What its process said."""
        return self.folder / "log.txt"

    @property
    def lock(self) -> Path:
        """The file that whoever does the work holds; beside the folder, which may be removed."""
        return self.folder.with_name(f".{self.folder.name}.lock")

    def forget(self) -> None:
        """Remove what an earlier run left, unless it goes on right now."""
        with held(self.lock) as mine:
            if mine is None:
                raise KairodeError(f"'{self.name}' is being run by another process: wait for it, or stop it first.")
            shutil.rmtree(self.folder, ignore_errors=True)


def _compared(config: dict[str, Any]) -> dict[str, Any]:
    """A config without what makes no other run: how many seeds, the solver of a model that has no ODE."""
    found = {name: value for name, value in config.items() if name != "seeds"}
    if "ode" not in found.get("model", "ode"):
        found = _without_solver(found)
    return found


def _without_solver(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {name: _without_solver(value) for name, value in part.items() if name != "solver"}


@contextlib.contextmanager
def held(path: Path) -> Iterator[filelock.BaseFileLock | None]:
    """Hold a lock for a while; None where another process holds it. `child.py` takes the same lock for good."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # No replacement where the file system has no locks: one made of files outlives a process that is killed.
    lock = filelock.FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        yield None
        return
    except OSError as error:
        raise KairodeError(
            f"cannot lock {path}: {error.strerror}. Runs need a file system with locks; choose one with --runs."
        ) from error
    try:
        yield lock
    finally:
        lock.release()
