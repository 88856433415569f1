"""Results in records of older versions, in the form of `kairode.result.Result`.

Four forms are known, and `return` means another thing in each:

    evaluation   Evaluation.figures: `return` is the objective; `return_std`, `return_low`, `return_high`
    row          a schedule of `kairode schedule`: `return` is the discounted accrued return, `plain` the accrued one
    point        a study of visits: the same with a list of seeds, without an interval
    cell         a study of returns: `values` are the objective of each seed

All functions are pure, keep what they do not know, and leave what is new already as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kairode.result import Result, Spread, objective_name

Figures = dict[str, Any]

DISCOUNTED = ("hiv", "hiv-partial")
"""Environments evaluated by the discounted return, where a record does not say so."""


def evaluation_figures(old: Mapping[str, Any], *, discounted: bool = False, accrued: bool = False) -> Figures:
    """Of one policy. The other return was not recorded; the oldest do not say whether theirs is discounted."""
    if "objective" in old:
        return dict(old)
    objective = objective_name(discounted=old.get("discounted", discounted), accrued=accrued)
    spread = Spread(old["return_std"], None, old["return_low"], old["return_high"])
    known = ("return", "discounted", "return_std", "return_low", "return_high", "episodes")
    return _new(old, objective, {objective: old["return"]}, spread, old.get("episodes"), known)


def schedule_row(old: Mapping[str, Any], *, discounted: bool, episodes: int | None = None) -> Figures:
    """Of one policy under one schedule, the reward counted on every finest step."""
    if "objective" in old:
        return dict(old)
    spread = Spread(low=old["low"], high=old["high"])
    return _accrued(old, discounted, spread, episodes, ("return", "plain", "low", "high"))


def visits_point(old: Mapping[str, Any], *, discounted: bool, episodes: int | None = None) -> Figures:
    """The same with one policy for each seed."""
    if "objective" in old:
        return dict(old)
    values = old["return" if discounted else "plain"]
    spread = Spread() if None in values else Spread.of(values)
    return _accrued(old, discounted, spread, episodes, ("return", "plain"))


def study_cell(old: Mapping[str, Any], *, discounted: bool, episodes: int | None = None) -> Figures:
    """Of one policy for each seed, the reward counted at decisions."""
    if "objective" in old:
        return dict(old)
    objective, values = objective_name(discounted=discounted, accrued=False), old["values"]
    spread = Spread() if None in values else Spread.of(values)
    spread = spread._replace(low=old["low"], high=old["high"])  # of the values before they were rounded
    return _new(old, objective, {objective: values}, spread, episodes, ("values", "low", "high"))


def migrate_record(made: Mapping[str, Any]) -> dict[str, Any]:
    """A record with every result in the new form; one of another kind, or without results, as it is."""
    migrate = KINDS.get(made.get("kind", ""))
    if migrate is None or "figures" not in made:
        return dict(made)
    return {**made, "figures": migrate(made["figures"], made["config"])}


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
    """The new figures, and behind them what a record holds besides."""
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
    """One result, a list or a dict of them."""
    if isinstance(found, list):
        return [_evaluations(one, config) for one in found]
    if "return" in found:
        return evaluation_figures(found, discounted=config["env"] in DISCOUNTED)
    return {name: _evaluations(one, config) for name, one in found.items()}


def _rows(rows: Figures, discounted: bool, episodes: int | None = None) -> Figures:
    return {label: schedule_row(row, discounted=discounted, episodes=episodes) for label, row in rows.items()}


def _run(figures: Figures, config: Figures) -> Figures:
    found = {**figures, "tests": _evaluations(figures["tests"], config)}
    if "rounds" in figures:
        found["rounds"] = _evaluations(figures["rounds"], config)
    if visits := figures.get("visits"):
        discounted = bool(figures["spec"].get("judged_discounted", False))
        both = {name: _rows(visits[name], discounted) for name in ("rows", "usual")}
        found["visits"] = {**visits, **both}
    return found


def _rounds(figures: Figures, config: Figures) -> Figures:
    return {**figures, "rounds": _evaluations(figures["rounds"], config), "test": _evaluations(figures["test"], config)}


def _control(figures: Figures, config: Figures) -> Figures:
    """The mean over seeds, `return` and `return_std`, stays: robots are evaluated by the return."""
    found = {
        **figures,
        "tests": _evaluations(figures["tests"], config),
        "random": _evaluations(figures["random"], config),
    }
    return found | ({"actors": _evaluations(figures["actors"], config)} if "actors" in figures else {})


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


KINDS: dict[str, Callable[[Figures, Figures], Figures]] = {
    "run": _run,
    "rounds": _rounds,
    "control": _control,
    "schedule": _schedule,
    "visits": _visits,
    "study": _study,
}
"""Kinds of records that hold results."""
