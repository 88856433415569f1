"""Migration of run folders and records of older formats.

A record without a `format`, and a folder with `config.json` and no manifest, are of format 0. Format 1 has every result
in the form of `kairode.result.Result`, table rows that describe themselves, and today's fields of specs and configs
(`kairode.config.renames`).

In format 0 a result had one of four forms, and `return` had a different meaning in each:

    evaluation   `return` is the objective; `return_std`, `return_low`, `return_high`
    row          a schedule of `kairode schedule`: `return` is the discounted accrued return, `plain` the accrued one
    point        a study of visits: the same with a list of seeds, without an interval
    cell         a study of returns: `values` are the objective of each seed

All functions are pure, keep unknown fields, and leave data in the new format unchanged.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from kairode.config.renames import CHANGES
from kairode.result import Result, Spread, objective_name
from kairode.runs import labels

Figures = dict[str, Any]

FORMAT = 1
"""Format of manifests and records written today."""

DISCOUNTED = ("hiv", "hiv-partial")
"""Environments evaluated by the discounted return, if a record does not specify it."""


def migrate_config(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of format 0 in format 1."""
    return CHANGES.get(kind, dict)(copy.deepcopy(dict(config)))


def migrate_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of any format in the current one."""
    found, config = {"format": 0, "kind": "", **record}, record.get("config", {})
    if found["format"] < FORMAT and "figures" in record:
        found["figures"] = migrate_figures(found["kind"], record["figures"], config)
    if found["format"] < FORMAT and "config" in record:
        found["config"] = migrate_config(found["kind"], config)
    return {**found, "format": FORMAT}


def migrate_figures(kind: str, figures: Mapping[str, Any], config: Mapping[str, Any]) -> Figures:
    """Figures of a record of format 0, or a part of them, in format 1."""
    renamed = _renamed(copy.deepcopy(dict(figures)))
    change = FIGURES.get(kind)
    return renamed if change is None else change(renamed, dict(config))


RENAMED = {
    "practice_episodes": "training_episodes",
    "practice_decisions": "training_decisions",
    "practice_return": "training_return",
    "practice_wanted": "planned_episodes",
    "seconds_of_practice": "training_seconds",
    "spent": "stage_seconds",
    "shadow_price": "decision_penalty",
}
"""Figures with another name in format 0."""


def _renamed(figures: Any) -> Any:
    if isinstance(figures, list):
        return [_renamed(one) for one in figures]
    if isinstance(figures, dict):
        return {RENAMED.get(name, name): _renamed(value) for name, value in figures.items()}
    return figures


def migrate_spec(spec: Mapping[str, Any]) -> Figures:
    """A spec with today's fields; descriptions are those of its environment."""
    found = dict(spec)
    if "environment" not in found:  # descriptions in the old form
        return found
    if "judged_discounted" in found:
        found = {("discounted_objective" if name == "judged_discounted" else name): x for name, x in found.items()}
    own = HIV_DESCRIPTION if found.get("environment") in DISCOUNTED else {}
    return {**found, **{name: x for name, x in (DESCRIPTION | own).items() if name not in found}}


DESCRIPTION: Figures = {
    "decision_name": "decision",
    "subject": "system",
    "measures": [],
    "regimes": ["all"],
    "map_axes": None,
}
HIV_DESCRIPTION: Figures = {
    "decision_name": "visit",
    "subject": "patient",
    "measures": [
        [
            "healthy",
            "Healthy: the patient's own cells keep the virus down, E above a tenth of the healthy state's 353,108 per "
            "ml and V below 1,000 per ml.",
        ]
    ],
    "regimes": ["healthy", "V below 1e4", "V below 1e5", "V above 1e5"],
    "map_axes": ["V", "E"],
}
"""Copied from `kairode.envs.hiv`, which imports JAX."""


def evaluation_figures(old: Mapping[str, Any], *, discounted: bool = False) -> Figures:
    """Result of one policy. Only one return was recorded; the oldest records do not tell whether it is discounted."""
    if "objective" in old:
        return dict(old)
    objective = objective_name(discounted=old.get("discounted", discounted), accrued=False)
    spread = Spread(old["return_std"], None, old["return_low"], old["return_high"])
    return _new(old, objective, {objective: old["return"]}, spread, old.get("episodes"))


def accrued_figures(old: Mapping[str, Any], *, discounted: bool, episodes: int | None = None) -> Figures:
    """Result under one schedule, with accrued rewards: of one policy, or of one per seed (without an interval)."""
    if "objective" in old:
        return dict(old)
    values = old["return" if discounted else "plain"]
    spread = Spread(low=old["low"], high=old["high"]) if "low" in old else Spread.of(values)
    returns = {"discounted_accrued_return": old["return"], "accrued_return": old["plain"]}
    objective = objective_name(discounted=discounted, accrued=True)
    return _new({**old, "decisions": old["visits"]}, objective, returns, spread, episodes)


