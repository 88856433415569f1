"""Episodes that are read from a file: the same as from memory, whatever the parts that the file is read in."""

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kairode
from kairode.algorithms.fit import digest
from kairode.callbacks import Progress
from kairode.config.models import ModelConfig
from kairode.config.training import TrainingConfig
from kairode.data import stream as stream_module
from kairode.data.stream import EpisodeStream, count_episodes, stream
from kairode.data.trajectory import Trajectory
from kairode.errors import KairodeError
from kairode.files import file_digest
from kairode.models.dynamics import Scale
from kairode.models.zoo import build
from kairode.training import session
from kairode.training.loop import train
from kairode.training.sources import StreamBatches
from kairode.trees import stack

SIZES = ModelConfig(latent_size=3, encoder_hidden=4, field_hidden=4, timer_hidden=4)
SETTINGS = TrainingConfig(iterations=30, batch_size=4, validate_every=8)


@pytest.fixture(scope="module")
def data() -> Trajectory:
    """Episodes of different lengths."""
    return kairode.collect(kairode.make("gridworld", horizon=40, noise=0.05), episodes=25, seed=0)


@pytest.fixture
def file(data: Trajectory, tmp_path: Path, monkeypatch) -> Path:
    """Read in parts that end within episodes."""
    monkeypatch.setattr(stream_module, "ROWS", 7)
    kairode.write(tmp_path / "data.parquet", data)
    return tmp_path / "data.parquet"


