"""The result of an evaluation, and those of older records in its form."""

import json
from pathlib import Path
from typing import Any

import pytest

from kairode.errors import KairodeError
from kairode.records_migration import evaluation_figures, migrate_record, schedule_row, study_cell, visits_point
from kairode.result import RETURNS, Result, Spread, objective_name, short_number
from kairode.stats import iqm, mean, std

RESULTS = Path(__file__).parents[1] / "results"
RESULT = Result(
    objective="discounted_return",
    returns={"return": 9e9, "discounted_return": 7.2e8},
    spread=Spread(1e7, 7.25e8, 7.1e8, 7.3e8),
    decisions=200.0,
    time=1000.0,
    terminated=1.0,
    measures={"healthy": 0.34},
    episodes=100,
)


def test_in_words() -> None:
    said = "discounted return 7.2e8 (95 % CI 7.1e8 to 7.3e8), 100 episodes, 34 % of the time healthy, 100 % terminated"
    assert str(RESULT) == said


def test_in_a_record() -> None:
    figures = RESULT.figures()
    assert list(figures)[:5] == ["objective", *RETURNS]
    assert figures["accrued_return"] is None
    assert figures["return"] == 9e9
    assert RESULT.value == 7.2e8
    assert Result.from_figures(json.loads(json.dumps(figures))) == RESULT


def test_names_of_returns() -> None:
    names = [objective_name(discounted=d, accrued=a) for a in (False, True) for d in (False, True)]
    assert tuple(names) == RETURNS
    with pytest.raises(KairodeError, match="no return 'plain'"):
        Result("return", {"plain": 1.0}, Spread(), 1.0, 1.0, 0.0, {}, 1)


def test_numbers_in_words() -> None:
    assert [short_number(x) for x in (7.2e8, -1.5e-5, 12.3456, 0.0, 1e10)] == ["7.2e8", "-1.5e-5", "12.35", "0", "1e10"]


def test_figures_of_an_evaluation() -> None:
    old = {"return": 5.0, "return_std": 1.0, "return_low": 4.0, "return_high": 6.0, "decisions": 3.0, "time": 9.0}
    old |= {"reached": 0.25, "healthy": None, "discounted": True, "episodes": 20, "number": 7}
    new = evaluation_figures(old)
    expected = {"objective": "discounted_return", "return": None, "discounted_return": 5.0, "accrued_return": None}
    expected |= {"discounted_accrued_return": None, "std": 1.0, "iqm": None, "low": 4.0, "high": 6.0, "decisions": 3.0}
    expected |= {"time": 9.0, "terminated": 0.25, "measures": {}, "episodes": 20, "number": 7}
    assert new == expected
    assert evaluation_figures(new) == new
    assert evaluation_figures({**old, "discounted": False})["return"] == 5.0
    assert evaluation_figures(old, accrued=True)["discounted_accrued_return"] == 5.0


def test_row_of_a_schedule() -> None:
    old = {"return": 5.0, "plain": 50.0, "visits": 10.0, "healthy": 0.5, "reached": 0.0, "time": 100.0}
    old |= {"low": 4.0, "high": 6.0, "shadow_price": 2.0}
    new = schedule_row(old, discounted=True, episodes=20)
    assert (new["objective"], new[new["objective"]]) == ("discounted_accrued_return", 5.0)
    assert (new["accrued_return"], new["return"], new["decisions"]) == (50.0, None, 10.0)
    assert (new["measures"], new["shadow_price"], new["episodes"]) == ({"healthy": 0.5}, 2.0, 20)
    assert not {"plain", "visits", "reached", "healthy"} & set(new)
    other = schedule_row({**old, "low": 40.0, "high": 60.0}, discounted=False)
    assert (other["objective"], other[other["objective"]]) == ("accrued_return", 50.0)


