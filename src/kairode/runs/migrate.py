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

KINDS: dict[str, str] = {}
"""Kinds of runs renamed since format 0."""

CONFIGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = dict(CHANGES)
"""Migration of a config of format 0, by the kind's name in format 0."""

FINISHED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "rounds": lambda record: "test" in record.get("figures", {}),  # records were written after every round
}
"""Whether a record of format 0 belongs to a finished run, by the kind's name in format 0; by default True."""

DISCOUNTED = ("hiv", "hiv-partial")
"""Environments evaluated by the discounted return, if a record does not specify it."""


def migrate(kind: str, config: Mapping[str, Any], version: int = 0) -> tuple[str, dict[str, Any]]:
    """Today's kind and config."""
    if version >= FORMAT:
        return kind, dict(config)
    change = CONFIGS.get(kind, dict)
    return KINDS.get(kind, kind), change(copy.deepcopy(dict(config)))


def earlier_name(kind: str) -> str:
    """Name of a kind of run in format 0."""
    return next((old for old, new in KINDS.items() if new == kind), kind)


def migrate_record(record: Mapping[str, Any]) -> dict[str, Any]:
    version, kind, config = int(record.get("format", 0)), record.get("kind", ""), record.get("config", {})
    found = {"format": FORMAT, **record, "kind": kind}
    if version < 1 and "figures" in record:
        found["figures"] = migrate_figures(kind, record["figures"], config)
    if "config" in record:
        found["kind"], found["config"] = migrate(kind, config, version)
    return {**found, "format": FORMAT}


def migrate_figures(kind: str, figures: Mapping[str, Any], config: Mapping[str, Any]) -> Figures:
    """Figures of a record of format 0, or a part of them, in format 1."""
    change = FIGURES.get(kind)
    return dict(figures) if change is None else change(copy.deepcopy(dict(figures)), dict(config))


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


def evaluation_figures(old: Mapping[str, Any], *, discounted: bool = False, accrued: bool = False) -> Figures:
    """Result of one policy. Only one return was recorded; the oldest records do not tell whether it is discounted."""
    if "objective" in old:
        return dict(old)
    objective = objective_name(discounted=old.get("discounted", discounted), accrued=accrued)
    spread = Spread(old["return_std"], None, old["return_low"], old["return_high"])
    known = ("return", "discounted", "return_std", "return_low", "return_high", "episodes")
    return _new(old, objective, {objective: old["return"]}, spread, old.get("episodes"), known)


def schedule_row(old: Mapping[str, Any], *, discounted: bool, episodes: int | None = None) -> Figures:
    """Result of one policy under one schedule, with accrued rewards."""
    if "objective" in old:
        return dict(old)
    spread = Spread(low=old["low"], high=old["high"])
    return _accrued(old, discounted, spread, episodes, ("return", "plain", "low", "high"))


def visits_point(old: Mapping[str, Any], *, discounted: bool, episodes: int | None = None) -> Figures:
    """The same with one policy per seed."""
    if "objective" in old:
        return dict(old)
    values = old["return" if discounted else "plain"]
    spread = Spread() if None in values else Spread.of(values)
    return _accrued(old, discounted, spread, episodes, ("return", "plain"))


def study_cell(old: Mapping[str, Any], *, discounted: bool, episodes: int | None = None) -> Figures:
    """Result of one policy per seed, with rewards at decisions."""
    if "objective" in old:
        return dict(old)
    objective, values = objective_name(discounted=discounted, accrued=False), old["values"]
    spread = Spread() if None in values else Spread.of(values)
    spread = spread._replace(low=old["low"], high=old["high"])  # computed before rounding
    return _new(old, objective, {objective: values}, spread, episodes, ("values", "low", "high"))


def _accrued(
    old: Mapping[str, Any], discounted: bool, spread: Spread, episodes: int | None, known: tuple[str, ...]
) -> Figures:
    returns = {"discounted_accrued_return": old["return"], "accrued_return": old["plain"]}
    renamed = {**old, "decisions": old["visits"]}
    return _new(
        renamed, objective_name(discounted=discounted, accrued=True), returns, spread, episodes, (*known, "visits")
    )


