"""What the commands share: types of options, and configs as options."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import tyro

from kairode.config.env_fields import parse_fields
from kairode.errors import KairodeError

T = TypeVar("T")
Quiet = Annotated[bool, tyro.conf.arg(aliases=["-q"])]
Hidden = tyro.conf.Suppress
Command = Callable[..., None]


def config_class(default: T, hidden: Sequence[str], flat: Sequence[str] = ()) -> Any:
    """The class of a config for the parser: some fields are not options, and parts named `flat` have no prefix."""
    kind: Any = type(default)
    hints = {field.name: field.type for field in dataclasses.fields(kind)}
    fields: list[Any] = []
    for name in hidden:
        fields.append((name, Annotated[Any, Hidden], dataclasses.field(default=None)))
    for name in flat:
        part = type(getattr(default, name))
        fields.append(
            (name, Annotated[part, tyro.conf.arg(name="")], dataclasses.field(default=getattr(default, name)))
        )
    assert all(name in hints for name in (*hidden, *flat))
    made = dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True)
    made.__doc__ = kind.__doc__
    made.__post_init__ = lambda self: None  # type: ignore[attr-defined]  # the config itself is checked, once it is whole
    return made


def parsed_default(default: Any, cls: Any) -> Any:
    """A config as an instance of its class for the parser."""
    return cls(**{field.name: getattr(default, field.name) for field in dataclasses.fields(default)})


def plain_config(parsed: Any, kind: type[T], **changes: Any) -> T:
    """The config itself."""
    values = {field.name: getattr(parsed, field.name) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{**values, **changes})


def with_fields(config: T, words: Sequence[str]) -> T:
    """A config with fields of its environment from `--set name=value`."""
    given = parse_fields(words)
    return dataclasses.replace(config, env_fields={**config.env_fields, **given}) if given else config  # type: ignore


def first_word(words: Sequence[str], default: str | None = None, what: str = "ENV") -> tuple[str, list[str]]:
    """The name that a command starts with, and the other words."""
    if words and not words[0].startswith("-"):
        return words[0], list(words[1:])
    if default is None and not {"-h", "--help"} & set(words):
        raise KairodeError(f"{what} is missing.")
    return default or "", list(words)


def interval(word: str) -> float:
    """An interval of the command line."""
    try:
        return float(word)
    except ValueError as error:
        raise KairodeError(f"--schedule takes intervals, such as 5, or 'chosen', got '{word}'.") from error


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))
