"""Spread against error: normal draws whose calibration is known, and the models of a fit."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import kairode
from kairode.errors import KairodeError
from kairode.models.predict import predict
from kairode.training.spread import LEVELS, Errors, Widths, check_spread, spread_and_error

MEMBERS, NAMES = 5, ("a", "b")


def draws(truth_std: float, seed: int = 0, n: int = 20_000) -> Errors:
    """Members are standard normal around a mean of their own for every value, the truth has another deviation."""
    rng = np.random.default_rng(seed)
    middle = 10 * rng.normal(size=(n, 2))
    truth = middle + truth_std * rng.normal(size=(n, 2))
    return spread_and_error(middle + rng.normal(size=(MEMBERS, n, 2)), truth, rng.uniform(0, 100, n))


def test_by_hand() -> None:
    """Two members, one value: mean 2, variance 2 between them, of one more draw 3; the error is 4."""
    found = spread_and_error(np.array([[[1.0]], [[3.0]]]), np.array([[6.0]]), np.zeros(1))
    assert found.error == 4.0
    np.testing.assert_allclose(found.spread, np.sqrt(3.0))
    check = check_spread(found, ("a",))
    assert (check.error, check.ratio) == pytest.approx((4.0, np.sqrt(3.0) / 4.0))
    half = stats.t.ppf(0.975, 1) * np.sqrt(3.0)  # 22
    assert check.coverage["spread"] == [float(bound >= 4.0) for bound in (np.sqrt(3.0), 3.07768 * np.sqrt(3.0), half)]


@pytest.mark.parametrize("truth_std", [1.0, 2.0, 0.5])
def test_of_normal_draws(truth_std: float) -> None:
    """E e^2 = std^2 + 1/M and E s^2 = 1 + 1/M, so that e / s is a multiple of Student's t: calibrated, spread too small
    and too large."""
    ratio = np.sqrt((1 + 1 / MEMBERS) / (truth_std**2 + 1 / MEMBERS))
    check = check_spread(draws(truth_std), NAMES, Widths.fit(draws(truth_std, seed=1)))
    assert check.ratio == pytest.approx(ratio, rel=0.02)
    assert check.by_variable == pytest.approx(dict.fromkeys(NAMES, ratio), rel=0.03)
    t = stats.t(MEMBERS - 1)
    expected = [2 * t.cdf(t.ppf(0.5 + level / 2) * ratio) - 1 for level in LEVELS]
    assert check.coverage["spread"] == pytest.approx(expected, abs=0.01)
    assert check.coverage["calibrated"] == pytest.approx(LEVELS, abs=0.015)
    assert check.rank_correlation == pytest.approx(0.0, abs=0.02)


def test_the_residual_variance_is_what_the_spread_does_not_explain() -> None:
    """Members that all err alike: intervals of the spread alone are too narrow, normal ones with it nearly right."""
    widths = Widths.fit(draws(3.0, seed=1), bins=1)
    np.testing.assert_allclose(widths.residual, 9 - 1, rtol=0.05)
    check = check_spread(draws(3.0), NAMES, widths)
    assert check.coverage["with residual"] == pytest.approx(LEVELS, abs=0.02)
    assert check.coverage["spread"][-1] < 0.75
    assert not Widths.fit(draws(0.5), bins=1).residual.any()


def test_a_spread_that_knows_where_the_errors_are() -> None:
    rng = np.random.default_rng(0)
    size = np.exp(rng.normal(size=(20_000, 1)))
    predictions = size * rng.normal(size=(20, 20_000, 1))
    check = check_spread(spread_and_error(predictions, size * rng.normal(size=size.shape), np.zeros(len(size))), ("a",))
    spread, error = np.array(check.by_spread).T
    np.testing.assert_allclose(spread, error, rtol=0.15)
    assert (np.diff(spread) > 0).all()
    assert check.rank_correlation is not None
    assert check.rank_correlation > 0.5


def test_each_prediction_time_has_its_own_width() -> None:
    """Errors that grow with time, with a constant spread: half of the late values are outside of common intervals."""

    def growing(seed: int) -> Errors:
        found = draws(1.0, seed)
        return found._replace(error=found.error * found.time[:, None] / 50)

    found = growing(0)
    late = found.time > 90
    for bins, right in ((1, False), (10, True)):
        half = Widths.fit(growing(1), bins).half(found.spread, found.time)
        share = (np.abs(found.error) <= half[1])[late].mean()
        assert (abs(share - 0.8) < 0.02) == right


def test_the_quantile_of_few_values() -> None:
    """Nine errors 1 .. 9 with a spread of 1: v is their mean square less 1, c_q the 5th, 8th and last of the scores."""
    errors = np.arange(1.0, 10.0)[:, None]
    widths = Widths.fit(Errors(errors, np.ones((9, 1)), np.arange(9.0), MEMBERS))
    scale = np.sqrt(np.mean(errors**2))
    np.testing.assert_allclose(widths.residual, [[scale**2 - 1]])
    np.testing.assert_allclose(widths.factor[:, 0, 0], np.array([5.0, 8.0, 9.0]) / scale)
    np.testing.assert_allclose(widths.half(np.ones((1, 1)), np.zeros(1))[:, 0, 0], [5.0, 8.0, 9.0])


def test_missing_values_do_not_count() -> None:
    whole, valid = draws(2.0), draws(2.0, seed=1)
    gone = np.random.default_rng(2).random(whole.error.shape) < 0.3
    check = check_spread(whole._replace(error=np.where(gone, np.nan, whole.error)), NAMES, Widths.fit(valid))
    assert check.coverage["calibrated"] == pytest.approx(LEVELS, abs=0.02)
    assert check.error == pytest.approx(np.sqrt(np.mean(whole.error[~gone] ** 2)))
    never = whole.error.copy()
    never[:, 1] = np.nan
    widths = Widths.fit(valid._replace(error=np.where(np.isnan(never), np.nan, valid.error)))
    assert np.isnan(widths.factor[:, :, 1]).all()
    alone = check_spread(whole._replace(error=never), NAMES, widths)
    assert alone.by_variable["b"] is None
    # What no validation episode measured has no calibrated interval; of the other variable nothing changes.
    assert check_spread(whole, NAMES, widths).coverage["calibrated"] == alone.coverage["calibrated"]
    with pytest.raises(KairodeError, match="nothing was measured"):
        check_spread(whole._replace(error=np.full_like(never, np.nan)), NAMES)


def test_members_that_agree() -> None:
    """Members without any spread, as copies of one model have."""
    same = spread_and_error(np.zeros((3, 500, 1)), np.random.default_rng(0).normal(size=(500, 1)), np.zeros(500))
    check = check_spread(same, ("a",), Widths.fit(same))
    assert (check.spread, check.rank_correlation) == (0.0, None)
    assert check.coverage["spread"] == [0.0] * 3
    assert check.coverage["calibrated"] == pytest.approx(LEVELS, abs=0.01)


def test_of_fitted_models(fit_run) -> None:
    """The figures of the command, worked out again from predictions; missing values of the test do not count."""
    models = kairode.load_models(fit_run.folder)
    env = kairode.make("hiv", max_decisions=6)
    test, valid = (kairode.collect(env, episodes=20, seed=seed) for seed in (2, 3))
    observation = np.array(test.observation)
    observation[:, 1:][np.random.default_rng(0).random(observation[:, 1:].shape) < 0.3] = np.nan
    gone = dataclasses.replace(test, observation=observation)
    found = kairode.evaluate_ensemble(models, gone, valid=valid)
    predicted = np.stack([predict(model, gone, seed=i) for i, model in enumerate(models)])
    errors = (observation[:, 1:] - predicted.mean(0))[gone.mask]
    assert found.open_loop.error == pytest.approx(np.sqrt(np.nanmean(errors**2)), rel=1e-4)
    spread = np.sqrt(1.5 * predicted.var(0, ddof=1))[gone.mask]
    assert found.open_loop.spread == pytest.approx(np.sqrt(np.mean(spread[~np.isnan(errors)] ** 2)), rel=1e-4)
    assert found.one_interval.error != found.open_loop.error
    assert 0.8 < found.open_loop.coverage["calibrated"][-1] <= 1
    assert "one interval ahead: error" in str(found)
    assert "calibrated" not in kairode.evaluate_ensemble(models, test).open_loop.coverage
    with pytest.raises(KairodeError, match="at least two models"):
        kairode.evaluate_ensemble(models[:1], test)
