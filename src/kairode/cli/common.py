"""What the subcommands share."""

import ast
import math
from typing import Annotated, Any

from tyro.conf import Positional, arg

from kairode.errors import KairodeError

Environment = Annotated[Positional[str], arg(metavar="ENV")]
Quiet = Annotated[bool, arg(aliases=["-q"])]
WORDS = {"inf": math.inf, "Infinity": math.inf, "null": None, "true": True, "false": False}


def fields_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Fields given as name=value, the value as Python writes it (a plain word is a word)."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise KairodeError(f"--set takes name=value, got '{pair}'.")
        try:
            fields[name] = WORDS[value] if value in WORDS else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            fields[name] = value
    return fields


def number(word: str) -> float:
    """An interval, as the command line has it."""
    try:
        return float(word)
    except ValueError as error:
        raise KairodeError(f"a schedule is given as intervals, such as 5, or as 'chosen', got '{word}'.") from error


def print_json(found: Any) -> None:
    """Figures and nothing else."""
    import json

    print(json.dumps(found, indent=1))
