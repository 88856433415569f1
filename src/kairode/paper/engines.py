"""Execution of work: one scheduler, and the engine that runs processes on this machine.

Every item runs as a command in its own process. On Ctrl-C or SIGTERM the processes save a checkpoint and end; the same
command resumes them, and finished items are not repeated.
"""

import abc
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from kairode import _signals
from kairode._lock import hold_file
from kairode.envs.batching import cores
from kairode.errors import KairodeError, Stopped
from kairode.paper import child
from kairode.paper.work import WorkItem
from kairode.training.session import interrupts

PAUSE = 0.1
"""Seconds between polls of the processes."""
Outcome = Literal["run", "done", "failed"]
Started = subprocess.Popen[bytes] | Literal["busy", "done"]


WorkCallback = Callable[[WorkItem, str], None]
"""Told of an item that it has begun, or how it ended."""


class Engine(abc.ABC):
    """Runs processes."""

    @abc.abstractmethod
    def has_capacity(self, work: WorkItem) -> bool:
        """Whether the item can be started now."""

    @abc.abstractmethod
    def start(self, work: WorkItem, alone: bool) -> None:
        """Start an item; `alone` if nothing else could be started beside it."""

    @abc.abstractmethod
    def ended(self) -> list[tuple[WorkItem, Outcome]]:
        """Items that have ended, after a short wait at most."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Terminate the running processes; each saves a checkpoint."""


@dataclasses.dataclass
class WorkSummary:
    """Outcome of a list of work."""

    run: list[WorkItem] = dataclasses.field(default_factory=list)
    skipped: list[WorkItem] = dataclasses.field(default_factory=list)
    """Finished before, or by another process meanwhile."""
    failed: list[WorkItem] = dataclasses.field(default_factory=list)
    left: list[WorkItem] = dataclasses.field(default_factory=list)
    """Not started because something they need failed."""

    def __str__(self) -> str:
        parts = {"run": self.run, "skipped (already done)": self.skipped, "failed": self.failed}
        parts["not started (a requirement failed)"] = self.left
        text = ", ".join(f"{len(some)} {word}" for word, some in parts.items() if some or word in ("run", "failed"))
        logs = "".join(f" {work.name} failed: see {work.log}." for work in self.failed)
        return f"{text[:1].upper()}{text[1:]}.{logs}"


def run_work(
    units: Sequence[WorkItem], engine: Engine, callback: WorkCallback = lambda work, event: None
) -> WorkSummary:
    """Run unfinished items in order of their requirements; the callback is told when one starts and how it ended."""
    tally = WorkSummary()
    waiting: list[WorkItem] = []
    for work in (work for work in units if work.words):
        (tally.skipped if work.done else waiting).append(work)
    running: list[WorkItem] = []
    _signals.limit = 60.0  # the items' own processes take a part of it to save
    with interrupts() as asked:
        try:
            while (waiting or running) and not asked():
                _start_some(waiting, running, engine, callback)
                for work, outcome in engine.ended():
                    running.remove(work)
                    {"run": tally.run, "done": tally.skipped, "failed": tally.failed}[outcome].append(work)
                    callback(work, outcome)
                while hopeless := _blocked(waiting, [*tally.failed, *tally.left]):
                    work = hopeless[0]
                    waiting.remove(work)
                    tally.left.append(work)
                    callback(work, "left")
        finally:
            engine.stop()
        if asked() and (waiting or running):
            raise Stopped(
                f"interrupted with {len(waiting) + len(running)} items unfinished. Run the same command again to "
                "resume."
            )
    return tally


def _start_some(waiting: list[WorkItem], running: list[WorkItem], engine: Engine, callback: WorkCallback) -> None:
    open_names = {work.name for work in (*waiting, *running)}
    ready = [work for work in waiting if not open_names.intersection(work.needs)]
    for i, work in enumerate(ready):
        if engine.has_capacity(work):
            waiting.remove(work)
            running.append(work)
            engine.start(work, alone=i == len(ready) - 1)
            callback(work, "begun")


def _blocked(waiting: Sequence[WorkItem], failed: Sequence[WorkItem]) -> list[WorkItem]:
    names = {work.name for work in failed}
    return [work for work in waiting if names.intersection(work.needs)]


def start_process(work: WorkItem, where: Sequence[int] = ()) -> Started:
    """Start the process of an item on these cores, unless it is done or another process is running it."""
    with hold_file(work.lock) as free:  # only a check: the process itself holds the lock while it runs
        if not free:
            return "busy"
        if work.done:
            return "done"
    work.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}  # silence XLA in Ray workers
    if not work.wide:
        environment.setdefault("JAX_PLATFORMS", "cpu")
    first = [sys.executable, "-P", child.__file__, str(os.getpid()), ",".join(map(str, where))]
    process = subprocess.Popen(
        [*first, str(work.lock), str(work.log), sys.executable, *work.words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as go, process.stdout as output:
        answer = output.readline()
        if going := answer == child.HELD and not work.done:  # it has the lock, and no other has done the work meanwhile
            go.write(child.GO)
    if going:
        return process
    code = process.wait()
    if answer in (child.HELD, child.BUSY):
        return "done" if answer == child.HELD else "busy"
    raise KairodeError(f"the process of '{work.name}' exited with code {code} before it started; see its output above.")


def result(work: WorkItem, code: int) -> Outcome:
    """Outcome of an ended process: exit code 0 is not enough, its record must exist too."""
    return "run" if code == 0 and work.done else "failed"


@dataclasses.dataclass
class _Running:
    work: WorkItem
    cores: list[int]
    process: Started


class LocalEngine(Engine):
    """Processes on this machine, one per core: small steps do not benefit from a second."""

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise KairodeError(f"--workers must be an integer of at least 1, got {workers}.")
        mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
        self.free = [mine[i % len(mine)] for i in range(workers or len(mine))]
        self.workers = len(self.free)
        self.running: list[_Running] = []
        self.gpu = "JAX_PLATFORMS" not in os.environ and Path("/dev/nvidia0").exists()

    def has_capacity(self, work: WorkItem) -> bool:
        return bool(self.free) and not (self.gpu and work.wide and any(one.work.wide for one in self.running))

    def start(self, work: WorkItem, alone: bool) -> None:
        """Start on one core; on all free ones if the item benefits and nothing else waits for them."""
        count = len(self.free) if alone and work.wide else 1
        mine, self.free = self.free[:count], self.free[count:]
        self.running.append(_Running(work, mine, start_process(work, sorted(set(mine)))))

    def ended(self) -> list[tuple[WorkItem, Outcome]]:
        time.sleep(PAUSE)
        found: list[tuple[WorkItem, Outcome]] = []
        for one in list(self.running):
            if one.process == "busy":
                one.process = start_process(one.work, sorted(set(one.cores)))
            if one.process == "done":
                found.append((one.work, "done"))
            elif one.process != "busy" and (code := one.process.poll()) is not None:
                found.append((one.work, result(one.work, code)))
            else:
                continue
            self.running.remove(one)
            self.free += one.cores
        return found

    def stop(self) -> None:
        processes = [one.process for one in self.running if isinstance(one.process, subprocess.Popen)]
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        self.running = []
