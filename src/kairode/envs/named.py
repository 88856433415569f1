"""Systems of the user's own by name: `gym:CartPole-v1`, `my_module:MyEnv`."""

import functools
import importlib
import inspect
import os
import sys
from typing import Any

from kairode.envs.core import Environment
from kairode.envs.host import HostEnvironment
from kairode.errors import KairodeError, unknown

GYM = "gym"


def make_named(name: str, fields: dict[str, Any]) -> Environment | HostEnvironment:
    """The system of a name: gym:ID for an id of Gymnasium, MODULE:NAME for a class, a function or an instance."""
    module, _, rest = name.partition(":")
    if not module or not rest:
        raise KairodeError(f"'{name}' is no name of a system: give gym:ID or MODULE:NAME.")
    if module == GYM:
        return _wrapped(rest, fields)
    found = _attribute(module, rest, name)
    if isinstance(found, Environment | HostEnvironment):
        if fields:
            raise KairodeError(f"'{name}' is made already, and takes no fields: {', '.join(fields)}.")
        return _checked(found)
    if isinstance(found, type) and issubclass(found, Environment | HostEnvironment):
        return _checked(_called(found, name, fields))
    import gymnasium

    if isinstance(found, str | gymnasium.Env) or (isinstance(found, type) and issubclass(found, gymnasium.Env)):
        return _wrapped(found, fields)
    if not callable(found):
        raise KairodeError(
            f"'{name}' is a {type(found).__name__}: it must be an environment, a class of one, or a function that "
            "makes one."
        )
    own = _parameters(found, fields)
    mine = {field: value for field, value in fields.items() if field in own}
    others = {field: value for field, value in fields.items() if field not in own}
    made = _called(found, name, mine)
    if isinstance(made, Environment | HostEnvironment):
        if others:
            raise unknown("field", next(iter(others)), sorted(own), where=f"of '{name}'")
        return _checked(made)
    if isinstance(made, gymnasium.Env):
        made.close()
        return _wrapped(_with_fields(found, mine), others)
    raise KairodeError(f"'{name}' returned a {type(made).__name__}, not an environment.")


def _attribute(module: str, rest: str, name: str) -> Any:
    """What a module holds under a name; the working directory comes first, as for `python -m`."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise KairodeError(f"'{module}' needs a package that is not installed: {error.name}.") from error
        raise KairodeError(
            f"there is no module '{module}' for '{name}': give MODULE:NAME of a file in this folder or of an installed "
            "package, or gym:ID for an environment of Gymnasium."
        ) from error
    except Exception as error:  # whatever the module raises
        raise KairodeError(f"importing '{module}' failed: {type(error).__name__}: {error}") from error
    if hasattr(found, rest):
        return getattr(found, rest)
    import gymnasium

    if rest in gymnasium.registry:
        return rest
    known = [
        one
        for one, value in vars(found).items()
        if callable(value) and getattr(value, "__module__", None) == found.__name__ and not one.startswith("_")
    ]
    raise unknown("name", rest, known, where=f"in the module '{module}'")


def _with_fields(function: Any, fields: dict[str, Any]) -> Any:
    """The function with these of its parameters set, under its own name."""
    made = functools.partial(function, **fields)
    functools.update_wrapper(made, function)
    return made


def _parameters(function: Any, fields: dict[str, Any]) -> set[str]:
    """Names of a function's parameters; with **, the fields as well that are not arguments of `from_gymnasium`."""
    try:
        known = inspect.signature(function).parameters
    except ValueError:  # of some written in C
        return set(fields)
    several = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    if not several:
        return set(known)
    from kairode.envs.gym.wrap import from_gymnasium

    return set(known) | (set(fields) - set(inspect.signature(from_gymnasium).parameters))


def _called(found: Any, name: str, fields: dict[str, Any]) -> Any:
    try:
        return found(**fields)
    except KairodeError:
        raise
    except Exception as error:  # whatever it raises
        given = ", ".join(f"{field}={value!r}" for field, value in fields.items()) or "no fields"
        raise KairodeError(f"'{name}' cannot be made with {given}: {type(error).__name__}: {error}") from error


def _checked(env: Any) -> Any:
    env.task  # noqa: B018  what the task refuses is refused here
    return env


def _wrapped(found: Any, fields: dict[str, Any]) -> HostEnvironment:
    from kairode.envs.gym.wrap import from_gymnasium

    return from_gymnasium(found, **fields)
