"""Checks of settings; each refusal names the field and what it must be."""

from typing import Any

from kairode.errors import KairodeError


def at_least(config: Any, least: int, *names: str) -> None:
    """Whole numbers of at least this; None is left alone."""
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        if isinstance(value, bool) or not (isinstance(value, int) and value >= least):
            raise KairodeError(f"{name} must be an integer of at least {least}, got {value}.")


def positive(config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise KairodeError(f"{name} must be positive, got {getattr(config, name)}.")


def not_negative(config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= 0:
            raise KairodeError(f"{name} must not be negative, got {getattr(config, name)}.")


def unit_interval(config: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise KairodeError(f"{name} must lie in [0, 1], got {getattr(config, name)}.")
