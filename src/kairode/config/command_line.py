"""The command line that a config came from: the options the parser (tyro) would read, for what differs from a default.

The parser is set up with `tyro.conf.FlagCreatePairsOff`: a flag has one option, the one that changes its default.
"""

import dataclasses
import json
import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kairode.errors import KairodeError


def command_line(
    program: Sequence[str],
    config: Any,
    default: Any,
    *,
    positional: Sequence[str] = (),
    omit: Sequence[str] = (),
    flat: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> list[str]:
    """The words of the command whose options turn the default into the config.

    Fields are named by their path ("dqn.reward_scale").

    Args:
        program: the first words, such as `("kairode", "run")`.
        config: what the command is to make.
        default: a config of the same class, with the values of options that are not given.
        positional: fields that are given by position, always written.
        omit: fields that have no option.
        flat: fields whose own fields have no prefix (`tyro.conf.arg(name="")`).
        names: options that are called otherwise than their field. That of a dict is `--set` unless named here.
    """
    if type(config) is not type(default):
        raise TypeError(f"a {type(config).__name__} is not a {type(default).__name__}")
    given = [word for path in positional for word in value_words(_at(config, path))]
    walk = _Walk({*positional, *omit}, set(flat), dict(names or {}))
    return [*program, *given, *walk.options(config, default, "", "")]


def command_text(words: Sequence[str]) -> str:
    """The words as a shell reads them."""
    return shlex.join(words)


@dataclasses.dataclass(frozen=True)
class _Walk:
    """Through two configs side by side."""

    omit: set[str]
    flat: set[str]
    names: dict[str, str]

    def options(self, config: Any, default: Any, path: str, prefix: str) -> Iterator[str]:
        hints = typing.get_type_hints(type(config))
        for field in dataclasses.fields(config):
            at = f"{path}{field.name}"
            value, usual = getattr(config, field.name), getattr(default, field.name)
            if at in self.omit or value == usual:
                continue
            name = self.names.get(at, "set" if isinstance(value, dict) else field.name).replace("_", "-")
            if dataclasses.is_dataclass(value) and type(value) is type(usual):
                yield from self.options(value, usual, f"{at}.", prefix if at in self.flat else f"{prefix}{name}.")
            elif dataclasses.is_dataclass(value) or dataclasses.is_dataclass(usual):
                raise KairodeError(f"no option turns {at} from {usual} into {value}: give the config in Python.")
            elif hints[field.name] is bool:
                yield f"--{prefix}{'' if value else 'no-'}{name}"
            else:
                yield from _option(f"--{prefix}{name}", value_words(value), single=not isinstance(value, tuple | dict))


def _option(name: str, words: list[str], single: bool) -> list[str]:
    if single and words[0].startswith("-") and not _is_number(words[0]):
        return [f"{name}={words[0]}"]  # or the parser would take it for an option
    for word in words:
        if word.startswith("-") and not _is_number(word):
            raise KairodeError(f"{name} cannot be given '{word}', which the parser takes for an option.")
    return [name, *words]


def value_words(value: Any) -> list[str]:
    """A value as the parser reads it: several words for a tuple, name=JSON for each item of a dict."""
    if isinstance(value, dict):
        return [f"{name}={json.dumps(item)}" for name, item in value.items()]
    if isinstance(value, tuple):
        return [word for item in value for word in value_words(item)]
    if isinstance(value, float):
        return [_short(value)]
    return [str(value)]


def _short(number: float) -> str:
    """A number in as few digits as tell it from all others."""
    return min(f"{number:g}", repr(number), key=lambda text: (float(text) != number, len(text)))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config
