"""Many fits side by side: one seed a process, one process a core, each resumable, none done twice."""

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kairode.envs.lanes import cores
from kairode.errors import KairodeError, Stopped
from kairode.experiments.fitting import Fit, command
from kairode.training.loop import interrupts


@dataclasses.dataclass(frozen=True)
class Job:
    """One fit and its folder."""

    config: Fit
    folder: Path

    @property
    def done(self) -> bool:
        """Whether its record is there, and is of this config."""
        try:
            made = json.loads((self.folder / "record.json").read_text())
            return made["config"] == json.loads(json.dumps(dataclasses.asdict(self.config)))
        except (OSError, ValueError, KeyError):
            return False

    @property
    def words(self) -> list[str]:
        """The command that does it."""
        return [*shlex.split(command(self.config, self.folder))[1:], "--quiet"]

    def forget(self) -> None:
        """Remove what an earlier run left."""
        shutil.rmtree(self.folder, ignore_errors=True)


def run_jobs(jobs: Sequence[Job], workers: int | None, tell: Callable[[Job], None]) -> list[Job]:
    """Do what is not done, on as many cores as there are; those that failed come back."""
    if workers is not None and workers < 1:
        raise KairodeError(f"workers must be a whole number of at least 1, got {workers}.")
    waiting = [job for job in jobs if not job.done]
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    free = [mine[i % len(mine)] for i in range(workers or len(mine))]
    running: list[tuple[Job, int, subprocess.Popen[bytes]]] = []
    failed: list[Job] = []
    with interrupts() as asked:
        try:
            while (waiting or running) and not asked():
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
            for _, _, process in running:  # each saves where it is
                process.terminate()
            for _, _, process in running:
                process.wait()
        if asked():
            raise Stopped(
                f"interrupted with {len(waiting) + len(running)} fits to do; the same command goes on from there."
            )
    return failed


def _start(job: Job, core: int) -> subprocess.Popen[bytes]:
    """A process of its own, kept on one core: small steps gain nothing by a second."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with open(job.folder / "log.txt", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kairode", *job.words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"JAX_PLATFORMS": "cpu", **os.environ},
            start_new_session=True,
        )
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {core})
    return process
