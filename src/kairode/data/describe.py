"""A task's sizes and units as JSON, and what a bare table shows of them."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kairode.envs.core import Continuous, Discrete, Intervals, Spec, Variable
from kairode.errors import KairodeError

FORMAT = 1
RESERVED = ("episode", "t", "reward", "terminated", "truncated", "action")


def spec_to_dict(spec: Spec) -> dict[str, Any]:
    """Plain JSON: environment, units and everything else, infinite numbers as null."""
    fields = _finite(dataclasses.asdict(spec))
    fields["environment"] = fields.pop("name")
    fields["actions"]["kind"] = "discrete" if isinstance(spec.actions, Discrete) else "continuous"
    units = {v.name: v.unit for v in spec.observations} | {"t": spec.time_unit}
    return {"format": FORMAT, **fields, "units": units}


def spec_from_dict(given: dict[str, Any]) -> Spec:
    """The inverse of `spec_to_dict`."""
    if given["format"] != FORMAT:
        raise KairodeError(f"format {given['format']} is not {FORMAT}, the one this version reads")
    actions = dict(given["actions"])
    kind = Discrete if actions.pop("kind") == "discrete" else Continuous
    return Spec(
        name=given["environment"],
        observations=tuple(
            Variable(v["name"], v["unit"], _or(v["low"], -math.inf), _or(v["high"], math.inf))
            for v in given["observations"]
        ),
        actions=kind(**actions | {"names": tuple(actions["names"])}),
        intervals=Intervals(**given["intervals"]),
        time_unit=given["time_unit"],
        tick=given["tick"],
        horizon=_or(given["horizon"], math.inf),
        max_decisions=given["max_decisions"],
        discount=given["discount"],
    )


def spec_from_table(path: str | Path, table: pa.Table) -> Spec:
    """For a table that nothing describes: names from its columns, ranges from its values."""
    for name in ("episode", "t"):
        if name not in table.column_names:
            raise KairodeError(
                f"{path}: the column '{name}' is missing. Columns found: {', '.join(table.column_names)}."
            )
    observed = [n for n in table.column_names if n not in RESERVED and not n.startswith("action_")]
    if not observed:
        raise KairodeError(f"{path}: no column of observations beside {', '.join(RESERVED)}.")
    episode, t = (table[name].to_numpy(zero_copy_only=False) for name in ("episode", "t"))
    gaps = np.diff(t.astype(np.float64))[episode[1:] == episode[:-1]]
    gaps = gaps[np.isfinite(gaps) & (gaps > 0)]
    low, high = (float(gaps.min()), float(gaps.max())) if gaps.size else (1.0, 1.0)
    whole = bool(np.all(gaps == np.round(gaps)))
    return Spec(
        name=Path(path).stem,
        observations=tuple(Variable(name, "as given") for name in observed),
        actions=_actions(path, table),
        intervals=Intervals(low, high, step=1.0 if whole else 0.0),
        time_unit="unit of time",
    )


def _actions(path: str | Path, table: pa.Table) -> Discrete | Continuous:
    controls = [name for name in table.column_names if name.startswith("action_")]
    if controls:
        bounds = [pc.min_max(table[name]).as_py() for name in controls]
        names = tuple(name.removeprefix("action_") for name in controls)
        return Continuous(names, min(b["min"] or 0.0 for b in bounds), max(b["max"] or 0.0 for b in bounds))
    if "action" not in table.column_names:
        raise KairodeError(
            f"{path}: the column 'action' is missing (or action_NAME for each control). "
            f"Columns found: {', '.join(table.column_names)}."
        )
    found = [value for value in pc.unique(table["action"]).to_pylist() if value is not None]
    if all(isinstance(value, str) for value in found):
        return Discrete(tuple(sorted(found)))
    if all(isinstance(value, int) and value >= 0 for value in found):
        return Discrete(tuple(str(i) for i in range(max(found) + 1)))
    raise KairodeError(
        f"{path}, column 'action': give names or whole numbers from 0, or numbers in columns action_NAME."
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