def test_of_several_seeds() -> None:
    shared: dict[str, Any] = {"healthy": [None, None], "reached": [0.0, 1.0], "time": [9.0, 8.0]}
    point = visits_point({"return": [1.0, 3.0], "plain": [2.0, 6.0], "visits": [5.0, 7.0], **shared}, discounted=True)
    assert (point["discounted_accrued_return"], point["std"], point["measures"]) == ([1.0, 3.0], 1.0, {})
    old = {"values": [2.0, 6.0], "low": 2.0, "high": 6.0, "decisions": [1.0, 1.0], "diverged": [False, True], **shared}
    cell = study_cell(old, discounted=False)
    assert (cell["return"], cell["iqm"], cell["diverged"]) == ([2.0, 6.0], 4.0, [False, True])
    assert str(Result.from_figures(cell)) == "return 4 (95 % CI 2 to 6), 50 % terminated"
    missing = study_cell({**old, "values": [2.0, None], "low": None, "high": None}, discounted=False)
    assert (missing["std"], missing["low"]) == (None, None)


def records(kind: str) -> dict[str, dict[str, Any]]:
    found = {path: json.loads(path.read_text()) for path in sorted(RESULTS.rglob("*.json"))}
    return {str(path): made for path, made in found.items() if made.get("kind") == kind}


def old_and_new(old: Any, new: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of results anywhere in two records."""
    if isinstance(new, dict) and "objective" in new:
        return [(old, new)]
    if isinstance(new, dict):
        return [pair for name in new for pair in old_and_new(old[name], new[name])]
    if isinstance(new, list):
        return [pair for a, b in zip(old, new, strict=True) for pair in old_and_new(a, b)]
    return []


@pytest.mark.parametrize("kind", ["run", "rounds", "control", "schedule", "visits", "study"])
def test_committed_records(kind: str) -> None:
    made = records(kind)
    assert made
    for path, record in made.items():
        new = migrate_record(record)
        pairs = old_and_new(record["figures"], new["figures"])
        assert pairs, path
        assert migrate_record(new) == new, f"{path}: twice is as once"
        assert {**new, "figures": None} == {**record, "figures": None}
        for before, after in pairs:
            Result.from_figures(after)
            value = after[after["objective"]]
            assert after["terminated"] == before.get("reached")
            assert after["decisions"] == before.get("visits", before.get("decisions"))
            assert set(before) & {"number", "shadow_price", "diverged", "practice_episodes"} <= set(after)
            if "return_low" in before:
                assert (value, after["low"], after["std"]) == (
                    before["return"], before["return_low"], before["return_std"],
                )  # fmt: skip
            elif kind == "study":
                assert value == before["values"]
                assert (after["low"], after["high"]) == (before["low"], before["high"])
                if None not in value:
                    assert (after["std"], after["iqm"]) == (std(value), iqm(value))
            else:
                assert after["discounted_accrued_return"] == before["return"]
                assert after["accrued_return"] == before["plain"]
            if after["low"] is not None and None not in (value if isinstance(value, list) else [value]):
                slack = 1e-4 * abs(mean(value))  # studies keep five digits
                assert after["low"] - slack <= mean(value) <= after["high"] + slack


def test_objectives_of_committed_records() -> None:
    """HIV is evaluated by discounted returns, all others by the sum of rewards."""
    for kind in ("run", "rounds", "control", "schedule", "visits", "study"):
        for path, record in records(kind).items():
            for before, after in old_and_new(record["figures"], migrate_record(record)["figures"]):
                assert after["objective"].startswith("discounted") == ("hiv" in path), path
                assert ("accrued" in after["objective"]) == ("plain" in before), path


def test_no_result_of_the_old_form_is_left() -> None:
    def keys(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {name for part in value.values() for name in keys(part)}
        return {name for part in value for name in keys(part)} if isinstance(value, list) else set()

    for kind in ("run", "rounds", "schedule", "visits", "study"):
        for path, record in records(kind).items():
            old = {"return_low", "return_high", "return_std", "plain", "reached"}
            assert not keys(migrate_record(record)["figures"]) & old, path


def test_other_records_stay() -> None:
    for kind in ("table1", "runs", "bench"):
        for record in records(kind).values():
            assert migrate_record(record) == record
