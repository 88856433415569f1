"""Lists of work: in order, side by side, stopped and gone on with, nothing done twice."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from kairode._lock import FolderBusy, hold_file, locked
from kairode.errors import KairodeError
from kairode.paper.engines import LocalEngine, WorkSummary, run_work, start_process
from kairode.paper.ray_engine import RayEngine, claim_core
from kairode.paper.work import WorkItem

STEPS = """
import json, os, signal, sys, time
from pathlib import Path
folder, record, steps, pause = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
mark = folder / "checkpoint.json"
first = json.loads(mark.read_text())["step"] if mark.exists() else 0
def note(word):
    with open(folder / "notes.txt", "a") as file:
        file.write(word + "\\n")
note(f"start {os.getpid()} {first}")
for step in range(first, steps):
    if stop:
        sys.exit(130)
    time.sleep(pause)
    note(f"step {step}")
    part = folder / ".part"
    part.write_text(json.dumps({"step": step + 1}))
    part.replace(mark)
record.parent.mkdir(parents=True, exist_ok=True)
with open(record, "x") as file:  # a second time would be an error
    file.write("{}")
note("end")
"""
"""Work of some steps, a checkpoint after each, that ends softly; what it did stands in notes.txt."""


def steps(folder: Path, name: str, count: int = 3, pause: float = 0.0, needs: tuple[str, ...] = ()) -> WorkItem:
    place, record = folder / "runs" / name, folder / "results" / f"{name}.json"
    words = ("-c", STEPS, str(place), str(record), str(count), str(pause))
    return WorkItem(name, words, place, record, needs=needs)


def notes(work: WorkItem, word: str) -> list[str]:
    return [line for line in (work.folder / "notes.txt").read_text().splitlines() if line.startswith(word)]


def once(work: WorkItem, count: int) -> bool:
    """Whether every step was done exactly once, and the end reached once."""
    return notes(work, "step") == [f"step {i}" for i in range(count)] and len(notes(work, "end")) == 1


def until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_list_is_done_once_each_after_what_it_needs(tmp_path) -> None:
    first, second = steps(tmp_path, "first"), steps(tmp_path, "second", needs=("first",))
    told: list[tuple[str, str]] = []
    tally = run_work([second, first], LocalEngine(2), lambda work, event: told.append((work.name, event)))
    assert told == [("first", "begun"), ("first", "run"), ("second", "begun"), ("second", "run")]
    assert [work.name for work in tally.run] == ["first", "second"]
    assert str(tally) == "2 run, 0 failed."
    again = run_work([first, second], LocalEngine(2))
    assert [work.name for work in again.skipped] == ["first", "second"]
    assert once(first, 3)
    assert once(second, 3)


def test_what_fails_is_named_and_the_rest_goes_on(tmp_path) -> None:
    bad = dataclasses.replace(steps(tmp_path, "bad"), words=("-c", "print('no luck'); raise SystemExit(3)"))
    silent = dataclasses.replace(steps(tmp_path, "silent"), words=("-c", "pass"))  # ends well, leaves no record
    after, beyond = steps(tmp_path, "after", needs=("bad",)), steps(tmp_path, "beyond", needs=("after",))
    good = steps(tmp_path, "good")
    tally = run_work([bad, after, beyond, silent, good], LocalEngine(1))
    assert [work.name for work in tally.failed] == ["bad", "silent"]
    assert [work.name for work in tally.left] == ["after", "beyond"]
    assert good.done
    assert not after.folder.exists()
    assert bad.log.read_text() == "no luck\n"
    assert str(bad.log) in str(tally)
    assert "1 run, 2 failed, 2 not started (a requirement failed)." in str(tally)


def test_side_by_side_and_never_more_than_asked_for(tmp_path) -> None:
    units = [steps(tmp_path, str(i), 2, 0.1) for i in range(4)]
    running: set[str] = set()
    most = [0]

    def callback(work: WorkItem, event: str) -> None:
        running.add(work.name) if event == "begun" else running.discard(work.name)
        most[0] = max(most[0], len(running))

    run_work(units, LocalEngine(2), callback)
    assert most[0] == 2
    with pytest.raises(KairodeError, match="--workers must be an integer of at least 1, got 0"):
        LocalEngine(0)


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_engines import steps
from kairode.errors import Stopped
from kairode.paper.engines import LocalEngine, run_work
try:
    run_work([steps(Path({folder!r}), str(i), {count}, 0.1) for i in range(2)], LocalEngine(2))
except Stopped as stopped:
    print(stopped, flush=True)
    sys.exit(130)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_in_the_middle_and_again(tmp_path, how: signal.Signals) -> None:
    """Ended softly or killed outright: its processes save and end, the same list goes on, no step is done twice."""
    count = 12
    words = DRIVER.format(tests=str(Path(__file__).parent), folder=str(tmp_path), count=count)
    units = [steps(tmp_path, str(i), count, 0.1) for i in range(2)]
    driver = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True)
    until(lambda: all(work.resumable for work in units), 60)
    driver.send_signal(how)
    said, _ = driver.communicate(timeout=30)
    if how == signal.SIGTERM:
        assert driver.returncode == 130
        assert "interrupted with 2 items unfinished" in said
    for work in units:
        until(lambda work=work: _free(work))  # where the driver is gone, its processes end as well
        assert not work.done
        assert work.state == "to resume"
    tally = run_work(units, LocalEngine(2))
    assert len(tally.run) == 2
    for work in units:
        assert once(work, count)
        assert len(notes(work, "start")) == 2


def _free(work: WorkItem) -> bool:
    with hold_file(work.lock) as free:
        return free


def test_two_commands_at_once_share_the_work(tmp_path) -> None:
    """Whoever comes second waits for what the first is at, and takes its record."""
    work = steps(tmp_path, "shared", 5, 0.1)
    process = start_process(work)
    assert isinstance(process, subprocess.Popen)
    assert start_process(work) == "busy"
    with pytest.raises(KairodeError, match="'shared' is being run by another process"):
        work.forget()
    tally = run_work([work], LocalEngine(1))
    assert [one.name for one in tally.skipped] == ["shared"]
    assert process.wait() == 0
    assert once(work, 5)
    with locked(work.folder), pytest.raises(FolderBusy, match="being written by"):  # as by `kairode study`
        work.forget()
    assert (work.folder / "log.txt").exists()
    work.forget()
    assert not work.folder.exists()


def test_a_child_keeps_to_its_cores(tmp_path) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system does not bind processes to cores")
    core = min(os.sched_getaffinity(0))
    work = steps(tmp_path, "bound")
    said = f"import os; open({str(work.record)!r}, 'w').write('{{}}'); print(os.sched_getaffinity(0))"
    work.record.parent.mkdir()
    process = start_process(dataclasses.replace(work, words=("-c", said)), [core])
    assert isinstance(process, subprocess.Popen)
    assert process.wait() == 0
    assert work.log.read_text() == f"{{{core}}}\n"


def test_workers_of_a_machine_take_different_cores(monkeypatch, tmp_path) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system does not bind processes to cores")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    count = len(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(claim_core()) for _ in range(count + 1)]
    assert sorted(core for cores in taken for core in cores) == sorted(os.sched_getaffinity(0))
    with claim_core() as again:
        assert again == [min(os.sched_getaffinity(0))]


def test_a_tally_says_what_was_skipped(tmp_path) -> None:
    work = steps(tmp_path, "x")
    assert str(WorkSummary(run=[work], skipped=[work])) == "1 run, 1 skipped (already done), 0 failed."


RAY = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_engines import steps
from kairode.errors import Stopped
from kairode.paper.ray_engine import RayEngine
from kairode.paper.engines import run_work
units = [steps(Path({folder!r}), str(i), 15, 0.2) for i in range(4)]
units.append(steps(Path({folder!r}), "last", 2, 0.0, needs=tuple("0123")))
try:
    tally = run_work(units, RayEngine(workers=3))
except Stopped as stopped:
    print(stopped, flush=True)
    sys.exit(130)
print(tally, flush=True)
"""


