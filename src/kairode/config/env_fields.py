"""Fields of an environment on the command line: `--set noise=0.05 intervals=[1,3] substep=inf`."""

import ast
import json
import math
from collections.abc import Sequence
from typing import Any

from kairode.errors import KairodeError

_WORDS = {"inf": math.inf, "-inf": -math.inf}


def parse_fields(words: Sequence[str]) -> dict[str, Any]:
    """Values are JSON or Python literals; anything else is a string."""
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name):
            raise KairodeError(f"--set takes name=value, got '{word}'.")
        fields[name] = _value(value)
    return fields


def _value(word: str) -> Any:
    if word in _WORDS:
        return _WORDS[word]
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(word)
        except (ValueError, SyntaxError):
            continue
    return word
