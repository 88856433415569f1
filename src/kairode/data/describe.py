"""A task's specification as JSON, and its inference from the columns of a table."""

import dataclasses
import difflib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kairode.envs.core import RESERVED, Continuous, Discrete, Intervals, Spec, Variable
from kairode.errors import KairodeError

FORMAT = 1
DESCRIPTIONS = ("decision_name", "subject", "measures", "regimes", "map_axes", "notes", "categories")
"""Fields of a spec that do not affect computations; older files lack them."""
OF_TABLES = ("reward_expression", "action_values", "categories")
"""Fields that only specs of tables have."""
MOST_ACTIONS = 1000
ALIASES = {"t": ("time", "timestamp"), "terminated": ("done",), "truncated": ("done",)}
"""Other names that tables give to required columns."""


def spec_to_dict(spec: Spec) -> dict[str, Any]:
    """JSON of a spec; infinite numbers as strings."""
    fields = _finite(dataclasses.asdict(spec))
    fields["environment"] = fields.pop("name")
    fields["settings"] = dict(fields["settings"])
    for name in OF_TABLES:
        if not fields[name]:
            del fields[name]
    fields["actions"]["kind"] = "discrete" if isinstance(spec.actions, Discrete) else "continuous"
    units = {v.name: v.unit for v in spec.observations} | {"t": spec.time_unit}
    return {"format": FORMAT, **fields, "units": units}


def spec_identity(spec: Spec) -> dict[str, Any]:
    """What tells one system from another, as plain JSON: everything but its description."""
    kept = {name: value for name, value in spec_to_dict(spec).items() if name not in DESCRIPTIONS}
    return json.loads(json.dumps(kept, default=str))


def spec_from_dict(given: dict[str, Any]) -> Spec:
    """Inverse of `spec_to_dict`."""
    if given["format"] != FORMAT:
        raise KairodeError(f"format {given['format']} is not supported, this version reads {FORMAT}")
    actions = dict(given["actions"])
    kind = Discrete if actions.pop("kind") == "discrete" else Continuous
    return Spec(
        name=given["environment"],
        observations=tuple(
            Variable(**{**v, "low": float(v["low"]), "high": float(v["high"]), "log": _tuples(v.get("log"))})
            for v in given["observations"]
        ),
        actions=kind(**{key: tuple(values) for key, values in actions.items()}),
        intervals=Intervals(**given["intervals"]),
        time_unit=given["time_unit"],
        tick=given["tick"],
        horizon=float(given["horizon"]),
        max_decisions=given["max_decisions"],
        discount=given["discount"],
        # Older files use the former name, or have neither.
        discounted_objective=given.get("discounted_objective", given.get("judged_discounted", False)),
        settings=tuple((name, _tuples(value)) for name, value in given["settings"].items()),
        **{name: _tuples(given[name]) for name in (*DESCRIPTIONS, *OF_TABLES) if name in given},
    )


def spec_from_table(path: str | Path, table: pa.Table) -> Spec:
    """Infer the spec of a table without metadata: names from its columns, ranges from its values."""
    for name in ("episode", "t"):
        if name not in table.column_names:
            raise missing(path, name, table.column_names)
    if not _is_number(table.schema.field("t").type):
        raise KairodeError(
            f"{path}, column 't': numbers are required, the column holds {table.schema.field('t').type}. Give "
            "times as days or hours since a common start."
        )
    observed = [
        name
        for name in table.column_names
        if name not in RESERVED and not name.startswith("action_") and not name.startswith("__index_level_")
    ]
    if not observed:
        raise KairodeError(f"{path}: there is no observation column besides {', '.join(RESERVED)}.")
    same = pc.equal(table["episode"][1:], table["episode"][:-1]).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):  # infinite times are refused later, with their row
        gaps = np.diff(table["t"].to_numpy().astype(np.float64))[same.astype(bool)]
    gaps = gaps[np.isfinite(gaps) & (gaps > 0)]
    low, high = (float(gaps.min()), float(gaps.max())) if gaps.size else (1.0, 1.0)
    whole = bool(np.all(gaps == np.round(gaps)))
    return Spec(
        name=Path(path).stem,
        observations=tuple(Variable(name, "as given") for name in observed),
        actions=_actions(path, table),
        intervals=Intervals(low, high, step=1.0 if whole else 0.0),
        time_unit="time unit",
    )


def missing(path: str | Path, name: str, found: list[str]) -> KairodeError:
    """The error for a missing column, with the nearest name among those found."""
    free = [column for column in found if column not in RESERVED]
    near = [x for x in ALIASES.get(name, ()) if x in free] or difflib.get_close_matches(name, free, n=1, cutoff=0.6)
    hint = f" Did you mean '{near[0]}'? Rename it to '{name}'." if near else ""
    if "done" in near:
        hint = (
            " Replace 'done' by 'truncated' (the record ended) and 'terminated' (the process ended): one of them is "
            "true in the last row of an episode."
        )
    return KairodeError(f"{path}: the column '{name}' is missing.{hint} Columns found: {', '.join(found)}.")


def _actions(path: str | Path, table: pa.Table) -> Discrete | Continuous:
    controls = [name for name in table.column_names if name.startswith("action_")]
    if controls:
        bounds = []
        for name in controls:
            if not _is_number(table.schema.field(name).type):
                raise KairodeError(f"{path}, column '{name}': continuous actions must be numbers.")
            bounds.append(pc.min_max(table[name]).as_py())
        low, high = (tuple(float(b[end] or 0.0) for b in bounds) for end in ("min", "max"))
        return Continuous(tuple(name.removeprefix("action_") for name in controls), low, high)
    if "action" not in table.column_names:
        raise missing(path, "action", table.column_names)
    if not is_name_or_number(kind := table.schema.field("action").type):
        raise KairodeError(f"{path}, column 'action': give names or integers, not {kind}.")
    found = [value for value in pc.unique(table["action"]).to_pylist() if value is not None]
    if found and all(isinstance(value, str) for value in found):
        return Discrete(tuple(sorted(found)))
    found = [value for value in found if value == value]
    whole = all(not isinstance(v, str | bool) and v == int(v) and 0 <= v < MOST_ACTIONS for v in found)
    if found and whole:  # also 0.0, 1.0: pandas stores integers with missing values as floats
        return Discrete(tuple(str(i) for i in range(int(max(found)) + 1)))
    raise KairodeError(
        f"{path}, column 'action': give names, or integers from 0 to {MOST_ACTIONS - 1}; continuous actions "
        "go into columns action_NAME."
    )


def is_name_or_number(kind: pa.DataType) -> bool:
    """Whether a column holds texts, numbers, booleans or nothing."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)
    return text or _is_number(plain) or pa.types.is_boolean(plain) or pa.types.is_null(plain)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return float(value) if value in ("inf", "-inf") else value
