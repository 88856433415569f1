"""The work behind a table or figure of the paper; shared parts are run once.

Names are those of the records: table1/ROW-MODEL, between/ENV-MODEL, policies/STUDY, visits/STUDY, control/ENV-MODEL;
and fits/ROW-MODEL-SEED for the fits shared by table 1 and the studies.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from kairode.config.algorithms import DynaConfig, MPCConfig
from kairode.config.commands import command_of
from kairode.config.models import EARLIER, PAPER_MODELS
from kairode.errors import KairodeError, unknown
from kairode.models.zoo import MODELS
from kairode.paper import between, estimate, locomotion, returns, table1
from kairode.paper import schedule_study as visits
from kairode.paper.between import BetweenStudy
from kairode.paper.budget import Scope
from kairode.paper.schedule_study import ScheduleStudy
from kairode.paper.studies import ORACLE, Study
from kairode.paper.work import WorkItem
from kairode.runs.dyna import dyna_folder
from kairode.runs.record import read_record

ROUNDS = 5
"""Seeds of the Dyna rounds on HIV."""
FIGURES: dict[str, tuple[str, ...]] = {
    "figure-values": ("paper-gridworld", "paper-gridworld-oracle"),
    "figure-curves": tuple(f"paper-{env}{part}" for env in returns.ENVS for part in ("", "-oracle")),
    "figure-pomdp": tuple(f"paper-hiv-partial{part}" for part in ("", "-latent", "-oracle")),
    "figure-rounds": ("ours-hiv-oracle",),
    "figure-schedule": (),
    "figure-mujoco": (),
}
"""Figures, and the studies of policies that they show."""
STUDIES: dict[str, Mapping[str, Study | ScheduleStudy | BetweenStudy | MPCConfig]] = {
    "between": between.STUDIES,
    "policies": returns.STUDIES,
    "visits": visits.STUDIES,
    "control": locomotion.STUDIES,
}
"""Work whose seeds run together, by the folder of its records."""
BETWEEN = "table-between"
SOLVERS = "figure-solvers"
"""Drawn from a record that no plan makes."""
ALL = ("table1", BETWEEN, *returns.TABLES, *FIGURES, SOLVERS)
"""Everything that can be reproduced."""


def plan(
    what: str,
    scope: Scope,
    *,
    rows: Sequence[str] = (),
    models: Sequence[str] = (),
    only: Sequence[str] = (),
    since: str = "",
) -> list[WorkItem]:
    """The work behind a table, a figure or `all`, in an executable order.

    Finished work is included; requirements of finished work are not.

    Args:
        what: which table or figure.
        scope: how much of it, and where.
        rows: rows of table 1; the default ones if empty.
        models: models of table 1 and table-between; the paper's six if empty.
        only: only these studies.
        since: time before which existing records do not count.
    """
    demands: dict[str, tuple[bool, str]] = {}
    found: dict[str, WorkItem] = {}

    def add(name: str, folder_used: bool, since: str) -> None:
        before = demands.get(name, (False, ""))
        demand = (folder_used or before[0], since or before[1])
        if demand == demands.get(name):
            return
        demands[name] = demand
        work = found[name] = work_item(name, scope, *demand)
        fits = not work.words  # a cell of table 1 consists of its fits, whose records are enough
        for need in () if work.done else work.needs:
            add(need, not fits, demand[1] if fits else "")

    for name in records_of(what, scope, rows, models, only):
        add(name, False, since)
    return _in_order(found)


def _in_order(found: dict[str, WorkItem]) -> list[WorkItem]:
    ordered: dict[str, WorkItem] = {}

    def put(name: str) -> None:
        if name in found and name not in ordered:
            for need in found[name].needs:
                put(need)
            ordered[name] = found[name]

    for name in found:
        put(name)
    return list(ordered.values())


def records_of(what: str, scope: Scope, rows: Sequence[str], models: Sequence[str], only: Sequence[str]) -> list[str]:
    """Names of the records that a table or figure (or all of them) is made of."""
    if what == "all":
        return list(dict.fromkeys(name for one in ALL for name in records_of(one, scope, rows, models, only)))
    if what == "table1":
        for row in rows:
            if row not in table1.ROWS:
                raise unknown("row", row, table1.ROWS, where="of table1")
        return [f"table1/{row}-{model}" for row in rows or table1.USUAL for model in models or PAPER_MODELS]
    if what == BETWEEN:
        chosen = _chosen("between", only)
        return [f"between/{name}" for name in chosen if not models or between.STUDIES[name].model in models]
    if what == SOLVERS:
        return []
    if what in ("figure-schedule", "figure-mujoco"):
        kind = "visits" if what == "figure-schedule" else "control"
        return [f"{kind}/{name}" for name in _chosen(kind, only)]
    if what in returns.TABLES:
        return [
            f"policies/{name}" for name in returns.required_studies(what, _chosen("policies", only) if only else ())
        ]
    if what in FIGURES:
        extra = range(scope.count(ROUNDS)) if what == "figure-rounds" else ()
        return [*(f"policies/{name}" for name in FIGURES[what]), *(f"policies/rounds-hiv-{seed}" for seed in extra)]
    raise unknown("table or figure", what, (*ALL, "all"))


def _chosen(kind: str, only: Sequence[str]) -> list[str]:
    for name in only:
        if name not in STUDIES[kind]:
            raise unknown("study", name, STUDIES[kind])
    return [name for name in STUDIES[kind] if not only or name in only]


def work_item(name: str, scope: Scope, folder_used: bool = False, since: str = "") -> WorkItem:
    """The work item of a name; `folder_used` if others use its folder, not only its record."""
    work = _work_item(name, scope)
    words = (*work.words, "--replace") if since and "study" in work.words else work.words
    return dataclasses.replace(work, since=since, words=words, also=work.also if folder_used else lambda: True)


def _work_item(name: str, scope: Scope) -> WorkItem:
    kind, _, rest = name.partition("/")
    if kind == "fits":
        cell, _, seed = rest.rpartition("-")
        return _fit(*split_cell(cell), _number(seed, name), scope)
    if kind == "table1":
        return _cell(*split_cell(rest), scope)
    if kind == "policies" and rest.startswith("rounds-hiv-"):
        return _rounds(_number(rest.rpartition("-")[2], name), scope)
    if rest not in STUDIES.get(kind, ()):
        raise unknown("study", name, [f"{kind}/{rest}" for kind, some in STUDIES.items() for rest in some])
    return _study(kind, rest, scope)


def _number(seed: str, name: str) -> int:
    if not seed.isdigit():
        raise KairodeError(f"'{name}' must end with a seed, such as 0, not with '{seed}'.")
    return int(seed)


def split_cell(name: str) -> tuple[str, str]:
    """Row and model of a cell's name in table 1, ROW-MODEL."""
    cells = {f"{row}-{model}": (row, model) for row in table1.ROWS for model in MODELS}
    if name not in cells:
        raise unknown("cell of table1", name, cells)
    return cells[name]


