"""Who carries out a list of work: one scheduler, and the engine that has the processes on this machine.

Every piece runs as a command in a process of its own. Stopped by Ctrl-C or a signal, the processes are ended softly, so
that each saves where it is; the same list goes on from there, and what is done is not done again.
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

from kairode.envs.batching import cores
from kairode.errors import KairodeError, Stopped
from kairode.paper import child
from kairode.paper.work import WorkItem, held
from kairode.training.session import interrupts

PAUSE = 0.1
"""Seconds between two looks at the processes."""
Outcome = Literal["run", "done", "failed"]


class Engine(abc.ABC):
    """Where processes run."""

    @abc.abstractmethod
    def has_capacity(self, work: WorkItem) -> bool:
        """Whether this can be started now."""

    @abc.abstractmethod
    def start(self, work: WorkItem, alone: bool) -> None:
        """Start it; alone where nothing else could be started beside it now."""

    @abc.abstractmethod
    def ended(self) -> list[tuple[WorkItem, Outcome]]:
        """What has ended, after a short wait at most."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End softly whatever still runs."""


@dataclasses.dataclass
class WorkSummary:
    """What came of a list of work."""

    run: list[WorkItem] = dataclasses.field(default_factory=list)
    skipped: list[WorkItem] = dataclasses.field(default_factory=list)
    """Done before, or by another process meanwhile."""
    failed: list[WorkItem] = dataclasses.field(default_factory=list)
    left: list[WorkItem] = dataclasses.field(default_factory=list)
    """Not begun, as something that they need failed."""

    def __str__(self) -> str:
        """In one sentence."""
        parts = {"run": self.run, "skipped (done already)": self.skipped, "failed": self.failed}
        parts["left, as what they need failed"] = self.left
        said = ", ".join(f"{len(some)} {word}" for word, some in parts.items() if some or word in ("run", "failed"))
        logs = "".join(f" {work.name} failed: see {work.log}." for work in self.failed)
        return f"{said[:1].upper()}{said[1:]}.{logs}"


def run_work(
    units: Sequence[WorkItem],
    engine: Engine,
    callback: Callable[[WorkItem, str], None] = lambda work, event: None,
) -> WorkSummary:
    """Do what is not done, each after what it needs; whoever watches is told what begins and how it ended."""
    tally = WorkSummary()
    waiting: list[WorkItem] = []
    for work in (work for work in units if work.words):
        (tally.skipped if work.done else waiting).append(work)
    running: list[WorkItem] = []
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
                f"interrupted with {len(waiting) + len(running)} to do, each saved where it was; the same command goes "
                "on from there."
            )
    return tally


def _start_some(
    waiting: list[WorkItem], running: list[WorkItem], engine: Engine, callback: Callable[[WorkItem, str], None]
) -> None:
    """Start whatever waits for nothing, in order, while there is room."""
    open_names = {work.name for work in (*waiting, *running)}
    ready = [work for work in waiting if not open_names.intersection(work.needs)]
    for i, work in enumerate(ready):
        if engine.has_capacity(work):
            waiting.remove(work)
            running.append(work)
            engine.start(work, alone=i == len(ready) - 1)
            callback(work, "begun")


def _blocked(waiting: Sequence[WorkItem], failed: Sequence[WorkItem]) -> list[WorkItem]:
    """Those that need something that failed."""
    names = {work.name for work in failed}
    return [work for work in waiting if names.intersection(work.needs)]


def start_process(work: WorkItem, where: Sequence[int] = ()) -> subprocess.Popen[bytes] | Literal["busy", "done"]:
    """Start the process of a piece of work, on these cores; unless it is done, or another process is at it."""
    with held(work.lock) as lock:  # a quick look: the process itself takes the lock for as long as it lives
        if lock is None:
            return "busy"
        if work.done:
            return "done"
    work.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}  # workers of Ray would have XLA say more
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
    return _let_go(process, work)


def _let_go(process: subprocess.Popen[bytes], work: WorkItem) -> subprocess.Popen[bytes] | Literal["busy", "done"]:
    """Let a process that has the lock do the work, unless another has done it meanwhile."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as go, process.stdout as said:
        answer = said.readline()
        going = answer == child.HELD and not work.done
        if going:
            go.write(child.GO)
    if going:
        return process
    code = process.wait()
    if answer in (child.HELD, child.BUSY):
        return "done" if answer == child.HELD else "busy"
    raise KairodeError(f"the process of '{work.name}' ended with code {code} before it began; its words are above.")


def result(work: WorkItem, code: int) -> Outcome:
    """How a process ended."""
    return "run" if code == 0 and work.done else "failed"


@dataclasses.dataclass
class _Running:
    work: WorkItem
    cores: list[int]
    process: subprocess.Popen[bytes] | Literal["busy", "done"]


class LocalEngine(Engine):
    """Processes of this machine, one a core: small steps gain nothing by a second."""

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise KairodeError(f"--workers must be a whole number of at least 1, got {workers}.")
        mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
        self.free = [mine[i % len(mine)] for i in range(workers or len(mine))]
        self.workers = len(self.free)
        self.running: list[_Running] = []
        self.gpu = "JAX_PLATFORMS" not in os.environ and Path("/dev/nvidia0").exists()

    def has_capacity(self, work: WorkItem) -> bool:
        """Whether a core is free, and the GPU where it would take that."""
        return bool(self.free) and not (self.gpu and work.wide and any(one.work.wide for one in self.running))

    def start(self, work: WorkItem, alone: bool) -> None:
        """Start it on one core; on all free ones where it gains by that and nothing else waits for them."""
        count = len(self.free) if alone and work.wide else 1
        mine, self.free = self.free[:count], self.free[count:]
        self.running.append(_Running(work, mine, start_process(work, sorted(set(mine)))))

    def ended(self) -> list[tuple[WorkItem, Outcome]]:
        """What has ended."""
        time.sleep(PAUSE)
        found: list[tuple[WorkItem, Outcome]] = []
        for one in list(self.running):
            if one.process == "busy":
                one.process = start_process(one.work, sorted(set(one.cores)))
            if one.process == "busy":
                continue
            if one.process == "done":
                found.append((one.work, "done"))
            elif (code := one.process.poll()) is not None:
                found.append((one.work, result(one.work, code)))
            else:
                continue
            self.running.remove(one)
            self.free += one.cores
        return found

    def stop(self) -> None:
        """Each saves where it is."""
        processes = [one.process for one in self.running if isinstance(one.process, subprocess.Popen)]
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        self.running = []
