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
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import kairode
from kairode.algorithms import fit as fit_module
from kairode.algorithms.fit import digest
from kairode.callbacks import Progress
from kairode.config.models import ModelConfig
from kairode.config.presets import fit_preset
from kairode.config.tables import TableConfig
from kairode.config.training import TrainingConfig
from kairode.data import stream as stream_module
from kairode.data.stream import EpisodeStream, episode_lengths, stream
from kairode.data.trajectory import Trajectory
from kairode.errors import KairodeError
from kairode.files import file_digest
from kairode.models.dynamics import Scale
from kairode.models.zoo import build
from kairode.training import session
from kairode.training.loop import train
from kairode.training.sources import RAGGED_CHUNK, StreamBatches
from kairode.training.step import batch_indices
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
    assert len(opened) == len(whole)
    np.testing.assert_array_equal(episode_lengths(file), whole.length)
    assert opened.digest == file_digest(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    for index in (slice(None), np.array([17, 3, 3]), np.arange(25) % 2 == 0):
        same(opened[index], whole[index])
    some = np.array([20, 4, 9])
    same(opened.select(some)[:2], whole[some[:2]])


def test_continuous_actions(tmp_path: Path) -> None:
    found = kairode.collect(kairode.make("pendulum", horizon=2.0), episodes=5, seed=0)
    kairode.write(tmp_path / "data.parquet", found)
    same(stream(tmp_path / "data.parquet")[:], kairode.read(tmp_path / "data.parquet"))
    table = pq.read_table(tmp_path / "data.parquet").replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "plain.parquet")
    with pytest.raises(KairodeError, match="pass a spec"):
        stream(tmp_path / "plain.parquet")


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


COLUMNS: dict[str, Any] = {"episode": "subject", "time": "day", "action": "drug", "discount": 0.99}


def visits(lengths: Any, missing: float = 0.1, seed: int = 0) -> pa.Table:
    """Episodes of these numbers of decisions, their rows in any order, with missing values."""
    rng = np.random.default_rng(seed)
    episode = np.repeat(np.arange(len(lengths)), np.asarray(lengths) + 1)
    rows = len(episode)
    found = {
        "subject": [f"s{number}" for number in episode],
        "day": np.round(np.cumsum(rng.uniform(0.5, 3.0, rows)), 2),
        "x": pa.array(rng.normal(size=rows), mask=rng.random(rows) < missing),
        "y": rng.normal(size=rows),
        "drug": rng.choice(["none", "low", "high"], rows),
        "reward": rng.normal(size=rows),
    }
    return pa.table(found).take(rng.permutation(rows))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    csv.write_csv(visits(np.random.default_rng(1).integers(1, 9, 25)), tmp_path / "visits.csv")
    return tmp_path / "visits.csv"


@pytest.fixture
def ragged(tmp_path: Path, monkeypatch) -> Path:
    """Many short episodes and one long one, for which padding counts as too much."""
    monkeypatch.setattr("kairode.data.table.RAGGED_BYTES", 1000)
    lengths = np.append(np.random.default_rng(2).integers(1, 6, 60), 70)
    csv.write_csv(visits(np.roll(lengths, 20)), tmp_path / "ragged.csv")
    return tmp_path / "ragged.csv"


