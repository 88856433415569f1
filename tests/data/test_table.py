"""Parquet: what is written comes back, and every fault is named by file, row and column."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kairode
from kairode.data import table as table_module
from kairode.data.trajectory import carried_forward
from kairode.envs.zoo import ENVIRONMENTS
from kairode.errors import KairodeError


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_round_trip(name: str, tmp_path) -> None:
    seen = kairode.collect(kairode.make(name, max_decisions=30), episodes=8, seed=0)
    kairode.write(tmp_path / "seen.parquet", seen)
    back = kairode.read(tmp_path / "seen.parquet")
    assert back.spec == seen.spec
    for field in ("observation", "action", "interval", "reward", "length", "terminated", "truncated"):
        before, after = getattr(seen, field), getattr(back, field)
        assert before.dtype == after.dtype, field
        np.testing.assert_array_equal(before, after, err_msg=field)


@pytest.fixture
def rows(tmp_path):
    """Two patients, three and four visits, as a table to be spoiled."""
    seen = kairode.collect(kairode.make("hiv", max_decisions=3), episodes=2, seed=0)
    path = tmp_path / "visits.parquet"
    kairode.write(path, seen)
    return path, pq.read_table(path)


def test_what_is_in_the_file(rows) -> None:
    _, table = rows
    assert table.column_names == [
        "episode", "t", "T1", "T2", "T1*", "T2*", "V", "E", "action", "reward", "terminated", "truncated"
    ]  # fmt: skip
    assert table.schema.field("t").type == pa.float64()
    told = json.loads(table.schema.metadata[b"kairode"])
    assert told["environment"] == "hiv"
    assert told["units"] == {"t": "day"} | dict.fromkeys(table.column_names[2:8], "log10 per ml, standardised")
    last = table.slice(3, 1).to_pylist()[0]
    assert last["action"] is None
    assert last["reward"] is None
    assert last["truncated"] is True
    assert table["truncated"].to_pylist() == [False] * 3 + [True] + [False] * 3 + [True]
    assert set(table["action"].to_pylist()) <= {None, "none", "RTI", "PI", "RTI+PI"}


def spoil(rows, column: str, row: int, value):
    """Write the table with one cell changed; returns the path."""
    path, table = rows
    field = table.schema.field(column)
    kind = pa.string() if pa.types.is_dictionary(field.type) else field.type
    values = table[column].to_pylist()
    values[row] = value
    changed = table.set_column(table.column_names.index(column), column, pa.array(values, kind))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    return path


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("t", 2, 0.0, "row 2, column 't': times must increase within an episode, 0 follows"),
        ("t", 5, float("nan"), "row 5, column 't': nan is not a finite number"),
        ("E", 1, float("-inf"), "row 1, column 'E': -inf is not a finite number"),
        ("reward", 0, float("inf"), "row 0, column 'reward': inf is not a finite number"),
        ("reward", 1, None, "row 1, column 'reward': the value is missing"),
        ("reward", 3, 1.0, "row 3, column 'reward': must be empty in the last row of an episode"),
        ("action", 2, "aspirin", "row 2, column 'action': unknown action 'aspirin'; known: none, RTI, PI"),
        ("action", 2, None, "row 2, column 'action': the value is missing"),
        ("action", 7, "PI", "row 7, column 'action': must be empty in the last row of an episode"),
        ("truncated", 1, True, "row 1, column 'truncated': true in a row that is not its episode's last"),
        ("truncated", 3, False, "row 3, column 'truncated': the last row of an episode must be either"),
        ("terminated", 3, True, "row 3, column 'truncated': the last row of an episode must be either"),
        ("episode", 6, 0, "row 6, column 'episode': episode 0 begins again"),
        ("episode", 7, 2, "row 7, column 'episode': episode 2 has only one row"),
        ("episode", 0, None, "row 0, column 'episode': the value is missing"),
    ],
)
def test_faults_are_named(rows, column: str, row: int, value, message: str) -> None:
    path = spoil(rows, column, row, value)
    with pytest.raises(KairodeError) as caught:
        kairode.read(path)
    assert str(caught.value).startswith(f"{path}, {message}")
    assert str(caught.value).endswith(" (rows are counted from 0).")


@pytest.mark.parametrize("column", ["episode", "t", "T2", "action", "reward", "terminated"])
def test_a_missing_column(rows, column: str) -> None:
    path, table = rows
    pq.write_table(table.drop_columns([column]), path)
    with pytest.raises(KairodeError, match=f"{path.name}: the column '{column}' is missing"):
        kairode.read(path)


@pytest.mark.parametrize(
    ("column", "name", "hint"),
    [
        ("t", "time", "Did you mean 'time'? Rename it to 't'."),
        ("terminated", "done", "Replace 'done' by 'truncated' (the record ended) and 'terminated'"),
        ("reward", "rewards", "Did you mean 'rewards'? Rename it to 'reward'."),
    ],
)
def test_a_column_by_another_name(rows, column: str, name: str, hint: str) -> None:
    path, table = rows
    names = [name if found == column else found for found in table.column_names]
    for renamed in (table.rename_columns(names), table.rename_columns(names).replace_schema_metadata()):
        pq.write_table(renamed, path)
        with pytest.raises(KairodeError) as caught:
            kairode.read(path)
        assert hint in str(caught.value)


def test_paths_are_those_of_parquet_files(rows, tmp_path) -> None:
    path, _ = rows
    with pytest.raises(KairodeError, match=r"written as Parquet, so the name must end in \.parquet"):
        kairode.write(tmp_path / "y.csv", kairode.read(path))
    assert not (tmp_path / "y.csv").exists()


def test_a_column_of_the_wrong_kind(rows) -> None:
    path, table = rows
    words = pa.array(["a"] * len(table))
    pq.write_table(table.set_column(2, "T1", words).replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(KairodeError, match="column 'T1': numbers are required, the column holds string"):
        kairode.read(path)
    pq.write_table(table.set_column(11, "truncated", words).replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(KairodeError, match="column 'truncated': booleans are required"):
        kairode.read(path)


def test_controls_outside_their_bounds(tmp_path) -> None:
    seen = kairode.collect(kairode.make("hopper", max_decisions=3), episodes=1, seed=0)
    path = tmp_path / "hops.parquet"
    kairode.write(path, seen)
    spoil((path, pq.read_table(path)), "action_leg", 1, 1.5)
    with pytest.raises(KairodeError, match=r"row 1, column 'action_leg': action 1.5 is outside \[-1, 1\]"):
        kairode.read(path)


def test_files_that_are_no_tables(rows, tmp_path) -> None:
    path, table = rows
    with pytest.raises(KairodeError, match=r"nowhere.parquet: no such file"):
        kairode.read(tmp_path / "nowhere.parquet")
    with pytest.raises(KairodeError, match="is a folder"):
        kairode.read(tmp_path)
    empty = tmp_path / "empty.parquet"
    empty.write_bytes(b"")
    with pytest.raises(KairodeError, match=r"empty.parquet is empty .0 bytes."):
        kairode.read(empty)
    whole = path.read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2, 10):
        path.write_bytes(whole[:cut])
        with pytest.raises(KairodeError, match=r"visits.parquet is not a valid Parquet file: it is truncated"):
            kairode.read(path)
    damaged = bytearray(whole)
    damaged[20:400] = bytes(380)
    path.write_bytes(damaged)
    with pytest.raises(KairodeError, match="column 'episode': cannot be read, the file is damaged"):
        kairode.read(path)
    pq.write_table(table.slice(0, 0), path)
    with pytest.raises(KairodeError, match="has columns but no rows"):
        kairode.read(path)
    pq.write_table(table.replace_schema_metadata({b"kairode": b"{not json"}), path)
    with pytest.raises(KairodeError, match="metadata under 'kairode' is invalid"):
        kairode.read(path)


def test_a_clinics_own_table(tmp_path) -> None:
    path = tmp_path / "clinic.parquet"
    table = pa.table(
        {
            "episode": [17, 17, 17, 4, 4],
            "t": [0.0, 3.5, 10.0, 100.0, 101.0],
            "pressure": [1.0, 2.0, 3.0, 4.0, 5.0],
            "action": ["wait", "treat", None, "treat", None],
            "reward": [0.5, 1.5, None, -1.0, None],
            "terminated": [False, False, True, False, False],
            "truncated": [False, False, False, False, True],
        }
    )
    pq.write_table(table, path)
    seen = kairode.read(path)
    assert seen.spec.name == "clinic"
    assert seen.spec.actions.names == ("treat", "wait")
    assert [v.name for v in seen.spec.observations] == ["pressure"]
    assert (seen.spec.intervals.low, seen.spec.intervals.high, seen.spec.intervals.classes) == (
        1.0,
        6.5,
        None,
    )
    np.testing.assert_array_equal(seen.length, [2, 1])
    np.testing.assert_array_equal(seen.interval, [[3.5, 6.5], [1.0, 0.0]])
    np.testing.assert_array_equal(seen.action, [[1, 0], [0, 0]])
    np.testing.assert_array_equal(seen.observation[..., 0], [[1, 2, 3], [4, 5, 5]])
    kairode.write(tmp_path / "again.parquet", seen)
    assert kairode.read(tmp_path / "again.parquet").spec == seen.spec


def clinic(**columns):
    """A small table of a clinic's own, with some columns changed."""
    table = {
        "episode": ["P-17", "P-17", "P-17", "P-4", "P-4"],
        "t": [0, 3, 10, 100, 101],
        "pressure": [1, 2, 3, 4, 5],
        "action": [0, 2, None, 1, None],
        "reward": [0.5, 1.5, None, -1.0, None],
        "terminated": [False, False, True, False, False],
        "truncated": [False, False, False, False, True],
    }
    return {name: values for name, values in (table | columns).items() if values is not None}


