"""Table 1 from records."""

import json
from pathlib import Path

import pytest

from kairode.config.models import PAPER_MODELS
from kairode.paper import table1
from kairode.paper.published import ERRORS, PARTIAL, RETURNS

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

    assert {env: pairs(models) for env, models in given["state_prediction_error"].items()} == ERRORS
    for env, taus in given["return_regular"].items():
        regular = {f"{float(tau):g}": pairs(models) for tau, models in taus.items()}
        assert {"own": pairs(given["return_irregular"][env]), **regular} == RETURNS[env]
    assert pairs(given["hiv_partial_observation"]) == PARTIAL