def ray_driver(tmp_path: Path) -> tuple[subprocess.Popen, list[WorkItem]]:
    pytest.importorskip("ray")
    words = RAY.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    units = [steps(tmp_path, str(i), 15, 0.2) for i in range(4)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    until(lambda: driver.poll() is not None or sum(len(_steps(work)) >= 3 for work in units) >= 2, 120)
    return driver, units


def _steps(work: WorkItem) -> list[str]:
    return notes(work, "step") if (work.folder / "notes.txt").exists() else []


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_a_ray_worker_is_killed_and_nothing_is_lost(tmp_path) -> None:
    """Three workers of a local cluster, one killed outright: its work goes on elsewhere, each step is done once."""
    driver, units = ray_driver(tmp_path)
    killed = next(work for work in units if len(_steps(work)) >= 3)
    process = int(notes(killed, "start")[0].split()[1])
    os.kill(parent(process), signal.SIGKILL)
    said, errors = driver.communicate(timeout=120)
    assert said == "5 run, 0 failed.\n", errors
    assert len(notes(killed, "start")) == 2
    assert int(notes(killed, "start")[1].split()[2]) >= 3  # from its checkpoint
    for work in units:
        assert once(work, 15)
        assert json.loads(work.record.read_text()) == {}
        assert len(notes(work, "start")) == (2 if work is killed else 1)


@pytest.mark.slow
def test_a_ray_driver_is_stopped_and_goes_on(tmp_path) -> None:
    driver, units = ray_driver(tmp_path)
    driver.send_signal(signal.SIGTERM)
    said, errors = driver.communicate(timeout=120)
    assert driver.returncode == 130, errors
    assert "items unfinished" in said
    for work in units:
        until(lambda work=work: _free(work))
    tally = run_work(units, LocalEngine(2))
    assert not tally.failed
    assert all(once(work, 15) for work in units)


def test_without_ray_one_is_told_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KairodeError, match=r"--engine ray needs Ray: pip install 'kairode\[ray\]'\."):
        RayEngine()
