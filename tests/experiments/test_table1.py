"""Table 1 from records, and the runs that make a missing one."""

import dataclasses
import json
from pathlib import Path

import pytest

from kairode.experiments import table1
from kairode.experiments.paper import RETURNS
from kairode.experiments.presets import FITS
from kairode.models.zoo import PAPER_MODELS

RESULTS = Path(__file__).parents[2] / "results" / "table1"


def test_published_cells_have_records(typed) -> None:
    """All 18 cells and HIV in full length, five seeds each, without a new run."""
    code, out, _ = typed("reproduce", "table1", "--json", "--results", str(RESULTS.parent))
    assert code == 0
    found = json.loads(out)
    assert list(found) == list(table1.USUAL)
    for cells in found.values():
        assert list(cells) == list(PAPER_MODELS)
        for cell in cells.values():
            assert cell["n"] == len(cell["values"]) == 5
            assert cell["mean"] == pytest.approx(sum(cell["values"]) / 5, rel=1e-3)
    code, out, _ = typed("reproduce", "table1", "--results", str(RESULTS.parent))
    assert "0.020 ± 0.001" in out  # the paper's HIV cell
    for path in RESULTS.glob("*.json"):
        record = json.loads(path.read_text())
        assert record["command"].startswith("kairode reproduce table1 --rows ")
        assert {"config", "seed", "commit", "machine", "figures"} <= record.keys()


def test_a_missing_cell_is_run_once(monkeypatch, typed, tmp_path) -> None:
    """Two seeds of one cell in processes of their own, then from the record alone."""
    usual = FITS["gridworld"]
    short = dataclasses.replace(usual.settings, iterations=10, every=5, batch=4)
    monkeypatch.setitem(FITS, "gridworld", dataclasses.replace(usual, settings=short, episodes=8, valid=3, test=3))
    # the processes know the true preset: say what differs on their command lines
    extra = ["--iterations", "10", "--every", "5", "--batch", "4", "--episodes", "8", "--valid", "3", "--test", "3"]
    monkeypatch.setattr(table1.Job, "words", property(lambda job: [*_words(job), *extra, "--quiet"]))
    words = ["table1", "--rows", "gridworld", "--models", "rnn", "--seeds", "2", "--json"]
    places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    code, out, err = typed("reproduce", *words, *places)
    assert code == 0, err
    assert json.loads(out)["gridworld"]["rnn"]["n"] == 2
    record = tmp_path / "results" / "table1" / "gridworld-rnn.json"
    made = record.read_text()
    assert typed("reproduce", *words, *places)[1] == out
    assert record.read_text() == made


def _words(job: table1.Job) -> list[str]:
    config = job.config
    what = ["fit", config.source, "--model", config.model, "--seed", str(config.seed), "--setting", config.setting]
    return [*what, "--out", str(job.folder)]


def test_unknown_tables_and_rows(typed) -> None:
    for words, says in (
        (["table9"], "table1"),
        (["table1", "--rows", "hive"], "hiv"),
        (["table1", "--models", "x"], "rnn"),
    ):
        code, _, err = typed("reproduce", *words)
        assert code == 2
        assert says in err


def test_paper_numbers_are_the_published_ones() -> None:
    published = Path(__file__).parents[3] / "shared" / "paper" / "results.json"
    if not published.exists():
        pytest.skip("the published numbers are not beside this checkout")
    given = json.loads(published.read_text())

    def pairs(cells: dict) -> dict:
        return {name: (cell["mean"], cell["std"]) for name, cell in cells.items()}

    assert {env: pairs(models) for env, models in given["state_prediction_error"].items()} == table1.PAPER
    assert {env: pairs(models) for env, models in given["return_irregular"].items()} == RETURNS["own"]
    regular = given["return_regular"].items()
    assert {env: {f"{float(tau):g}": pairs(models) for tau, models in taus.items()} for env, taus in regular} == (
        RETURNS["regular"]
    )
    assert pairs(given["hiv_partial_observation"]) == RETURNS["partial"]
