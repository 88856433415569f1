"""Errors that a user can fix: each names what is wrong, where, and what to do."""

import difflib
import re
from collections.abc import Iterable

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What code raises for content of a form that it does not expect."""


class KairodeError(ValueError):
    """Invalid input. The command prints it as one sentence and exits with code 2."""


class KairodeWarning(UserWarning):
    """Something that may make a result misleading. The command prints them at its end; `--strict` makes them errors."""


class Stopped(KairodeError):
    """Interrupted with everything saved. The command prints how to resume and exits with code 130."""


def unknown(kind: str, given: str, known: Iterable[str], where: str = "", more: str = "") -> KairodeError:
    """The error for an unknown name, with the nearest known one suggested; `more` is a sentence at its end."""
    known = list(known)
    plain = re.sub(r"^.*/|-v\d+$", "", given.lower())  # of a Gymnasium id too
    hint = did_you_mean(plain, known)
    place = f" {where}" if where else ""
    return KairodeError(f"unknown {kind} '{given}'{place}.{hint} Known: {', '.join(known)}.{more and ' ' + more}")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A question after the nearest known name; empty if none is near."""
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


def resume_with(stopped: BaseException, command: str = "") -> Stopped:
    """An interrupt that says how to resume: with the outermost command, where a run is part of another."""
    advice = " Run the same command again to resume"
    what = str(stopped).partition(advice)[0] or "interrupted."
    return Stopped(f"{what}{advice}: {command}" if command else f"{what}{advice}.")
