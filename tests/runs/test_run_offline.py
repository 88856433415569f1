"""`kairode learn TABLE` and `kairode run TABLE`: from a file to estimates, advice and a page, as people type it."""

import csv
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import typed_words

Typed = Callable[..., tuple[int, str, str]]

EPISODES, VISITS = 60, 8
ROLES = ("--episode", "patient", "--time", "when", "--static", "age", "--reward=-abs(x)", "--discount", "0.9")
SMALL = ("--ensemble-size", "2", "--fit-iterations", "30", "--decisions", "600", "--updates", "300", "--stops", "1")
SMALL += ("--recipes", "disagreement-limit", "bcq", "--rollout-length", "6")
ODD = "<b>hr [$a_{]</b>"
"""A column whose name must be escaped everywhere."""


def write_table(path: Path, *, doses: bool = False) -> Path:
    """x drifts up under `hold`, down under `<drug>`; a third of the odd column is missing."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", "when", "x", ODD, "age", "action"])
        for who in range(EPISODES):
            day, x, age = 1.0, rng.uniform(-2, 2), int(rng.integers(20, 80))
            for _ in range(VISITS):
                dose = rng.uniform(0, 1) if doses else float(rng.random() < 0.5)
                odd = "" if rng.random() < 0.3 else f"{rng.normal():.3f}"
                action = f"{dose:.3f}" if doses else ("<drug>" if dose else "hold")
                writer.writerow([f"P{who}", f"2024-01-{int(day):02d}", f"{x:.3f}", odd, age, action])
                tau = int(rng.integers(1, 4))
                x, day = x + (0.3 - 0.6 * dose) * tau + 0.05 * rng.normal(), day + tau
    return path


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """The table, the run folder, and what `--json` printed."""
    place = tmp_path_factory.mktemp("offline")
    table, folder = write_table(place / "visits.csv"), place / "run"
    code, out, err = typed_words("learn", str(table), *ROLES, *SMALL, "--out", str(folder), "--json")
    assert code == 0, err
    return table, folder, json.loads(out)


@pytest.mark.slow
def test_what_a_program_reads(learned: tuple[Path, Path, dict[str, Any]], typed: Typed) -> None:
    table, folder, found = learned
    assert {"fitted_q", "importance", "doubly_robust", "model"} == found["policy"].keys()
    for one in (*found["policy"].values(), found["behaviour"]):
        assert one.keys() == {"mean", "low", "high"}
        assert one["mean"] is None or one["low"] <= one["mean"] <= one["high"]
    assert sum(found["episodes"].values()) == EPISODES
    robust = found["policy"]["doubly_robust"]["mean"]
    assert found["gain"]["mean"] == pytest.approx(robust - found["behaviour"]["mean"], abs=1e-4)
    assert found["chosen"] in ("disagreement-limit", "bcq")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    returns = []
    for who in {row["patient"] for row in rows}:
        own = [row for row in rows if row["patient"] == who]
        days = np.cumsum([0, *(int(b["when"][-2:]) - int(a["when"][-2:]) for a, b in itertools.pairwise(own))])
        rewards = [-abs(float(row["x"])) for row in own[1:]]
        returns.append(sum(0.9**day * reward for day, reward in zip(days, rewards, strict=False)))
    spread = np.std(returns) / np.sqrt(found["episodes"]["test"])
    assert abs(found["behaviour"]["mean"] - np.mean(returns)) < 4 * spread
    assert len({text.lower() for text in found["warnings"]}) == len(found["warnings"])
    assert any("episodes" in text for text in found["warnings"])
    record = json.loads((folder / "record.json").read_text())
    assert record["figures"]["estimates"]["policy"] == found["policy"]
    age = record["figures"]["fit"]["by_dimension"]["age"]
    assert age == [None, None]  # nobody needs a prediction of it
    code, out, _ = typed("learn", str(table), *ROLES, *SMALL, "--out", str(folder), "--json")
    assert (code, json.loads(out)) == (0, found)  # a finished run is read, not made again


@pytest.mark.slow
def test_advice_for_a_new_episode(learned: tuple[Path, Path, dict[str, Any]], typed: Typed, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text(f'patient,when,x,"{ODD}",age,action\nN1,2024-03-01,0.4,,40,hold\nN1,2024-03-03,1.2,0.1,40,\n')
    code, out, _ = typed("advise", str(learned[1]), str(new), "--json", "--out", str(tmp_path / "advice"))
    found = json.loads(out)
    assert code == 0
    assert {"action", "next_visit", "values", "course", "out_of_distribution"} <= found.keys()
    assert found["action"] in ("hold", "<drug>")
    assert found["values"].keys() == {"hold", "<drug>"}


@pytest.mark.slow
def test_the_page_of_a_table(learned: tuple[Path, Path, dict[str, Any]], typed: Typed) -> None:
    """Text of the table is escaped; every warning is on it; sentences agree with the numbers."""
    code, _, err = typed("report", str(learned[1]))
    assert code == 0, err
    page = (learned[1] / "report.html").read_text(encoding="utf-8")
    assert "<b>hr" not in page
    assert "&lt;b&gt;hr" in page
    assert "<drug>" not in page
    words = re.sub(r"\s+", " ", page)
    for text in learned[2]["warnings"]:
        assert text[1:20] in words
    for part in ("Models", "Policy", "Where it differs from what was done", "What is not known", "Advice"):
        assert part in words


def test_strict_stops_before_anything_is_made(typed: Typed, tmp_path: Path) -> None:
    table = write_table(tmp_path / "visits.csv")
    lines = table.read_text().splitlines()
    table.write_text("\n".join(lines[: 1 + 12 * VISITS]))  # too few episodes for the variables
    code, _, err = typed("learn", str(table), *ROLES, *SMALL, "--out", str(tmp_path / "run"), "--strict")
    assert code != 0
    assert "are few for" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_continuous_actions(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kairode.agents import offline_actor

    table = write_table(tmp_path / "doses.csv", doses=True)
    few = offline_actor.OfflineActorConfig(updates=128, stops=1)
    monkeypatch.setattr("kairode.algorithms.learn_offline_controls.OfflineActorConfig", lambda: few)
    words = (*ROLES, "--controls", "action", "--ensemble-size", "2", "--fit-iterations", "30")
    code, out, err = typed("run", str(table), *words, "--out", str(tmp_path / "run"))
    assert code == 0, err
    assert "raised most where" in out
    assert "resumed" not in out + err
    assert "Where it differs from what was done" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
