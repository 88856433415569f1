"""The digest of a table: independent of how it is stored, and sensitive to all that is read."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kairode
from kairode.data.content import DIGEST_KEY, ContentDigest
from kairode.data.stream import stream
from kairode.errors import KairodeError


@pytest.fixture(scope="module")
def data():
    return kairode.collect(kairode.make("hiv", max_decisions=9), episodes=5, seed=2)


def digest_of(*tables: pa.Table) -> str:
    found = ContentDigest()
    for table in tables:
        found.update(table)
    return found.hexdigest()


def test_it_does_not_depend_on_parts(tmp_path, data):
    kairode.write(tmp_path / "whole.parquet", data)
    kairode.write(tmp_path / "parts.parquet", [data[:2], data[2:3], data[3:]])
    files = [pq.ParquetFile(tmp_path / name) for name in ("whole.parquet", "parts.parquet")]
    assert files[0].metadata.metadata[DIGEST_KEY] == files[1].metadata.metadata[DIGEST_KEY]
    table = files[0].read()
    stored = files[0].metadata.metadata[DIGEST_KEY].decode()
    assert digest_of(table) == stored
    assert digest_of(table[:7], table[7:8], table[8:]) == stored
    assert digest_of(pa.concat_tables([table[:20], table[20:]])) == stored


def test_another_program_may_write_the_same_rows_again(tmp_path, data):
    path = tmp_path / "visits.parquet"
    kairode.write(path, data)
    table = pq.ParquetFile(path).read()
    pq.write_table(table, path, compression="snappy", row_group_size=7, use_dictionary=False)
    again = kairode.read(path)
    np.testing.assert_array_equal(again.observation, data.observation)
    np.testing.assert_array_equal(again.reward, data.reward)
    assert again.spec == data.spec


def test_changed_content_is_refused(tmp_path, data):
    path = tmp_path / "visits.parquet"
    kairode.write(path, data)
    table = pq.ParquetFile(path).read()
    names = table.column_names
    reward = table["reward"].to_numpy().copy()
    reward[3] = np.nextafter(reward[3], np.float32(np.inf))
    actions = pa.array(table["action"].to_pylist()).to_pylist()
    actions[2] = data.spec.actions.names[(data.spec.actions.names.index(actions[2]) + 1) % data.spec.actions.n]
    metadata = table.schema.metadata
    for changed in (
        table.set_column(names.index("reward"), "reward", pa.array(reward, mask=table["reward"].is_null().to_numpy())),
        table.set_column(names.index("action"), "action", pa.array(actions)),
        table.set_column(names.index("t"), "t", pa.array(2 * table["t"].to_numpy())),
        table.slice(0, 40),
        table.select([names[1], names[0], *names[2:]]),
        table.replace_schema_metadata({**metadata, b"kairode": metadata[b"kairode"].replace(b"0.995", b"0.994")}),
    ):
        pq.write_table(changed, path)
        for read in (kairode.read, stream):
            with pytest.raises(KairodeError, match=r"visits.parquet.*(differs from the digest|one row)"):
                read(path)
    del metadata[b"kairode"]
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(KairodeError, match="differs from the digest"):
        kairode.read(path)
    edited = table.replace_schema_metadata({b"kairode": table.schema.metadata[b"kairode"]}).slice(0, 10)
    pq.write_table(edited, path)  # the advice of the message
    assert len(kairode.read(path)) == 1


def test_what_does_not_fit_into_memory_is_refused_before_it_is_padded(tmp_path, data, monkeypatch):
    path = tmp_path / "visits.parquet"
    kairode.write(path, data)
    monkeypatch.setattr("kairode._memory.available_memory", lambda: 3000)
    with pytest.raises(KairodeError, match=r"visits.parquet: \d+ rows of \d+ columns need 0.0 GiB of memory.*--stream"):
        kairode.read(path)
    long = kairode.collect(kairode.make("gridworld", horizon=3000.0, max_decisions=40), episodes=6, seed=0)
    monkeypatch.setattr("kairode._memory.available_memory", lambda: 40_000)
    one = dataclasses.replace(long, length=np.where(np.arange(6) == 2, long.length, 1).astype(np.int32))
    kairode.write(path, [one, one, one])
    monkeypatch.setattr("kairode._memory.available_memory", lambda: 12_000)
    with pytest.raises(KairodeError, match=r"18 episodes, padded to the longest of \d+ decisions, need .*--stream"):
        kairode.read(path)
    opened = stream(path)
    assert opened.length.tolist() == [*one.length, *one.length, *one.length]
    np.testing.assert_array_equal(opened[2].observation, np.asarray(one.observation)[2, : int(one.length[2]) + 1])


def test_no_episodes_are_said_to_be_none(tmp_path):
    with pytest.raises(KairodeError, match="no episodes to write"):
        kairode.write(tmp_path / "none.parquet", [])
    assert not list(tmp_path.iterdir())


def test_dataclass_replace_changes_the_digest(data):
    from kairode.data.table import _table

    other = dataclasses.replace(data, terminated=~np.asarray(data.terminated), truncated=~np.asarray(data.truncated))
    assert digest_of(_table(data, 0)) != digest_of(_table(other, 0))


def test_metadata_that_a_changed_bit_hides(tmp_path, data):
    path = tmp_path / "visits.parquet"
    kairode.write(path, data)
    raw = bytearray(path.read_bytes())
    hidden = 0
    for place in range(raw.find(DIGEST_KEY) - 8, raw.find(DIGEST_KEY)):
        for bit in range(8):
            changed = raw.copy()
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            try:
                file = pq.ParquetFile(path)
            except (pa.ArrowException, OSError):
                continue
            if DIGEST_KEY not in (file.metadata.metadata or {}):
                hidden += 1
                with pytest.raises(KairodeError, match="its metadata cannot be read"):
                    kairode.read(path)
    assert hidden
