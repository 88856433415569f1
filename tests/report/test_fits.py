"""What `kairode fit` prints."""

import io
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import kairode
from kairode.report.fits import fit_table, print_fit
from kairode.report.table import print_table
from kairode.text import MOST, short_name

SPEC = kairode.make("hiv").task.spec


def record(source: str, test_episodes: int, *errors: float) -> dict[str, Any]:
    """Of a fit with one seed per error, without steps in the second time bin."""
    config = {"source": source, "model": "rnn", "seed": 0, "standardize": True, "test_episodes": test_episodes}
    figures = {
        "test_error": list(errors),
        "mean": sum(errors) / len(errors),
        "std": 0.5,
        "by_dimension": {"glucose": list(errors), "weight": list(errors)},
        "time_edges": [0.0, 10.0, 20.0, 30.0],
        "by_time": [[error, None, error] for error in errors],
        "median_episode": list(errors),
        "worst_share": [1.0] * len(errors),
        "timer_hits": None,
        "intervals": None,
        "solver": None,
        "skipped": [0] * len(errors),
    }
    return {"config": config, "figures": figures}


def test_a_model_no_better_than_the_mean_is_called_so(capsys) -> None:
    found = record("clinic.parquet", 20, 0.9, 1.1)
    for variance, said in ((1.0, True), (2.0, False)):
        found["figures"]["variance"] = variance
        print_fit(found, SPEC)
        assert ("the model is no better" in " ".join(capsys.readouterr().out.split())) == said


def test_one_seed_and_one_test_episode_of_a_file(capsys) -> None:
    print_fit(record("clinic.parquet", 1, 0.25), SPEC)
    out = capsys.readouterr().out
    assert out.startswith("Observations in clinic.parquet: glucose, weight.\n")
    assert "With 1 test episode this error is a rough estimate." in out
    assert "std" not in out
    assert "up to 10 days" in out
    assert "up to 20 days" not in out


def test_two_seeds_and_many_test_episodes_of_an_environment(capsys) -> None:
    print_fit(record("hiv", 100, 0.25, 0.75), SPEC)
    out = capsys.readouterr().out
    assert "(std 0.5 over 2 seeds)" in out
    assert "Observations" not in out
    assert "rough" not in out
    assert "mean" in out.splitlines()[0] + out.splitlines()[1]


def test_the_variables_of_a_wide_file_are_counted(capsys) -> None:
    made = record("wide.parquet", 100, 0.25)
    made["figures"]["by_dimension"] = {f"v{i}": [float(i)] for i in range(200)}
    print_fit(made, SPEC)
    out = capsys.readouterr().out
    assert out.startswith(
        "Observations in wide.parquet: v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11 and 188 more.\n"
    )
    assert "12 of 200 variables: those predicted worst. The record has all of them." in out
    assert "v188 " in out
    assert "v187 " not in out


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=[]), max_size=20), min_size=1, max_size=30, unique=True))
def test_the_table_of_a_fit_with_any_names(names: list[str]) -> None:
    made = record("clinic.parquet", 1, 0.25)
    made["figures"]["by_dimension"] = {name: [float(i)] for i, name in enumerate(names)}
    table = fit_table(made, SPEC)
    shown = [row.cells[0].text for row in table.sections[1]]
    assert len(shown) == min(len(names), MOST)
    if len(names) > MOST:
        assert shown[0] == short_name(names[-1])
        assert f"12 of {len(names)} variables" in table.caption
    file = io.StringIO()
    print_table(table, Console(file=file, width=100, force_terminal=False))
    assert not set(map(chr, range(32))) & {*file.getvalue()} - {"\n"}
    file.getvalue().encode()
