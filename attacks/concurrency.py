"""Several processes at once: on one run folder, on one checkpoint, on the same cores."""

import collections
import concurrent.futures
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from attacks._common import Effort, Outcome, amount, attack, environment, start
from attacks.kills import (
    COMMANDS,
    LIMIT,
    OWNER,
    Command,
    Reference,
    ended,
    fingerprint,
    generator,
    left_over,
    reference,
    wrong,
)

SCHEDULE = Command("schedule {} --prices 0 -q")


@attack(
    "two processes on one run folder",
    "the second says who holds it and exits 2; the first is undisturbed",
    ("slow", "full"),
)
def two_processes(folder: Path, effort: Effort) -> Outcome:
    """The same command twice, at once or one after a random delay."""
    names = tuple(COMMANDS) if effort == "full" else ("fit", "collect")
    trials = amount(effort, 1, 2, 6)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = [*pool.map(lambda name: _pairs(folder, name, effort, trials), names)]
    if effort == "full":  # it needs the folder of a finished run
        found.append(_pairs(folder, "schedule", effort, trials))
    failures = [text for _, failed in found for text in failed]
    ends = sum((ended for ended, _ in found), collections.Counter[str]())
    met = sum(count for how, count in ends.items() if how.endswith(("0 and 2", "2 and 0")))
    figure = f"{len(failures)} failures in {ends.total()} pairs, {met} refused"
    held = not failures and (met > 0 or effort != "full")
    return Outcome(figure, held, {"pairs": dict(ends), "failures": failures[:5]})


def _pairs(folder: Path, name: str, effort: Effort, trials: int) -> tuple[collections.Counter[str], list[str]]:
    """Pairs of one command: how they ended, and what was wrong."""
    command, prepare = COMMANDS.get(name, SCHEDULE), _nothing
    if name == "schedule":
        prepare = functools.partial(shutil.copytree, folder / "run" / "calm")
        calm = _schedule_reference(folder / name / "calm", prepare)
    else:
        calm = reference(folder / name / "calm", command)
    rng, ends, failures = generator(effort, name), collections.Counter[str](), []
    for number in range(trials):
        place = folder / name / str(number)
        prepare(place)
        how, found = _both(place, name, command, calm, rng)
        ends[f"{name}, {how}"] += 1
        failures += [f"{place}, {how}: {text}" for text in found]
    return ends, failures


def _nothing(place: Path) -> object:
    return None


def _schedule_reference(place: Path, prepare: Callable[[Path], object]) -> Reference:
    prepare(place)
    begun = time.monotonic()
    code, err = ended(start(*SCHEDULE.typed(place)))
    if code:
        raise RuntimeError(f"the undisturbed command failed with exit {code}: {err}")
    return Reference(fingerprint(place), time.monotonic() - begun)


def _both(place: Path, name: str, command: Command, calm: Reference, rng: np.random.Generator) -> tuple[str, list[str]]:
    """Start a command twice; how the two ended, and what was wrong."""
    first = start(*command.typed(place))
    kind = rng.choice(["at once", "meanwhile", "afterwards"], p=[0.3, 0.5, 0.2])
    with contextlib.suppress(subprocess.TimeoutExpired):
        first.wait(timeout={"at once": 0.0, "meanwhile": float(rng.uniform(0, calm.seconds))}.get(kind, LIMIT))
    second = start(*command.typed(place))
    over = _until_one_ends((first, second))
    codes = {process: ended(process) for process in (first, second)}
    done = [process for process, (code, _) in codes.items() if code == 0]
    how = f"{kind}: exit {codes[first][0]} and {codes[second][0]}"
    found = [f"exit {code}: {err[-300:]!r}" for code, err in codes.values() if code not in (0, 2)]
    if len(done) == 1:
        refused = second if done == [first] else first
        said = codes[refused][1]
        if f"pid {done[0].pid} " not in said or len(said.strip().splitlines()) != 1:
            found.append(f"the process that holds the folder is not named: {said!r}")
    elif len(done) == 2 and name not in ("collect", "schedule"):
        if (place / "record.json").stat().st_mtime > over:
            found.append("both did the work: the record was written again")
    elif not done:
        found.append("neither did the work")
    return how, [*found, *wrong(place, calm.content), *left_over(place, OWNER)]


def _until_one_ends(processes: tuple[subprocess.Popen[str], ...]) -> float:
    """Wait for the first process that ends with success; when that was."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        codes = [process.poll() for process in processes]
        if 0 in codes or None not in codes:
            break
        time.sleep(0.01)
    return time.time()


SAVE = """
import sys, numpy as np
from kairode._lock import FolderBusy
from kairode.training import checkpoint
rng, number = np.random.default_rng(int(sys.argv[2])), 0
while True:
    number += 1
    try:
        values = rng.normal(size=(20, 20)).astype(np.float32)
        checkpoint.save(sys.argv[1], {"values": values, "total": values.sum(keepdims=True)}, total=float(values.sum()))
    except FolderBusy:
        pass
    if number == 1:
        print("saving", flush=True)
