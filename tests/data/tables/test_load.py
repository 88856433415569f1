"""Tables of any kind as episodes: against values by hand, and every fault with its place."""

import datetime
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import kairode
from kairode.config.tables import TableConfig
from kairode.data.tables.columns import NOTHING
from kairode.data.tables.load import load_rows, read_episodes
from kairode.data.tables.source import read_source
from kairode.errors import KairodeError

VISITS = """subject,when,V,E,drug,age,sex
b,2024-01-03,5.5,1.0,RTI,40,F
a,2024-01-01,4.0,2.0,none,31,M
a,2024-01-10,4.75,2.5,,31,M
a,2024-01-08,4.5,3.5,RTI,31,M
b,2024-01-20,5.0,1.5,,40,F
"""
COLUMNS = {"episode": "subject", "time": "when", "action": "drug", "static": ["age"], "categorical": ["sex"]}


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    path.write_text(VISITS)
    return path


def columns(**changes: object) -> dict[str, object]:
    """A small table: two episodes, of three and two rows."""
    table = {
        "episode": ["x", "x", "x", "y", "y"],
        "t": [0.0, 1.5, 2.0, 0.0, 4.0],
        "a": [1.0, 2.0, 3.0, 4.0, 5.0],
        "action": ["on", "off", None, "on", None],
        "reward": [1.0, 2.0, None, 3.0, None],
    }
    return {**table, **changes}


def test_a_csv_file_by_hand(visits):
    data = kairode.load_table(visits, **COLUMNS, reward="1000 * E - V")
    assert [v.name for v in data.spec.observations] == ["V", "E", "age", "sex=M"]
    assert data.spec.actions.names == ("RTI", "none")
    assert (data.spec.name, data.spec.time_unit) == ("visits", "day")
    assert data.length.tolist() == [1, 2]  # in the order of the file
    np.testing.assert_array_equal(data.observation[1], [[4.0, 2.0, 31, 1], [4.5, 3.5, 31, 1], [4.75, 2.5, 31, 1]])
    np.testing.assert_array_equal(data.interval, [[17, 0], [7, 2]])
    np.testing.assert_array_equal(data.action, [[0, 0], [1, 0]])
    np.testing.assert_allclose(data.reward, [[1495.0, 0.0], [3495.5, 2495.25]])
    assert data.truncated.all()
    assert "Rows were sorted by episode and time." in data.spec.notes
    assert "'sex' was encoded as sex=M." in data.spec.notes


