"""Records of new episodes, loaded as those were that a policy was learned from."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kairode as kd
from kairode.config.tables import TableConfig
from kairode.data.tables.histories import load_histories
from kairode.envs.core import Spec
from kairode.errors import KairodeError

CONFIG = TableConfig(
    episode="who", time="when", action=("drug",), static=("sex", "age"), categorical=("sex", "site"), reward="gain"
)

OPTIONS: dict[str, Any] = {"episode": "who", "time": "when", "action": "drug", "reward": "gain"}
OPTIONS |= {"static": ["sex", "age"], "categorical": ["sex", "site"]}


def table(**columns: Any) -> dict[str, Any]:
    given = {
        "who": [1, 1, 1, 2, 2],
        "when": np.array(["2024-01-01", "2024-01-03", "2024-01-04", "2024-02-01", "2024-02-05"], "datetime64[us]"),
        "x": [1.0, 2.0, 3.0, 4.0, 5.0],
        "site": ["n", "s", "w", "s", "n"],
        "y": [0.0, np.nan, 1.0, 0.5, 0.1],
        "sex": ["F", "F", "F", "M", "M"],
        "age": [50, 50, 50, 60, 60],
        "drug": ["a", "b", "a", "b", "a"],
        "gain": [1.0, 2.0, 3.0, 4.0, 5.0],
    }
    return {name: column for name, column in {**given, **columns}.items() if column is not None}


@pytest.fixture(scope="module")
def spec() -> Spec:
    return kd.load_table(table(), **OPTIONS).spec


def loaded(spec: Spec, given: Any, **options: Any) -> Any:
    return load_histories(given, dataclasses.replace(CONFIG, **options), spec)


def test_the_same_table_gives_the_same_episodes(spec: Spec) -> None:
    data = kd.load_table(table(), **OPTIONS)
    found = loaded(spec, table())
    for name in ("observation", "action", "interval", "length"):
        np.testing.assert_array_equal(getattr(found.data, name), getattr(data, name))
    assert found.names == ["1", "2"]
    assert not found.warnings
    assert (found.date(0, 5.0), found.date(1, 0.0)) == ("2024-01-06", "2024-02-01")
    assert found.date(0, 0.25) == "2024-01-01"


def test_a_file_with_less_than_the_table(spec: Spec, tmp_path: Path) -> None:
    """No rewards, no episodes, no column y, categories and actions in another order, the current action empty."""
    path = tmp_path / "new.csv"
    path.write_text("drug,site,sex,when,x,age\nb,w,M,2024-03-01 08:00,1.5,40\n,,,2024-03-09 20:00,,\n")
    found = loaded(spec, path)
    names = [variable.name for variable in spec.observations]
    assert names == ["x", "site=n", "site=s", "site=w", "y", "sex=M", "age"]
    nan = np.nan
    np.testing.assert_array_equal(
        found.data.observation[0], [[1.5, 0, 0, 1, nan, 1, 40], [nan, nan, nan, nan, nan, 1, 40]]
    )
    np.testing.assert_array_equal(found.data.action, [[1]])
    np.testing.assert_array_equal(found.data.interval, [[8.5]])
    assert found.names == ["new"]
    assert found.date(0, 8.5) == "2024-03-09T20:00:00"
    assert found.warnings == ["there is no column y: it counts as not measured"]


def test_a_single_row_is_a_first_visit(spec: Spec) -> None:
    for drug in (None, [None], [""], ["a"]):
        row = {"who": [7], "when": ["2024-01-01"], "x": [1.0], "sex": ["F"], "z": [1]}
        found = loaded(spec, row if drug is None else {**row, "drug": drug})
        assert found.data.length.tolist() == [0]
        np.testing.assert_array_equal(found.data.observation[0, 0], [1.0, *[np.nan] * 4, 0.0, np.nan])
        assert "columns that were not learned from are not used: z" in found.warnings


def test_numbers_as_names() -> None:
    """Of a data frame, in which categories and actions were whole numbers, and are fractions now."""
    given = {"episode": [0, 0, 0], "t": [0.0, 1.0, 2.0], "x": [1.0, 2.0, 3.0], "arm": [0, 1, 2], "action": [1, 3, 1]}
    spec = kd.load_table(given, categorical=["arm"]).spec
    new = {"episode": [5, 5], "t": [10.0, 14.0], "x": [1.0, 1.0], "arm": [2.0, np.nan], "action": [3.0, np.nan]}
    found = load_histories(new, TableConfig(categorical=("arm",)), spec)
    np.testing.assert_array_equal(found.data.action, [[1]])
    np.testing.assert_array_equal(found.data.observation[0, :, 1:], [[0, 0, 1], [np.nan] * 3])
    assert found.origins == [10.0]
    assert found.date(0, 1.0) is None


def test_an_episode_that_has_ended(spec: Spec) -> None:
    found = loaded(spec, table(died=[0, 0, 1, None, None]), terminal="died")
    assert found.data.terminated.tolist() == [True, False]
    with pytest.raises(KairodeError, match="row 1, column 'died': true before the last row"):
        loaded(spec, table(died=[0, 1, 0, 0, 0]), terminal="died")


def test_numbers_in_combinations_of_actions() -> None:
    """pandas writes whole numbers as fractions once a cell of their column is empty."""
    rows = {"episode": [0] * 4, "t": [0.0, 1.0, 2.0, 3.0], "x": [1.0] * 4}
    spec = kd.load_table({**rows, "speed": [1, 2, 1, 2], "rinse": [0, 0, 1, 1]}, action=["speed", "rinse"]).spec
    new = {**rows, "speed": [2.0, 1.0, 1.0, np.nan], "rinse": [0.0, 1.0, 0.0, np.nan]}
    found = load_histories(new, TableConfig(action=("speed", "rinse")), spec)
    names = [spec.actions.names[i] for i in found.data.action[0]]
    assert names == ["speed=2, rinse=0", "speed=1, rinse=1", "speed=1, rinse=0"]
    with pytest.raises(KairodeError, match=r"'speed=3, rinse=0' is no action .* 'speed=1, rinse=0', 'speed="):
        load_histories({**new, "speed": [3.0, 1.0, 1.0, np.nan]}, TableConfig(action=("speed", "rinse")), spec)


def test_controls_and_merged_rows() -> None:
    config = TableConfig(controls=("dose",), action=(), same_time="merge", missing="carry")
    given = {"episode": [0, 0, 0], "t": [0.0, 1.0, 2.0], "x": [1.0, 2.0, 3.0], "dose": [0.5, 1.0, 0.0]}
    spec = kd.load_table(given, controls=["dose"], action=[]).spec
    new = {"episode": [1, 1, 1], "t": [0, 0, 3], "x": [1.0, 3.0, None], "dose": [0.2, 0.4, None]}
    found = load_histories(new, config, spec)
    np.testing.assert_allclose(found.data.action, [[[0.3]]])
    np.testing.assert_array_equal(found.data.observation[0, :, 0], [2.0, 2.0])  # carried, as the table was


def test_all_faults_are_named_together(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text(
        "who,when,x,site,sex,age,drug\np,2024-01-01,high,n,F,50,zzz\np,2024-01-02,1,e,F,51,\np,2024-01-03,2,n,F,50,\n"
    )
    with pytest.raises(KairodeError) as found:
        loaded(spec, path)
    said = str(found.value)
    assert "new.csv: 4 faults" in said
    for text in (
        "row 0 (line 2), column 'x': 'high' is not a number",
        "row 1 (line 3), column 'site': 'e' is no category that was learned from: use one of n, s, w",
        "row 0 (line 2), column 'drug': 'zzz' is no action that was learned from: use one of a, b",
        "row 1 (line 3), column 'age': a static column must not change",
    ):
        assert text in said


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"when": None}, "column 'when': there is no such column, and times are needed"),
        ({"drug": None}, "column 'drug': the action is missing"),
        ({"when": ["yesterday"] * 5}, "'yesterday' is not a time"),
        ({"when": [0.0, 0.0, 1.0, 0.0, 1.0]}, "the row has the same time as another of its episode"),
        ({"who": [1, 1, None, 2, 2]}, "the episode is missing"),
        ({"x": [np.inf] * 5}, "the number is infinite"),
    ],
)
def test_what_cannot_be_loaded(spec: Spec, columns: dict[str, Any], complaint: str) -> None:
    with pytest.raises(KairodeError, match=complaint):
        loaded(spec, table(**columns))


def test_dates_where_times_are_numbers() -> None:
    given = {"episode": [0, 0, 0], "t": [0.0, 1.0, 2.0], "x": [1.0, 2.0, 3.0], "action": ["a", "b", "a"]}
    spec = kd.load_table(given).spec
    with pytest.raises(KairodeError, match="times are numbers in time units where it was learned from, not dates"):
        load_histories({**given, "t": ["2024-01-01", "2024-01-02", "2024-01-03"]}, TableConfig(), spec)
