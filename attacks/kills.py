"""Processes that are killed or terminated at random moments, and started again."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from attacks._common import Effort, Outcome, amount, attack, start

T = TypeVar("T")
TIMES = {"seconds", "stage_seconds", "ms_per_decision"}
"""Fields of records and metrics that differ between two runs."""
PART = "**/.*.part"
"""Temporary files."""
OWNER = "**/.owner.json"
"""Names of the processes that write to a folder: removed by a process that ends by itself."""
LIMIT = 600.0
"""Seconds after which a command counts as hanging."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that writes to a folder, which `{}` stands for."""

    words: str
    files: tuple[str, ...] = ()
    """Files that appear as its stages go on."""

    def typed(self, place: Path) -> list[str]:
        """The words, with a folder."""
        return [word.replace("{}", str(place)) for word in self.words.split()]


GRID = "--set horizon=40 -q"
COMMANDS = {
    "fit": Command(
        "fit gridworld --model rnn --episodes 10 --validation-episodes 3 --test-episodes 3 --iterations 24000 "
        f"--seeds 2 {GRID} --out {{}}",
        ("manifest.json", "checkpoint.json", "models.json", "record.json", "predictions.svg"),
    ),
    "run": Command(
        "run gridworld --model rnn --episodes 10 --rounds 1 --episodes-per-round 2 --fit-iterations 40 "
        "--ensemble-size 3 --learn.episodes 3 --model-free-episodes 3 --schedule-episodes 3 --schedule-refits 1 "
        f"--prices 0 {GRID} --out {{}}",
        (
            "manifest.json",
            "rounds/checkpoint.json",
            "policy.json",
            "model-free/checkpoint.json",
            "tests.json",
            "schedule/policy.json",
            "schedule/revisits-*/1/checkpoint.json",
            "visits.json",
            "record.json",
            "report.html",
        ),
    ),
    "dyna": Command(
        "dyna gridworld --model rnn --initial-episodes 10 --episodes-per-round 2 --rounds 2 --ensemble-size 2 "
        f"--fit-iterations 60 --imagined-episodes 30 {GRID} --out {{}}",
        ("manifest.json", "checkpoint.json", "experience.parquet", "policy.json", "record.json"),
    ),
    "control": Command(
        "run pendulum --model rnn --decisions 600 --refit-every 200 --max-fit-iterations 60 --test-episodes 2 "
        "--agent.warmup 200 --agent.hidden 16 16 --agent.batch-size 16 --plan.candidates 8 --plan.elites 3 "
        "--plan.horizon 3 --training.iterations 60 --training.batch-size 8 -q --out {}",
        ("manifest.json", "checkpoint.json", "policies.json", "record.json", "learning.svg", "report.html"),
    ),
    "collect": Command("collect gridworld --episodes 20000 -q --out {}/episodes.parquet", ("episodes.parquet",)),
}


