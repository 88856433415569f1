"""Data that mislead, and data that are large: warnings that name the place, and bounded time and memory."""

import dataclasses
import operator
import shlex
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import pyarrow.parquet as pq

import kairode
from attacks._common import Effort, Outcome, amount, attack, count, environment
from attacks._common import kairode as command
from kairode.algorithms.fit import load_data
from kairode.config.presets import fit_preset
from kairode.data.content import DIGEST_KEY, ContentDigest
from kairode.data.table import _table
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Intervals, Spec, Variable
from kairode.envs.gridworld import GridworldTask, WindyGridworld
from kairode.files import atomic_write
from kairode.models.predict import Episodes
from kairode.training.batches import split_chunks

SEEDS = 5
SHORT = ("--iterations", "4", "--model", "rnn", "--timer", "none")


def walk(episodes: int, decisions: int, seed: int = 0) -> Trajectory:
    """Episodes of a bounded random walk of three variables under two actions, at irregular times."""
    rng, shape = np.random.default_rng(seed), (episodes, decisions)
    obs = np.sin(np.cumsum(0.1 * rng.standard_normal((episodes, decisions + 1, 3), np.float32), axis=1))
    return Trajectory(
        spec=Spec(
            name="walk",
            observations=tuple(Variable(name, "unit") for name in ("a", "b", "c")),
            actions=Discrete(("off", "on")),
            intervals=Intervals(1.0, 3.0, step=1.0),
            time_unit="hour",
        ),
        observation=obs,
        action=rng.integers(0, 2, shape).astype(np.int32),
        interval=rng.integers(1, 4, shape).astype(np.float32),
        reward=rng.standard_normal(shape).astype(np.float32),
        length=np.full(episodes, decisions, np.int32),
        terminated=np.zeros(episodes, bool),
        truncated=np.ones(episodes, bool),
    )


