"""What a fit of several seeds says of its ensemble."""

import json

from kairode.report.fits import calibration_figure, calibration_sentence, calibration_warning


def test_what_a_fit_of_several_seeds_says(fit_run) -> None:
    figures = json.loads((fit_run.folder / "record.json").read_text())["figures"]["calibration"]
    assert figures["members"] == 2
    sentence = calibration_sentence(figures)
    assert sentence.startswith("Ensemble of 2: the members' spread is ")
    assert sentence in " ".join(fit_run.out.split())
    assert "<svg" in (fit_run.folder / "calibration.svg").read_text()
    assert calibration_figure(figures, "a title").axes[0].get_title(loc="left") == "a title"


def test_a_warning_of_a_spread_that_is_not_the_error() -> None:
    def figures(open_loop: float, one_interval: float) -> dict:
        return {"members": 3, "open_loop": {"ratio": open_loop}, "one_interval": {"ratio": one_interval}}

    assert calibration_warning(None) is None
    assert calibration_warning(figures(0.5, 2.0)) is None
    assert "0.49 open loop)" in (calibration_warning(figures(0.49, 1.0)) or "")
    assert "0.30 open loop, 2.10 one interval ahead)" in (calibration_warning(figures(0.3, 2.1)) or "")