def same(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def stacked(data: Any, name: str = "rnn") -> Any:
    return stack([build(name, data.spec, SIZES, key=jax.random.key(seed)) for seed in range(2)])


def test_episodes_in_any_order(file: Path) -> None:
    whole, opened = kairode.read(file), stream(file)
    assert len(set(whole.length.tolist())) > 3
    assert len(opened) == count_episodes(file) == len(whole)
    assert opened.digest == file_digest(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    for index in (slice(None), np.array([17, 3, 3]), np.arange(25) % 2 == 0):
        same(opened[index], whole[index])
    some = np.array([20, 4, 9])
    same(opened.select(some)[:2], whole[some[:2]])


def test_continuous_actions(tmp_path: Path) -> None:
    found = kairode.collect(kairode.make("pendulum", horizon=2.0), episodes=5, seed=0)
    kairode.write(tmp_path / "data.parquet", found)
    same(stream(tmp_path / "data.parquet")[:], kairode.read(tmp_path / "data.parquet"))


def test_files_written_in_parts(data: Trajectory, file: Path, tmp_path: Path) -> None:
    kairode.write(tmp_path / "parts.parquet", (data[i : i + 10] for i in range(0, 25, 10)))
    assert pq.ParquetFile(tmp_path / "parts.parquet").num_row_groups == 3
    same(kairode.read(tmp_path / "parts.parquet"), kairode.read(file))
    same(stream(tmp_path / "parts.parquet")[:], kairode.read(file))


@pytest.mark.parametrize(("block", "variables"), [(1, 2), (1000, 6)])
def test_statistics_are_those_of_memory(block: int, variables: int) -> None:
    """Also with a large offset, where a sum of squares would lose all digits."""
    rows = np.random.default_rng(0).normal(1e4, 1.0, (30_000, variables)).astype(np.float32)

    def blocks() -> Any:
        return (rows[i : i + block] for i in range(0, len(rows) if block > 1 else 300, block))

    assert Scale.of_blocks(blocks) == Scale.of(rows if block > 1 else rows[:300])


@pytest.mark.parametrize("chunk_length", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_the_same_weights_as_from_memory(file: Path, tmp_path: Path, monkeypatch, chunk_length: int | None) -> None:
    """Bit by bit; also when the fit is stopped and resumed."""
    monkeypatch.setattr(session, "SAVE_SECONDS", 0.0)
    settings = dataclasses.replace(SETTINGS, chunk_length=chunk_length)
    whole, opened = kairode.read(file), stream(file)
    memory = train(stacked(whole), settings, whole, whole, seeds=[0, 1])
    streamed = train(stacked(whole), settings, opened, whole, seeds=[0, 1])
    same(memory.models, streamed.models)
    assert memory.validation == streamed.validation

    def stop(progress: Progress) -> None:
        if progress.done >= 24:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train(stacked(whole), settings, opened, whole, seeds=[0, 1], folder=tmp_path / "cut", callback=stop)
    done: list[int] = []
    resumed = train(
        stacked(whole),
        settings,
        opened,
        whole,
        seeds=[0, 1],
        folder=tmp_path / "cut",
        callback=lambda progress: done.append(progress.done),
    )
    assert 0 < done[0] < 24
    same(memory.models, resumed.models)


@pytest.mark.slow
def test_fewer_iterations_per_call_where_batches_are_large(file: Path, monkeypatch) -> None:
    """The same weights to rounding: a loop of another length is another program."""
    whole, opened = kairode.read(file), stream(file)
    memory = train(stacked(whole), SETTINGS, whole, whole, seeds=[0, 1])
    monkeypatch.setattr("kairode.training.sources.MOST_BYTES", 1)
    done: list[int] = []
    few = train(
        stacked(whole),
        SETTINGS,
        opened,
        whole,
        seeds=[0, 1],
        callback=lambda progress: done.append(progress.done),
    )
    assert done == list(range(31))
    for x, y in zip(jax.tree.leaves(memory.models), jax.tree.leaves(few.models), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


def test_batches_are_read_ahead(file: Path) -> None:
    opened = stream(file)
    source = StreamBatches(stacked(opened), SETTINGS, opened, [0, 1])
    first = source.batches(0)
    assert list(source._ahead) == [8]
    assert first[1].shape == (8, 2, 4)
    source.batches(8)
    assert list(source._ahead) == [16]
    source.close()


@pytest.mark.slow
def test_the_command(file: Path, tmp_path: Path, typed) -> None:
    """`--stream` gives the weights and the test errors of the fit in memory."""
    words = ("fit", str(file), "--model", "rnn", "--iterations", "6", "--batch-size", "4", "--latent-size", "3", "-q")
    folders = [tmp_path / name for name in ("memory", "stream")]
    for folder, more in zip(folders, ((), ("--stream",)), strict=True):
        code, _, err = typed(*words, "--out", str(folder), *more)
        assert code == 0, err
    same(*(kairode.load_models(folder) for folder in folders))
    code, _, err = typed("fit", "gridworld", "--stream")
    assert code == 2
    assert "is an environment" in err


def test_a_file_without_a_description(file: Path, tmp_path: Path, typed) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(pq.read_table(file).replace_schema_metadata(None), plain)
    code, _, err = typed("fit", str(plain), "--stream", "--out", str(tmp_path / "fit"))
    assert code == 2
    assert "does not describe its variables" in err
    assert not (tmp_path / "fit").exists()


def test_parts_of_a_stream(file: Path, data: Trajectory) -> None:
    found = kairode.stream(file)
    np.testing.assert_array_equal(found[2].observation, kairode.read(file)[2].observation)
    first, second = (digest(found.select(np.arange(n)), data) for n in (5, 6))
    assert first != second


def test_in_python(file: Path) -> None:
    options: dict[str, Any] = {"iterations": 4, "latent_size": 3, "batch_size": 4}
    same(kairode.fit("rnn", kairode.read(file), **options), kairode.fit("rnn", kairode.stream(file), **options))


def test_faults_are_named_by_their_row_in_the_file(file: Path, tmp_path: Path) -> None:
    table = pq.read_table(file)
    bad = table.set_column(2, table.column_names[2], [[*table[2].to_pylist()[:-30], *[float("inf")] * 30]])
    pq.write_table(bad, tmp_path / "bad.parquet")
    row = len(table) - 30
    for opened in (kairode.read, stream):
        with pytest.raises(KairodeError, match=rf"row {row}, column"):
            opened(tmp_path / "bad.parquet")
    pq.write_table(pa.concat_tables([table, table[: _first_episode(table)]]), tmp_path / "twice.parquet")
    for opened in (kairode.read, stream):
        with pytest.raises(KairodeError, match=rf"row {len(table)}, column 'episode': episode 0 begins again"):
            opened(tmp_path / "twice.parquet")
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "plain.parquet")
    with pytest.raises(KairodeError, match="pass a spec"):
        stream(tmp_path / "plain.parquet")
    assert isinstance(stream(tmp_path / "plain.parquet", kairode.read(file).spec), EpisodeStream)


def _first_episode(table: Any) -> int:
    return table["episode"].to_pylist().index(1)


PROGRAM = """
import re, sys
import kairode
data = kairode.stream(sys.argv[1]) if sys.argv[2] == "stream" else kairode.read(sys.argv[1])
kairode.fit("rnn", data, iterations=10, latent_size=3, batch_size=4)
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells a process's peak memory there")
def test_memory_does_not_grow_with_the_file(data: Trajectory, tmp_path: Path) -> None:
    """Peak memory of a whole process with 2,500 and 50,000 episodes."""
    many = jax.tree.map(lambda x: np.concatenate([np.asarray(x)] * 20), data)
    for name, times in (("small", 5), ("large", 100)):
        kairode.write(tmp_path / f"{name}.parquet", (many for _ in range(times)))

    def peak(name: str, how: str) -> float:
        words = [sys.executable, "-c", PROGRAM, str(tmp_path / f"{name}.parquet"), how]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    small, large, memory = peak("small", "stream"), peak("large", "stream"), peak("large", "memory")
    assert large < small + 0.3 * (memory - small), (small, large, memory)
