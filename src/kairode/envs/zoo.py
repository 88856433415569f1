"""The environments by name. A new one is a file beside this, a line here, and a line of `kairode._gymnasium`."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from kairode.envs.acrobot import Acrobot
from kairode.envs.core import Environment
from kairode.envs.gridworld import WindyGridworld
from kairode.envs.hiv import HIV
from kairode.envs.host import HostEnvironment
from kairode.envs.locomotion import Locomotion
from kairode.errors import KairodeError, unknown

Setting = Literal["ours", "paper"]

ENVIRONMENTS: dict[str, Callable[..., Environment | HostEnvironment]] = {
    "gridworld": WindyGridworld,
    "acrobot": Acrobot,
    "hiv": HIV,
    "hiv-partial": partial(HIV, observed=("T1", "T2", "V", "E")),
    "swimmer": partial(Locomotion, "swimmer"),
    "hopper": partial(Locomotion, "hopper"),
    "half-cheetah": partial(Locomotion, "half-cheetah"),
}

PAPER: dict[str, dict[str, Any]] = {
    "gridworld": {"noise": 0.05},
    "acrobot": {"substep": float("inf")},
}
"""Where the runs behind the paper's numbers differ from our defaults."""


def make(name: str, *, setting: Setting = "ours", **fields: Any) -> Any:
    """An environment by its name, with any of its fields set: `make("hiv", horizon=500)`.

    `setting="paper"` takes the fields of the runs behind the paper's numbers.
    """
    if name not in ENVIRONMENTS:
        raise unknown("environment", name, ENVIRONMENTS)
    if setting not in ("ours", "paper"):
        raise unknown("setting", setting, ("ours", "paper"))
    constructor = ENVIRONMENTS[name]
    known = [field.name for field in dataclasses.fields(_class(constructor)) if field.name != "name"]
    for field in fields:
        if field not in known:
            raise unknown("field", field, known, where=f"of the environment '{name}'")
    env = constructor(**{**(PAPER.get(name, {}) if setting == "paper" else {}), **fields})
    try:
        env.task  # noqa: B018  a field that the task refuses is refused here
    except TypeError as error:
        raise KairodeError(f"a field of '{name}' has the wrong type: {error}.") from error
    return env


def _class(constructor: Callable[..., Environment | HostEnvironment]) -> Any:
    return constructor.func if isinstance(constructor, partial) else constructor