def study_cell(old: Mapping[str, Any], *, discounted: bool, episodes: int | None = None) -> Figures:
    """Result of one policy per seed, with rewards at decisions."""
    if "objective" in old:
        return dict(old)
    objective, values = objective_name(discounted=discounted, accrued=False), old["values"]
    spread = Spread.of(values)._replace(low=old["low"], high=old["high"])  # computed before rounding
    return _new(old, objective, {objective: values}, spread, episodes)


RESULT = {"return", "discounted", "plain", "values", "return_std", "return_low", "return_high", "low", "high"}
RESULT |= {"decisions", "visits", "time", "reached", "healthy", "episodes"}
"""Fields of results in format 0."""


def _new(old: Mapping[str, Any], objective: str, returns: Figures, spread: Spread, episodes: int | None) -> Figures:
    """The new figures, followed by the other fields of a record."""
    healthy = old.get("healthy")
    unknown = healthy is None or (isinstance(healthy, list) and all(share is None for share in healthy))
    result = Result(
        objective=objective,
        returns=returns,
        spread=spread,
        decisions=old["decisions"],
        time=old.get("time"),
        terminated=old.get("reached"),
        measures={} if unknown else {"healthy": healthy},
        episodes=episodes,
    )
    return {**result.figures(), **{name: value for name, value in old.items() if name not in RESULT}}


def _evaluations(found: Any, config: Figures) -> Any:
    if isinstance(found, list):
        return [_evaluations(one, config) for one in found]
    if "return" in found:
        return evaluation_figures(found, discounted=config.get("env") in DISCOUNTED)
    return {name: _evaluations(one, config) for name, one in found.items()}


def _with_evaluations(figures: Figures, config: Figures, *names: str) -> Figures:
    return figures | {name: _evaluations(figures[name], config) for name in names if name in figures}


def _rows(rows: Figures, discounted: bool, episodes: int | None = None) -> Figures:
    return {
        name: {**_schedule_of(name), **accrued_figures(row, discounted=discounted, episodes=episodes)}
        for name, row in rows.items()
    }


def _schedule_of(name: str) -> Figures:
    """A schedule's row from its label."""
    kind, _, value = name.partition(" ")
    if kind == "every":
        return labels.fixed(float(value))
    if kind in ("price", "budget"):
        return labels.chosen(price=float(value)) if kind == "price" else labels.chosen(budget=int(value))
    return labels.own()


def _run(figures: Figures, config: Figures) -> Figures:
    found = _runs(_with_evaluations(figures, config, "tests", "rounds"), config)
    for name, test in found.get("tests", {}).items():
        constant = name.startswith("always ")
        about = labels.constant(name.removeprefix("always ")) if constant else {"kind": name}
        found["tests"][name] = about | test
    if visits := figures.get("visits"):
        discounted = config["env"] in DISCOUNTED
        both = {name: _rows(visits[name], discounted) for name in ("rows", "usual") if name in visits}
        found["visits"] = visits | both
    return found


def _runs(figures: Figures, config: Figures) -> Figures:
    return figures | {"spec": migrate_spec(figures["spec"])} if "spec" in figures else figures


def _rounds(figures: Figures, config: Figures) -> Figures:
    return _with_evaluations(figures, config, "rounds", "test")  # tested after the last round


def _control(figures: Figures, config: Figures) -> Figures:
    """Mean and spread over seeds are those of the tests."""
    kept = {name: value for name, value in figures.items() if name not in ("return", "return_std")}
    return _with_evaluations(kept, config, "tests", "random", "actors")


def _schedule(figures: Figures, config: Figures) -> Figures:
    """The record does not name its environment: the interval is that of the objective."""
    rows = figures["rows"]
    plain = all("objective" in row or row["low"] <= row["plain"] <= row["high"] for row in rows.values())
    return figures | {"rows": _rows(rows, not plain, config.get("episodes"))}


def _visits(figures: Figures, config: Figures) -> Figures:
    points = figures["points"].items()
    return figures | {"points": {label: accrued_figures(one, **_of_study(config)) for label, one in points}}


def _study(figures: Figures, config: Figures) -> Figures:
    cells = {
        model: {schedule: study_cell(cell, **_of_study(config)) for schedule, cell in by_schedule.items()}
        for model, by_schedule in figures["cells"].items()
    }
    return figures | {"cells": cells}


def _of_study(config: Figures) -> Figures:
    return {"discounted": config["env"] in DISCOUNTED, "episodes": config.get("test_episodes")}


FIGURES: dict[str, Callable[[Figures, Figures], Figures]] = {
    "run": _run,
    "runs": _runs,
    "rounds": _rounds,
    "control": _control,
    "schedule": _schedule,
    "visits": _visits,
    "study": _study,
}
"""By the kind's name in format 0; other kinds hold no results."""


def is_finished(record: Mapping[str, Any]) -> bool:
    """Whether a record of format 0 belongs to a finished run; those of Dyna rounds were written after every round."""
    return bool(record) and (record.get("kind") != "rounds" or "test" in record.get("figures", {}))
