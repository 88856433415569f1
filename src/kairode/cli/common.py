"""What the commands share: types of options, and configs as options."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import json
import os
import sys
import textwrap
import threading
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from kairode.config.models import MODEL_NAMES
from kairode.errors import KairodeError

Quiet = Annotated[bool, tyro.conf.arg(aliases=["-q"])]
Command = Callable[..., None]
REGISTRY = tyro.constructors.ConstructorRegistry()
"""How the parser reads configs."""
STRICT_VARIABLE = "KAIRODE_STRICT"
"""Environment variable that is set while a command runs with --strict."""


def is_strict() -> bool:
    """Whether the command was given --strict."""
    return STRICT_VARIABLE in os.environ


@REGISTRY.struct_rule
def config_options(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
    """The fields of a config as options: the help of one is its docstring, in one paragraph."""
    kinds = [kind for kind in getattr(info.type, "__mro__", ()) if kind.__module__.startswith("kairode.config.")]
    if not kinds:
        return None
    hints, fields = typing.get_type_hints(info.type, include_extras=True), []
    for name in (field.name for field in dataclasses.fields(info.type)):
        hint, default = hints[name], getattr(info.default, name)
        if default is True:  # the option is --no-NAME
            hint = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
        elif default is None and "None" in (_help(kinds[0], name, "") or ""):  # it has a meaning
            hint = Annotated[hint, tyro.conf.arg(help_behavior_hint="(default is None)")]
        text = functools.partial(_help, kinds[0], name, "Turn off (on by default): " if default is True else "")
        fields.append(tyro.constructors.StructFieldSpec(name, hint, default, text))
    return tyro.constructors.StructConstructorSpec(info.type, tuple(fields))


def _help(kind: type, name: str, prefix: str) -> str | None:
    (source,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    for field, text in itertools.pairwise(typing.cast(ast.ClassDef, source).body):
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == name and isinstance(text, ast.Expr):
            known = f" Models: {', '.join(MODEL_NAMES)}." if name == "model" else ""
            return prefix + " ".join(ast.literal_eval(text.value).split()) + known
    return None


def parser_config(default: Any, hidden: Sequence[str], flat: Sequence[str] = ()) -> Any:
    """A config for the parser: some fields are not options, and parts named `flat` have no prefix."""
    kind = type(default)
    fields = [(name, Annotated[Any, tyro.conf.Suppress]) for name in hidden]
    fields += [(name, Annotated[type(getattr(default, name)), tyro.conf.arg(name="")]) for name in flat]
    made = dataclasses.make_dataclass(
        kind.__name__,
        [(name, hint, dataclasses.field(default=None)) for name, hint in fields],
        bases=(kind,),
        frozen=True,
        # the config itself is checked, once it is whole
        namespace={"__doc__": kind.__doc__, "__post_init__": lambda self: None},
    )
    return made(**vars(default))


def plain_config(parsed: Any, words: Sequence[str]) -> Any:
    """The config itself, with fields of its environment from `--set name=value`."""
    kind: Any = type(parsed).__base__
    return kind(**{**vars(parsed), "env_fields": {**parsed.env_fields, **parse_fields(words)}})


def parse_fields(words: Sequence[str]) -> dict[str, Any]:
    """Fields of an environment: `--set noise=0.05 intervals=[1,3] substep=inf`."""
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name):
            raise KairodeError(f"--set takes name=value, got '{word}'.")
        fields[name] = _field_value(value)
    return fields


def _field_value(word: str) -> Any:
    """JSON or a Python literal; anything else is a string."""
    if word in ("inf", "-inf"):
        return float(word)
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(word)
        except (ValueError, SyntaxError):
            continue
    return word


def config_command(default: Any, run: Callable[[Any, Path | None, bool], None], about: str) -> Command:
    """The command that runs a config of an environment, for the parser."""
    parsed = parser_config(default, hidden=("env", "env_fields"))

    def command(
        config: Any = parsed,
        set: tuple[str, ...] = (),
        out: Path | None = None,
        devices: int = 1,
        quiet: Quiet = False,
    ) -> None:
        with on_devices(devices):
            run(plain_config(config, set), out, quiet)

    command.__annotations__["config"] = Annotated[type(parsed), tyro.conf.arg(name="")]
    command.__doc__ = about
    return command


def on_devices(count: int) -> contextlib.AbstractContextManager[None]:
    """`use_devices`, without JAX where one is enough."""
    if count == 1:
        return contextlib.nullcontext()
    from kairode.devices import use_devices

    return use_devices(count)


@contextlib.contextmanager
def loading(quiet: bool = False, after: float = 1.5) -> Iterator[None]:
    """A first line while JAX is imported, if that takes longer than `after` seconds; on a terminal it disappears."""
    terminal, shown = sys.stderr.isatty(), threading.Event()

    def show() -> None:
        shown.set()
        print("loading JAX: started", end="" if terminal else "\n", file=sys.stderr, flush=True)

    timer = threading.Timer(after, show)
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if shown.is_set() and terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def first_word(words: Sequence[str], default: str | None = None, what: str = "ENV") -> tuple[str, list[str]]:
    """The name that a command starts with, and the other words."""
    if words and not words[0].startswith("-"):
        return words[0], list(words[1:])
    if default is None and not {"-h", "--help"} & set(words):
        raise KairodeError(f"{what} is missing.")
    return default or "", list(words)


def print_json(content: Any) -> None:
    """Print with an indent of one, as records are stored."""
    print(json.dumps(content, indent=1))