def test_words_for_episodes_and_whole_numbers(tmp_path) -> None:
    path = tmp_path / "clinic.parquet"
    pq.write_table(pa.table(clinic(__index_level_0__=[0, 1, 2, 3, 4])), path)
    seen = kairode.read(path)
    assert [v.name for v in seen.spec.observations] == ["pressure"], "the index that pandas adds is none"
    assert seen.spec.actions.names == ("0", "1", "2")
    assert seen.spec.intervals.classes == 7
    np.testing.assert_array_equal(seen.action, [[0, 2], [1, 0]])
    np.testing.assert_array_equal(seen.interval, [[3, 7], [1, 0]])


def test_what_pandas_makes_of_it(tmp_path) -> None:
    # Whole numbers with a gap become floats, gaps become NaN, truths become 0 and 1, symptoms are truths.
    path = tmp_path / "clinic.parquet"
    columns = clinic(
        action=[0.0, 2.0, float("nan"), 1.0, float("nan")],
        reward=[0.5, 1.5, float("nan"), -1.0, float("nan")],
        terminated=[0, 0, 1, 0, 0],
        truncated=[0, 0, 0, 0, 1],
        fever=[True, False, False, True, True],
    )
    pq.write_table(pa.table(columns), path)
    seen = kairode.read(path)
    np.testing.assert_array_equal(seen.action, [[0, 2], [1, 0]])
    np.testing.assert_array_equal(seen.reward, [[0.5, 1.5], [-1.0, 0.0]])
    np.testing.assert_array_equal(seen.terminated, [True, False])
    np.testing.assert_array_equal(seen.observation[0, :, 1], [1, 0, 0])
    spoilt = clinic(reward=[float("nan"), 1.5, None, -1.0, None])
    pq.write_table(pa.table(spoilt), path)
    with pytest.raises(KairodeError, match="row 0, column 'reward': nan is not a finite number"):
        kairode.read(path)


