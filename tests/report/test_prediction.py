"""Table 1 with a tight solver and the published models, and the figure of the solver study."""

import json
from pathlib import Path

import pytest

from kairode.errors import KairodeError
from kairode.report.prediction import error_table, published_sentences, read_table1, solvers_figure, tight_table
from kairode.report.table import to_markdown

RESULTS = Path(__file__).parents[2] / "results"
SOLVERS = {
    "hiv": {
        "midpoint:2": {
            "test_error": {"0": 0.02, "1": 0.04},
            "with_a_tight_solver": {"0": 0.2, "1": 0.1},
            "milliseconds": {"1": 2.0, "5": 8.0},
        },
        "rk4:4": {
            "test_error": {"0": 0.02, "1": 0.02},
            "with_a_tight_solver": {"0": 0.02, "1": 0.02},
            "milliseconds": {"1": 5.0},
        },
    },
    "acrobot": {
        "midpoint:2": {"test_error": {"0": 0.04}, "with_a_tight_solver": {"0": None}},
    },
}


def solvers(results: Path, figures: dict) -> Path:
    path = results / "solvers.json"
    results.mkdir(exist_ok=True)
    record = {"format": 1, "kind": "solvers", "command": "none", "config": {}, "figures": figures}
    path.write_text(json.dumps(record))
    return path


def test_the_error_with_a_tight_solver() -> None:
    """The mean of what the records hold; models without an ODE have none."""
    found = read_table1(RESULTS)
    for row, cells in found.items():
        for model, cell in cells.items():
            record = json.loads((RESULTS / "table1" / f"{row}-{model}.json").read_text())
            assert ("tight" in cell) == ("ode" in model)
            if "tight" in cell:
                each = [check["error_tight"] for check in record["figures"]["solver"]]
                assert cell["tight"] == pytest.approx(sum(each) / len(each))
                assert cell["solver"] == record["config"]["sizes"]["solver"]
    table = tight_table({"hiv": {"latent-ode": {"mean": 0.02, "solver": "rk4:4", "tight": 0.03}}})
    assert to_markdown(table).splitlines()[2] == "| hiv | latent-ode | rk4:4 | 0.020 | 0.030 | 1.50 |"
    table = tight_table({"hiv": {"latent-ode": {"mean": 0.02, "solver": "rk4:4", "tight": None}}})
    assert "fails" in to_markdown(table)


def test_published_models_on_our_episodes(typed) -> None:
    cell = {"mean": 0.0349, "std": 0.001, "n": 5, "published_model": 0.039}
    worse = {"mean": 0.0291, "std": 0.001, "n": 5, "published_model": 0.028}
    found = {"acrobot": {"latent-ode": cell}, "hiv": {"latent-ode": worse}}
    first, second = published_sentences(found)
    assert "acrobot 0.039 (ours 0.035), hiv 0.028 (ours 0.029)" in first
    assert first.endswith("ours are at or below them on acrobot and above them on hiv.")
    assert "(0.021, 0.020)" in second
    assert published_sentences({"hiv-whole": {"latent-ode": {"mean": 0.02, "std": 0.0, "n": 5}}}) == []
    lines = to_markdown(error_table(found)).splitlines()
    assert lines[3] == "|  | paper's model, our episodes | 0.039 |"
    _, out, _ = typed("reproduce", "table1", "--results", str(RESULTS), "--dry-run")
    assert "0.927" in out
    assert "with a tight solver" in out
    _, out, _ = typed("reproduce", "table1", "--results", str(RESULTS), "--json")
    assert json.loads(out)["hiv"]["latent-ode"]["published_model"] == 0.028


def test_solvers(typed, tmp_path) -> None:
    solvers(tmp_path / "results", SOLVERS)
    words = ("reproduce", "figure-solvers", "--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs"))
    code, out, err = typed(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    cell = found["hiv"]["rk4:4"]
    assert cell["cost"] == {"1": 2.5}
    assert (cell["ratio"], cell["test_error"]["mean"], cell["tight"]["values"]) == (1.0, 0.02, [0.02, 0.02])
    assert found["hiv"]["midpoint:2"]["cost"] == {"1": 1.0, "5": 1.0}
    assert found["hiv"]["midpoint:2"]["ratio"] == pytest.approx(5.0)
    assert found["acrobot"]["midpoint:2"] == {
        "test_error": {"mean": 0.04, "std": 0.0, "n": 1, "values": [0.04]},
        "tight": {"mean": None, "std": None, "n": 1, "values": [None]},
        "ratio": None,
        "cost": {},
    }
    code, out, err = typed(*words)
    assert code == 0, err
    assert "0.0300 ± 0.0100" in out
    assert "2.50" in out
    drawn = (tmp_path / "runs" / "reproduce" / "figure-solvers.svg").read_text()
    assert ">hiv<" in drawn
    assert ">rk4:4<" in drawn
    assert ">acrobot<" not in drawn  # no times, so no place on the axis


def test_where_the_markers_are(tmp_path) -> None:
    [axes] = solvers_figure(solvers(tmp_path, SOLVERS)).axes
    own, tight = (part.get_offsets().tolist() for part in axes.collections[1:])
    assert own == [[1.0, pytest.approx(0.03)], [2.5, 0.02]]
    assert tight == [[1.0, pytest.approx(0.15)], [2.5, 0.02]]
    assert [len(part.get_facecolors()) for part in axes.collections[1:]] == [1, 1]
    assert axes.collections[1].get_facecolors()[0].tolist() == [1.0, 1.0, 1.0, 1.0]  # open
    assert axes.get_yscale() == "log"


def test_no_solver_study(typed, tmp_path) -> None:
    with pytest.raises(KairodeError, match=r"solvers.json does not exist"):
        solvers_figure(tmp_path / "solvers.json")
    with pytest.raises(KairodeError, match=r"has no milliseconds"):
        solvers_figure(solvers(tmp_path, {"acrobot": SOLVERS["acrobot"]}))
    code, out, err = typed("reproduce", "figure-solvers", "--results", str(RESULTS / "table1"))
    assert (code, out) == (2, "")
    assert "does not exist" in err
