"""A work item: one command in its own process, and how to tell that it is done."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kairode._lock import hold_file, remove
from kairode.config.serialize import from_dict, to_dict, with_effect
from kairode.errors import KairodeError
from kairode.runs.record import read_record


@dataclasses.dataclass(frozen=True)
class WorkItem:
    """One command that can be interrupted at any time and resumes from its checkpoint."""

    name: str
    words: tuple[str, ...]
    """Arguments of Python; empty if nothing is run and the record is combined from those it needs."""
    folder: Path
    """Folder of the run: its checkpoint and log."""
    record: Path
    """Path of the record."""
    config: Any = None
    """Config that the record must have; None for any."""
    seeds: int = 1
    """Minimum number of seeds in the record."""
    needs: tuple[str, ...] = ()
    """Names of the work that must be done before."""
    also: Callable[[], bool] = lambda: True
    """Whether everything that others use from the run folder exists."""
    seconds: float | None = None
    """Estimated, on one core; None if unknown."""
    wide: bool = False
    """Whether it benefits from more than one core, and from a GPU."""
    since: str = ""
    """Records made before this time do not count."""

    @property
    def done(self) -> bool:
        """Whether its record exists, with this config and enough seeds, and everything that others use."""
        try:
            made = read_record(self.record)
            return bool(made.get("made", "") >= self.since and self._fits(made) and self.also())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def _fits(self, made: dict[str, Any]) -> bool:
        if self.config is None:
            return True
        stored = made["config"]
        if isinstance(stored.get("seed"), list):  # one record of several seeds
            stored = {**stored, "seed": self.config.seed, "seeds": len(stored["seed"])}
        before = to_dict(from_dict(type(self.config), stored))
        return before.get("seeds", 1) >= self.seeds and _comparable(before) == _comparable(to_dict(self.config))

    @property
    def resumable(self) -> bool:
        places = (self.folder, self.folder / "training", self.folder / "practice")  # the last in older versions
        return any((place / "checkpoint.json").exists() for place in places)

    @property
    def state(self) -> str:
        return "done" if self.done else "to resume" if self.resumable else "to do"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def lock(self) -> Path:
        """Lock file of the process that runs it, held by `child.py` before its program starts.

        A second one, beside the folder: the program takes the lock inside the folder itself, and could not if its own
        process had it already.
        """
        return self.folder.with_name(f".{self.folder.name}.lock")

    def forget(self) -> None:
        """Remove the results of an earlier run, unless it is running."""
        with hold_file(self.lock) as mine:
            if not mine:
                raise KairodeError(f"'{self.name}' is being run by another process: wait for it, or stop it first.")
            remove(self.folder)


def _comparable(config: dict[str, Any]) -> dict[str, Any]:
    """A config without the fields that do not define the run."""
    return with_effect({name: value for name, value in config.items() if name != "seeds"})
