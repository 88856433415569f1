"""The errors a user can mend: each says what is wrong, where, and what to do."""

import difflib
from collections.abc import Iterable


class KairodeError(ValueError):
    """Bad input. The command prints it as one sentence and exits with code 2."""


class Stopped(KairodeError):
    """Work was interrupted and everything is saved. The command says how to go on and exits with code 130."""


def unknown(kind: str, given: str, known: Iterable[str], where: str = "") -> KairodeError:
    """The error for a name that is not among the known ones, with the nearest suggested."""
    known = list(known)
    near = difflib.get_close_matches(given.lower(), known, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    place = f" {where}" if where else ""
    return KairodeError(f"unknown {kind} '{given}'{place}.{hint} Known: {', '.join(known)}.")
