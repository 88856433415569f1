"""Arithmetic expressions of columns, such as `1000 * E - 0.1 * V`: parsed into a tree, never run as code."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kairode.errors import KairodeError

MOST_LETTERS, MOST_DEPTH = 2000, 100
"""Length and depth of the longest expression."""
BEFORE = "before"
"""`before(E)`: the value of a column at the decision, rather than at the end of its interval."""
INTERVAL = "tau"
"""The length of the interval."""
_QUOTED = re.compile("`([^`]*)`")
_BEYOND_ASCII = re.compile(r"((?<!\w)(?=\w*[^\W\x00-\x7f])[^\W\d]\w*)")
"""A name with letters beyond ASCII."""
_BINARY = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
}
"""Operators by their names in NumPy, which are those of `jax.numpy`."""
_UNARY = {ast.UAdd: "positive", ast.USub: "negative"}
_COMPARISONS = {
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}
WHERE = "where"
_FUNCTIONS = {
    "abs": (1, "abs"),
    "exp": (1, "exp"),
    "log": (1, "log"),
    "log10": (1, "log10"),
    "sqrt": (1, "sqrt"),
    "min": (2, "minimum"),
    "max": (2, "maximum"),
    WHERE: (3, WHERE),
}
"""Number of arguments, and name in NumPy."""
Columns = Mapping[str, Any]


class Expression:
    """An expression of columns; `expression(before, after, tau)` evaluates it at all decisions.

    Names are those of columns at the end of the interval, `before(NAME)` is the value at the decision and `tau` the
    length of the interval. A name that is no identifier stands between backticks. There are `+ - * / **`, comparisons
    (1 if they hold) and the functions `abs exp log log10 sqrt min max where`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._quoted: list[str] = []
        if len(text) > MOST_LETTERS:
            raise self._fault(f"it has {len(text):,} letters, at most {MOST_LETTERS:,} are allowed")
        try:
            # Python normalises names beyond ASCII, so they are treated like those between backticks.
            plain = _BEYOND_ASCII.sub(self._identifier, _QUOTED.sub(self._identifier, text))
            self._tree = ast.parse(plain.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._fault("it is not valid") from error
        if _depth(self._tree) > MOST_DEPTH:
            raise self._fault(f"it is nested more than {MOST_DEPTH} levels deep")
        self.names = frozenset(self._used(self._tree))
        """Columns that occur."""
        nodes = list(ast.walk(self._tree))
        calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        decided = [node.args[0] for node in calls if node.func.id == BEFORE]  # type: ignore[attr-defined]
        no_values = {id(node) for node in (*decided, *(call.func for call in calls))}
        values = [node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in no_values]
        self.names_after = frozenset(self._column(name) for name in values if name != INTERVAL)
        """Those of which the value at the end of the interval is used."""
        self.uses_interval = any(isinstance(node, ast.Name) and node.id == INTERVAL for node in ast.walk(self._tree))

    def _identifier(self, found: re.Match[str]) -> str:
        self._quoted.append(found[1])
        return f"_quoted_{len(self._quoted) - 1}_"

    def _column(self, name: str) -> str:
        quoted = re.fullmatch(r"_quoted_(\d+)_", name)
        return self._quoted[int(quoted[1])] if quoted and int(quoted[1]) < len(self._quoted) else name

    def _fault(self, why: str) -> KairodeError:
        functions = ", ".join((BEFORE, *_FUNCTIONS))
        return KairodeError(
            f"the expression '{self.text[:80]}': {why}. Use names of columns (between backticks if they have spaces), "
            f"numbers, + - * / **, comparisons (both at once: (x > 0) * (x < 1)), {INTERVAL}, and {functions}."
        )

    def _used(self, node: ast.expr) -> Iterator[str]:
        """The columns of a part; raises for everything that is not arithmetic."""
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                if abs(number) > sys.float_info.max:
                    raise self._fault("a number is too large")
            case ast.Name(id=name):
                if name != INTERVAL:
                    yield self._column(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                yield from self._used(left)
                yield from self._used(right)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                yield from self._used(operand)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                yield from self._used(left)
                yield from self._used(right)
            case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=column)], keywords=[]) if name == BEFORE:
                yield self._column(column)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
                if len(args) != _FUNCTIONS[name][0]:
                    raise self._fault(f"{name} takes {_FUNCTIONS[name][0]} values, got {len(args)}")
                for one in args:
                    yield from self._used(one)
            case _:
                raise self._fault(f"'{ast.unparse(node)[:40]}' is not allowed")

    def __call__(self, before: Columns, after: Columns, tau: np.ndarray) -> np.ndarray:
        """Its values at all decisions; not finite where a value is missing or the arithmetic has no result."""
        with np.errstate(all="ignore"):
            return np.broadcast_to(np.asarray(self.value(before, after, tau), np.float64), tau.shape)

    def value(self, before: Columns, after: Columns, tau: Any, xp: Any = np) -> Any:
        """The same of arrays of `xp`, which is NumPy or `jax.numpy`."""

        def value(node: Any) -> Any:
            match node:
                case ast.Constant(value=int() | float() as number):
                    return float(number)
                case ast.Name(id=name):
                    return tau if name == INTERVAL else after[self._column(name)]
                case ast.BinOp(left=left, op=op, right=right):
                    return getattr(xp, _BINARY[type(op)])(value(left), value(right))
                case ast.UnaryOp(op=op, operand=operand):
                    return getattr(xp, _UNARY[type(op)])(value(operand))
                case ast.Compare(left=left, ops=[op], comparators=[right]):
                    a, b = value(left), value(right)
                    return xp.where(xp.isnan(a) | xp.isnan(b), xp.nan, getattr(xp, _COMPARISONS[type(op)])(a, b))
                case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=column)]) if name == BEFORE:
                    return before[self._column(column)]
                case ast.Call(func=ast.Name(id=name), args=[holds, a, b]) if name == WHERE:
                    found = value(holds)
                    return xp.where(xp.isnan(found), xp.nan, xp.where(found != 0, value(a), value(b)))
                case ast.Call(func=ast.Name(id=name), args=args):
                    return getattr(xp, _FUNCTIONS[name][1])(*map(value, args))

        return value(self._tree)


def _depth(tree: ast.AST) -> int:
    depth, level = 0, [tree]
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return depth