def test_any_table(table: Path) -> None:
    """Rows in any order, from a file or from memory, with a reward that is an expression or a function."""

    def reward(before: Any, after: Any, tau: Any) -> Any:
        return before["y"] * tau

    frame = csv.read_csv(table, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    for source, how in ((table, None), (frame, None), (table, "y - before(y)"), (table, reward)):
        whole, opened = (f(source, reward=how, **COLUMNS) for f in (kairode.load_table, stream))
        assert opened.spec == whole.spec
        assert not opened.ragged
        same(opened[:], whole)
    assert stream(table, **COLUMNS).digest != stream(table, reward="1 * y", **COLUMNS).digest
    with pytest.raises(KairodeError, match="give one of them"):
        stream(table, whole.spec, **COLUMNS)
    with pytest.raises(KairodeError, match=r"'x'.*missing.*keep them as missing"):
        stream(table, missing="refuse", **COLUMNS)


def test_a_table_without_padding(ragged: Path) -> None:
    """Statistics and parts are those of the padded episodes."""
    whole, opened = kairode.load_table(ragged, **COLUMNS), stream(ragged, **COLUMNS)
    assert opened.ragged
    assert opened.longest == 70
    same(opened[:], whole)
    blocks = list(opened.blocks())
    assert sum(map(len, blocks)) == len(whole)
    assert Scale.of_blocks(opened.observations) == Scale.of(np.asarray(whole.observation)[:, :-1][whole.mask])
    long = int(opened.length.argmax())
    parts = opened.cut(np.array([long, 3, 19]), 30)
    assert parts.length.tolist() == [30, 30, 10, whole.length[3], whole.length[19]]
    assert parts.interval.shape[1] == 30
    np.testing.assert_array_equal(parts.observation[1], whole.observation[long, 30:61])
    assert parts.truncated.tolist() == [False, False, True, True, True]


def test_long_passes_are_read_in_blocks(ragged: Path, monkeypatch) -> None:
    opened = stream(ragged, **COLUMNS)
    monkeypatch.setattr(stream_module, "BLOCK", 4 * 5 * 100)  # of five numbers a row
    blocks = list(opened.blocks())
    assert max(block.interval.size for block in blocks) <= 100
    assert len(blocks) < 10
    np.testing.assert_array_equal(np.concatenate([block.length for block in blocks]), opened.length)


def test_ragged_batches_are_as_long_as_they_need(ragged: Path) -> None:
    """The same episodes as in memory, in every iteration, in calls of few different sizes."""
    opened = stream(ragged, **COLUMNS)
    settings = dataclasses.replace(SETTINGS, iterations=100, validate_every=50)
    source = StreamBatches(stacked(opened), settings, opened, [0, 1])
    done, shapes, long = 0, set(), 0
    while done < settings.iterations:
        episodes, batches = source.batches(done)
        shapes.add((len(batches), episodes.tau.shape[1]))
        chosen = batch_indices(settings, [0, 1], len(opened), done, len(batches))
        real = np.asarray(episodes.real)[np.asarray(batches)]
        np.testing.assert_array_equal(real.sum(-1), opened.length[chosen])
        assert (episodes.tau.shape[1] > 10) == bool((opened.length[chosen] > 10).any())
        long += len(batches) * (episodes.tau.shape[1] > 10)
        done += len(batches)
    source.close()
    assert done == 100
    assert 0 < long < 30
    assert {count for count, _ in shapes} == {RAGGED_CHUNK, 1}
    assert {length for _, length in shapes} == {10, 70}


def test_the_same_weights_without_padding(ragged: Path) -> None:
    """To rounding, since programs differ in the length of their loops."""
    whole, opened = kairode.load_table(ragged, **COLUMNS), stream(ragged, **COLUMNS)
    settings = dataclasses.replace(SETTINGS, iterations=9, validate_every=9, batch_size=16)
    models = stack([build("rnn", whole.spec, SIZES, masked=True, key=jax.random.key(0))])
    memory, streamed = (train(models, settings, data, whole[:9], seeds=[0]) for data in (whole, opened))
    for x, y in zip(jax.tree.leaves(memory.models), jax.tree.leaves(streamed.models), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.slow
def test_the_command_with_a_table(table: Path, tmp_path: Path, typed) -> None:
    """The weights of the fit in memory."""
    words = ["fit", str(table), "--episode", "subject", "--time", "day", "--action", "drug", "--model", "rnn"]
    words += ["--iterations", "2", "--batch-size", "4", "--latent-size", "3", "-q"]
    for name, more in (("memory", ()), ("stream", ("--stream",))):
        code, _, err = typed(*words, "--out", str(tmp_path / name), *more)
        assert code == 0, err
    same(*(kairode.load_models(tmp_path / name) for name in ("memory", "stream")))


def test_ragged_tables_are_streamed_by_themselves(ragged: Path, monkeypatch) -> None:
    """Held-out episodes are few, and cut into parts where padding would make them large."""
    monkeypatch.setattr(fit_module, "HELD_OUT", 4)
    monkeypatch.setattr(fit_module, "HELD_OUT_BYTES", 2000)
    monkeypatch.setattr(fit_module, "RAGGED", 2)
    options = TableConfig(episode="subject", time="day", action=("drug",))
    config = fit_module.check_fit(dataclasses.replace(fit_preset(str(ragged)), table=options))
    assert (config.episodes, config.validation_episodes, config.test_episodes) == (49, 4, 4)
    said: list[str] = []
    parts = fit_module.load_data(config, lambda progress: said.append(progress.message))
    assert isinstance(parts.train, EpisodeStream)
    assert "padded to the longest of 70 decisions, the 61 episodes would take" in "".join(said)
    some = np.argsort(parts.train.length)[-5:]
    found = fit_module._held_out(parts.train, some[::-1])
    assert found.decisions == parts.train.length[some[1:]].sum()
    assert found.interval.shape[1] < 70
    kairode.write(ragged.with_suffix(".parquet"), kairode.load_table(ragged, **COLUMNS))
    config = fit_module.check_fit(fit_preset(str(ragged.with_suffix(".parquet"))))
    assert config.validation_episodes == 4
    assert isinstance(fit_module.load_data(config).train, EpisodeStream)
