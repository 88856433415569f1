"""Many fits side by side: one seed a process, one process a core, each resumable, none done twice."""

import dataclasses
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kairode.envs.lanes import cores
from kairode.errors import KairodeError
from kairode.experiments.fitting import Fit, command


@dataclasses.dataclass(frozen=True)
class Job:
    """One fit and its folder."""

    config: Fit
    folder: Path

    @property
    def done(self) -> bool:
        """Whether its record is there."""
        return (self.folder / "record.json").exists()

    @property
    def words(self) -> list[str]:
        """The command that does it."""
        return [*shlex.split(command(self.config, self.folder))[1:], "--quiet"]


def run_jobs(jobs: Sequence[Job], workers: int | None, tell: Callable[[Job], None]) -> None:
    """Do what is not done, on as many cores as there are; what fails is named at the end."""
    waiting = [job for job in jobs if not job.done]
    free = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    free = (free * (1 + (workers or 0) // len(free)))[: workers or len(free)]
    running: list[tuple[Job, int, subprocess.Popen[bytes]]] = []
    failed: list[Job] = []
    try:
        while waiting or running:
            while waiting and free:
                job, core = waiting.pop(0), free.pop(0)
                running.append((job, core, _start(job, core)))
            time.sleep(0.2)
            for entry in [entry for entry in running if entry[2].poll() is not None]:
                job, core, process = entry
                running.remove(entry)
                free.append(core)
                failed += [job] if process.returncode else []
                tell(job)
    finally:
        for _, _, process in running:
            process.terminate()
        for _, _, process in running:
            process.wait()
    if failed:
        log = failed[0].folder / "log.txt"
        raise KairodeError(f"{len(failed)} of {len(jobs)} fits failed; the first one's words are in {log}.")


def _start(job: Job, core: int) -> subprocess.Popen[bytes]:
    """A process of its own, kept on one core: small steps gain nothing by a second."""
    job.folder.mkdir(parents=True, exist_ok=True)

    def stay() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {core})

    environment = {"JAX_PLATFORMS": "cpu", **os.environ}
    with open(job.folder / "log.txt", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "kairode", *job.words],
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=stay,
            env=environment,
        )
