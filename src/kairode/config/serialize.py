"""Frozen dataclasses to and from plain JSON, and how two of them differ."""

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from kairode.errors import KairodeError, unknown

T = TypeVar("T")
_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    Path: "a path",
    type(None): "null",
}


def to_dict(config: Any) -> dict[str, Any]:
    """Plain JSON: tuples become lists, paths strings. Infinite numbers stay numbers (`Infinity` in JSON text)."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=_plain))


def from_dict(cls: type[T], data: Any, *, file: str | Path = "") -> T:
    """The inverse of `to_dict`. A missing field takes its default; the file is named in error messages."""
    return _Reader(f"{file}: " if file else "").read(cls, data, "")


def first_difference(there: Any, here: Any) -> str:
    """The first field in which two configs (or their dicts) differ: "fit.iterations is 3000 there and 500 here"."""
    found = _difference(_as_dict(there), _as_dict(here), "")
    return "nothing differs" if found is None else "{} is {} there and {} here".format(*found)


@dataclasses.dataclass(frozen=True)
class _Reader:
    prefix: str
    """The file, for error messages."""

    def read(self, cls: type[T], data: Any, at: str) -> T:
        hints = _hints(typing.cast(Any, cls))
        if not isinstance(data, Mapping):
            raise self._wrong(at or "the config", "an object", data)
        for name in data:
            if name not in hints:
                raise unknown("field", f"{at}.{name}" if at else name, _paths(hints, at), where=self._where(cls))
        for name, required in _required(cls).items():
            if required and name not in data:
                raise KairodeError(f"{self.prefix}{_join(at, name)} is missing: {_expected(hints[name])} is needed.")
        values = {name: self._value(hints[name], value, _join(at, name)) for name, value in data.items()}
        try:
            return cls(**values)
        except KairodeError as error:
            raise type(error)(f"{self.prefix}{error}") from error

    def _value(self, hint: Any, value: Any, at: str) -> Any:
        inner = _dataclass_in(hint)
        if inner is not None and not (value is None and _is_optional(hint)):
            return self.read(inner, value, at)
        if get_origin(hint) is tuple and isinstance(value, list | tuple) and _is_sequence_of_dataclass(hint):
            return tuple(self.read(get_args(hint)[0], one, f"{at}[{i}]") for i, one in enumerate(value))
        try:
            return msgspec.convert(value, hint, dec_hook=_decode)
        except msgspec.ValidationError:
            raise self._wrong(at, _expected(hint), value) from None

    def _wrong(self, at: str, expected: str, value: Any) -> KairodeError:
        return KairodeError(f"{self.prefix}{at} must be {expected}, got {_shown(value)}.")

    def _where(self, cls: type) -> str:
        return f"in {self.prefix[:-2]}" if self.prefix else f"of {cls.__name__}"


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Types of the fields, without annotations for the command parser."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _required(cls: type) -> dict[str, bool]:
    missing = dataclasses.MISSING
    return {
        field.name: field.default is missing and field.default_factory is missing
        for field in dataclasses.fields(cls)
        if field.init
    }


def _paths(names: Mapping[str, Any], at: str) -> list[str]:
    return [_join(at, name) for name in names]


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union; the type itself where it is none."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_optional(hint: Any) -> bool:
    return type(None) in _options(hint)


def _dataclass_in(hint: Any) -> Any:
    """The dataclass of `X` or `X | None`."""
    rest = [option for option in _options(hint) if option is not type(None)]
    return rest[0] if len(rest) == 1 and dataclasses.is_dataclass(rest[0]) else None


def _is_sequence_of_dataclass(hint: Any) -> bool:
    first, *rest = get_args(hint)
    return rest == [...] and dataclasses.is_dataclass(first)


def _expected(hint: Any) -> str:
    """A type in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(_shown, args))
    if origin in (Union, types.UnionType):
        return " or ".join(map(_expected, args))
    if origin is tuple and args[-1] is ...:
        return f"a list with {_expected(args[0])} in each place"
    if origin is tuple:
        return f"a list of {len(args)}: {', '.join(map(_expected, args))}"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "an object"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _decode(cls: type, value: Any) -> Any:
    if cls is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"cannot read {cls}")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a config cannot hold a {type(value).__name__}: {value!r}")


def _as_dict(config: Any) -> Any:
    return to_dict(config) if dataclasses.is_dataclass(config) else config


def _difference(there: Any, here: Any, at: str) -> tuple[str, str, str] | None:
    if isinstance(there, dict) and isinstance(here, dict):
        for name in {**there, **here}:
            if name not in there or name not in here:
                shown = [_shown(one[name]) if name in one else "missing" for one in (there, here)]
                return _join(at, name), shown[0], shown[1]
            found = _difference(there[name], here[name], _join(at, name))
            if found is not None:
                return found
        return None
    return None if there == here else (at, _shown(there), _shown(here))


def _shown(value: Any) -> str:
    """A value in a message: JSON, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
