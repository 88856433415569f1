"""Checks of settings; each refusal names the field and what it must be."""

from collections.abc import Callable
from typing import Any

from kairode.errors import KairodeError


def _check(config: Any, names: tuple[str, ...], what: str, holds: Callable[[Any], bool]) -> None:
    for name in names:
        value = getattr(config, name)
        if not holds(value):
            raise KairodeError(f"{name} must {what}, got {value}.")


def at_least(config: Any, least: int, *names: str) -> None:
    """Whole numbers of at least this; None is left alone."""

    def holds(value: Any) -> bool:
        return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least)

    _check(config, names, f"be an integer of at least {least}", holds)


def positive(config: Any, *names: str) -> None:
    """Refuse fields that are not above 0."""
    _check(config, names, "be positive", lambda x: x > 0)


def not_negative(config: Any, *names: str) -> None:
    """Refuse fields below 0."""
    _check(config, names, "not be negative", lambda x: x >= 0)


def unit_interval(config: Any, *names: str) -> None:
    """Refuse fields outside [0, 1]."""
    _check(config, names, "lie in [0, 1]", lambda x: 0 <= x <= 1)
