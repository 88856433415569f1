"""What is in a table, against NumPy; and every warning on a table made for it, and none on a good one."""

import datetime
import itertools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kairode
from kairode.config.tables import TableConfig
from kairode.data.tables.inspect import inspect_table
from kairode.data.tables.load import load_rows
from kairode.data.tables.warnings import _correlations

EPISODES, ROWS = 60, 12


def table(**changes: Any) -> dict[str, Any]:
    """Two variables, two random actions, unequal intervals."""
    rng = np.random.default_rng(0)
    size = EPISODES * ROWS
    found = {
        "episode": np.repeat(np.arange(EPISODES), ROWS),
        "t": np.concatenate([np.cumsum(rng.integers(1, 6, ROWS)) for _ in range(EPISODES)]),
        "x": rng.normal(size=size),
        "y": rng.normal(5.0, 2.0, size),
        "action": rng.choice(["on", "off"], size),
        "reward": rng.normal(size=size),
    }
    return {**found, **changes}


def inspected(given: dict[str, Any], **config: Any) -> dict[str, Any]:
    return inspect_table(load_rows(given, TableConfig(**config), keep_missing=True), "visits.csv")


def test_figures_are_those_of_numpy():
    given = table()
    given["x"] = np.where(np.arange(len(given["x"])) % 5 == 0, np.nan, given["x"])
    found = json.loads(json.dumps(inspected(given)))
    assert (found["episodes"], found["decisions"]) == (EPISODES, EPISODES * (ROWS - 1))
    assert found["variables"]["x"]["missing"] == pytest.approx(0.2)
    assert found["variables"]["x"]["mean"] == pytest.approx(np.nanmean(given["x"]), rel=1e-5)
    assert found["variables"]["y"]["quantiles"]["0.5"] == pytest.approx(np.median(given["y"]), rel=1e-5)
    decided = np.arange(EPISODES * ROWS) % ROWS < ROWS - 1
    taken = (given["action"] == "on") & decided
    assert found["actions"]["on"]["count"] == taken.sum()
    assert found["actions"]["on"]["before"]["y"] == pytest.approx(given["y"][taken].mean(), rel=1e-5)
    assert found["intervals"]["mean"] == pytest.approx(np.diff(given["t"])[decided[:-1]].mean(), rel=1e-6)
    assert found["rewards"]["mean"] == pytest.approx(given["reward"][decided].mean(), rel=1e-4)
    assert found["warnings"] == []


