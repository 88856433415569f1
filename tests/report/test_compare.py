"""Runs that differ by their seeds, taken together."""

import copy
import json
from pathlib import Path

import pytest

from kairode.errors import KairodeError
from kairode.report.compare import compare_runs, comparison_sentence, runs_table

ROOT = Path(__file__).parents[2]
ACCRUED = "discounted_accrued_return"


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    """The published run, and another one that returned half as much."""
    made = json.loads((ROOT / "results" / "run-hiv.json").read_text())
    for course in (*made["figures"]["courses"].values(), made["figures"]["visits"]["course"]):
        course["variables"] = [{**course["variables"][0], "log": False}]  # drawn sooner
    other = copy.deepcopy(made)
    other["seed"] = other["config"]["seed"] = 1
    tests = other["figures"]["tests"]
    tests["imagination"]["discounted_return"] /= 2
    tests["model-free"]["discounted_return"] = 1e12
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, one in zip(folders, (made, other), strict=True):
        folder.mkdir()
        (folder / "record.json").write_text(json.dumps(one))
    return folders


def test_mean_spread_and_sentence(runs) -> None:
    made = compare_runs(runs)
    first = json.loads((runs[0] / "record.json").read_text())["figures"]
    mine = first["tests"]["imagination"]["discounted_return"]
    assert made["config"]["seed"] == [0, 1]
    assert made["figures"]["mean"]["policy"] == pytest.approx(0.75 * mine)
    assert made["figures"]["std"]["policy"] == pytest.approx(0.25 * mine)
    one = made["figures"]["runs"][0]
    rows, usual = first["visits"]["rows"], first["visits"]["usual"]
    assert (one["visits"], one["chosen"]) == (rows["price 0"]["decisions"], rows["price 0"][ACCRUED])
    assert one["fixed"] == max(rows["every 1"][ACCRUED], usual["every 1"][ACCRUED])
    rare = [row[name][ACCRUED] for row in (rows, usual) for name in ("every 5", "every 6", "every 7")]
    assert one["as few"] == max(rare), "229 visits in 1000 days: every five days at most"
    assert [row.cells[0].text for row in runs_table(made).rows] == ["seed 0", "seed 1", "mean", "std"]
    assert comparison_sentence(made) == (
        "The policy has a higher return than the best constant policy in 2 of 2 runs, than the model-free policy in 1 "
        "of 2; chosen visits have a higher return than fixed intervals with as few visits in 2 of 2."
    )


def test_only_seeds_may_differ(runs) -> None:
    with pytest.raises(KairodeError, match="same seed"):
        compare_runs([runs[0], runs[0]])
    other = json.loads((runs[1] / "record.json").read_text())
    other["config"]["ensemble_size"] = 2
    (runs[1] / "record.json").write_text(json.dumps(other))
    with pytest.raises(KairodeError, match="differ by more than their seeds"):
        compare_runs(runs)


@pytest.mark.slow
def test_report_of_several_runs(typed, runs, tmp_path) -> None:
    path = tmp_path / "seeds.json"
    code, out, err = typed("report", *map(str, runs), "--record", str(path))
    assert code == 0, err
    assert "best constant" in out
    assert json.loads(path.read_text())["kind"] == "runs"
    code, _, err = typed("report", str(runs[0]), "--record", str(path))
    assert (code, err) == (2, "error: --record needs two or more runs.\n")
