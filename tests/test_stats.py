"""Statistics against rliable, scipy and values worked out by hand."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from kairode.result import objective_of
from kairode.stats import (
    bootstrap_interval,
    iqm,
    mean,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    std,
    stratified_interval,
)

RESULTS = Path(__file__).parents[1] / "results"
SCORES = np.array([[0.2, 1.4, -0.3], [0.9, 0.7, 0.1], [0.4, 2.0, 0.6], [1.1, 0.3, 0.8], [0.5, 1.0, 0.0]])
OTHERS = np.array([[0.3, 1.0, -0.5], [0.9, 0.2, 0.1], [0.1, 1.5, 0.9], [0.6, 0.7, 0.4]])
"""Five and four runs on three tasks, with ties between them."""

# Expected values of rliable 1.2.0 (arch 7.2.0, numpy 2.4.6, scipy 1.17.1) for the arrays above:
#   from rliable import library as rly, metrics
#   metrics.aggregate_iqm(SCORES), metrics.aggregate_mean(SCORES), metrics.aggregate_optimality_gap(SCORES)
#   metrics.probability_of_improvement(SCORES, OTHERS)
#   rly.score_distributions(SCORES, np.array([0.0, 0.5, 1.0]))
#   np.random.seed(0); rly.get_interval_estimates({"s": SCORES}, lambda x: np.array([f(x)]), reps=500)
# for f = metrics.aggregate_iqm and f = metrics.aggregate_mean. rliable draws from numpy's global generator.


def test_aggregates_are_those_of_rliable() -> None:
    assert mean(SCORES) == pytest.approx(0.6466666666666666, rel=1e-12)
    assert iqm(SCORES) == pytest.approx(0.6000000000000001, rel=1e-12)
    assert optimality_gap(SCORES) == pytest.approx(0.45333333333333337, rel=1e-12)
    assert probability_of_improvement(SCORES, OTHERS) == pytest.approx(0.5666666666666668, rel=1e-12)
    found = performance_profile(SCORES, [0.0, 0.5, 1.0])
    np.testing.assert_allclose(found, [0.8666666666666667, 0.5333333333333333, 0.2], rtol=1e-12)


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [(iqm, (0.36666666666666664, 0.8613888888888886)), (mean, (0.43333333333333335, 0.8733333333333334))],
)
def test_stratified_intervals_are_those_of_rliable(statistic, expected) -> None:
    found = stratified_interval(SCORES, statistic, resamples=500, rng=np.random.RandomState(0))
    assert found == pytest.approx(expected, rel=1e-12)


def test_runs_are_resampled_within_their_task() -> None:
    """Tasks far apart: an interval over all values would be as wide as the distance between tasks."""
    scores = np.array([[0.0, 100.0], [1.0, 101.0], [2.0, 102.0]])
    low, high = stratified_interval(scores, mean)
    assert 50 <= low < 51 < high <= 52
    assert stratified_interval(scores, mean, rng=0) == (low, high)
    one = stratified_interval(scores[:, :1], mean, resamples=20_000)
    assert one == pytest.approx(bootstrap_interval(scores[:, 0], resamples=20_000), abs=0.35)


def test_values_by_hand() -> None:
    values = [8.0, 1.0, 2.0, 3.0, 100.0, 4.0, 5.0, -50.0]
    assert iqm(values) == (2 + 3 + 4 + 5) / 4
    assert iqm([1.0, 2.0, 6.0]) == 3.0  # a quarter of three is rounded down to none
    assert std([1.0, 3.0]) == 1.0  # divided by n
    assert mean([1.0, 3.0]) == 2.0
    assert optimality_gap([0.5, 3.0], target=1.0) == 0.25
    assert probability_of_improvement([[1.0], [2.0]], [[1.0], [0.0]]) == (0.5 + 1 + 1 + 1) / 4
    np.testing.assert_array_equal(iqm(np.array([values, values]), axis=-1), [3.5, 3.5])


@pytest.mark.parametrize("statistic", [np.mean, iqm])
def test_intervals_are_those_of_scipy(statistic) -> None:
    values = np.random.default_rng(1).normal(size=40)
    found = scipy.stats.bootstrap((values,), statistic, n_resamples=2000, method="percentile", rng=0)
    assert bootstrap_interval(values, statistic) == tuple(map(float, found.confidence_interval))
    assert bootstrap_interval(values, statistic, level=0.5)[0] > found.confidence_interval.low


def test_intervals_of_a_mean() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for n in (10, 100, 1000):
        values = 5 + rng.normal(size=n)
        low, high = bootstrap_interval(values)
        assert low < values.mean() < high
        # The normal approximation of a mean.
        assert high - low == pytest.approx(2 * 1.96 * values.std() / np.sqrt(n), rel=0.15)
        widths.append(high - low)
    assert widths[0] > widths[1] > widths[2]
    assert bootstrap_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert bootstrap_interval([3.0]) == (3.0, 3.0)


def test_intervals_of_committed_records() -> None:
    """A record's interval follows from the values beside it, to the digits that it keeps."""
    seen = 0
    for path in sorted((RESULTS / "policies").glob("ours-*.json")):
        cells = json.loads(path.read_text())["figures"]["cells"]
        for cell in (cell for by_schedule in cells.values() for cell in by_schedule.values()):
            values = objective_of(cell)
            if None not in values:
                assert bootstrap_interval(values) == pytest.approx((cell["low"], cell["high"]), rel=2e-4)
                seen += 1
    assert seen > 10


def test_statistics_need_no_jax() -> None:
    # The package itself is not imported: this asks for the module alone.
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('stats', sys.argv[1]); "
        "module = importlib.util.module_from_spec(spec); sys.modules['stats'] = module; "
        "spec.loader.exec_module(module); assert 'jax' not in sys.modules"
    )
    path = Path(__file__).parents[1] / "src" / "kairode" / "stats.py"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