def test_a_spec_for_a_table_that_lost_its_own(tmp_path) -> None:
    env = kairode.make("hiv", max_decisions=3)
    seen = kairode.collect(env, episodes=2, seed=0)
    path = tmp_path / "seen.parquet"
    kairode.write(path, seen)
    pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)
    bare = kairode.read(path).spec
    assert bare.actions.names == tuple(sorted(bare.actions.names))
    assert bare.discount == 1.0
    back = kairode.read(path, env.task.spec)
    np.testing.assert_array_equal(back.action, seen.action)
    assert back.spec == seen.spec


def test_controls_have_bounds_of_their_own(tmp_path) -> None:
    path = tmp_path / "plant.parquet"
    valves = {"action_valve": [0.0, 100.0, None, 50.0, None], "action_lid": [0.0, 1.0, None, 0.5, None]}
    pq.write_table(pa.table(clinic(action=None, **valves)), path)
    actions = kairode.read(path).spec.actions
    assert (actions.names, actions.low, actions.high) == (("valve", "lid"), (0.0, 0.0), (100.0, 1.0))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"t": ["0", "3", "10", "100", "101"]}, "column 't': numbers are required, the column holds string"),
        ({"action": [True, False, None, True, None]}, "column 'action': give names, or integers"),
        ({"action": [-1, 0, None, 1, None]}, "column 'action': give names, or integers"),
        ({"action": None}, "the column 'action' is missing"),
        ({"action": None, "Action": [0, 1, None, 1, None]}, "Did you mean 'Action'?"),
        ({"pressure": ["low"] * 5}, "column 'pressure': numbers are required, the column holds string"),
        ({"pressure": [1.0, 1e300, 3.0, 4.0, 5.0]}, "row 1, column 'pressure': 1e+300 exceeds single"),
        ({"reward": [0.5, 1e39, None, -1.0, None]}, "row 1, column 'reward': 1e+39 exceeds single"),
        ({"t": [0.0, 1e-50, 10.0, 100.0, 101.0]}, "row 1, column 't': the preceding interval is too short"),
        ({"pressure": None}, "no observation column"),
        ({"action": [0, 100023411, None, 1, None]}, "integers from 0 to 999"),
        ({"action": [0.5, 1.0, None, 1.0, None]}, "continuous actions go into columns action_NAME"),
        ({"truncated": [0, 0, 0, 0, 2]}, "column 'truncated': booleans are required"),
    ],
)
def test_faults_of_a_clinics_table(tmp_path, columns: dict, message: str) -> None:
    path = tmp_path / "clinic.parquet"
    pq.write_table(pa.table(clinic(**columns)), path)
    with pytest.raises(KairodeError) as caught:
        kairode.read(path)
    assert message in str(caught.value)