AT_ONCE = Command(
    "run gridworld --model rnn --episodes 10 --rounds 0 --fit-iterations 2000 --learn.episodes 20 "
    f"--model-free-episodes 3 --schedule-episodes 0 --latent-policy {GRID} --out {{}}",
    ("fit/checkpoint.json", "fit/record.json", "imagination/checkpoint.json", "model-free/checkpoint.json"),
)
"""The main job without Dyna rounds, whose fit is a run folder of its own."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """An undisturbed run."""

    content: dict[str, Any]
    """See `fingerprint`."""
    seconds: float
    """Its duration, when nothing is compiled any more."""


@dataclasses.dataclass
class Tally:
    """What happened in the trials of one attack."""

    kills: int = 0
    runs: int = 0
    """Runs that were finished and compared."""
    stages: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Number of kills by the file that was written last."""
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Include the counts of another tally."""
        self.kills, self.runs = self.kills + other.kills, self.runs + other.runs
        self.stages.update(other.stages)
        self.failures += other.failures

    def outcome(self, what: str) -> Outcome:
        """The outcome: no run may fail or differ."""
        figure = f"{len(self.failures)} failures after {self.kills:,} {what}, {self.runs:,} runs finished"
        kept = {"kills": self.kills, "runs": self.runs, "last file": dict(self.stages), "failures": self.failures[:5]}
        return Outcome(figure, not self.failures and self.runs > 0, kept)


@attack(
    "SIGKILL at random moments of kairode fit",
    "record and weights of an undisturbed run, bit for bit",
    ("slow", "full"),
)
def kill_fit(folder: Path, effort: Effort) -> Outcome:
    """A fit of two seeds, killed again and again."""
    return _kill((COMMANDS["fit"],), folder, effort, amount(effort, 2, 3, 32))


@attack(
    "SIGKILL at random moments of kairode run",
    "record and weights of an undisturbed run, bit for bit",
    ("slow", "full"),
)
def kill_run(folder: Path, effort: Effort) -> Outcome:
    """The main job with discrete actions."""
    commands = (AT_ONCE,) if effort == "quick" else (COMMANDS["run"], AT_ONCE)
    return _kill(commands, folder, effort, amount(effort, 1, 2, 40))


@attack(
    "SIGKILL at random moments of kairode dyna",
    "record and weights of an undisturbed run, bit for bit",
    ("slow", "full"),
)
def kill_dyna(folder: Path, effort: Effort) -> Outcome:
    """Dyna rounds."""
    return _kill((COMMANDS["dyna"],), folder, effort, amount(effort, 1, 2, 30))


@attack(
    "SIGKILL at random moments of kairode run with MPC",
    "record and weights of an undisturbed run, bit for bit",
    ("slow", "full"),
)
def kill_control(folder: Path, effort: Effort) -> Outcome:
    """The main job with continuous actions."""
    return _kill((COMMANDS["control"],), folder, effort, amount(effort, 1, 2, 30))


def _kill(commands: tuple[Command, ...], folder: Path, effort: Effort, kills: int) -> Outcome:
    """Kill each command in turn, in trials of a few kills."""
    calm = [reference(folder / f"calm-{i}", command) for i, command in enumerate(commands)]
    each = min(5, -(-kills // max(len(commands), len(os.sched_getaffinity(0)))))
    trials = []
    for i, done in enumerate(range(0, kills, each)):
        which = i % len(commands)
        rng = generator(effort, commands[which].words, i)
        trials.append((folder / f"{i}", commands[which], calm[which], min(each, kills - done), rng))
    tally = Tally()
    for found in side_by_side(lambda trial: _killed_often(*trial), trials):
        tally.add(found)
    return tally.outcome("kills")


def _killed_often(folder: Path, command: Command, calm: Reference, kills: int, rng: np.random.Generator) -> Tally:
    """Kill a command so many times, each time in the folder that the last kill left, and compare what it makes."""
    tally, number = Tally(), 0
    for _ in range(4 * kills):
        place = folder / str(number)
        process = start(*command.typed(place))
        if tally.kills < kills and _killed(process, place, command, calm.seconds, rng):
            tally.kills += 1
            tally.stages[last_written(place)] += 1
            tally.failures += [f"{place} after kill {tally.kills}: {text}" for text in damaged(place)]
            continue
        tally.failures += [f"{place} after {tally.kills} kills: {text}" for text in finished(process, place, calm)]
        tally.runs, number = tally.runs + 1, number + 1
        if tally.kills == kills or tally.failures:
            break
        shutil.rmtree(place)
    return tally


def _killed(
    process: subprocess.Popen[str], place: Path, command: Command, seconds: float, rng: np.random.Generator
) -> bool:
    """Kill a process at a random moment, or when a file appears; False if it ends before."""
    pending = [pattern for pattern in command.files if not any(place.glob(pattern))]
    if rng.random() < 0.2:
        wanted = str(rng.choice([*pending, PART]))
        appeared = wait_for(process, lambda: any(place.glob(wanted)))
        time.sleep(float(rng.uniform(0, 0.3)) if appeared and wanted != PART else 0)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=float(rng.uniform(0, seconds)))
    process.kill()
    process.wait()
    if process.returncode == -signal.SIGKILL:
        process.communicate()
        return True
    return False


def finished(process: subprocess.Popen[str], place: Path, calm: Reference) -> list[str]:
    """Let a command end; what is wrong with its run."""
    code, err = ended(process)
    if code:
        return [f"exit {code}: {err[-500:]}"]
    return [*wrong(place, calm.content), *left_over(place, OWNER)]


def ended(process: subprocess.Popen[str], limit: float = LIMIT) -> tuple[int, str]:
    """Exit code and standard error of a command; -9 if it hung."""
    try:
        _, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        return -signal.SIGKILL, f"hung for {limit:g} s. {process.communicate()[1]}"
    return process.returncode, err


def reference(place: Path, command: Command) -> Reference:
    """Run a command undisturbed, twice: the second time nothing is compiled, which gives its usual duration."""
    seconds = 0.0
    for _ in range(2):
        shutil.rmtree(place, ignore_errors=True)
        begun = time.monotonic()
        code, err = ended(start(*command.typed(place)))
        seconds = time.monotonic() - begun
        if code:
            raise RuntimeError(f"the undisturbed command failed with exit {code}: {err}")
    return Reference(fingerprint(place), seconds)


def fingerprint(place: Path) -> dict[str, Any]:
    """Everything that a run computed, by file: figures and metrics without times, digests of weights and data."""
    from kairode import read
    from kairode.algorithms.fit import digest

    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if path.name == "record.json":
            record = json.loads(path.read_text())
            found[name] = untimed({"config": record["config"], "figures": record["figures"]})
        elif path.suffix == ".jsonl":
            found[name] = [untimed(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix == ".safetensors":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix == ".parquet":
            found[name] = digest(read(path))
    return found


def untimed(content: Any) -> Any:
    """JSON without times."""
    if isinstance(content, dict):
        return {name: untimed(value) for name, value in content.items() if name not in TIMES}
    return [untimed(value) for value in content] if isinstance(content, list) else content


def wrong(place: Path, expected: dict[str, Any]) -> list[str]:
    """How a finished folder differs from the expected one; and whether it can be loaded."""
    try:
        load(place)
        found = fingerprint(place)
    except Exception as error:
        return [f"cannot be loaded: {type(error).__name__}: {error}"]
    names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return [f"differs from the undisturbed run in {', '.join(names)}"] if names else []


def load(place: Path) -> None:
    """Load everything that a finished run holds; raises what the library raises."""
    from kairode import load_models, load_policy
    from kairode.runs.folder import RunFolder

    if not (place / "manifest.json").exists():  # a table
        return
    assert RunFolder(place).finished, "the manifest does not say that the run is finished"
    for manifest in place.rglob("manifest.json"):
        RunFolder(manifest.parent).check()
    if any((place / f"{name}.json").exists() for name in ("policy", "policies")):
        load_policy(place)
    for models in place.rglob("models.json"):
        load_models(models.parent)


def damaged(place: Path) -> list[str]:
    """JSON files that cannot be parsed, and weights that are missing or differ from their digest."""
    found = []
    for path in place.rglob("*.json"):
        try:
            content = json.loads(path.read_text())
            if isinstance(content, dict) and {"file", "sha256"} <= content.keys():
                assert hashlib.sha256((path.parent / content["file"]).read_bytes()).hexdigest() == content["sha256"]
        except (ValueError, OSError, AssertionError) as error:
            found.append(f"{path.name} is damaged ({type(error).__name__} {error})")
    return found


def left_over(place: Path, *patterns: str) -> list[str]:
    """Temporary files that are left; and other files."""
    return [f"{path.name} is left" for pattern in (PART, *patterns) for path in place.glob(pattern)]


def last_written(place: Path) -> str:
    """The file that was written last (the manifest is, after every stage: another one if there is), without digests."""
    times = {}
    for path in place.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and path.name not in (".lock", ".owner.json"):
                times[path] = path.stat().st_mtime_ns
    if not times:
        return "none yet"
    results = [path for path in times if path.name != "manifest.json"]
    name = max(results or times, key=times.__getitem__).relative_to(place).as_posix()
    return re.sub(r"(-[0-9a-f]{12}|\.[0-9a-f]{8}(?=\.part))", "", name)


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> bool:
    """Wait until something happened; False if the process ended before."""
    while process.poll() is None:
        with contextlib.suppress(OSError):  # a folder that changes while it is searched
            if happened():
                return True
        time.sleep(0.001)
    return False


def generator(*parts: object) -> np.random.Generator:
    """Random numbers that the effort and the trial determine."""
    return np.random.default_rng([*" ".join(map(str, parts)).encode()])


def side_by_side(function: Callable[[Any], T], trials: Iterable[Any]) -> list[T]:
    """Call a function on every trial, as many at once as there are cores."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return list(threads.map(function, trials))


