"""Records of earlier formats, read as today's: those in `records/` are of format 0, as they were published."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import kairode
from kairode.data.describe import spec_from_dict, spec_to_dict
from kairode.errors import KairodeError
from kairode.paper.returns import table_cell
from kairode.report.compare import key_figures
from kairode.report.mpc import mpc_sentence, return_over_seeds
from kairode.report.summary import summary_sentences
from kairode.result import Result, objective_of, short_number
from kairode.runs import labels
from kairode.runs.migrate import (
    FORMAT,
    RENAMED,
    accrued_figures,
    evaluation_figures,
    migrate_figures,
    migrate_record,
    migrate_spec,
    study_cell,
)
from kairode.runs.record import read_record
from kairode.stats import iqm, mean, std

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
OLD = Path(__file__).parent / "records"
PUBLISHED = {
    "run": "run-hiv",
    "runs": "run-hiv-seeds",
    "rounds": "policies/rounds-hiv-0",
    "control": "control/hopper-ode-rnn",
    "schedule-hiv": "schedule-hiv",
    "schedule-acrobot": "schedule-acrobot",
    "visits": "visits/hiv-once-rounds",
    "study-hiv": "policies/ours-hiv",
    "study-gridworld": "policies/ours-gridworld",
    "table1": "table1/acrobot-rnn",
}
"""The same records where they are today."""


def load(path: Path) -> Any:
    return json.loads(path.read_text())


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


def test_row_of_a_schedule() -> None:
    old = {"return": 5.0, "plain": 50.0, "visits": 10.0, "healthy": 0.5, "reached": 0.0, "time": 100.0}
    old |= {"low": 4.0, "high": 6.0, "decision_penalty": 2.0}
    new = accrued_figures(old, discounted=True, episodes=20)
    assert (new["objective"], new[new["objective"]]) == ("discounted_accrued_return", 5.0)
    assert (new["accrued_return"], new["return"], new["decisions"]) == (50.0, None, 10.0)
    assert (new["measures"], new["decision_penalty"], new["episodes"]) == ({"healthy": 0.5}, 2.0, 20)
    assert not {"plain", "visits", "reached", "healthy"} & set(new)
    other = accrued_figures({**old, "low": 40.0, "high": 60.0}, discounted=False)
    assert (other["objective"], other[other["objective"]]) == ("accrued_return", 50.0)


def test_of_several_seeds() -> None:
    shared: dict[str, Any] = {"healthy": [None, None], "reached": [0.0, 1.0], "time": [9.0, 8.0]}
    point = accrued_figures(
        {"return": [1.0, 3.0], "plain": [2.0, 6.0], "visits": [5.0, 7.0], **shared}, discounted=True
    )
    assert (point["discounted_accrued_return"], point["std"], point["measures"]) == ([1.0, 3.0], 1.0, {})
    old = {"values": [2.0, 6.0], "low": 2.0, "high": 6.0, "decisions": [1.0, 1.0], "diverged": [False, True], **shared}
    cell = study_cell(old, discounted=False)
    assert (cell["return"], cell["iqm"], cell["diverged"]) == ([2.0, 6.0], 4.0, [False, True])
    assert str(Result.from_figures(cell)) == "return 4 (95 % CI 2 to 6), 1 decisions per episode, 50 % terminated"
    missing = study_cell({**old, "values": [2.0, None], "low": None, "high": None}, discounted=False)
    assert (missing["std"], missing["low"]) == (None, None)


def old_and_new(old: Any, new: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of results anywhere in two records."""
    if isinstance(new, dict) and "objective" in new:
        return [(old, new)]
    if isinstance(new, dict):
        return [pair for name in new if name in old for pair in old_and_new(old[name], new[name])]
    if isinstance(new, list):
        return [pair for a, b in zip(old, new, strict=True) for pair in old_and_new(a, b)]
    return []


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"table1", "runs"}))
def test_results_of_old_records(name: str) -> None:
    old = load(OLD / f"{name}.json")
    assert "format" not in old
    new = migrate_record(old)
    assert new["format"] == FORMAT
    assert migrate_record(new) == new, "twice is as once"
    pairs = old_and_new(old["figures"], new["figures"])
    assert pairs
    for before, after in pairs:
        Result.from_figures(after)
        value = objective_of(after)
        assert after["objective"].startswith("discounted") == ("acrobot" not in name and name not in UNDISCOUNTED)
        assert ("accrued" in after["objective"]) == ("plain" in before)
        assert after["terminated"] == before.get("reached")
        assert after["decisions"] == before.get("visits", before.get("decisions"))
        assert set(before) & {"number", "diverged"} <= set(after)
        renamed = {RENAMED[key] for key in set(before) & set(RENAMED)}
        assert renamed <= set(after)
        if "return_low" in before:
            assert (value, after["low"], after["std"]) == (
                before["return"],
                before["return_low"],
                before["return_std"],
            )
        elif "values" in before:
            assert value == before["values"]
            assert (after["low"], after["high"]) == (before["low"], before["high"])
            assert (after["std"], after["iqm"]) == (std(value), iqm(value))
        else:
            assert after["discounted_accrued_return"] == before["return"]
            assert after["accrued_return"] == before["plain"]
        slack = 1e-4 * abs(mean(value))  # studies keep five digits
        assert after["low"] - slack <= mean(value) <= after["high"] + slack


UNDISCOUNTED = ("control", "study-gridworld")


