"""Execution of work on a Ray cluster (the extra `ray`).

The machines of the cluster share the working directory: checkpoints, logs, records and locks are files there. An item
whose worker is killed is restarted on another one from its checkpoint; whether it is done is checked first.
"""

import contextlib
import getpass
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kairode._lock import hold_file
from kairode.errors import KairodeError
from kairode.paper.engines import PAUSE, Engine, Outcome, result, start_process
from kairode.paper.work import WorkItem

RETRIES = 5
"""Number of restarts of an item after its worker was killed."""
PATIENCE = 60.0
"""Seconds that workers have to save a checkpoint."""


def run_item(work: WorkItem, place: str) -> Outcome:
    """Run an item in a child process that ends with this worker."""
    if not Path(place).is_dir():
        raise KairodeError(f"{place} does not exist on this machine: the machines of the cluster must share it.")
    os.chdir(place)
    with claim_core() as core:
        # Busy: a killed worker's process is saving, or another command is running it.
        while (process := start_process(work, core)) == "busy":
            time.sleep(PAUSE)
        if process == "done":
            return "done"
        assert not isinstance(process, str)
        try:
            while (code := process.poll()) is None:  # cancellation is delivered between these
                time.sleep(PAUSE)
        finally:
            if process.returncode is None:
                process.terminate()
                process.wait()
    return result(work, code)


@contextlib.contextmanager
def claim_core() -> Iterator[list[int]]:
    """A core that no other worker has claimed; empty if there is none or it cannot be determined."""
    places = Path(tempfile.gettempdir()) / f"kairode-cores-{getattr(os, 'getuid', getpass.getuser)()}"
    with contextlib.ExitStack() as stack:
        for core in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ():
            if stack.enter_context(hold_file(places / str(core))):
                yield [core]
                return
        yield []


class RayEngine(Engine):
    """Workers of a Ray cluster, one core each: a new one on this machine, or the one at an address."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise KairodeError(f"--workers must be an integer of at least 1, got {workers}.")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise KairodeError("--engine ray needs Ray: pip install 'kairode[ray]'.") from error
        there = address or os.environ.get("RAY_ADDRESS")
        if there and workers is not None:
            raise KairodeError("--workers has no effect on an existing Ray cluster.")
        new: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False}
        try:
            self.ray.init(there or "local", log_to_driver=False, logging_level="ERROR", **({} if there else new))
        except ConnectionError as error:
            raise KairodeError(f"there is no Ray cluster at {there}: start one with `ray start --head`.") from error
        have = self.ray.cluster_resources()
        self.workers, self.gpu = int(have.get("CPU", 1)), bool(have.get("GPU"))
        self.run_item = self.ray.remote(run_item)
        self.running: dict[Any, WorkItem] = {}
        self.aside = contextlib.ExitStack()  # Ray's messages about lost workers
        self.aside.enter_context(contextlib.redirect_stdout(sys.stderr))

    def has_capacity(self, work: WorkItem) -> bool:
        return True

    def start(self, work: WorkItem, alone: bool) -> None:
        options = {"num_cpus": 1, "num_gpus": int(self.gpu and work.wide), "max_retries": RETRIES}
        self.running[self.run_item.options(**options, name=work.name).remote(work, os.getcwd())] = work

    def ended(self) -> list[tuple[WorkItem, Outcome]]:
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=5 * PAUSE)
        found: list[tuple[WorkItem, Outcome]] = []
        for task in ready:
            work = self.running.pop(task)
            try:
                found.append((work, self.ray.get(task)))
            except self.ray.exceptions.RayError as error:
                work.folder.mkdir(parents=True, exist_ok=True)
                with open(work.log, "a") as log:
                    log.write(f"{error}\n")
                found.append((work, "failed"))
        return found

    def stop(self) -> None:
        """Let the workers save a checkpoint and end; then leave the cluster."""
        for task in self.running:
            self.ray.cancel(task, force=False)
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=PATIENCE)
        self.running = {}
        self.ray.shutdown()
        self.aside.close()
