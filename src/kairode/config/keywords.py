"""Settings as keyword arguments: `kairode.fit(.., iterations=3000, latent_size=16)`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from kairode.errors import unknown

T = TypeVar("T")


def with_options(
    config: T, options: Mapping[str, Any], *, where: str, own: Sequence[str] = (), parts: Sequence[str] = ()
) -> T:
    """A config with some fields changed.

    Args:
        config: a dataclass.
        options: new values by the name of the field.
        where: the function that takes the options, for error messages.
        own: fields of the config that are options. One that is a dataclass also takes a dictionary of its fields.
        parts: fields of the config that are dataclasses, whose own fields are options.
    """
    homes = dict.fromkeys(own, "")
    for part in parts:
        homes |= {field.name: part for field in dataclasses.fields(getattr(config, part))}
    for name in options:
        if name not in homes:
            raise unknown("option", name, sorted(homes), where=f"of {where}")
    changes = {
        name: _part_with(getattr(config, name), value, f"of {name} of {where}") if isinstance(value, Mapping) else value
        for name, value in options.items()
        if homes[name] == ""
    }
    for part in parts:
        mine = {name: value for name, value in options.items() if homes[name] == part}
        changes[part] = dataclasses.replace(getattr(config, part), **mine)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _part_with(part: Any, fields: Mapping[str, Any], where: str) -> Any:
    """A part of a config with some fields changed; anything but a dataclass is a dictionary, and replaced."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return dict(fields)
    known = field_names(type(part))
    for name in fields:
        if name not in known:
            raise unknown("option", name, known, where=where)
    return dataclasses.replace(part, **fields)


def field_names(cls: Any, *, but: Sequence[str] = ()) -> list[str]:
    """Names of the fields of a dataclass, except those in `but`."""
    return [field.name for field in dataclasses.fields(cls) if field.name not in but]
