"""The environments as text: all in a table, or one with its fields."""

import math
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kairode._gymnasium import IDS
from kairode.envs import Discrete, make
from kairode.envs.zoo import describe_env
from kairode.report.terminal import show


def list_environments() -> None:
    """A table of all of them."""
    rows = []
    for gym_id, name in IDS.items():
        spec = make(name).task.spec
        kind = "named" if isinstance(spec.actions, Discrete) else f"control{'s' * (spec.actions.n > 1)}"
        actions = f"{spec.actions.n} {kind}"
        interval = f"{spec.intervals.low:g} to {spec.intervals.high:g} {spec.time_unit}s"
        rows.append([name, f"{len(spec.observations)}", actions, interval, gym_id])
    show(["name", "sees", "actions", "interval", "Gymnasium id"], rows)
    print("One with its fields: kairode envs NAME. In Python: kairode.make(NAME).")


def show_environment(name: str) -> None:
    """One of them: what is observed, done and earned, and every field."""
    sentence, fields = describe_env(name)
    task = make(name).task
    spec = task.spec
    if isinstance(spec.actions, Discrete):
        actions = [f"{i} {action}" for i, action in enumerate(spec.actions.names)]
    else:
        bounds = zip(spec.actions.names, spec.actions.low, spec.actions.high, strict=True)
        actions = [f"{action} ({low:g} to {high:g})" for action, low, high in bounds]
    ends = [f"after {spec.horizon:g} {spec.time_unit}s"] if spec.horizon < math.inf else []
    ends += [f"after {spec.max_decisions} decisions"] if spec.max_decisions else []

    about = Table(box=None, show_header=False, pad_edge=False)
    about.add_row("Gymnasium", next(gym_id for gym_id, known in IDS.items() if known == name))
    about.add_row("observed", ", ".join(f"{v.name} ({v.unit})" for v in spec.observations))
    about.add_row("actions", ", ".join(actions))
    about.add_row("interval", f"{spec.intervals.low:g} to {spec.intervals.high:g} {spec.time_unit}s")
    about.add_row("reward", _says(task.reward))
    about.add_row("terminal", _says(task.terminal))
    about.add_row("truncated", ", ".join(ends))
    about.add_row("discount", f"{spec.discount:g} per {f'{spec.tick:g} ' * (spec.tick != 1)}{spec.time_unit}")
    settings = Table("field", "default", "meaning", box=SIMPLE_HEAD, pad_edge=False)
    for field, default, meaning in fields:
        settings.add_row(field, str(default), meaning)

    console = Console()
    console.print(f"[bold]{name}[/bold]: {sentence}", highlight=False)
    console.print(about, highlight=False)
    console.print(settings)


def _says(method: Any) -> str:
    """The first line of a method's docstring."""

    return escape((method.__doc__ or "").strip().split("\n")[0])