def test_a_column_twice(tmp_path) -> None:
    path = tmp_path / "clinic.parquet"
    table = pa.table(clinic())
    pq.write_table(table.append_column("pressure", table["pressure"]), path)
    with pytest.raises(KairodeError, match="the column 'pressure' occurs twice"):
        kairode.read(path)


def test_one_episode_and_the_settings(tmp_path) -> None:
    env = kairode.make("acrobot", setting="paper", max_decisions=3)
    seen = kairode.collect(env, episodes=3, seed=0)
    kairode.write(tmp_path / "one.parquet", seen[1])
    back = kairode.read(tmp_path / "one.parquet")
    np.testing.assert_array_equal(back.observation[0], seen.observation[1])
    told = json.loads(pq.read_schema(tmp_path / "one.parquet").metadata[b"kairode"])
    assert told["settings"]["substep"] == "inf"
    assert dict(back.spec.settings)["substep"] == float("inf")


def test_nothing_is_half_written(rows, monkeypatch) -> None:
    path, _ = rows
    before = path.read_bytes()
    seen = kairode.read(path)
    write_table = pq.ParquetWriter.write_table

    def breaks_off(self, table) -> None:
        write_table(self, table.slice(0, 2))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(table_module.pq.ParquetWriter, "write_table", breaks_off)
    with pytest.raises(KairodeError, match=r"cannot write .*visits.parquet: No space left on device"):
        kairode.write(path, seen)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["visits.parquet"]


def test_a_folder_that_cannot_be_written(rows, tmp_path) -> None:
    path, _ = rows
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(KairodeError, match="cannot write"):
        kairode.write(blocked / "seen.parquet", kairode.read(path))


def test_usual_values_of_categories() -> None:
    """Before it is known, a patient has the most frequent category, not none of them."""
    smoker = ["never", "never", "former", "current", "never", "current", None, "current"]
    rows = {"episode": [0, 0, 1, 1, 2, 2, 3, 3], "t": [0.0, 1.0] * 4, "age": [30, 30, 40, 40, 50, 50, 90, 90]}
    data = kairode.load_table(
        {**rows, "smoker": smoker, "action": ["a", "b"] * 4, "reward": [1.0] * 8}, categorical=["smoker"]
    )
    names = [variable.name for variable in data.spec.observations]
    first = dict(zip(names, np.asarray(carried_forward(data).observation)[3, 0].tolist(), strict=True))
    assert first == {"age": 90.0, "smoker=current": 0.0, "smoker=former": 0.0, "smoker=never": 1.0}
    halves = ["F", "F", "M", "M", "F", "M", None, None]
    data = kairode.load_table(
        {**rows, "sex": halves, "action": ["a", "b"] * 4, "reward": [1.0] * 8}, categorical=["sex"]
    )
    assert np.asarray(carried_forward(data).observation)[3, 0, -1] in (0.0, 1.0)  # never half of both
