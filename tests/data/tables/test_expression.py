"""Rewards as expressions: compared with NumPy; everything that is not arithmetic is refused."""

import numpy as np
import pytest

from kairode.data.tables.expression import Expression
from kairode.errors import KairodeError

V, E = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, np.nan])
BEFORE, AFTER, TAU = {"V": V, "hr [/min]": E}, {"V": 10 * V, "hr [/min]": 10 * E}, np.array([1.0, 2.0, 7.0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000 * V - 0.1", 10000 * V - 0.1),
        ("-V ** 2 / tau", -((10 * V) ** 2) / TAU),
        ("before(V) + V", 11 * V),
        ("`hr [/min]` - before(`hr [/min]`)", 9 * E),
        ("where(V > 15, 1, -1)", np.where(10 * V > 15, 1.0, -1.0)),
        ("max(min(V, 25), 15) + abs(-1) + sqrt(4) + log10(100) + exp(0) + log(1)", np.clip(10 * V, 15, 25) + 6),
        ("(V >= 20) * 2", np.array([0.0, 2.0, 2.0])),
        ("`hr [/min]` < 45", np.array([1.0, 0.0, np.nan])),
        ("3", np.full(3, 3.0)),
    ],
)
def test_arithmetic(text, expected):
    np.testing.assert_allclose(Expression(text)(BEFORE, AFTER, TAU), expected)


def test_names():
    assert Expression("V + before(`hr [/min]`) * tau").names == {"V", "hr [/min]"}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "V.__class__",
        "[V for V in V]",
        "lambda: V",
        "V if V else V",
        "'text' * 3",
        "V[0]",
        "open(V)",
        "before(V + 1)",
        "max(V)",
        "V < V < V",
        "V and V",
        "V; V",
        "V :=",
        "",
        "(" * 500 + "V" + ")" * 500,
        "V" + " + V" * 1000,
        "f'{V}'",
        "1j",
        "max(V, V, key=V)",
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(KairodeError, match=r"the expression .* Use names of columns"):
        Expression(text)


def test_a_name_like_those_of_quoted_columns_is_a_name():
    assert Expression("_quoted_5_").names == {"_quoted_5_"}


def test_names_that_python_would_normalise():
    """The letter fi of one piece, the micro sign, an Angstrom: as they stand in the header."""
    for name in ("\ufb01x", "\u00b5g", "\u212bx", "größe2"):
        found = Expression(f"2 * {name} + before({name})")
        assert found.names == {name}
        one = np.array([3.0])
        assert found({name: np.array([1.0])}, {name: one}, one) == [7.0]
