"""Frozen dataclasses to and from plain JSON, and how two of them differ."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from kairode.config.models import EARLIER
from kairode.errors import KairodeError, unknown

T = TypeVar("T")
_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    type(None): "null",
}


def to_dict(config: Any) -> dict[str, Any]:
    """Plain JSON: tuples become lists. Infinite numbers stay numbers (`Infinity` in JSON text)."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(cls: type[T], data: Any, *, file: str | Path = "") -> T:
    """The inverse of `to_dict`. A missing field takes its default; the file is named in error messages."""
    return _read(cls, data, "", str(file))


def with_effect(config: dict[str, Any]) -> dict[str, Any]:
    """A config, as a dict, without the fields of an ODE if its model has none."""
    model = config.get("model")
    return _without(config, tuple(EARLIER)) if isinstance(model, str) and "ode" not in model else config


def _without(part: Any, names: tuple[str, ...]) -> Any:
    if not isinstance(part, dict):
        return part
    return {name: _without(value, names) for name, value in part.items() if name not in names}


def first_difference(there: Any, here: Any) -> str:
    """The first field in which two configs, as dicts, differ: "fit.iterations is 3000 there and 500 here"."""
    found = _difference(there, here, "")
    return "nothing differs" if found is None else "{} is {} there and {} here".format(*found)


def _read(cls: Any, data: Any, at: str, file: str) -> Any:
    hints, prefix = typing.get_type_hints(cls), f"{file}: " if file else ""
    if not isinstance(data, Mapping):
        raise KairodeError(f"{prefix}{at or 'the config'} must be an object, got {_shown(data)}.")
    paths = {name: _join(at, name) for name in hints}
    for name in data:
        if name not in hints:
            where = f"in {file}" if file else f"of {cls.__name__}"
            raise unknown("field", _join(at, name), paths.values(), where=where)
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in data:
            raise KairodeError(f"{prefix}{paths[field.name]} is missing: {_expected(hints[field.name])} is needed.")
    values = dict(getattr(cls, "absent", {}))
    for name, value in data.items():
        hint, path = hints[name], paths[name]
        try:
            values[name] = (
                _read(hint, value, path, file) if dataclasses.is_dataclass(hint) else msgspec.convert(value, hint)
            )
        except msgspec.ValidationError:
            raise KairodeError(f"{prefix}{path} must be {_expected(hint)}, got {_shown(value)}.") from None
    try:
        return cls(**values)
    except KairodeError as error:
        raise type(error)(f"{prefix}{error}") from error


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _expected(hint: Any) -> str:
    """A type in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_expected, args))
    if origin is tuple and args[-1] is ...:
        return f"a list with {_expected(args[0])} in each place"
    if origin is tuple:
        return f"a list of {len(args)}: {', '.join(map(_expected, args))}"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "an object"
    return _NAMES.get(hint, str(hint))


def _difference(there: Any, here: Any, at: str) -> tuple[str, str, str] | None:
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return None if there == here else (at, _shown(there), _shown(here))
    for name in {**there, **here}:
        if name not in there or name not in here:
            shown = [_shown(one[name]) if name in one else "missing" for one in (there, here)]
            return _join(at, name), shown[0], shown[1]
        found = _difference(there[name], here[name], _join(at, name))
        if found is not None:
            return found
    return None


def _shown(value: Any) -> str:
    """A value in a message: JSON, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