def fitted(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A short fit of a file."""
    return command("fit", str(path), *SHORT, "--out", str(path.with_suffix("")), *words)


@attack(
    "one outlier of 1e30 or 3e38, a gap of 1e12, a reward of 1e12",
    "said with row and column; --strict refuses",
    ("slow", "full"),
)
def outliers(folder: Path, effort: Effort) -> Outcome:
    """A value of random size at a random place: the fit says where it is, or `--strict` stops it."""
    rng, failures, tried = np.random.default_rng(21), [], 0
    good = walk(20, 30)
    for i in range(amount(effort, 3, 6, 40)):
        episode, place = int(rng.integers(20)), int(rng.integers(30))
        row = 31 * episode + place
        value = float(rng.choice([1e30, 3e38, -1e30, 1e6, -9999.0]))
        kind = ("observation", "interval", "reward")[i % 3]
        array = np.array(getattr(good, kind))
        if kind == "observation":
            column = int(rng.integers(3))
            array[episode, place, column] = value
            said = [f"variable '{'abc'[column]}'", f"row {row} of"]
        else:
            array[episode, place] = 1e12
            said = [f"{'an interval' if kind == 'interval' else 'a reward'} of 1e12", f"row {row} of"]
        path = folder / f"case{i}.parquet"
        kairode.write(path, eqx.tree_at(operator.attrgetter(kind), good, array))
        strict = i % 2 == 1
        tried += 1
        done = fitted(path, *(["--strict"] if strict else []))
        missing = [words for words in said if words not in done.stderr]
        if missing or done.returncode != (2 if strict else 0) or "Traceback" in done.stderr:
            failures.append(f"{kind} {value:g}: code {done.returncode}, not said: {missing}, {done.stderr[-300:]}")
    return count(failures, tried, "without the sentence")


@attack(
    "an outlier with robust scaling",
    "the error at most 1.2 times that of standard scaling without the outlier",
    ("full",),
)
def robust_scale(folder: Path, effort: Effort) -> Outcome:
    """The same fits with and without an outlier, by standard deviation and by interquartile range.

    The errors are root mean squares in standard deviations of the test episodes: predicting their mean has an error of
    1, and a comparison counts only where the fits without the outlier are far better than that.
    """
    env = kairode.make("pendulum", horizon=2.0)
    good, valid, test = (kairode.collect(env, episodes=n, seed=seed) for seed, n in enumerate((300, 30, 100)))
    bad = np.array(good.observation)
    bad[3, 5, 0] = 1e30
    spoilt = dataclasses.replace(good, observation=bad)
    options: dict[str, Any] = {"iterations": amount(effort, 60, 600, 3000), "standardize": True}
    errors: dict[str, list[float]] = {}
    for name, data, robust in (("without", good, False), ("robust", spoilt, True), ("standard", spoilt, False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models = kairode.fit("latent-ode", data, valid=valid, robust_scale=robust, seeds=SEEDS, **options)
        errors[name] = [_relative_error(model, test) for model in models]
    without, robust_error, standard = (float(np.mean(errors[name])) for name in ("without", "robust", "standard"))
    ratio = robust_error / without
    figure = f"{ratio:.2f} times, {robust_error:.3f} and {without:.3f} (by standard deviation {standard:.3g})"
    skilled = without < 0.5 or effort != "full"
    return Outcome(figure, skilled and ratio <= 1.2, errors)


def _relative_error(model: kairode.DynamicsModel, test: Trajectory) -> float:
    """Root mean square of the open-loop error, in standard deviations of the episodes."""
    seen = np.asarray(test.observation, np.float64)
    apart = (kairode.predict(model, test).astype(np.float64) - seen[:, 1:])[test.mask]
    return float(np.sqrt(np.mean((apart / seen[:, 1:][test.mask].std(0)) ** 2)))


@attack("an action that only the held-out part has", "a sentence", ("slow", "full"))
def unseen_action(folder: Path, effort: Effort) -> Outcome:
    """An action that one episode alone takes: said where that episode is held out, and only there."""
    failures, tried, held_out = [], 0, 0
    for seed in range(amount(effort, 2, 3, 20)):
        data = walk(20, 10, seed)
        action = np.zeros_like(data.action)
        action[seed % 20] = 1
        path = folder / f"case{seed}.parquet"
        kairode.write(path, dataclasses.replace(data, action=action))
        done = fitted(path)
        split = load_data(fit_preset(str(path)))
        expected = not np.asarray(split.train.action).any()
        held_out += expected
        tried += 1
        if expected != ("action 'on': taken in the" in done.stderr) or done.returncode:
            failures.append(f"episode {seed % 20}: expected {expected}, code {done.returncode}: {done.stderr[-200:]}")
    outcome = count(failures, tried, "wrong")
    return Outcome(f"{outcome.figure} ({held_out} held out)", outcome.held and held_out > 0, outcome.details)


@attack("a million decisions in an episode: cutting", "seconds", ("full",))
def cutting(folder: Path, effort: Effort) -> Outcome:
    """Cutting a million decisions into chunks of 50."""
    size = amount(effort, 100_000, 1_000_000, 1_000_000)
    episodes = Episodes(
        obs=np.zeros((1, size + 1, 3), np.float32),  # type: ignore[arg-type]
        action=np.zeros((1, size, 2), np.float32),  # type: ignore[arg-type]
        tau=np.ones((1, size), np.float32),  # type: ignore[arg-type]
        real=np.ones((1, size), bool),  # type: ignore[arg-type]
    )
    began = time.perf_counter()
    found = split_chunks(episodes, 50)
    seconds = time.perf_counter() - began
    return Outcome(f"{seconds:.2f} s", seconds < 5 and len(found.tau) == size // 50, {"seconds": seconds})


PEAK = """
import sys
import kairode
from kairode.data import read
data = read(sys.argv[1])
kairode.fit("rnn", data, iterations=20, validate_every=20, timer="none")
# Not getrusage, which starts from the size of the process that started this one.
(line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(line.split()[1])
"""


def _peak(path: Path) -> int:
    words = [sys.executable, "-W", "ignore", "-c", PEAK, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=900, check=True)
    return 1024 * int(done.stdout.split()[-1])


@attack("a million decisions in an episode: the fit", "memory within three times the table", ("slow", "full"))
def long_episode(folder: Path, effort: Effort) -> Outcome:
    """Peak memory of a fit of 3 x 350,000 decisions beyond that of 3 x 3,000 decisions, as a multiple of the table."""
    peaks = []
    for decisions in (3000, 350_000):
        path = folder / f"{decisions}.parquet"
        kairode.write(path, walk(3, decisions))
        peaks.append(int(np.median([_peak(path) for _ in range(5)])))  # allocators vary
    table = pq.read_table(path).nbytes
    times = (peaks[1] - peaks[0]) / table
    figure = f"{times:.1f} times the table of {table / 1e6:.0f} MB (peak {peaks[1] / 1e9:.2f} GB)"
    goal = 3 if effort == "full" else 5  # beside other tests, allocators vary more
    return Outcome(figure, times <= goal, {"peaks": peaks, "table": table})


@attack("memory limit of 1.5 GB", "a sentence, exit 2")
def memory_limit(folder: Path, effort: Effort) -> Outcome:
    """The address space limited to several sizes: a sentence, or it works."""
    failures, tried, worked = [], 0, 0
    for gigabytes in (1.0, 1.5, 2.0) if effort != "full" else (0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 3.3, 4.0, 6.0):
        limit = int(gigabytes * 1e9)
        tried += 1
        words = [sys.executable, "-m", "kairode", "fit", "gridworld", *SHORT, "--episodes=8", "--validation-episodes=2"]
        words += ["--test-episodes=2", f"--out={folder / str(gigabytes)}"]
        done = subprocess.run(
            ["sh", "-c", f"ulimit -v {limit // 1024}; exec {shlex.join(words)}"],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=600,
        )
        worked += done.returncode == 0
        sentence = done.stderr.strip().splitlines()[-1:] or [""]
        if done.returncode and not (done.returncode == 2 and sentence[0].startswith("error: ")):
            failures.append(f"{gigabytes} GB: code {done.returncode}, {done.stderr[-200:]}")
    outcome = count(failures, tried, "without a sentence")
    return Outcome(f"{outcome.figure} ({worked} worked)", outcome.held, outcome.details)


class LargeRewardTask(GridworldTask):
    """The gridworld's, with rewards times a factor."""

    factor: float = 1.0

    def reward(self, obs: Any, action: Any, next_obs: Any, tau: Any) -> Any:
        """R of the gridworld times the factor."""
        return self.factor * super().reward(obs, action, next_obs, tau)


class LargeRewards(WindyGridworld):
    """A gridworld of large rewards."""

    factor: float = 1.0

    @property
    def task(self) -> LargeRewardTask:
        return LargeRewardTask(super().task.spec, self.factor)


@attack("reward of 1e12 in learning", "a warning with the scale to use", ("slow", "full"))
def large_reward(folder: Path, effort: Effort) -> Outcome:
    """A policy learned from rewards of 1e12 and of 1."""
    failures = []
    for factor, scale, expected in ((1e12, 1.0, "reward_scale=1e-1"), (1e12, 1e-12, ""), (1.0, 1.0, "")):
        env: Any = LargeRewards(horizon=30.0, factor=factor)  # type: ignore[call-arg]
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            kairode.learn(None, env, episodes=3, hidden=(8,), batch_size=8, replay_capacity=64, reward_scale=scale)
        said = " ".join(str(one.message) for one in found if "reward_scale" in str(one.message))
        if bool(expected) != bool(said) or expected not in said:
            failures.append(f"rewards of {factor:g} with scale {scale:g}: {said!r}")
    return count(failures, 3, "wrong")


@attack("digests on a file of a million rows", "at most 1.3 times the time without a digest", ("full",))
def digest_speed(folder: Path, effort: Effort) -> Outcome:
    """Reading and writing a million rows, with a digest and without."""
    rows = amount(effort, 50_000, 1_000_000, 1_000_000)
    path, data = folder / "million.parquet", walk(rows // 1000, 999)
    times: dict[str, list[float]] = {"read": [], "bare read": [], "write": [], "bare write": [], "digest": []}
    kairode.write(path, data)
    table, bare = pq.read_table(path), folder / "bare.parquet"
    kept = {key: value for key, value in (table.schema.metadata or {}).items() if key != DIGEST_KEY}
    pq.write_table(table.replace_schema_metadata(kept), bare, compression="zstd")
    for _ in range(5):
        times["write"].append(_seconds(lambda: kairode.write(path, data)))
        times["bare write"].append(_seconds(lambda: _write_bare(folder / "written.parquet", data)))
        times["digest"].append(_seconds(lambda: ContentDigest().update(table)))
        times["read"].append(_seconds(lambda: kairode.read(path)))
        times["bare read"].append(_seconds(lambda: kairode.read(bare)))
    best = {name: min(found) for name, found in times.items()}
    share = max(best[name] / best[f"bare {name}"] for name in ("read", "write"))
    figure = (
        f"read {best['read']:.2f} s ({best['bare read']:.2f} s without), write {best['write']:.2f} s "
        f"({best['bare write']:.2f} s without)"
    )
    return Outcome(figure, share <= 1.3, best)


def _write_bare(path: Path, data: Trajectory) -> None:
    """Write a table as `kairode.write` does, without a digest."""
    with atomic_write(path) as part:
        pq.write_table(_table(data, 0), part, compression="zstd")


def _seconds(function: Any) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
