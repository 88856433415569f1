"""What `kairode fit` prints."""

from typing import Any

import kairode
from kairode.report.fits import print_fit

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
