"""A resumable computation: its checkpoint, when it is saved, the time it took, and interrupts.

Every loop that can be resumed (fitting, training agents, Dyna, MPC) runs inside a `Session`.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from kairode._lock import locked
from kairode._signals import saving
from kairode.config.models import EARLIER
from kairode.config.serialize import first_difference, with_effect
from kairode.errors import KairodeError, Stopped
from kairode.training import checkpoint

T = TypeVar("T")
SAVE_SECONDS = float(os.environ.get("KAIRODE_SAVE_SECONDS", "10"))
"""Time between checkpoints; longer if saving is slow."""
SHARE = 20
"""Minimum ratio of the time between checkpoints to the time that saving one takes."""
ABSENT = {
    **EARLIER,
    "robust_scale": False,
    "table": None,
    "target_decisions": None,
    "test_epsilon": None,
    "scale_rewards": False,
    "standardize": False,
    "initial_decisions": 0,
    "decisions_per_round": 0,
}
"""Fields of configs that older checkpoints lack, with the value that they stood for."""
ADDED = "inputs"
"""A part of identities that checkpoints of older versions may lack; it is compared if they have it."""


class Session:
    """A resumable computation with an optional checkpoint folder, which it locks between enter and exit."""

    def __init__(self, folder: Path | None, identity: Any = None, *, save_seconds: float | None = None) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps(identity))
        """JSON that identifies this computation: a checkpoint with another identity is refused."""
        self.earlier: dict[str, Any] = {}
        """Metadata of the resumed checkpoint."""
        self.complete = False
        """True if the checkpoint holds the end of the computation: it is not to be saved again."""
        self.interrupted: Callable[[], bool] = lambda: False
        self._pause = SAVE_SECONDS if save_seconds is None else save_seconds
        self._started = self._saved = time.perf_counter()

    @property
    def here(self) -> float:
        """Seconds in this process."""
        return time.perf_counter() - self._started

    @property
    def seconds(self) -> float:
        """Total seconds, including earlier processes."""
        return float(self.earlier.get("seconds", 0.0)) + self.here

    @property
    def resumable(self) -> bool:
        return self.folder is not None and checkpoint.exists(self.folder)

    def describe(self) -> dict[str, Any]:
        """Metadata of the checkpoint."""
        assert self.folder is not None
        return checkpoint.describe(self.folder)

    def restore(self, like: T) -> T:
        """Load the checkpoint into a tree like `like`; `like` itself if there is none."""
        if self.folder is None or not self.resumable:
            return like
        self.restore_about()
        return checkpoint.load(self.folder, like)

    def with_saved_shapes(self, like: T, *names: str) -> T:
        """`like` with the shapes that these of its arrays have in the checkpoint, whatever they are."""

        def shaped(path: Any, x: Any) -> Any:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            if name not in names or name not in self.earlier["arrays"]:
                return x
            kind, shape = self.earlier["arrays"][name]
            return np.zeros(shape, kind)

        return jax.tree_util.tree_map_with_path(shaped, like)

    def restore_about(self) -> None:
        """Load the checkpoint's metadata; raises if it belongs to another computation."""
        assert self.folder is not None
        self.earlier = checkpoint.describe(self.folder)
        before = self.earlier.get("identity")  # absent in checkpoints of older versions
        now = _without_added(self.identity, before)
        before, now = (_with_effect(_with_earlier(one, now)) for one in (before, now))
        if before is not None and now is not None and before != now:
            raise KairodeError(
                f"{self.folder} holds the checkpoint of another run ({first_difference(before, now)}): "
                "remove it, or choose another folder."
            )

    def save(self, tree: Any, **about: Any) -> None:
        if self.folder is None:
            return
        begun = time.perf_counter()
        with saving():
            checkpoint.save(self.folder, tree, identity=self.identity, seconds=round(self.seconds, 2), **about)
        self._saved = time.perf_counter()
        self._pause = max(self._pause, SHARE * (self._saved - begun))

    def due(self) -> bool:
        """True when the next checkpoint is due, or the process was asked to stop."""
        return self.interrupted() or time.perf_counter() - self._saved > self._pause

    def stop(self, where: str) -> Stopped:
        return Stopped("interrupted." if self.folder is None else f"interrupted {where}, saved.")

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the folder, if there is one; raises if another process is writing to it."""
        return contextlib.nullcontext() if self.folder is None else locked(self.folder, reentrant=True)

    def __enter__(self) -> "Session":
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.locked())
        self.interrupted = self._stack.enter_context(interrupts())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        if error[0] is None and self.interrupted():  # too late for this computation: the one around it stops
            signal.raise_signal(signal.SIGINT)


def _without_added(now: Any, before: Any) -> Any:
    """An identity without the added part where that of an older checkpoint lacks it."""
    if not (isinstance(now, dict) and isinstance(before, dict)):
        return now
    kept = {name: value for name, value in now.items() if name != ADDED or name in before}
    return {name: _without_added(value, before.get(name)) for name, value in kept.items()}


def _with_earlier(before: Any, now: Any) -> Any:
    """An identity with the fields that it lacks because an earlier version wrote it."""
    if not (isinstance(now, dict) and isinstance(before, dict)):
        return before
    added = {name: ABSENT[name] for name in ABSENT if name in now and name not in before}
    return {name: _with_earlier(value, now.get(name)) for name, value in before.items()} | added


def _with_effect(identity: Any) -> Any:
    """An identity without the fields that have no effect, in every config that it contains."""
    if not isinstance(identity, dict):
        return identity
    return with_effect({name: _with_effect(value) for name, value in identity.items()})


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C and SIGTERM; the yielded function tells whether one was received."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:  # second signal: stop at once
            raise KeyboardInterrupt
        asked.append(number)
        if sys.stderr.isatty():
            print("\nStopping after the current step; press Ctrl-C again to stop now.", file=sys.stderr, flush=True)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
