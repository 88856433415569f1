"""How a Gymnasium environment is made: from an id, a function or an environment, which is copied."""

import copy
import hashlib
import re
from collections.abc import Callable
from typing import Any

import gymnasium

from kairode.errors import KairodeError


def environment_maker(env: Any, options: dict[str, Any]) -> tuple[Callable[..., gymnasium.Env], str]:
    """A function that makes the environment, and its name."""
    if isinstance(env, str):
        return lambda **more: gymnasium.make(env, disable_env_checker=True, **{**options, **more}), env
    if isinstance(env, gymnasium.Env):
        if options:
            raise KairodeError(f"options ({', '.join(options)}) are for an id or a function: the environment is made.")
        label = env.spec.id if env.spec is not None else type(env.unwrapped).__name__

        def copied(render_mode: str | None = None) -> gymnasium.Env:
            if render_mode is not None and env.render_mode != render_mode:
                raise KairodeError(f"make '{label}' with render_mode='{render_mode}' before you pass it, to draw it.")
            try:
                return copy.deepcopy(env)
            except Exception as error:  # whatever one of its parts raises
                raise KairodeError(
                    f"'{label}' cannot be copied ({type(error).__name__}: {error}): pass its id or a function that "
                    "makes it, such as lambda: gymnasium.make(..)."
                ) from error

        return copied, label
    if isinstance(env, gymnasium.vector.VectorEnv) or not callable(env):
        raise KairodeError(
            "expected an id such as 'CartPole-v1', a Gymnasium environment or a function that makes one, got "
            f"{' '.join(repr(env).split())[:80]}."
        )
    label = getattr(env, "__name__", type(env).__name__)
    return lambda **more: env(**{**options, **more}), "environment" if label == "<lambda>" else label


def make_checked(make: Callable[..., gymnasium.Env], label: str, options: dict[str, Any]) -> gymnasium.Env:
    """Make the environment, or say what is wrong with it."""
    try:
        found = make(**options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise KairodeError(f"'{label}' needs a package that is not installed: {error}") from error
    except gymnasium.error.Error as error:
        raise KairodeError(f"Gymnasium cannot make '{label}': {error}") from error
    except ModuleNotFoundError as error:
        raise KairodeError(f"the module of '{label}' cannot be imported: {error}") from error
    except TypeError as error:
        if "render_mode" in options and "render_mode" in str(error):
            raise KairodeError(f"'{label}' does not draw images: it takes no render_mode.") from error
        raise KairodeError(f"'{label}' cannot be made: {error}.") from error
    except KairodeError:
        raise
    except Exception as error:  # whatever its constructor raises
        raise KairodeError(f"'{label}' cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(found, gymnasium.Env):
        raise KairodeError(
            f"'{label}' made a {type(found).__name__}, not a gymnasium.Env: its class must derive from gymnasium.Env."
        )
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(found, name, None), gymnasium.Space):
            raise KairodeError(f"'{label}' breaks Gymnasium's contract: it has no {name}.")
    return found


def options_of(env: Any) -> dict[str, Any]:
    """The arguments that an environment was made with, if it knows them."""
    found = getattr(env, "spec", None) if isinstance(env, gymnasium.Env) else None
    return {} if found is None else dict(found.kwargs)


def described(value: Any) -> Any:
    """A value of a setting as plain data that is the same in every process: of a function its name and code."""
    if value is None or isinstance(value, int | float | str | bool):
        return value
    if callable(value):
        code = getattr(value, "__code__", None)
        mark = "" if code is None else hashlib.sha256(code.co_code + repr(code.co_consts).encode()).hexdigest()[:12]
        return (
            f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)} {mark}".strip()
        )
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
