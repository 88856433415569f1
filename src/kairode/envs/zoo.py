"""Environments by name. A new one is a module here, a line in this file, and one in `kairode._gymnasium`."""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

from kairode.envs.acrobot import Acrobot
from kairode.envs.core import Environment
from kairode.envs.gridworld import WindyGridworld
from kairode.envs.hiv import HIV
from kairode.envs.host import HostEnvironment
from kairode.envs.locomotion import Locomotion
from kairode.envs.named import make_named
from kairode.envs.pendulum import Pendulum
from kairode.errors import KairodeError, unknown

ENVIRONMENTS: dict[str, Callable[..., Environment | HostEnvironment]] = {
    "gridworld": WindyGridworld,
    "acrobot": Acrobot,
    "hiv": HIV,
    "hiv-partial": partial(HIV, observed=("T1", "T2", "V", "E")),
    "pendulum": Pendulum,
    "swimmer": partial(Locomotion, "swimmer"),
    "hopper": partial(Locomotion, "hopper"),
    "half-cheetah": partial(Locomotion, "half-cheetah"),
}

PAPER: dict[str, dict[str, Any]] = {
    "gridworld": {"noise": 0.05},
    "acrobot": {"substep": float("inf")},
}
"""Fields in which the paper's runs differ from the defaults.

Fitting HIV models on episodes of 50 decisions concerns only the fit, and is set there.
"""

OWN_SYSTEMS = "A system of your own: gym:ID for an environment of Gymnasium, MODULE:NAME for a class or a function."


def make(name: str, *, setting: str = "ours", **fields: Any) -> Any:
    """Create an environment by name: `make("hiv", horizon=500)`.

    `setting="paper"` uses the fields of the paper's runs. A system of your own is `make("gym:CartPole-v1",
    intervals=(1, 5))`, with the arguments of `kairode.from_gymnasium` as fields, or `make("my_module:MyEnv")`: a class,
    a function that makes it, or an id that the module registers.
    """
    if isinstance(name, str) and ":" in name:
        if setting != "ours":
            raise KairodeError(f"'{name}' has no setting '{setting}': settings are of Kairode's own environments.")
        return make_named(name, {field: _plain(value) for field, value in fields.items()})
    if name not in ENVIRONMENTS:
        raise unknown("environment", str(name), ENVIRONMENTS, more=OWN_SYSTEMS)
    if setting not in ("ours", "paper"):
        raise unknown("setting", str(setting), ("ours", "paper"))
    constructor = ENVIRONMENTS[name]
    known = [field.name for field in dataclasses.fields(_class(constructor)) if field.name != "name"]
    for field in fields:
        if field not in known:
            raise unknown("field", field, known, where=f"of the environment '{name}'")
    _check_words(name, _class(constructor), fields)
    try:
        published = PAPER.get(name, {}) if setting == "paper" else {}
        env = constructor(**{**published, **{field: _plain(value) for field, value in fields.items()}})
        env.task  # noqa: B018  a field that the task refuses is refused here
    except TypeError as error:
        given = ", ".join(f"{field}={value!r}" for field, value in fields.items())
        raise KairodeError(f"a field of '{name}' has the wrong type ({given}): {error}.") from error
    return env


def own_fields(env: Any) -> dict[str, Any]:
    """Fields in which an environment differs from the defaults of its name; empty for environments not in the list."""
    spec = env.task.spec
    usual = dict(make(spec.name).task.spec.settings) if spec.name in ENVIRONMENTS else {}
    return {name: value for name, value in spec.settings if name in usual and value != usual[name]}


def _check_words(name: str, kind: type, given: dict[str, Any]) -> None:
    for field in dataclasses.fields(kind):
        value, usual = given.get(field.name), field.default
        if isinstance(value, str) and not isinstance(usual, str):
            example = "" if usual is None or usual is dataclasses.MISSING else f" such as {usual}"
            expected = "several values" if "tuple" in str(field.type) else "a number"
            raise KairodeError(f"{field.name} of '{name}' takes {expected}{example}, got '{value}'.")


def _plain(value: Any) -> Any:
    """Convert NumPy and JAX numbers to Python's, and lists to tuples, which are hashable."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def describe_env(name: str) -> tuple[str, list[tuple[str, Any, str]]]:
    """Description of an environment, and its fields: name, default, meaning."""
    if ":" in name:
        return (type(make(name)).__doc__ or "").strip().partition("\n")[0], []
    if name not in ENVIRONMENTS:
        raise unknown("environment", name, ENVIRONMENTS, more=OWN_SYSTEMS)
    env, kind = make(name), _class(ENVIRONMENTS[name])
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings = {
        before.target.id: inspect.cleandoc(after.value.value)
        for before, after in itertools.pairwise(body.body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
    return (kind.__doc__ or "").strip(), [(field, getattr(env, field), text) for field, text in meanings.items()]


def _class(constructor: Callable[..., Environment | HostEnvironment]) -> Any:
    return constructor.func if isinstance(constructor, partial) else constructor