def _new(
    old: Mapping[str, Any],
    objective: str,
    returns: Figures,
    spread: Spread,
    episodes: int | None,
    known: tuple[str, ...],
) -> Figures:
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
    taken = {*known, "decisions", "time", "reached", "healthy"}
    return {**result.figures(), **{name: value for name, value in old.items() if name not in taken}}


def _evaluations(found: Any, config: Figures) -> Any:
    if isinstance(found, list):
        return [_evaluations(one, config) for one in found]
    if "return" in found:
        return evaluation_figures(found, discounted=config.get("env") in DISCOUNTED)
    return {name: _evaluations(one, config) for name, one in found.items()}


def _rows(rows: Figures, discounted: bool, episodes: int | None = None) -> Figures:
    return {
        name: {**_schedule_of(name), **schedule_row(row, discounted=discounted, episodes=episodes)}
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


def _test_of(name: str) -> Figures:
    return labels.constant(name.removeprefix("always ")) if name.startswith("always ") else {"kind": name}


def _run(figures: Figures, config: Figures) -> Figures:
    found = dict(figures)
    if "spec" in figures:
        found["spec"] = migrate_spec(figures["spec"])
    if "tests" in figures:
        tests = _evaluations(figures["tests"], config)
        found["tests"] = {name: {**_test_of(name), **test} for name, test in tests.items()}
    if "rounds" in figures:
        found["rounds"] = _evaluations(figures["rounds"], config)
    if visits := figures.get("visits"):
        discounted = config["env"] in DISCOUNTED
        both = {name: _rows(visits[name], discounted) for name in ("rows", "usual") if name in visits}
        found["visits"] = {**visits, **both}
    return found


def _runs(figures: Figures, config: Figures) -> Figures:
    return {**figures, "spec": migrate_spec(figures["spec"])} if "spec" in figures else figures


def _rounds(figures: Figures, config: Figures) -> Figures:
    parts = [name for name in ("rounds", "test") if name in figures]  # tested after the last round
    return {**figures, **{name: _evaluations(figures[name], config) for name in parts}}


def _control(figures: Figures, config: Figures) -> Figures:
    """Mean and spread over seeds are those of the tests."""
    parts = [name for name in ("tests", "random", "actors") if name in figures]
    kept = {name: value for name, value in figures.items() if name not in ("return", "return_std")}
    return {**kept, **{name: _evaluations(figures[name], config) for name in parts}}


def _schedule(figures: Figures, config: Figures) -> Figures:
    """The record does not name its environment: the interval is that of the objective."""
    rows = figures["rows"]
    plain = all("objective" in row or row["low"] <= row["plain"] <= row["high"] for row in rows.values())
    return {**figures, "rows": _rows(rows, not plain, config.get("episodes"))}


def _visits(figures: Figures, config: Figures) -> Figures:
    options: Figures = {"discounted": config["env"] in DISCOUNTED, "episodes": config.get("test_episodes")}
    return {**figures, "points": {label: visits_point(one, **options) for label, one in figures["points"].items()}}


def _study(figures: Figures, config: Figures) -> Figures:
    options: Figures = {"discounted": config["env"] in DISCOUNTED, "episodes": config.get("test_episodes")}
    cells = {
        model: {schedule: study_cell(cell, **options) for schedule, cell in by_schedule.items()}
        for model, by_schedule in figures["cells"].items()
    }
    return {**figures, "cells": cells}


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


def is_finished(record: Mapping[str, Any] | None) -> bool:
    if record is None:
        return False
    return FINISHED.get(record.get("kind", ""), lambda _: True)(dict(record))


def renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Move fields of a config to other paths ("dqn.every" -> "dqn.target_every"); missing ones are ignored."""
    found = copy.deepcopy(dict(config))
    for old, new in names.items():
        *way, last = old.split(".")
        place = _inside(found, way)
        if place is None or last not in place:
            continue
        value = place.pop(last)
        *way, last = new.split(".")
        target = _inside(found, way, create=True)
        assert target is not None
        target[last] = value
    return found


def _inside(config: dict[str, Any], way: list[str], create: bool = False) -> dict[str, Any] | None:
    for name in way:
        if create:
            config.setdefault(name, {})
        if not isinstance(config.get(name), dict):
            return None
        config = config[name]
    return config
