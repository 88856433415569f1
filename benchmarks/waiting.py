"""How long a user waits: the main jobs from a cold start, and the first line of every command.

Each job runs in a process of its own with an empty home (no compiled programs), then once more with the programs that
the first run has kept, so that the difference is compilation. The stages are those of the run's own record. Run it
while nothing else runs: `kairode bench waiting`, with `--json` for the figures alone. `WAITING_JOBS="hiv pendulum"`
chooses jobs, `WAITING_WARM=0` leaves out the second runs, `WAITING_OPTIONS="--fit-iterations 100"` shortens them.
"""

import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import print_rows, run

from kairode.files import load_json

JOBS = tuple(os.environ.get("WAITING_JOBS", "hiv gridworld pendulum").split())
OPTIONS = shlex.split(os.environ.get("WAITING_OPTIONS", ""))
WARM = os.environ.get("WAITING_WARM", "1") == "1"
FIRST_LINES = {
    "run": "run gridworld --out {place}/run",
    "collect": "collect hiv --episodes 200 --out {place}/episodes.parquet",
    "fit": "fit gridworld --out {place}/fit",
    "dyna": "dyna hiv --out {place}/dyna",
    "mpc": "run pendulum --out {place}/mpc",
    "study": "study between/hiv-rnn --results {place} --runs {place}/runs",
    "schedule": "schedule {done}",
    "evaluate": "evaluate {done}",
}
"""Commands whose first line is waited for; they are then stopped. `{done}` is the folder of a finished run."""


def environment(home: Path) -> dict[str, str]:
    """Of a user whose home is this folder: no cache of compiled programs but the one there."""
    drop = ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME")
    return {**{name: value for name, value in os.environ.items() if name not in drop}, "HOME": str(home)}


def start(words: list[str], home: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kairode", *words]
    return subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def first_output(process: subprocess.Popen[bytes], limit: float = 120.0) -> bool:
    """Wait for the first byte that a process writes; False if it ends, or the time is up, without one."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], limit)
    return bool(ready) and bool(os.read(process.stdout.fileno(), 1))


def timed_job(name: str, home: Path, place: Path) -> dict[str, Any]:
    """Seconds to the first line and in all, and those of each stage."""
    began = time.perf_counter()
    process = start(["run", name, "--out", str(place), *OPTIONS], home)
    said = first_output(process)
    first = time.perf_counter() - began
    rest, _ = process.communicate()
    total = time.perf_counter() - began
    if process.returncode or not said:
        raise SystemExit(f"kairode run {name} failed: {rest.decode()[-2000:]}")
    stages = dict(load_json(place / "manifest.json")["seconds"])
    # Imports, the page, and what else no stage counts.
    return {"total": total, "first_line": first, "stages": {**stages, "other": total - sum(stages.values())}}


def first_lines(home: Path, done: Path, place: Path) -> dict[str, float]:
    """Seconds to the first byte on either stream, which are no terminals."""
    found: dict[str, float] = {}
    for name, words in FIRST_LINES.items():
        began = time.perf_counter()
        process = start(words.format(place=place, done=done).split(), home)
        said = first_output(process)
        seconds = time.perf_counter() - began
        time.sleep(1)  # a command that failed has ended by then
        if process.poll() or not said:
            raise SystemExit(f"kairode {words} failed before or soon after its first line.")
        process.kill()
        process.communicate()
        found[name] = seconds
    return found


def measure() -> dict[str, Any]:
    figures: dict[str, Any] = {"cold": {}, "warm": {}}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in JOBS:
            home = place / f"home-{name}"
            home.mkdir()
            figures["cold"][name] = timed_job(name, home, place / f"{name}-cold")
            if WARM:
                figures["warm"][name] = timed_job(name, home, place / f"{name}-warm")
        figures["first_line"] = first_lines(place / f"home-{JOBS[0]}", place / f"{JOBS[0]}-cold", place)
    return figures


def show(figures: dict[str, Any]) -> None:
    rows = []
    for name, cold in figures["cold"].items():
        warm = figures["warm"].get(name, {"total": float("nan"), "first_line": float("nan"), "stages": {}})
        rows.append([f"kairode run {name}", f"{cold['total']:.0f}", f"{warm['total']:.0f}"])
        rows += [
            [f"  {stage}", f"{seconds:.0f}", f"{warm['stages'].get(stage, float('nan')):.0f}"]
            for stage, seconds in cold["stages"].items()
        ]
        rows.append(["  first line", f"{cold['first_line']:.1f}", f"{warm['first_line']:.1f}"])
    print_rows(["seconds", "empty home", "compiled before"], rows)
    print_rows(["first line of", "seconds"], [[name, f"{value:.1f}"] for name, value in figures["first_line"].items()])


if __name__ == "__main__":
    settings = {"jobs": JOBS, "options": OPTIONS, "warm": WARM}
    run("waiting", measure, settings, show, __doc__)
