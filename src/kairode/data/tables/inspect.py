"""What is in a table: sizes, intervals, missing values, actions, rewards, as plain figures for a report."""

from pathlib import Path
from typing import Any

import numpy as np

from kairode.config.tables import TableConfig, unless_default
from kairode.data.checks import check_data
from kairode.data.tables.decisions import UNFIT
from kairode.data.tables.load import LoadedTable, read_episodes
from kairode.data.tables.warnings import statistical_warnings
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Spec

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
BINS = 30
"""Bars of a histogram, at most."""


def inspect_file(path: str | Path, config: TableConfig) -> dict[str, Any]:
    """Figures of a file; one that Kairode wrote describes itself unless the config names its columns."""
    loaded = read_episodes(path, unless_default(config), keep_missing=True)
    return inspect_table(loaded, Path(path).name)


def inspect_table(loaded: LoadedTable, source: str, *, robust: bool = False) -> dict[str, Any]:
    """Figures of a table, as JSON: what `kairode inspect` prints and draws. With `robust`, without warnings of what a
    robust scale takes care of."""
    data, spec, length = loaded.data, loaded.data.spec, np.asarray(loaded.data.length)
    tau, reward = np.asarray(data.interval)[data.mask], np.asarray(data.reward)[data.mask]
    observed = observations(data)
    return {
        "source": source,
        "episodes": len(length),
        "rows": int((length + 1).sum()),
        "decisions": int(length.sum()),
        "terminated": int(np.sum(data.terminated)),
        "time_unit": spec.time_unit,
        "notes": [note for note in spec.notes if UNFIT not in note],
        "lengths": _numbers(length.astype(np.float64)),
        "durations": _numbers(np.asarray(data.interval, np.float64).sum(1)),
        "intervals": {**_numbers(tau), "distinct": len(np.unique(tau))},
        "variables": {
            variable.name: {"missing": float(np.isnan(column).mean()), **_numbers(column[~np.isnan(column)])}
            for variable, column in zip(spec.observations, observed.T, strict=True)
        },
        "actions": _actions(data, observed),
        "rewards": {**_numbers(reward), "zero": float((reward == 0).mean())},
        "returns": _numbers(data.undiscounted),
        "warnings": [
            *(note for note in spec.notes if UNFIT in note),
            *_about_values(loaded, source, robust),
            *statistical_warnings(data),
        ],
    }


def observations(data: Trajectory) -> np.ndarray:
    """Observations of all rows, [row, variable]."""
    observation, length = np.asarray(data.observation), np.asarray(data.length)
    return observation[np.arange(observation.shape[1]) <= length[:, None]]


def _numbers(values: np.ndarray) -> dict[str, Any]:
    """Mean, standard deviation, quantiles and histogram."""
    if not values.size:
        return {"mean": None, "std": None, "quantiles": None, "histogram": None}
    values = np.asarray(values, np.float64)
    low, high = np.quantile(values, [0.005, 0.995])
    inner = values[(values >= low) & (values <= high)]
    inner = inner if inner.size else values
    bars = min(BINS, len(np.unique(inner)), 1 + int(2 * len(inner) ** (1 / 3)))  # Rice's rule
    counts, edges = np.histogram(inner, bins=bars)
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "quantiles": dict(zip(map(str, QUANTILES), np.quantile(values, QUANTILES).tolist(), strict=True)),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
    }


def _actions(data: Trajectory, observed: np.ndarray) -> dict[str, Any]:
    """How often each action is taken, after which values, and how often it follows itself; bounds of controls."""
    spec: Spec = data.spec
    if not isinstance(spec.actions, Discrete):
        columns = np.asarray(data.action)[data.mask].T
        return {name: _numbers(column) for name, column in zip(spec.actions.names, columns, strict=True)}
    action, before = np.asarray(data.action)[data.mask], np.asarray(data.observation)[:, :-1][data.mask]
    again = (np.asarray(data.action)[:, 1:] == np.asarray(data.action)[:, :-1])[data.mask[:, 1:]]
    previous = np.asarray(data.action)[:, :-1][data.mask[:, 1:]]
    found = {}
    for i, name in enumerate(spec.actions.names):
        taken, after = action == i, previous == i
        found[name] = {
            "count": int(taken.sum()),
            "share": float(taken.mean()),
            "episodes": int(((np.asarray(data.action) == i) & data.mask).any(1).sum()),
            "repeated": float(again[after].mean()) if after.any() else None,
            "before": {variable.name: _mean(before[taken, j]) for j, variable in enumerate(spec.observations)},
        }
    return found


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _about_values(loaded: LoadedTable, source: str, robust: bool) -> list[str]:
    """Outliers, gaps in time and large rewards, with their rows."""
    return [
        f"{text[0].upper()}{text[1:]}." for text in check_data(loaded.data, source, rows=loaded.rows, robust=robust)
    ]
