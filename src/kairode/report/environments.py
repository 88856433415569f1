"""The environments as text: all in a table, or one with its fields."""

import math
from typing import Any

from kairode._gymnasium import IDS
from kairode.envs import Discrete, make
from kairode.envs.zoo import describe_env
from kairode.report.table import Column, Table, print_table
from kairode.text import say


def list_environments() -> None:
    rows = []
    for gym_id, name in IDS.items():
        spec = make(name).task.spec
        kind = "named" if isinstance(spec.actions, Discrete) else f"control{'s' * (spec.actions.n > 1)}"
        actions = f"{spec.actions.n} {kind}"
        interval = f"{spec.intervals.low:g} to {spec.intervals.high:g} {spec.time_unit}s"
        rows.append([name, f"{len(spec.observations)}", actions, interval, gym_id])
    print_table(Table.of(["name", "sees", "actions", "interval", "Gymnasium id"], rows))
    say("Details of one: kairode envs NAME. In Python: kairode.make(NAME).")


def show_environment(name: str) -> None:
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

    observed = ", ".join(
        f"{variable.name}{f' ({variable.unit})' * bool(variable.unit)}" for variable in spec.observations
    )
    about = [
        ["Gymnasium", next((gym_id for gym_id, known in IDS.items() if known == name), "env.to_gymnasium()")],
        ["observed", observed],
        ["actions", ", ".join(actions)],
        ["interval", f"{spec.intervals.low:g} to {spec.intervals.high:g} {spec.time_unit}s"],
        ["reward", _first_line(task.reward)],
        ["terminal", _first_line(task.terminal)],
        ["truncated", ", ".join(ends)],
        ["discount", f"{spec.discount:g} per {f'{spec.tick:g} ' * (spec.tick != 1)}{spec.time_unit}"],
    ]
    say(f"{name}: {sentence}")
    print_table(Table.of([Column(), Column(wrap=True)], about))
    rows = [[field, str(default), meaning] for field, default, meaning in fields]
    print_table(Table.of(["field", Column("default", wrap=True), Column("meaning", wrap=True)], rows))


def _first_line(method: Any) -> str:
    return (method.__doc__ or "").strip().split("\n")[0]