def test_warnings_of_a_statistician():
    good = table()
    size = len(good["x"])
    length = np.repeat(np.random.default_rng(1).integers(3, ROWS + 1, EPISODES), ROWS)
    kept = np.tile(np.arange(ROWS), EPISODES) < length
    shifted = np.append(good["y"][1:], 0.0)
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"action": np.where(good["x"] > 0.3, "on", "off")},
            "Confounding by indication: 'on' is taken when x is higher",
        ),
        ({"action": np.where(good["x"] > 0.3, "on", good["action"])}, "'off' is never taken where x is"),
        ({"action": np.full(size, "on")}, "The action is always 'on'"),
        ({"action": np.repeat(["on", "off"] * (EPISODES // 2), ROWS)}, "The action never changes within an episode"),
        ({"z": good["reward"] * 2 + 1}, "'z' determines the reward of the same decision"),
        ({"z": shifted}, "'z' is the value that 'y' has one row later"),
        ({name: column[kept] for name, column in {**good, "stay": length * 2.0}.items()}, "'stay' tells the length"),
        ({name: column[: 5 * ROWS] for name, column in good.items()}, "5 episodes are few for 2 variables"),
        (
            {"x": np.where(np.arange(size) == 7, 1e30, good["x"])},
            "Variable 'x': 1e30 (episode 0, observation 7, row 7 of",
        ),
    ]
    for changes, expected in cases:
        found = inspected({**good, **changes})["warnings"]
        assert any(expected in text for text in found), (expected, found)


def test_a_clock_change_is_noticed():
    start = datetime.datetime(2024, 3, 1, 8)
    days = np.tile(np.arange(ROWS), EPISODES)
    moments = [
        start + datetime.timedelta(days=int(day), hours=int(day >= 6 and i // ROWS % 5 == 0))
        for i, day in enumerate(days)
    ]
    (said,) = inspected(table(t=moments))["warnings"]
    assert said.startswith("12 intervals are an hour off whole days")
    assert inspected(table(t=[start + datetime.timedelta(days=int(day)) for day in days]))["warnings"] == []


def test_a_pause_of_an_hour_is_no_clock_change():
    seconds = np.tile(np.arange(ROWS) * 5.0 + 3600.0 * (np.arange(ROWS) > 6), EPISODES)
    assert not any("clocks" in text for text in inspected(table(t=seconds), time_unit="second")["warnings"])


def test_arms_that_are_constant_in_an_episode_are_no_confounding():
    """Decisions of an episode are not independent: 60 patients differ by chance alone."""
    said = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        level = np.repeat(rng.normal(size=EPISODES), ROWS)
        arm = np.repeat(rng.choice(["on", "off"], EPISODES), ROWS)
        found = inspected(table(x=level + 0.1 * rng.normal(size=len(level)), action=arm))["warnings"]
        said += any("Confounding" in text for text in found)
    assert said <= 1


def test_actions_that_one_group_never_gets():
    rng, size = np.random.default_rng(0), EPISODES * ROWS
    sex = np.repeat(rng.choice(["F", "M"], EPISODES), ROWS)
    stage, end = rng.integers(0, 3, size).astype(float), np.arange(size) % ROWS == ROWS - 1
    given = table(sex=sex, stage=stage, last=np.where(end, rng.normal(size=size), np.nan))  # known at the end alone
    given["action"] = np.where((sex == "F") | (stage == 1), "off", given["action"])
    found = " ".join(inspected(given, categorical=("sex",), static=("sex",))["warnings"])
    assert "'on' is never taken where sex=M is 0, stage is 1: its effect there is unknown" in found
    assert "sex=M is more frequent (100% of these decisions, else " in found


def test_correlations_of_columns():
    """Against NumPy's, over the pairs that are known."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(1e3, 1.0, (200, 3)), rng.normal(1e-6, 1e-7, (200, 3))
    b[:, 0] += 1e-7 * a[:, 1]
    a[rng.random(a.shape) < 0.3], b[:, 2] = np.nan, 5.0
    found = _correlations(a, b)
    for i, j in itertools.product(range(3), range(2)):
        known = ~np.isnan(a[:, i])
        assert found[i, j] == pytest.approx(abs(np.corrcoef(a[known, i], b[known, j])[0, 1]))
    assert (found[:, 2] == 0).all()


def test_an_expression_of_a_variable_is_no_leak():
    given = table()
    del given["reward"]
    assert inspected(given, reward="-1 * before(x)")["warnings"] == []


def test_numbers_written_in_two_ways():
    grades = ["1.0" if row % ROWS == 3 else str(row % ROWS % 3) for row in range(EPISODES * ROWS)]
    found = " ".join(inspected(table(grade=grades), categorical=("grade",))["warnings"])
    assert "'1', '1.0' differ only in case, spaces or how a number is written" in found
    doses = ["1 000" if row % ROWS == 3 else str(1000 * (row % ROWS % 3)) for row in range(EPISODES * ROWS)]
    found = " ".join(inspected(table(dose=doses), categorical=("dose",))["warnings"])
    assert "'1000', '1 000' differ only in case" in found


def test_few_terminations_are_said_beside_rewards_that_are_costs():
    end = np.arange(EPISODES * ROWS) % ROWS == ROWS - 1
    given = table(died=(end & (np.arange(EPISODES * ROWS) < 2 * ROWS)).astype(float))
    found = " ".join(inspected(given, reward="-1 * x**2", terminal="died")["warnings"])
    assert "No reward is positive" in found
    assert "Only 2 episodes terminated" in found


def test_confounding_of_controls():
    """A dose that follows what was observed, and one that does not."""
    rng, given = np.random.default_rng(0), table()
    x = np.asarray(given["x"], float)
    given = {name: column for name, column in given.items() if name != "action"}
    given |= {"dose": x + 0.5 * rng.normal(size=len(x)), "other": rng.normal(size=len(x))}
    found = [text for text in inspected(given, controls=("dose", "other"))["warnings"] if "Confounding" in text]
    assert len(found) == 1
    assert found[0].startswith("Confounding by indication: 'dose' is higher when x is higher (correlation 0.")


def test_a_constant_column_that_holds_the_last_value_is_a_leak():
    given = table()
    last = np.asarray(given["x"], float).reshape(EPISODES, ROWS)[:, -1]
    found = " ".join(inspected({**given, "final": np.repeat(last, ROWS)})["warnings"])
    assert "'final', which never changes, is the last value of 'x' in its episode" in found


def test_columns_that_mark_the_end_and_odd_names():
    end = np.arange(EPISODES * ROWS) % ROWS == ROWS - 1
    died = (end & (np.arange(EPISODES * ROWS) // ROWS % 3 == 0)).astype(float)
    given = table(died=died, reward=-np.ones(EPISODES * ROWS))
    given["action"][5] = "ON "
    found = " ".join(inspected(given)["warnings"])
    assert "'died' changes in the last rows of episodes alone" in found
    assert "The actions 'ON', 'on' differ only in case, spaces or how a number is written" in found
    assert "Confounding" not in found  # of a single decision
    found = inspected(given, terminal="died")["warnings"]
    assert any(text.startswith("No reward is positive, so an early termination saves a policy") for text in found)
    given["reward"][0], given["died"] = 1.0, died * (np.arange(EPISODES * ROWS) < 10 * ROWS)
    assert "Only 4 episodes terminated" in " ".join(inspected(given, terminal="died")["warnings"])


def test_a_single_wrong_time():
    days = table()["t"]
    days[5 * ROWS - 1] += 700.0
    (said,) = inspected(table(t=days))["warnings"]
    assert said.startswith("An interval of 70")
    assert "(episode 4, observation 10, row 58 of visits.csv) is more than 10 times as long as 99.5% of them" in said


def test_few_pairs_are_no_leak():
    few = np.full(EPISODES * ROWS, np.nan)
    few[[1, 14, 27, 40]] = [1.0, 2.0, 3.0, 4.0]
    given = table(z=few, missing_rarely=few**2)
    given["reward"] = np.where(np.isnan(few), given["reward"], 2 * few)
    assert not any("leak" in text for text in inspected(given)["warnings"])


def test_values_are_compared_with_those_that_were_measured():
    """A variable measured in a hundredth of the rows has no outliers, and one of 1e30 is one."""
    rng = np.random.default_rng(0)
    rare = np.where(rng.random(EPISODES * ROWS) < 0.03, rng.normal(size=EPISODES * ROWS), np.nan)
    assert inspected(table(z=rare))["warnings"] == []
    rare[np.flatnonzero(~np.isnan(rare))[3]] = 1e30
    (said,) = inspected(table(z=rare))["warnings"]
    assert said.startswith("Variable 'z': 1e30")


def test_controls_that_never_vary():
    found = inspected(table(a=np.full(EPISODES * ROWS, 2.0)), controls=("a",), ignore=("action",))
    assert found["warnings"] == ["Never varied, so nothing can be learned about them: a."]


def test_the_command_prints_and_draws(typed, tmp_path):
    lines = ["who,when,hr [/min],drug,<b>sex</b>"]
    rng = np.random.default_rng(0)
    for episode in range(40):
        for day in range(8):
            hr = "" if rng.random() < 0.3 else f"{rng.normal(70, 5):.1f}"
            lines.append(f"{episode},{day},{hr},{rng.choice(['A', 'B'])},{'MF'[episode % 2]}")
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines))
    words = ["inspect", str(path), "--episode", "who", "--time", "when", "--action", "drug"]
    code, _, err = typed(*words)
    assert code == 2
    assert "column '<b>sex</b>': numbers are required, the column holds text such as 'M'" in err
    words += ["--categorical", "<b>sex</b>"]
    code, out, err = typed(*words, "--page", str(tmp_path / "page.html"))
    assert code == 0, err
    assert "visits.csv: 40 episodes with 280 decisions and 2 variables" in out
    assert "No warnings." in out
    page = (tmp_path / "page.html").read_text()
    assert "hr [/min]" in page
    assert "<b>sex" not in page
    code, out, _ = typed(*words, "--json")
    assert json.loads(out)["variables"]["hr [/min]"]["missing"] == pytest.approx(0.3, abs=0.1)


def test_small_tables_and_rewards_of_missing_values(typed, tmp_path):
    path = tmp_path / "pumps.csv"
    path.write_text("pump,when,pressure,mode\na,0,3,low\na,3,,high\na,4,3.9,low\nb,0,2.2,high\nb,7,2.9,high\n")
    words = [
        "inspect",
        str(path),
        "--episode",
        "pump",
        "--time",
        "when",
        "--action",
        "mode",
        "--reward",
        "1 * pressure",
    ]
    code, out, err = typed(*words)
    assert code == 0, err
    assert "1 reward is missing, and counted as 0 here; nothing can be fitted to this table" in out
    code, out, err = typed(*words, "--missing", "carry")
    assert code == 0, err
    assert "Rewards were computed from filled values" in out


def test_a_file_that_kairode_wrote(typed, tmp_path):
    kairode.write(tmp_path / "hiv.parquet", kairode.collect(kairode.make("hiv", max_decisions=10), episodes=60, seed=0))
    code, out, err = typed("inspect", str(tmp_path / "hiv.parquet"))
    assert code == 0, err
    assert "60 episodes with 600 decisions and 6 variables" in out


def test_strict_turns_warnings_into_errors(tmp_path):
    rows = [f"{who},{day},{who + day},a" for who in range(4) for day in range(5)]  # the action never varies
    (tmp_path / "visits.csv").write_text("\n".join(["who,day,x,drug", *rows]))
    words = ["inspect", str(tmp_path / "visits.csv"), "--episode", "who", "--time", "day", "--action", "drug"]
    command = [sys.executable, "-m", "kairode", *words]
    assert subprocess.run(command, capture_output=True).returncode == 0
    strict = subprocess.run([*command, "--strict"], capture_output=True, text=True)
    assert strict.returncode == 2
    assert "warnings are errors with --strict" in strict.stderr
    assert "warning" in strict.stdout, "the report is shown first"