@pytest.mark.parametrize("name", PUBLISHED)
def test_old_records_are_those_published(name: str) -> None:
    """But for what was left out of them to be short, and for configs, which are compared elsewhere."""
    old, new = read_record(OLD / f"{name}.json"), read_record(RESULTS / f"{PUBLISHED[name]}.json")
    assert set(old) == set(new)
    if name in ("run", "runs"):  # made again since
        assert set(old["figures"]) <= set(new["figures"])
        return
    same = {key for key in old["figures"] if old["figures"][key] == new["figures"][key]}
    short = {"rounds": {"rounds"}}.get(name, set())
    assert set(old["figures"]) - same <= short


def test_reports_of_old_records() -> None:
    run = read_record(OLD / "run.json")
    policy = load(OLD / "run.json")["figures"]["tests"]["imagination"]["return"]
    assert f"a mean discounted return of {short_number(policy)}: above random actions" in summary_sentences(run)[0]
    assert key_figures(run)["policy"] == policy
    before = load(OLD / "control.json")
    control = read_record(OLD / "control.json")
    assert return_over_seeds(control) == (before["figures"]["return"], before["figures"]["return_std"])
    assert f"mean return of {before['figures']['return']:.4g} on 'hopper'" in mpc_sentence(control)


def test_tables_from_old_records(tmp_path: Path) -> None:
    for name, env in (("study-hiv", "hiv"), ("study-gridworld", "gridworld")):
        shutil.copy(OLD / f"{name}.json", tmp_path / f"ours-{env}.json")
        for tau in (0.0, {"hiv": 5.0, "gridworld": 7.0}[env]):
            mine = table_cell(tmp_path, "ours", env, "latent-ode", tau)
            assert mine is not None
            assert mine == table_cell(RESULTS / "policies", "ours", env, "latent-ode", tau)
            assert mine["mean"] == mean(objective_of(mine))


@pytest.mark.parametrize("name", ["run", "schedule-hiv", "schedule-acrobot"])
def test_rows_say_what_they_are(name: str) -> None:
    new = read_record(OLD / f"{name}.json")["figures"]
    tables = [new.get("tests", {})]
    for part in (new, new.get("visits", {})):
        tables += [part.get("rows", {}), part.get("usual", {})]
    assert sum(map(len, tables)) > 8
    for table in tables:
        assert [labels.label(one) for one in table.values()] == list(table)
    assert new.get("rows", new.get("visits", {}).get("rows"))["own"]["kind"] == "own"


def test_a_part_of_a_run_that_an_older_version_did() -> None:
    """Its tests were done before, its visits are done today: figures of both in one record."""
    old = load(OLD / "run.json")
    whole = migrate_record(old)["figures"]
    mixed = {**old["figures"], "visits": whole["visits"], "spec": whole["spec"]}
    assert migrate_figures("run", mixed, old["config"]) == whole
    assert migrate_figures("rounds", {"rounds": []}, {"env": "hiv"}) == {"rounds": []}


@pytest.mark.parametrize("name", ["hiv", "hiv-partial", "gridworld"])
def test_specs(name: str) -> None:
    """An old description of a system, completed, is that of the system today."""
    spec = kairode.make(name).task.spec
    today = json.loads(json.dumps(spec_to_dict(spec)))
    new = ("discounted_objective", "subject", "measures", "regimes", "map_axes")
    old = {key: value for key, value in today.items() if key not in new}
    old |= {"judged_discounted": spec.discounted_objective}
    assert spec_from_dict(old) == spec
    if name == "gridworld":
        old["decision_name"] = "decision"
    else:
        del old["decision_name"]
    assert migrate_spec(old) == today
    assert migrate_spec(today) == today
    back = spec_from_dict(migrate_spec(old))
    assert (back.subject, back.measures, back.regimes) == (spec.subject, spec.measures, spec.regimes)
    assert (back.decision_name, back.map_axes) == (spec.decision_name, spec.map_axes)


def test_published_records_are_in_todays_format(tmp_path: Path) -> None:
    """`tools/migrate_records.py` leaves them alone, and makes today's of old ones."""
    spec = importlib.util.spec_from_file_location("migrate_records", ROOT / "tools" / "migrate_records.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    records = [path for path in RESULTS.rglob("*.json") if "figures" in load(path)]
    assert len(records) > 100
    for path in records:
        assert read_record(path) == load(path), f"{path}: run tools/migrate_records.py"
    shutil.copytree(OLD, tmp_path / "records")
    assert len(tool.migrate_folder(tmp_path / "records")) == len(PUBLISHED)
    # Defaults have changed since.
    newer = "--fit-iterations 3000 --solver midpoint:2 --consistency 0 --learn.no-sample-intervals "
    newer += "--learn.dqn.hidden 256 512"
    command = f"kairode run hiv {newer} --out runs/hiv-latent-ode-seed0"
    assert load(tmp_path / "records" / "run.json") == {**read_record(OLD / "run.json"), "command": command}
    assert tool.migrate_folder(tmp_path / "records") == []


def test_no_result_of_the_old_form_is_published() -> None:
    def keys(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {name for part in value.values() for name in keys(part)}
        return {name for part in value for name in keys(part)} if isinstance(value, list) else set()

    for path in RESULTS.rglob("*.json"):
        made = load(path)
        if made["kind"] in ("run", "runs", "rounds", "control", "schedule", "visits", "study"):
            old = {"return_low", "return_high", "return_std", "plain", "reached", "judged_discounted"}
            assert not keys(made["figures"]) & old, path


def test_what_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(KairodeError, match="does not exist"):
        read_record(tmp_path / "record.json")
    (tmp_path / "record.json").write_text("{")
    with pytest.raises(KairodeError, match="is damaged"):
        read_record(tmp_path / "record.json")
    (tmp_path / "record.json").write_text("[]")
    with pytest.raises(KairodeError, match="is not a record"):
        read_record(tmp_path / "record.json")
