"""The command line that a config came from: the options the parser (tyro) would read, for what differs from a default.

The parser is set up with `tyro.conf.FlagCreatePairsOff`: a flag has one option, the one that changes its default.
"""

import dataclasses
import json
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from kairode.errors import KairodeError


def command_line(
    program: Sequence[str], config: Any, default: Any, *, omit: Sequence[str] = (), flat: Sequence[str] = ()
) -> list[str]:
    """The words of the command whose options turn the default into the config.

    Args:
        program: the first words, such as `("kairode", "run", "hiv")`.
        config: what the command is to make.
        default: a config of the same class, with the values of options that are not given.
        omit: fields that have no option, or that the first words give.
        flat: fields whose own fields have no prefix (`tyro.conf.arg(name="")`).
    """

    def options(config: Any, default: Any, prefix: str) -> Iterator[str]:
        hints = typing.get_type_hints(type(config))
        for field in dataclasses.fields(config):
            value, usual = getattr(config, field.name), getattr(default, field.name)
            if value == usual or (not prefix and field.name in omit):
                continue
            name = "set" if isinstance(value, dict) else field.name.replace("_", "-")
            if dataclasses.is_dataclass(value):
                yield from options(value, usual, prefix if field.name in flat else f"{prefix}{name}.")
            elif hints[field.name] is bool:
                yield f"--{prefix}{'' if value else 'no-'}{name}"
            else:
                yield from _option(f"--{prefix}{name}", _value_words(value), single=not isinstance(value, tuple | dict))

    return [*program, *options(config, default, "")]


def _option(name: str, words: list[str], single: bool) -> list[str]:
    if single and words[0].startswith("-") and not _is_number(words[0]):
        return [f"{name}={words[0]}"]  # or the parser would take it for an option
    for word in words:
        if word.startswith("-") and not _is_number(word):
            raise KairodeError(f"{name} cannot be given '{word}', which the parser takes for an option.")
    return [name, *words]


def _value_words(value: Any) -> list[str]:
    """A value as the parser reads it: several words for a tuple, name=JSON for each item of a dict."""
    if isinstance(value, dict):
        return [f"{name}={json.dumps(item)}" for name, item in value.items()]
    if isinstance(value, tuple):
        return [word for item in value for word in _value_words(item)]
    if isinstance(value, float):  # in as few digits as tell it from all others
        return [min(f"{value:g}", repr(value), key=lambda text: (float(text) != value, len(text)))]
    return [str(value)]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
