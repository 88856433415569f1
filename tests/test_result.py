"""The result of an evaluation."""

import json

import numpy as np
import pytest

from kairode.errors import KairodeError
from kairode.result import RETURNS, Result, Spread, objective_name, objective_of, rounded, short_number

RESULT = Result(
    objective="discounted_return",
    returns={"return": 9e9, "discounted_return": 7.2e8},
    spread=Spread(1e7, 7.25e8, 7.1e8, 7.3e8),
    decisions=200.0,
    time=1000.0,
    terminated=1.0,
    measures={"healthy": 0.34},
    episodes=100,
)


def test_in_words() -> None:
    assert str(RESULT) == (
        "discounted return 7.2e8 (95 % CI 7.1e8 to 7.3e8), 200 decisions per episode, 100 episodes, 34 % of the time "
        "healthy, 100 % terminated"
    )


def test_in_a_record() -> None:
    figures = RESULT.figures()
    assert list(figures)[:5] == ["objective", *RETURNS]
    assert figures["accrued_return"] is None
    assert figures["return"] == 9e9
    assert RESULT.score == objective_of(figures) == 7.2e8
    assert Result.from_figures(json.loads(json.dumps(figures))) == RESULT


def test_names_of_returns() -> None:
    names = [objective_name(discounted=d, accrued=a) for a in (False, True) for d in (False, True)]
    assert tuple(names) == RETURNS
    with pytest.raises(KairodeError, match="no return 'plain'"):
        Result("return", {"plain": 1.0}, Spread(), 1.0, 1.0, 0.0, {}, 1)


def test_numbers_in_words() -> None:
    assert [short_number(x) for x in (7.2e8, -1.5e-5, 12.3456, 0.0, 1e10)] == ["7.2e8", "-1.5e-5", "12.35", "0", "1e10"]


def test_numbers_to_some_digits() -> None:
    values = {"a": [1.23456789, float("nan"), None], "b": "text", "c": 7, "d": np.array([2.0, 1 / 3])}
    assert rounded(values, 3) == {"a": [1.23, None, None], "b": "text", "c": 7, "d": [2.0, 0.333]}
