"""Glucose, insulin and potassium under meals and insulin, as a CSV of irregular visits: a system of two hidden states.

Bergman's minimal model (1979) with absorption from the gut and the shift of potassium by insulin; hours, mg/dl, mU/l,
mmol/l. Hidden are insulin's remote effect X, the glucose Q still in the gut, and each patient's sensitivity.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

OBSERVED = ("glucose", "insulin", "potassium")
ACTIONS = {"none": (0.0, 0.0), "insulin": (30.0, 0.0), "meal": (0.0, 100.0), "both": (30.0, 100.0)}
"""Infusion of insulin (mU/l per hour) and intake of glucose (mg/dl per hour), held until the next visit."""
BASAL_GLUCOSE, BASAL_INSULIN, BASAL_POTASSIUM = 90.0, 10.0, 4.2
SHORTEST, LONGEST = 0.5, 6.0
"""Hours between visits, uniform."""
STEPS = 24
"""Of the classical Runge-Kutta method in an interval."""


def glucose_field(state: np.ndarray, insulin: np.ndarray, meal: np.ndarray, sensitivity: np.ndarray) -> np.ndarray:
    """Rates of change per hour of glucose, insulin, potassium, X and Q."""
    glucose, plasma, potassium, remote, gut = state
    return np.stack(
        [
            -(0.6 + remote) * glucose + 0.6 * BASAL_GLUCOSE + 1.2 * gut,
            -1.5 * (plasma - BASAL_INSULIN) + 0.1 * np.maximum(glucose - BASAL_GLUCOSE, 0.0) + insulin,
            -0.5 * (potassium - BASAL_POTASSIUM) - 0.3 * remote,
            -1.5 * remote + 0.075 * sensitivity * (plasma - BASAL_INSULIN),
            -1.2 * gut + meal,
        ]
    )


def hold(state: np.ndarray, action: np.ndarray, hours: np.ndarray, sensitivity: np.ndarray) -> np.ndarray:
    """The state after an action was held, for many patients."""
    insulin, meal = np.array(list(ACTIONS.values()))[action].T
    h = hours / STEPS
    for _ in range(STEPS):
        k1 = glucose_field(state, insulin, meal, sensitivity)
        k2 = glucose_field(state + h / 2 * k1, insulin, meal, sensitivity)
        k3 = glucose_field(state + h / 2 * k2, insulin, meal, sensitivity)
        k4 = glucose_field(state + h * k3, insulin, meal, sensitivity)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


def visits(patients: int, decisions: int, seed: int) -> dict[str, np.ndarray]:
    """Columns [patients, decisions + 1] under random actions, after three visits that are not recorded."""
    rng = np.random.default_rng(seed)
    sensitivity = np.exp(0.4 * rng.normal(size=patients))
    state = np.zeros((5, patients))
    state[:3] = np.array([BASAL_GLUCOSE, BASAL_INSULIN, BASAL_POTASSIUM])[:, None]
    rows, elapsed = [], np.zeros(patients)
    for k in range(-3, decisions + 1):
        action, hours = rng.integers(0, len(ACTIONS), patients), rng.uniform(SHORTEST, LONGEST, patients).round(2)
        if k >= 0:
            rows.append((elapsed, action, *state[:3]))
            elapsed = elapsed + hours
        state = hold(state, action, hours, sensitivity)
    when, given, *seen = (np.stack(column, 1) for column in zip(*rows, strict=True))
    return {"when": when, "given": given, **dict(zip(OBSERVED, seen, strict=True))}


def write_csv(path: Path, columns: dict[str, np.ndarray], missing: np.ndarray | None = None) -> None:
    """One row per visit; `missing` [patients, moments, variables] marks the cells that are left empty."""
    patients, moments = columns["when"].shape
    table: dict[str, Any] = {
        "patient": np.repeat(np.arange(patients), moments),
        "when": columns["when"].ravel().round(2),
        "given": np.array(list(ACTIONS))[columns["given"].ravel()],
    }
    for i, name in enumerate(OBSERVED):
        lost = None if missing is None else missing[..., i].ravel()
        table[name] = pa.array(columns[name].ravel().round(6), mask=lost)
    pyarrow.csv.write_csv(pa.table(table), path)
