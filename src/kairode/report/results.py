"""Tables of the paper and of Kairode's own experiments, from records."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kairode.config.models import PAPER_MODELS
from kairode.envs.locomotion import ROBOTS
from kairode.paper import published, returns
from kairode.paper.between import read_between
from kairode.paper.studies import ORACLE, interval_label
from kairode.report.compare import runs_table
from kairode.report.mpc import ORDER, model_label, mujoco_figure, read_records, return_over_seeds
from kairode.report.prediction import (
    OVER_SEEDS,
    between_table,
    error_table,
    read_table1,
    solvers_figure,
    solvers_table,
    tight_table,
)
from kairode.report.returns import UNITS, curves_figure, rounds_figure, values_figure
from kairode.report.scaling import scaling_table
from kairode.report.schedule import LABELS, read_points, visits_figure
from kairode.report.table import Table, mean_std, mean_std_cells, print_table
from kairode.result import objective_of
from kairode.runs.record import read_record
from kairode.stats import mean, std
from kairode.text import say

MAIN = "run-hiv"
"""The table that is not in the paper."""
ATTACKS = "attack"
SETTINGS = {"paper": "paper's settings", "ours": "our settings"}


def returns_table(what: str, found: dict[str, Any]) -> Table:
    """Tables 2a, 2b and 4: returns in both settings, compared with the published ones."""
    if what == "table3":
        return partial_table(found)
    names = (*PAPER_MODELS, ORACLE)
    sections = []
    for env in returns.ENVS:
        taus = {"table2a": [0.0], "table2b": [returns.TRANSFER[env]], "table4": list(returns.REGULAR[env])}[what]
        for tau in taus:
            label = env if not tau else f"{env}, every {tau:g}"
            pairs = {model: (*pair, None) for model, pair in published.RETURNS[env][interval_label(tau)].items()}
            section = [[label, "paper", *mean_std_cells(pairs, names, beside=[ORACLE])]]
            for setting, words in SETTINGS.items():
                cells = found[setting][env][interval_label(tau)] if what == "table4" else found[setting][env]
                ours = {model: _scaled(cells[model], env) for model in names}
                if any(ours.values()):
                    section.append(["", words, *mean_std_cells(ours, names, beside=[ORACLE])])
            sections.append(section)
    caption = f"{OVER_SEEDS[0].upper()}{OVER_SEEDS[1:]}; HIV discounted, in 1e7."
    return Table.in_sections(["", "", *names], sections, caption, transpose=True)


def _scaled(cell: dict[str, Any] | None, env: str) -> tuple[float, float, int] | None:
    return None if cell is None else (cell["mean"] / UNITS[env], cell["std"] / UNITS[env], cell["n"])


def partial_table(found: dict[str, Any]) -> Table:
    rows: list[list[str | None]] = []
    for row, pair in published.PARTIAL.items():
        ours = [_scaled(found[setting]["hiv-partial"][row], "hiv-partial") for setting in SETTINGS]
        rows.append([row, mean_std(*pair, None), *(None if one is None else mean_std(*one) for one in ours)])
    return Table.of(["policy", "paper", *SETTINGS.values()], rows, f"Discounted return (1e7), {OVER_SEEDS}.")


def _read_returns(what: str, results: Path) -> Table:
    return returns_table(what, {setting: returns.TABLES[what](results / "policies", setting) for setting in SETTINGS})


def rounds_table(results: Path) -> Table:
    found = [read_record(path) for path in sorted((results / "policies").glob("rounds-hiv-*.json"))]
    if not found:
        return Table.of(["real episodes"], [])
    counts = [str(one["real_episodes"]) for one in found[0]["figures"]["rounds"]]
    rows = []
    for record in found:
        scores = [f"{objective_of(one) / 1e7:.1f}" for one in record["figures"]["rounds"]]
        rows.append([f"seed {record['seed']}", *scores])
    return Table.of(["real episodes", *counts], rows, "Discounted return (1e7) on 20 episodes after each round.")


def visits_table(results: Path) -> Table:
    groups = read_points(results / "visits")
    daily = mean(objective_of(groups["fixed"]["1"])) if "1" in groups["fixed"] else None
    rows = []
    for name, points in groups.items():
        for label, point in points.items():
            scores = objective_of(point)
            share = "" if daily is None else f"{100 * mean(scores) / daily:.0f} %"
            number = mean_std(mean(scores) / 1e7, std(scores) / 1e7, None, digits=0)
            rows.append([LABELS[name][0], label, number, share, f"{mean(point['decisions']):.0f}", str(len(scores))])
    headers = ["schedule", "setting", "return (1e7)", "of daily", "visits", "seeds"]
    return Table.of(headers, rows, "Discounted return accrued every day; mean ± std over seeds.")


def robots_table(results: Path) -> Table:
    found = read_records(results / "control")
    rows: list[list[str | None]] = []
    for model in ORDER:
        records = [found[env].get(model) for env in ROBOTS]
        decisions = [f"{record['config']['decisions']:,}" for record in records if record]
        rows.append([model_label(model), decisions[-1] if decisions else "", *map(_robot_cell, records)])
    firsts = [next(iter(records.values()), None) for records in found.values()]
    chance = [None if first is None else f"{objective_of(first['figures']['random']):.3g}" for first in firsts]
    caption = "Final return, mean ± std over three seeds (other numbers in brackets)."
    return Table.of(["", "decisions", *ROBOTS], [*rows, ["random", "", *chance]], caption)


def _robot_cell(record: dict[str, Any] | None) -> str | None:
    if record is None:
        return None
    middle, around = return_over_seeds(record)
    return mean_std(middle, around, record["config"]["seeds"], digits=1 if abs(middle) < 100 else 0, usual=3)


def main_job(results: Path) -> Table:
    path = results / "run-hiv-seeds.json"
    return runs_table(read_record(path)) if path.exists() else Table.of(["seed"], [])


def attack_table(results: Path) -> Table:
    """What each attack found, from the records of `make attack`."""
    found = [read_record(path)["figures"] for path in (results / ATTACKS).glob("*.json")]
    found.sort(key=lambda one: one["position"])
    rows = [(one["what"], one["figure"], one["goal"], "yes" if one["held"] else "no") for one in found]
    return Table.of(["attack", "found", "to reach", "reached"], rows)


TABLES: dict[str, Callable[[Path], Table]] = {
    MAIN: main_job,
    "table1": lambda results: error_table(read_table1(results)),
    "table1-solver": lambda results: tight_table(read_table1(results)),
    "table-between": lambda results: between_table(read_between(results / "between")),
    "table2a": partial(_read_returns, "table2a"),
    "table2b": partial(_read_returns, "table2b"),
    "table3": partial(_read_returns, "table3"),
    "table4": partial(_read_returns, "table4"),
    "figure-rounds": rounds_table,
    "figure-schedule": visits_table,
    "figure-mujoco": robots_table,
    "figure-solvers": lambda results: solvers_table(results / "solvers.json"),
    "scaling": scaling_table,
    "attack": attack_table,
}
"""By name in `kairode reproduce`; the main job is `kairode run hiv`."""
PARTS = {"table1-solver": "table1"}
"""Tables that belong to another."""

FIGURES: dict[str, Callable[[Path], Figure]] = {
    "figure-values": lambda results: values_figure(results / "policies"),
    "figure-curves": lambda results: curves_figure(results / "policies"),
    "figure-pomdp": lambda results: curves_figure(results / "policies", partial=True),
    "figure-rounds": lambda results: rounds_figure(results / "policies"),
    "figure-schedule": lambda results: visits_figure(results / "visits"),
    "figure-mujoco": lambda results: mujoco_figure(results / "control"),
    "figure-solvers": lambda results: solvers_figure(results / "solvers.json"),
}
"""By name in `kairode reproduce`."""
TITLES = {
    MAIN: "kairode run hiv: results by seed",
    "table1": "Table 1: state prediction error",
    "table-between": "Table: prediction error between decisions",
    "figure-solvers": "Figure: solvers of the Latent-ODE",
    "table2a": "Table 2a: return on the environment's own schedule",
    "figure-values": "Figure: value functions over the gridworld",
    "figure-curves": "Figure: learning curves",
    "table2b": "Table 2b: return on a regular schedule, with models of the irregular one",
    "table3": "Table 3: partially observed HIV (without infected cells)",
    "figure-pomdp": "Figure: learning curves on partially observed HIV",
    "table4": "Table 4: return on every regular schedule",
    "figure-rounds": "Figure: Dyna rounds",
    "figure-schedule": "Figure: return against visits",
    "figure-mujoco": "Figure: model predictive control of robots",
}
"""In the order of the page."""


def print_returns(what: str, found: dict[str, Any], records: Path) -> None:
    say(TITLES[what])
    print_table(returns_table(what, found))
    say(f"Records: {records}/STUDY.json. Settings: docs/results.md.")