def _fit(row: str, model: str, seed: int, scope: Scope) -> WorkItem:
    usual, folder = table1.cell_config(row, model, seed), scope.runs / "table1" / f"{row}-{model}-{seed}"
    config = scope.of(usual)
    return WorkItem(
        name=f"fits/{row}-{model}-{seed}",
        words=("-m", "kairode", *shlex.split(command_of(config, folder))[1:], "--quiet"),
        folder=folder,
        record=folder / "record.json",
        config=config,
        also=lambda: (folder / "models.json").exists(),
        seconds=estimate.seconds(config, usual, scope.published / "table1" / f"{row}-{model}.json"),
    )


def _cell(row: str, model: str, scope: Scope) -> WorkItem:
    seeds = scope.count()
    return WorkItem(
        name=f"table1/{row}-{model}",
        words=(),
        folder=scope.runs / "table1",
        record=scope.results / "table1" / f"{row}-{model}.json",
        config=scope.of(table1.cell_config(row, model, 0)),
        seeds=seeds,
        needs=tuple(f"fits/{row}-{model}-{seed}" for seed in range(seeds)),
        seconds=0.0,
    )


def _rounds(seed: int, scope: Scope) -> WorkItem:
    name, folder = f"policies/rounds-hiv-{seed}", dyna_folder(scope.runs, "hiv", seed)
    config = scope.of(DynaConfig("hiv", sample_intervals=False, seed=seed, **EARLIER))
    return WorkItem(
        name=name,
        words=("-m", "kairode", "study", name, *scope.words(), "--quiet"),
        folder=folder,
        record=scope.results / f"{name}.json",
        config=config,
        also=lambda: rounds_ended(folder, config.rounds),
        # seed 0 was run on two cores, some others on a GPU
        seconds=estimate.seconds(config, DynaConfig("hiv"), scope.published / "policies" / "rounds-hiv-0.json"),
        wide=True,
    )


def _study(kind: str, name: str, scope: Scope) -> WorkItem:
    usual = STUDIES[kind][name]
    config, folder = scope.of(usual), scope.folder({"policies": "studies"}.get(kind, kind), name, usual)
    policies = [folder / "price 0" / str(seed) / "policy.json" for seed in range(config.seeds)]
    return WorkItem(
        name=f"{kind}/{name}",
        words=("-m", "kairode", "study", f"{kind}/{name}", *scope.words(), "--quiet"),
        folder=folder,
        record=scope.results / kind / f"{name}.json",
        config=config,
        seeds=config.seeds,
        needs=tuple(needs_of(config)),
        also=lambda: all(path.exists() for path in policies),
        seconds=estimate.seconds(config, usual, scope.published / kind / f"{name}.json"),
        wide=not isinstance(config, BetweenStudy),
    )


def needs_of(config: Study | ScheduleStudy | BetweenStudy | MPCConfig) -> list[str]:
    """Other work whose folders a study uses."""
    if isinstance(config, BetweenStudy):
        return [f"fits/{config.fits}-{config.model}-{seed}" for seed in range(config.seeds)]
    if isinstance(config, Study):
        models = [model for model in config.models if model != ORACLE]
        return [f"fits/{config.fits}-{model}-{seed}" for model in models for seed in range(config.seeds)]
    if not isinstance(config, ScheduleStudy):
        return []
    before = config.start or ("" if config.episodes else f"{config.env}-{config.chooser}")
    found = [f"visits/{before}"] if before else []
    if config.chooser == "rounds":
        found += [f"policies/rounds-{config.env}-{seed}" for seed in range(config.seeds)]
    if config.chooser == "random":
        found += [f"fits/{visits.RANDOM[config.env]}-latent-ode-{seed}" for seed in range(config.seeds)]
    return found


def rounds_ended(folder: Path, rounds: int) -> bool:
    """Whether a folder holds all rounds and the final test."""
    figures = read_record(folder / "record.json")["figures"]
    return (folder / "checkpoint.json").exists() and "test" in figures and len(figures["rounds"]) > rounds