def test_every_source_gives_the_same(visits, tmp_path):
    table = pacsv.read_csv(visits)
    pq.write_table(table, tmp_path / "visits.parquet")
    (tmp_path / "visits.tsv").write_text(VISITS.replace(",", "\t"))
    (tmp_path / "semicolons.csv").write_text(VISITS.replace(",", ";"))
    with pa.CompressedOutputStream(str(tmp_path / "visits.csv.gz"), "gzip") as file:
        file.write(VISITS.encode())

    class Frame:
        """What pandas and polars offer."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table.__arrow_c_stream__(requested_schema)

    sources = [table, Frame(), table.to_pydict()]
    sources += [tmp_path / f"visits.{kind}" for kind in ("parquet", "tsv", "csv.gz")]
    expected = kairode.load_table(visits, **COLUMNS)
    for source in [*sources, tmp_path / "semicolons.csv"]:
        found = kairode.load_table(source, **COLUMNS)
        for name in ("observation", "action", "interval", "reward", "length"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_what_was_loaded_is_written_and_read(visits, tmp_path):
    data = kairode.load_table(visits, **COLUMNS)
    kairode.write(tmp_path / "again.parquet", data)
    found = kairode.read(tmp_path / "again.parquet")
    assert found.spec == data.spec
    assert found.spec.notes == data.spec.notes
    np.testing.assert_array_equal(found.observation, data.observation)


@pytest.mark.parametrize(
    ("when", "unit", "expected"),
    [
        ([0, 36, 48, 0, 96], None, [36, 12]),
        ([datetime.date(2024, 1, d) for d in (1, 3, 4, 1, 9)], None, [2, 1]),
        ([datetime.datetime(2024, 1, 1, h) for h in (0, 12, 18, 1, 9)], "hour", [12, 6]),
        ([datetime.datetime(2024, 1, 1, h, tzinfo=datetime.UTC) for h in (0, 12, 18, 1, 9)], None, [0.5, 0.25]),
        (
            ["2024-01-01 00:00", "2024-01-01 12:00", "2024-01-02 00:00", "2024-02-01 00:00", "2024-02-08 00:00"],
            None,
            [0.5, 0.5],
        ),
        (["2024-01-01", "2024-01-15", "2024-01-22", "2024-02-01", "2024-02-08"], "week", [2, 1]),
        ([datetime.timedelta(minutes=m) for m in (0, 30, 45, 0, 60)], "minute", [30, 15]),
    ],
)
def test_times(when, unit, expected):
    data = kairode.load_table(columns(t=when), time_unit=unit)
    np.testing.assert_allclose(data.interval[0], expected)


def test_actions_as_numbers_combinations_and_controls():
    data = kairode.load_table(columns(action=[10, 2, None, 10, None]))
    assert data.spec.actions.names == ("2", "10")
    np.testing.assert_array_equal(data.action, [[1, 0], [1, 0]])
    data = kairode.load_table(columns(dose=[1.0, 2.0, None, 1.0, None]), action=["action", "dose"])
    assert data.spec.actions.names == ("action=off, dose=2", "action=on, dose=1")
    data = kairode.load_table(columns(action=[0.5, -1.0, None, 0.25, None]), controls="action")
    assert (data.spec.actions.low, data.spec.actions.high) == ((-1.0,), (0.5,))
    np.testing.assert_allclose(data.action[0, :, 0], [0.5, -1.0])


def test_categories_as_data_frames_store_them():
    words = pa.array(["on", "off", None, "on", None])
    views = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0, None]), pa.array(["on", "off"], pa.string_view()))
    expected = kairode.load_table(columns())
    for action in (words.dictionary_encode(), words.cast(pa.string_view()), words.cast(pa.large_string()), views):
        data = kairode.load_table(columns(action=action))
        assert data.spec.actions == expected.spec.actions
        np.testing.assert_array_equal(data.action, expected.action)


def test_rare_combinations_are_reported():
    rng = np.random.default_rng(0)
    rows = 1000
    first = np.where(np.arange(rows) == 5, "rare", "usual")
    table = {
        "episode": np.repeat(np.arange(100), 10),
        "t": np.tile(np.arange(10.0), 100),
        "x": rng.normal(size=rows),
        "a": first,
        "b": rng.integers(0, 2, rows),
    }
    data = kairode.load_table(table, action=["a", "b"])
    assert any("Rare combinations of actions (decisions): 'a=rare, b=" in note for note in data.spec.notes)


def test_rewards_as_a_function_at_the_end_or_not_at_all():
    data = kairode.load_table(columns(), reward=lambda before, after, tau: (after["a"] - before["a"]) / tau)
    np.testing.assert_allclose(data.reward, [[1 / 1.5, 2.0], [0.25, 0.0]])
    data = kairode.load_table(columns(reward=[None, 1.0, 2.0, None, 3.0]), reward_row="end")
    np.testing.assert_allclose(data.reward, [[1.0, 2.0], [3.0, 0.0]])
    data = kairode.load_table(columns(reward=[1.0, 2.0, 5.0, 3.0, 0.0]))
    np.testing.assert_allclose(data.reward, [[1.0, 2.0], [3.0, 0.0]])
    assert any("Rewards in the last row" in note and "(1)" in note for note in data.spec.notes)
    data = kairode.load_table(columns(reward=[7.0, 1.0, 2.0, 7.0, 3.0]), reward_row="end")
    assert any("Rewards in the first row" in note and "(2)" in note for note in data.spec.notes)
    without = {name: column for name, column in columns().items() if name != "reward"}
    assert "There is no reward column: all rewards are 0." in kairode.load_table(without).spec.notes


def test_ends():
    died = kairode.load_table(columns(died=["no", "no", "yes", "no", "no"]), terminal="died")
    assert died.terminated.tolist() == [True, False]
    assert died.truncated.tolist() == [False, True]


def test_missing_values_are_carried_forward():
    given = columns(a=[None, 2.0, None, 4.0, None], kind=["u", None, "v", None, "v"])
    data = kairode.load_table(given, categorical="kind", missing="carry")
    np.testing.assert_allclose(data.observation[0, :, 0], [3.0, 2.0, 2.0])  # the median before the first
    np.testing.assert_allclose(data.observation[1, :2, 0], [4.0, 4.0])
    np.testing.assert_allclose(data.observation[0, :, 1], [0, 0, 1])
    np.testing.assert_allclose(data.observation[1, :2, 1], [1, 1])
    assert any(note.startswith("5 missing values (50.0%) were filled") for note in data.spec.notes)
    kept, _ = load_rows(given, TableConfig(categorical=("kind",)), keep_missing=True)
    assert np.isnan(np.asarray(kept.observation)[0]).sum() == 3


def test_static_values_are_repeated_along_the_episode():
    data = kairode.load_table(columns(age=[None, 40, None, 50, None]), static="age")
    np.testing.assert_allclose(data.observation[0, :, 1], 40)
    np.testing.assert_allclose(data.observation[1, :2, 1], 50)


def test_rows_of_the_same_time_are_merged():
    given = columns(t=[0.0, 1.0, 1.0, 0.0, 4.0], a=[1.0, 2.0, 4.0, 4.0, 5.0], reward=[1.0, 2.0, 4.0, 3.0, None])
    data, rows = load_rows(given, TableConfig(same_time="merge"))
    np.testing.assert_allclose(data.observation[0, :, 0], [1.0, 3.0])
    assert rows.tolist() == [0, 1, 3, 4]
    assert "Rows merged with another of the same episode and time: 1." in data.spec.notes


def test_episodes_of_one_row_are_dropped():
    data, rows = load_rows(
        columns(episode=["x", "x", "x", "y", "z"], action=["on", "off", None, None, None]), TableConfig()
    )
    assert len(data) == 1
    assert rows.tolist() == [0, 1, 2]
    assert any(note.startswith("Episodes with a single row, and so no decision, were") for note in data.spec.notes)
    with pytest.raises(KairodeError, match="every episode has a single row"):
        kairode.load_table(columns(episode=list("abcde")))


def test_all_faults_are_named_in_one_pass(visits):
    text = VISITS.replace("4.5,3.5", "4.5,").replace("5.0,1.5", "high,1.5").replace("40,F\n", "41,F\n", 1)
    visits.write_text(text)
    with pytest.raises(KairodeError) as found:
        kairode.load_table(visits, episode="subject", time="when", action="drug", static=["age"])
    said = str(found.value).splitlines()
    assert said[0] == f"{visits}: 3 faults (rows are counted from 0):"
    assert said[1].startswith("- row 4 (line 6), column 'V': 'high' is not a number")
    assert said[2].startswith("- column 'sex': numbers are required, the column holds text such as 'F'")
    assert said[3].startswith("- row 4 (line 6), column 'age': a static column must not change")
    with pytest.raises(KairodeError, match="4 faults") as found:
        kairode.load_table(visits, episode="subject", time="when", action="drug", static=["age"], missing="refuse")
    said = str(found.value).splitlines()
    assert said[4].startswith("- row 3 (line 5), column 'E': 1 of 5 values (20.0%) are missing")


@pytest.mark.parametrize(
    ("changes", "options", "complaint"),
    [
        ({"t": [0.0, 1.0, 1.0, 0.0, 4.0]}, {}, "row 2, column 't': the row has the same time as another"),
        ({"t": [0.0, None, 1.0, 0.0, 4.0]}, {}, "row 1, column 't': the time is missing"),
        ({"t": ["a", "b", "c", "d", "e"]}, {}, "row 0, column 't': 'a' is not a time"),
        ({"t": ["2024-01-01", "1", "2", "3", "4"]}, {}, "some times are numbers and some are dates"),
        ({"t": ["2024-01-01T00:00Z", *["2024-01-02"] * 4]}, {}, "some times have a time zone and some have none"),
        ({"t": [0.0, np.inf, 1.0, 0.0, 4.0]}, {}, "row 1, column 't': the number is infinite"),
        ({"t": [0.0, 1e-300, 2e-300, 0.0, 4.0]}, {}, "too short for single precision"),
        ({"episode": ["x", None, "x", "y", "y"]}, {}, "row 1, column 'episode': the episode is missing"),
        ({"a": [1.0, np.inf, 3.0, 4.0, 5.0]}, {}, "row 1, column 'a': the number is infinite"),
        ({"a": [1.0, 1e300, 3.0, 4.0, 5.0]}, {}, "row 1, column 'a': 1e\\+300 exceeds single precision"),
        ({"a": [None] * 5}, {}, "column 'a': all cells are empty"),
        ({"a": [datetime.date(2024, 1, 1)] * 5}, {}, "column 'a': dates are not observations"),
        ({"a": [[1.0]] * 5}, {}, "column 'a': numbers are required, the column holds list"),
        ({"action": ["on", None, None, "on", None]}, {}, "row 1, column 'action': the action is missing"),
        ({"action": [None] * 5}, {}, "column 'action': there is no action in it"),
        ({"action": [0.1] * 5}, {"controls": "action", "ignore": "a"}, "no column is left that is an observation"),
        ({"reward": [1.0, None, None, 1.0, None]}, {}, "row 1, column 'reward': the reward of the decision"),
        ({"t2": [1.0] * 5}, {"time": "t2"}, "column 't': an observation cannot have this name"),
        ({"end": [True, False, False, False, True]}, {"terminal": "end"}, "row 0, column 'end': true before the last"),
        ({"end": ["?"] * 5}, {"terminal": "end"}, "row 0, column 'end': '\\?' is neither true nor false"),
        ({"c": [str(i) for i in range(5)]}, {"categorical": "d"}, "column 'd': there is no such column"),
        ({}, {"reward": "log(b)"}, "unknown names: b"),
        ({}, {"reward": "log(a - 2)"}, "column 'log\\(a - 2\\)': the reward of the decision in this row is missing"),
        ({}, {"reward": lambda before, after, tau: before["nope"]}, "the reward function failed"),
        ({}, {"static": "t"}, "the column 't' cannot be time and static"),
        ({}, {"discount": 2.0}, "discount must be a number in"),
        ({"reward": [None, 1.0, 2.0, None, 3.0]}, {}, "set reward_row to end"),
        ({"reward": [None, 1.0, None, None, 3.0]}, {"reward_row": "end"}, "is missing or not finite: correct it"),
        ({}, {"actoin": "a"}, "unknown option 'actoin' of kairode.load_table"),
        (
            {"t": [datetime.date(2024, 1, d) for d in (1, 3, 4, 1, 9)]},
            {"time_unit": "year"},
            "converted to the unit 'year'",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(changes, options, complaint):
    with pytest.raises(KairodeError, match=complaint):
        kairode.load_table(columns(**changes), **options)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("none.csv", None, "no such file"),
        ("empty.csv", b"", "is empty"),
        ("head.csv", b"episode,t,a,action\n", "no rows"),
        ("twice.csv", b"t,t\n1,2\n", "'t' occur twice"),
        ("ragged.csv", b"a,b\n1\n1,2,3\n", "is not a valid CSV file.*Row #2"),
        ("latin.csv", "a,b\n1,\xe9\n".encode("latin-1"), "column 'b': the text is not UTF-8. Save the file as UTF-8"),
        ("odd.xlsx", b"PK", "a table is a file that ends in"),
        ("text.parquet", b"a,b\n", "is not a valid Parquet file"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, complaint):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KairodeError, match=complaint):
        kairode.load_table(path)


@pytest.mark.parametrize("source", [3, [1, 2], None, {"a": object()}, object()])
def test_what_is_no_table(source):
    with pytest.raises(KairodeError, match="table"):
        kairode.load_table(source)


def test_files_of_kairode_describe_themselves(tmp_path, visits):
    data = kairode.collect(kairode.make("hiv", max_decisions=5), episodes=3, seed=0)
    kairode.write(tmp_path / "hiv.parquet", data)
    found, rows = read_episodes(tmp_path / "hiv.parquet")
    assert found.spec == data.spec
    assert len(rows) == data.decisions + 3
    for options in (TableConfig(missing="carry"), TableConfig(discount=0.9)):  # its own discount would be lost
        with pytest.raises(KairodeError, match=r"hiv.parquet was written by Kairode and describes itself: leave out"):
            read_episodes(tmp_path / "hiv.parquet", options)
    options = TableConfig(episode="subject", time="when", action=("drug",), categorical=("sex",))
    assert len(read_episodes(visits, options).data) == 2


def test_the_command_fits_a_csv_file(typed, tmp_path):
    rng = np.random.default_rng(0)
    lines = ["subject,when,hr [/min],drug,sex"]
    for episode in range(12):
        for day in np.cumsum(rng.integers(1, 5, 8)):
            lines.append(f"s{episode},{day},{rng.normal(70, 5):.1f},{rng.choice(['A', 'B'])},{'MF'[episode % 2]}")
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines))
    words = ["fit", str(path), "--model", "rnn", "--iterations", "2", "--latent-size", "2", "--timer", "none"]
    words += [
        "--episode",
        "subject",
        "--time",
        "when",
        "--time-unit",
        "day",
        "--action",
        "drug",
        "--categorical",
        "sex",
    ]
    code, out, err = typed(*words, "--out", str(tmp_path / "run"))
    assert code == 0, err
    assert "Observations in" in out
    assert "hr [/min], sex=M" in out
    assert "'sex' was encoded as sex=M." in out
    code, _, err = typed("report", str(tmp_path / "run"))
    assert code == 2
    code, out, err = typed(*words, "--out", str(tmp_path / "run"))
    assert code == 0, "a finished fit is found again"
    code, _, err = typed("fit", str(path), "--out", str(tmp_path / "other"))
    assert code == 2
    assert "there is no such column; set episode to one of subject, when" in err
    assert not (tmp_path / "other" / "manifest.json").exists()


def rows_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def test_names_in_csv_files_are_texts(tmp_path):
    ids = "episode,t,a,action\n007,0,1,01\n007,1,2,1\n7,0,3,10\n7,6,4,None\n7,7,4,NA\n"
    data = kairode.load_table(rows_of(tmp_path, ids))
    assert data.length.tolist() == [1, 2]
    assert data.spec.actions.names == ("01", "10", "None")
    large = "episode,t,a,action\n12345678901234567890,0,1,x\n12345678901234567891,0,2,x\n"
    with pytest.raises(KairodeError, match="every episode has a single row"):
        kairode.load_table(rows_of(tmp_path, large))
    regions = "episode,t,a,action,c\nx,0,1,y,EU\nx,1,2,y,NA\nx,2,2,y,\n"
    data = kairode.load_table(rows_of(tmp_path, regions), categorical="c", missing="carry")
    np.testing.assert_allclose(data.observation[0, :, 1], [0, 1, 1])  # EU, NA, carried


def test_space_around_names_is_not_a_part_of_them(tmp_path):
    data = kairode.load_table(rows_of(tmp_path, "episode, t, a, action\nx ,0,1,y\nx,1,2, y\nx,2,2,y \n"))
    assert data.length.tolist() == [2]
    assert data.spec.actions.names == ("y",)
    data = kairode.load_table(columns(action=[-0.0, 0.0, 1.0, 0.0, None]))
    assert data.spec.actions.names == ("0",)


def test_actions_are_those_of_decisions():
    data = kairode.load_table(columns(action=["on", "off", "END", "on", "END"]))
    assert data.spec.actions.names == ("off", "on")
    np.testing.assert_array_equal(data.action, [[1, 0], [1, 0]])
    assert "Actions that no decision takes are left out: END." in data.spec.notes
    data = kairode.load_table(columns(action=[0.1, 0.2, 99.0, 0.1, -50.0]), controls="action")
    np.testing.assert_allclose((data.spec.actions.low, data.spec.actions.high), ((0.1,), (0.2,)))
    data = kairode.load_table(columns(action=np.array([0.1, 0.2, 0.1, 0.1, 0.2], np.float32)))
    assert data.spec.actions.names == ("0.1", "0.2")


def test_missing_values_in_a_reward_are_not_taken_for_true():
    options = {"reward": "where(E > 2, 1, -1)", "ignore": ["E"]}
    with pytest.raises(KairodeError, match=r"row 0, .* the reward of the decision .* \(and 1 more row\)"):
        kairode.load_table(columns(E=[1.0, None, 3.0, None, None]), **options)
    data = kairode.load_table(columns(E=[1.0, 1.0, 3.0, None, 9.0]), **options)
    np.testing.assert_array_equal(data.reward, [[-1, 1], [1, 0]])


def test_rewards_of_missing_values_from_the_last_ones():
    """The observations stay missing; the median stands before the first measurement."""
    given = columns(E=[None, 1.0, None, 4.0, None], a=[1.0, 2.0, 3.0, 4.0, 5.0])
    data = kairode.load_table(given, reward="E - 10 * before(E) + a", reward_missing="carry", ignore="reward")
    np.testing.assert_array_equal(data.reward, [[1 - 25 + 2, 1 - 10 + 3], [4 - 40 + 5, 0]])
    names = [one.name for one in data.spec.observations]
    assert np.isnan(np.asarray(data.observation)[0, 0, names.index("E")])
    assert any(note.startswith("3 rewards (100.0%) were computed from the last values") for note in data.spec.notes)
    whole = kairode.load_table(columns(), reward="1 * a", reward_missing="carry", ignore="reward")
    assert not any("rewards" in note for note in whole.spec.notes)


def test_long_times():
    """Durations of nanoseconds over years, and dates 400 years apart."""
    days = np.array([0, 200, 40_000, 0, 3], "timedelta64[D]")
    data = kairode.load_table(columns(t=pa.array(days.astype("timedelta64[ns]"))), time_unit="day")
    np.testing.assert_allclose(data.interval, [[200, 39_800], [3, 0]])
    dates = pa.array([datetime.datetime(y, 1, 1) for y in (1600, 1700, 2000, 1650, 1651)])
    np.testing.assert_allclose(kairode.load_table(columns(t=dates)).interval, [[36525, 109572], [365, 0]])


def test_ignored_columns_have_no_role():
    data = kairode.load_table(columns(terminated=[0, 0, 1, 0, 0]), ignore=["reward", "terminated"])
    assert not data.reward.any()
    assert not data.terminated.any()


def test_a_reward_function_sees_decisions_alone():
    seen = {}

    def reward(before, after, tau):
        seen.update(before=before["a"], after=after["a"], tau=tau)
        return tau

    kairode.load_table(columns(), reward=reward)
    np.testing.assert_array_equal(seen["before"], [1, 2, 4])
    np.testing.assert_array_equal(seen["after"], [2, 3, 5])
    np.testing.assert_array_equal(seen["tau"], [1.5, 0.5, 4.0])


def test_static_values_are_compared_before_rows_are_merged():
    same = {
        "episode": list("xxxxyy"),
        "t": [0.0, 1.0, 1.0, 1.0, 0.0, 4.0],
        "a": np.arange(6.0) % 4,
        "action": ["on"] * 6,
    }
    data = kairode.load_table({**same, "age": [0.1, 0.1, 0.1, 0.1, 5, 5]}, static="age", same_time="merge")
    np.testing.assert_allclose(data.observation[0, :, 1], 0.1)
    with pytest.raises(KairodeError, match="row 2, column 'age': a static column must not change"):
        kairode.load_table({**same, "age": [30.0, 30.0, 40.0, 30.0, 5, 5]}, static="age", same_time="merge")
    with pytest.raises(KairodeError, match="row 0, column 'dead': true before the last row"):
        kairode.load_table({**same, "dead": [1, 0, 0, 0, 0, 0]}, terminal="dead", same_time="merge")
    ended = kairode.load_table({**same, "dead": [0, 0, 1, 0, 0, 0]}, terminal="dead", same_time="merge")
    assert ended.terminated.tolist() == [True, False]


@pytest.mark.parametrize(
    ("changes", "options", "complaint"),
    [
        ({"a": ["1", "2", "inf", "4", "1e400"]}, {}, "row 2, column 'a': the number is infinite"),
        ({"a": ["1", "2", "1e39", "4", "5"]}, {}, "row 2, column 'a': 1e\\+39 exceeds single precision"),
        ({"a": ["1", "2", "1_000", "4", "5"]}, {}, "row 2, column 'a': '1_000' is not a number"),
        ({"a": ["1,5", "2,5", "3,5", "4,5", "5,5"]}, {}, "write decimals with a point"),
        ({"a": [""] * 5}, {}, "column 'a': all cells are empty"),
        ({}, {"reward": "a * 1e30 * 1e30"}, "row 0, column 'a \\* 1e30 \\* 1e30': the reward of the decision"),
        ({"t": [20240131, 20240201, 20240202, 20240101, 20240102]}, {}, "look like dates such as 20240131"),
        ({"t": [datetime.time(h) for h in range(5)]}, {}, "times of day without a date"),
        ({"d": [1.0] * 5}, {"action": "d", "controls": "a"}, "either action or controls"),
        ({"": [1.0] * 5}, {}, "column 5 has no name"),
        (
            {"c": [1.0, 2.0, 3.0, 4.0, None], "d": [1.0, None, 3.0, 4.0, 5.0]},
            {"controls": ["c", "d"], "ignore": "action"},
            "row 1, column 'd': the action is missing",
        ),
        (
            {"action": [np.inf, 1.0, 2.0, 1.0, 2.0], "a": [[1]] * 5},
            {"categorical": "a"},
            "names or numbers are required",
        ),
        ({}, {"reward": "a", "static": "a"}, "the column 'a' cannot be static and reward: choose one"),
        ({}, {"reward": "-" * 1900 + "a"}, "the expression"),
        ({}, {"reward": "a" + "+a" * 990}, "nested more than"),
        ({}, {"reward": "a*1" + "0" * 400}, "a number is too large"),
        ({}, {"reward": "1 * a", "reward_row": "end"}, "reward_row says where"),
        ({"reward": [1.0, None, 2.0, 1.0, 1.0]}, {"reward_row": "end"}, "row 1, column 'reward': the reward in this"),
        ({"tau": [1.0] * 5}, {"reward": "tau * 2"}, "tau is the interval"),
        ({}, {"reward": lambda before, after, tau: 1 / 0}, "the reward function failed"),
        ({}, {"static": None}, "static must be a column or a list of columns"),
        ({"end": ["1"] * 5}, {"terminal": "end"}, "it must be true in the last row alone"),
    ],
)
def test_more_that_is_wrong(changes, options, complaint):
    with pytest.raises(KairodeError, match=complaint):
        kairode.load_table(columns(**changes), **options)


def test_row_numbers_are_no_observation(tmp_path):
    lines = ["index,episode,t,a,action"] + [f"{i},{i // 4},{i % 4},{i * i % 7},x" for i in range(12)]
    with pytest.raises(KairodeError, match="column 'index': it holds the numbers of the rows"):
        kairode.load_table(rows_of(tmp_path, "\n".join(lines)))


def test_lines_are_named_where_they_are_those_of_the_rows(tmp_path):
    with pytest.raises(KairodeError, match=r"row 2 \(line 4\), column 'a': 'oops' is not a number"):
        kairode.load_table(rows_of(tmp_path, "episode,t,a,action\nx,0,1,y\nx,1,2,y\nx,2,oops,y\nx,3,4,y\n"))
    with pytest.raises(KairodeError, match=r"row 2, column 'a': 'oops' is not a number"):
        kairode.load_table(rows_of(tmp_path, "episode,t,a,action\nx,0,1,y\n\n\nx,1,2,y\nx,2,oops,y\nx,3,4,y\n"))


def test_names_of_actions_are_texts_whatever_the_spaces_of_the_header(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("episode, t, x, action\na,0,1.5,007\na,1,2.5,7\na,2,2.0,007\nb,0,1.0,7\nb,1,3.0,7\n")
    data = kairode.load_table(path, episode="episode", time="t", action="action")
    assert data.spec.actions.names == ("007", "7")


def test_a_compressed_file_is_measured_by_its_content(tmp_path, monkeypatch):
    path, asked = tmp_path / "visits.csv.gz", []
    text = "episode,t,x,action\n" + "".join(f"a,{t},0,b\n" for t in range(20_000))
    path.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr("kairode.data.tables.source.check_memory", lambda size, *_: asked.append(size))
    kairode.load_table(path, episode="episode", time="t", action="action")
    assert asked[0] >= len(text)


def test_numbers_beyond_64_bits_are_refused():
    with pytest.raises(KairodeError, match="cannot be read as a table"):
        kairode.load_table({"episode": ["a"] * 2, "t": [0, 1], "x": [2**70] * 2, "action": ["b"] * 2})


def test_a_file_in_our_format_with_continuous_actions_needs_no_description(tmp_path):
    path = tmp_path / "pumps.parquet"
    kairode.write(path, kairode.collect(kairode.make("pendulum", horizon=1.0), episodes=4, seed=0))
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    found, expected = read_episodes(path).data, kairode.read(path)
    np.testing.assert_array_equal(found.action, expected.action)
    assert found.spec.actions == expected.spec.actions


def test_a_reward_that_is_the_action_is_refused():
    with pytest.raises(KairodeError, match="cannot be action and reward"):
        kairode.load_table(columns(), reward="action")


def test_units_of_time_are_singular():
    assert kairode.load_table(columns(), time_unit="days").spec.time_unit == "day"


def test_spaces_around_the_name_of_the_reward():
    given = columns(gain=[1.0, 2.0, 3.0, 4.0, 5.0])
    data = kairode.load_table(given, reward=" gain ", ignore="reward")
    assert "gain" not in [variable.name for variable in data.spec.observations]


def test_categories_that_may_stand_for_missing_values_are_named():
    """NA may be a region."""
    data = kairode.load_table(columns(kind=["EU", "NA", "EU", "NA", "EU"]), categorical="kind")
    assert any(note.startswith("'NA' is a category of 'kind': empty these cells") for note in data.spec.notes)


def test_doses_are_pointed_to_controls():
    size = 50
    given = {"episode": [0] * size, "t": np.arange(size), "x": np.arange(size) ** 2.0, "action": np.arange(size) / 7}
    assert any("give it as controls" in note for note in kairode.load_table(given).spec.notes)


@pytest.mark.parametrize(
    ("encoding", "complaint"), [("utf-16", "UTF-16, as spreadsheets save it"), ("latin-1", "the names of the columns")]
)
def test_other_encodings_are_named(tmp_path, encoding, complaint):
    (tmp_path / "visits.csv").write_bytes("episode,t,größe,action\n0,0,1,a\n0,1,2,b\n".encode(encoding))
    with pytest.raises(KairodeError, match=complaint):
        kairode.load_table(tmp_path / "visits.csv")


@pytest.mark.parametrize(
    ("first", "last"), [("1", "1.5"), ("", "2"), ("1.5", ""), ("2", "two"), ("2024-01-01", "2024-01-02 10:30:00.5")]
)
def test_types_are_those_of_all_rows_of_a_csv_file(tmp_path, first, last):
    """Also of a file whose first megabyte has others."""
    path, rows = tmp_path / "long.csv", 80_000
    lines = [f"{i // 10},{i % 10},{0.5 * i},{first},{'ab'[i % 2]}" for i in range(rows)]
    lines[-1] = f"{rows // 10 - 1},9,0.5,{last},a"
    path.write_text("\n".join(["episode,t,x,z,action", *lines]) + "\n")
    assert path.stat().st_size > 2**20
    _, found, _ = read_source(path, ("episode", "action"))
    with pa.input_stream(str(path)) as file:
        options = pacsv.ConvertOptions(
            null_values=sorted(NOTHING),
            strings_can_be_null=False,
            column_types={"episode": pa.string(), "action": pa.string()},
        )
        expected = pacsv.read_csv(file, pacsv.ReadOptions(use_threads=False), convert_options=options)
    assert found.equals(expected)
