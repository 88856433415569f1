"""Rows of a run's tables as data: kind of policy or schedule, interval, price, budget, action.

The keys of a table are derived from these for display; only the migration of older records parses them.
"""

from typing import Any

from kairode.result import objective_of


def label(row: dict[str, Any]) -> str:
    """The key of a row."""
    kind = row["kind"]
    if kind == "fixed":
        return f"every {row['interval']:g}"
    if kind == "chosen":
        return f"budget {row['budget']}" if row["budget"] is not None else f"price {exact_number(row['price'])}"
    if kind == "constant":
        return f"always {row['action']}"
    return str(kind)  # own; imagination, model-free, random


def exact_number(number: float) -> str:
    """In few digits if they give exactly this number, otherwise in all."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def own() -> dict[str, Any]:
    """Row of the environment's own schedule."""
    return {"kind": "own"}


def fixed(interval: float) -> dict[str, Any]:
    """Row of a fixed interval."""
    return {"kind": "fixed", "interval": interval}


def chosen(price: float | None = None, budget: int | None = None) -> dict[str, Any]:
    """Row of decision times that the models chose, at a price or within a budget."""
    return {"kind": "chosen", "price": price, "budget": budget}


def constant(action: str) -> dict[str, Any]:
    """Row of a policy that always takes one action."""
    return {"kind": "constant", "action": action}


def of_kind(rows: dict[str, Any], kind: str) -> dict[str, Any]:
    """The rows of one kind: own, fixed, chosen, constant, .."""
    return {name: row for name, row in rows.items() if row["kind"] == kind}


def best_constant(tests: dict[str, Any]) -> str:
    """The key of the constant policy with the highest return."""
    constants = of_kind(tests, "constant")
    return max(constants, key=lambda name: float(objective_of(constants[name])))