"""
"""Saves checkpoints in a loop; one that another process is writing is left to it."""
READ = """
import sys, time, numpy as np
from kairode.training import checkpoint
like = {"values": np.zeros((20, 20), np.float32), "total": np.zeros((1, 1), np.float32)}
until, loads, failures = time.monotonic() + float(sys.argv[2]), 0, []
while time.monotonic() < until:
    try:
        found = checkpoint.load(sys.argv[1], like)
        assert float(np.asarray(found["values"]).sum(keepdims=True)[0, 0]) == float(found["total"][0, 0]), "mixed"
    except Exception as error:
        failures.append(f"{type(error).__name__}: {error}")
    loads += 1
print(loads, len(failures), failures[:1])
"""
"""Loads a checkpoint in a loop."""


@attack("two tight save loops killed together", "100 of 100 checkpoints loadable")
def save_loops(folder: Path, effort: Effort) -> Outcome:
    """Two processes save checkpoints in one folder and are killed; a third reads while one saves."""
    from kairode.training import checkpoint

    rng, trials = generator(effort), amount(effort, 2, 20, 100)
    like = {"values": np.zeros((20, 20), np.float32), "total": np.zeros((1, 1), np.float32)}
    lost: dict[int, list[str]] = {}
    for number in range(trials):
        place, seeds = folder / str(number), (2 * number, 2 * number + 1)
        found = _saved_and_killed(place, seeds, seconds=float(rng.uniform(0.02, 0.5)))
        try:
            loaded = checkpoint.load(place, like)
            if checkpoint.describe(place)["total"] != float(np.asarray(loaded["total"])[0, 0]):
                found.append("the metadata are those of another save")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        lost |= {number: found} if found else {}
    loads, failed, first = _read_while_saved(folder / "read", amount(effort, 1, 10, 60))
    figure = f"{trials - len(lost)} of {trials} checkpoints loadable; {failed:,} of {loads:,} loads failed meanwhile"
    details = {"lost": [*lost.values()][:5], "failed loads": first}
    return Outcome(figure, not lost and not failed and loads > 0, details)


def _saved_and_killed(place: Path, seeds: tuple[int, ...], seconds: float) -> list[str]:
    """Save in two processes for so many seconds, then kill both; the errors of those that ended before."""
    savers = [_program(SAVE, str(place), str(seed)) for seed in seeds]
    for saver in savers:
        assert saver.stdout is not None
        saver.stdout.readline()
    time.sleep(seconds)
    for saver in savers:
        saver.kill()
    errors = [saver.communicate()[1].strip() for saver in savers]
    return [f"a save loop ended: {err[-300:]}" for err in errors if err]


def _read_while_saved(place: Path, seconds: float) -> tuple[int, int, str]:
    """Loads, failed loads and the first failure, while another process saves."""
    saver = _program(SAVE, str(place), "0")
    try:
        assert saver.stdout is not None
        saver.stdout.readline()
        out, err = _program(READ, str(place), str(seconds)).communicate(timeout=LIMIT)
    finally:
        saver.kill()
        saver.communicate()
    loads, failed, first = (out or f"0 0 {err}").split(" ", 2)
    return int(loads), int(failed), first.strip()


def _program(text: str, *words: str) -> subprocess.Popen[str]:
    typed, pipe = [sys.executable, "-c", text, *words], subprocess.PIPE
    return subprocess.Popen(typed, env=environment(), text=True, stdout=pipe, stderr=pipe)


@attack("the same seed, however many processes", "the same weights bit for bit", ("full",))
def determinism(folder: Path, effort: Effort) -> Outcome:
    """A fit of three seeds on one core and on all, alone and beside others; compiled for each number of cores."""
    words = "fit gridworld --model latent-ode --episodes 40 --validation-episodes 5 --test-episodes 5 --seeds 3 -q"
    words += f" --iterations {amount(effort, 50, 150, 600)} --latent-size 8 --field-hidden 32 --set horizon=40"
    cores = sorted(os.sched_getaffinity(0))
    expected = None
    failures: list[str] = []
    tried = 0
    others = {"quick": ((0,), (1,)), "slow": ((0, 2), (0, 2)), "full": ((0, 1, 2, 4), (0, 1, 2, 4))}[effort]
    for (name, chosen), counts in zip((("one core", cores[:1]), ("all cores", cores)), others, strict=True):
        for beside in counts:
            places = [folder / name / f"{beside}-{number}" for number in range(beside + 1)]
            processes = [_on_cores(chosen, folder / f"cache of {name}", words, place) for place in places]
            for place, process in zip(places, processes, strict=True):
                code, err = ended(process)
                if code:
                    failures.append(f"{place}: exit {code}: {err[-300:]}")
                    continue
                found = fingerprint(place)
                expected = expected or found
                tried += 1
                names = [file for file in expected if expected[file] != found.get(file)]
                failures += [f"{place} differs in {', '.join(names)}"] * bool(names)
    figure = f"{len(failures)} of {tried} fits differ"
    return Outcome(figure, not failures and tried > 1, {"cores": len(cores), "failures": failures[:5]})


def _on_cores(cores: list[int], cache: Path, words: str, place: Path) -> subprocess.Popen[str]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # which the process inherits
    try:
        return start(*words.split(), "--out", str(place), env={"XDG_CACHE_HOME": str(cache)})
    finally:
        os.sched_setaffinity(0, before)