@attack("SIGKILL while collecting", "no .part file stays after the next command that writes there", ("slow", "full"))
def kill_collect(folder: Path, effort: Effort) -> Outcome:
    """`kairode collect` is killed while it writes its file."""
    rng, tally, command = generator(effort), Tally(), COMMANDS["collect"]
    target, cut = folder / "episodes.parquet", 0
    for _ in range(amount(effort, 3, 6, 30)):
        target.unlink(missing_ok=True)
        process = start(*command.typed(folder))
        wait_for(process, lambda: any(folder.glob(PART)))
        time.sleep(float(rng.uniform(0, 0.1)))
        process.kill()
        process.communicate()
        cut += any(folder.glob(PART))
        tally.kills += process.returncode == -signal.SIGKILL
        tally.failures += _unreadable(target)
    code, err = ended(start("collect", "gridworld", "--episodes", "10", "-q", "--out", str(folder / "other.parquet")))
    tally.failures += [f"exit {code}: {err}"] * bool(code) + left_over(folder)
    tally.runs += 1
    tally.stages["in the middle of the file"] = cut
    if not cut:
        tally.failures.append("no kill hit the file while it was written")
    return tally.outcome("kills")


def _unreadable(path: Path) -> list[str]:
    from kairode import KairodeError, read

    try:
        return [] if not path.exists() or len(read(path)) else [f"{path} is empty"]
    except KairodeError as error:
        return [str(error)]


