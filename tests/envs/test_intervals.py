"""Every environment's intervals follow its rule: chi-square tests of collected experience."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

import kairode
from kairode.envs import Intervals, Spec
from kairode.envs.hiv import VISITS

LEAST_P = 1e-3


def agrees(intervals, probabilities: dict[float, float]) -> bool:
    """Whether the intervals could come from these probabilities."""
    values = sorted(probabilities)
    counts = np.array([np.isclose(intervals, value).sum() for value in values])
    assert counts.sum() == len(intervals), "an interval outside the rule"
    if len(values) == 1:
        return True
    expected = np.array([probabilities[value] for value in values]) * len(intervals)
    return stats.chisquare(counts, expected).pvalue > LEAST_P


def uniform(low: int, high: int, step: float = 1.0) -> dict[float, float]:
    values = [step * i for i in range(low, high + 1)]
    return dict.fromkeys(values, 1 / len(values))


@pytest.mark.parametrize(("name", "rule"), [("gridworld", uniform(1, 7)), ("acrobot", uniform(1, 5, 0.2))])
def test_uniform_rules(name: str, rule: dict[float, float]) -> None:
    seen = kairode.collect(kairode.make(name), episodes=300, seed=0)
    assert agrees(seen.interval[seen.mask], rule)
    assert not agrees(seen.interval[seen.mask][seen.interval[seen.mask] > min(rule)], rule), "the test can fail"


def test_continuous_intervals_have_no_step() -> None:
    assert Intervals(0.5, 4.0) == Intervals(0.5, 4.0, step=0)
    assert Intervals(0.5, 4.0).classes is None
    for kind in (Intervals, Spec):
        args = (kind.__doc__ or "").split("Args:")[1]
        assert all(f" {field.name}: " in args for field in dataclasses.fields(kind)), kind


def test_a_narrower_range() -> None:
    seen = kairode.collect(kairode.make("gridworld", intervals=(2, 3)), episodes=100, seed=0)
    assert agrees(seen.interval[seen.mask], uniform(2, 3))


@pytest.mark.slow
def test_visits_follow_viral_load_and_treatment() -> None:
    env = kairode.make("hiv")
    seen = kairode.collect(env, episodes=100, seed=0)
    mask = seen.mask
    virus = np.asarray(env.task.marker("V", seen.observation[:, :-1]))[mask]
    # Rounding of the observation may put a load at a border on its other side: leave those out.
    clear = (np.abs(virus / 1e4 - 1) > 1e-4) & (np.abs(virus / 1e5 - 1) > 1e-4)
    row = np.searchsorted([1e4, 1e5], virus)
    action, interval = seen.action[mask], seen.interval[mask]
    for load in range(3):
        for treatment in range(4):
            chosen = clear & (row == load) & (action == treatment)
            assert chosen.sum() > 200
            assert agrees(interval[chosen], uniform(*VISITS[load][treatment])), (load, treatment)
    assert VISITS == (  # the paper's table
        ((7, 14), (3, 7), (3, 7), (3, 7)),
        ((3, 7), (3, 5), (3, 5), (3, 3)),
        ((3, 3), (1, 2), (1, 2), (1, 2)),
    )
    # With less to observe, visits are the same.
    partial = kairode.collect(kairode.make("hiv-partial"), episodes=5, seed=0)
    steps = partial.interval.shape[1]
    np.testing.assert_array_equal(partial.interval, seen.interval[:5, :steps])
    np.testing.assert_array_equal(partial.length, seen.length[:5])


@pytest.mark.parametrize("name", ["swimmer", "hopper", "half-cheetah"])
def test_frames_follow_the_law_of_a_cosine(name: str) -> None:
    # |v| runs through many turns of cos(20 pi |v|): its phase is uniform, so tau has the arcsine law's masses.
    env = kairode.make(name)
    low, high = env.repeats
    scale, centre = (high - low) / 2, (high + low) / 2

    def below(value: float) -> float:  # P(scale cos + centre < value)
        return 1 - math.acos(min(max((value - centre) / scale, -1.0), 1.0)) / math.pi

    rule = {float(tau): below(tau + 0.5) - below(tau - 0.5) for tau in range(low, high + 1)}
    seen = kairode.collect(env, episodes=60 if name == "hopper" else 2, seed=0)
    if name != "hopper":  # whose velocities are observed clipped
        spec = env.task.spec
        speeds = [i for i, v in enumerate(spec.observations) if v.name.startswith("d")]
        speed = np.linalg.norm(seen.observation[:, :-1, speeds].astype(np.float64), axis=-1)
        exact = scale * np.cos(20 * np.pi * speed) + centre
        clear = seen.mask & (np.abs(exact % 1 - 0.5) > 1e-2)  # not near a half, where rounding decides
        np.testing.assert_array_equal(seen.interval[clear], np.round(exact[clear]))
    started = 15 if name == "swimmer" else 3  # before that, |v| has hardly moved
    mask = seen.mask & (np.arange(seen.mask.shape[1]) >= started)
    assert agrees(seen.interval[mask], rule)


@pytest.mark.parametrize(("name", "tau"), [("gridworld", 3), ("acrobot", 0.6), ("hiv", 5), ("hopper", 4)])
def test_a_fixed_schedule_instead(name: str, tau: float) -> None:
    seen = kairode.collect(kairode.make(name, max_decisions=20), episodes=3, seed=0, schedule=tau)
    np.testing.assert_allclose(seen.interval[seen.mask], tau, rtol=1e-6)


def test_a_given_schedule_instead() -> None:
    seen = kairode.collect(kairode.make("hiv", horizon=30), episodes=2, seed=0, schedule=[1, 4, 9])
    np.testing.assert_array_equal(seen.interval[0], [1, 4, 9, 1, 4, 9, 1, 4])
    np.testing.assert_array_equal(seen.time[0], [0, 1, 5, 14, 15, 19, 28, 29, 33])