@attack("SIGTERM before the loop starts", "a sentence, exit 143 or 130, nothing half-made", ("slow", "full"))
def terminate_early(folder: Path, effort: Effort) -> Outcome:
    """Every long command is terminated in its first seconds: imports, compilation, data."""
    names = ("fit", "collect", "control") if effort == "quick" else tuple(COMMANDS)
    own = interpreter_seconds()

    def trial(name: str) -> Tally:
        rng = generator(effort, name)
        return _terminated_early(folder / name, COMMANDS[name], amount(effort, 2, 4, 20), own, rng)

    tally = Tally()
    for found in side_by_side(trial, names):
        tally.add(found)
    return tally.outcome("signals")


def interpreter_seconds() -> float:
    """The first seconds of a process, before the command can handle signals: the interpreter and the first imports.

    Measured with as many processes at once as the attack starts; the margin is for a machine whose load changes.
    """

    def once(_: int) -> float:
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", "import kairode.__main__"], check=True)
        return time.monotonic() - begun

    return max(1.0, 5 * max(side_by_side(once, range(6))))


def _terminated_early(folder: Path, command: Command, signals: int, own: float, rng: np.random.Generator) -> Tally:
    tally, number = Tally(), 0
    while tally.kills < signals:
        place, moment = folder / str(number), float(rng.uniform(0.05, 5))
        process = start(*command.typed(place))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moment)
        process.terminate()
        sent = time.monotonic()
        code, err = ended(process, 60)
        tally.kills += 1
        tally.stages["ended before" if code == 0 else last_written(place)] += 1
        where = f"{place} after {moment:.2f} s (exit {code}, {time.monotonic() - sent:.1f} s later)"
        if code == 0:
            number += 1
        elif code == -signal.SIGTERM and moment <= own:
            tally.stages["before any code of kairode"] += 1
        elif code not in (130, 143) or not err.strip() or "Traceback" in err:
            tally.failures.append(f"{where}: {err[-500:]!r}")
        tally.failures += [f"{where}: {text}" for text in (*damaged(place), *left_over(place))]
    code, err = ended(start(*command.typed(folder / str(number))))
    tally.runs += 1
    if code:
        tally.failures.append(f"{folder} afterwards: exit {code}: {err[-500:]}")
    return tally


@attack("SIGTERM in an episode of a million decisions", "obeyed within 10 s", ("slow", "full"))
def terminate_long_call(folder: Path, effort: Effort) -> Outcome:
    """A fit whose single updates take many seconds."""
    rng = generator(effort)
    write_long(folder / "long.parquet", episodes=3, decisions=400_000)
    words = ("fit", str(folder / "long.parquet"), "--model", "rnn", "--iterations", "100000", "-q")
    waits: list[float] = []
    failures: list[str] = []
    for number, moment in enumerate(rng.uniform(0.2, 45, amount(effort, 1, 2, 10))):
        chunks = ["--chunk-length", "40000"] if number % 2 else []  # longer calls than by default
        place = folder / f"fit{number % 2}"
        process = start(*words, *chunks, "--out", str(place))
        time.sleep(float(moment))
        sent = time.monotonic()
        process.terminate()
        code, err = ended(process, 300)
        waits.append(round(time.monotonic() - sent, 1))
        if code not in (130, 143) or not err.strip() or "Traceback" in err:
            failures.append(f"after {moment:.1f} s: exit {code}: {err[-500:]!r}")
        failures += [
            f"after {moment:.1f} s: {text}"
            for text in (*damaged(folder / f"fit{number % 2}"), *left_over(folder / f"fit{number % 2}"))
        ]
    held = max(waits) <= 10 and not failures
    return Outcome(f"{max(waits):.1f} s at most", held, {"seconds": waits, "failures": failures[:5]})


def write_long(path: Path, episodes: int, decisions: int) -> None:
    """A table of three sine waves at irregular times, in very long episodes."""
    import kairode
    from kairode.envs.core import Discrete, Intervals, Spec, Variable

    rng, shape = np.random.default_rng(0), (episodes, decisions)
    interval = rng.integers(1, 3, shape).astype(np.float32)
    t = np.concatenate([np.zeros((episodes, 1)), np.cumsum(interval, 1)], 1)
    spec = Spec(
        name="long",
        observations=tuple(Variable(name, "unit") for name in "abc"),
        actions=Discrete(("off", "on")),
        intervals=Intervals(1.0, 2.0, step=1.0),
        time_unit="hour",
    )
    kairode.write(
        path,
        kairode.Trajectory(
            spec=spec,
            observation=np.sin(t[..., None] / np.array([7.0, 30.0, 100.0])).astype(np.float32),
            action=rng.integers(0, 2, shape).astype(np.int32),
            interval=interval,
            reward=np.zeros(shape, np.float32),
            length=np.full(episodes, decisions, np.int32),
            terminated=np.zeros(episodes, bool),
            truncated=np.ones(episodes, bool),
        ),
    )
