"""The paper's table 1: state prediction errors of six models on three environments, five seeds each."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kairode.config.algorithms import FitConfig
from kairode.config.models import MIDPOINT
from kairode.config.presets import fit_preset
from kairode.files import save_json
from kairode.paper.published import PUBLISHED_MODELS
from kairode.result import rounded
from kairode.runs.record import make_record, read_record
from kairode.stats import mean, std


@dataclasses.dataclass(frozen=True)
class TableRow:
    """One row of the table."""

    env: str
    setting: str
    fields: dict[str, Any]
    about: str
    paper: str | None
    """The row of the paper's table it is compared with."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Training settings that differ from the published runs."""
    solver: str | None = None
    """Solver, if not the default; without the consistency term."""


COOLED = {"cooldown": 0.4}
COOLING = f"with learning rate cooldown, solver {MIDPOINT}"
ROWS = {
    "gridworld": TableRow("gridworld", "paper", {}, "as published except for the solver, with noise", "gridworld"),
    "acrobot": TableRow(
        "acrobot",
        "paper",
        {},
        "as published except for the solver, simulated with one RK4 step per interval",
        "acrobot",
    ),
    "hiv": TableRow("hiv", "ours", {}, "as published except for the solver, episodes of 50 decisions", "hiv"),
    "gridworld-cooled": TableRow("gridworld", "paper", {}, COOLING, "gridworld", COOLED, MIDPOINT),
    "acrobot-cooled": TableRow("acrobot", "paper", {}, COOLING, "acrobot", COOLED, MIDPOINT),
    "hiv-cooled": TableRow("hiv", "ours", {}, COOLING, "hiv", COOLED, MIDPOINT),
    "gridworld-still": TableRow("gridworld", "ours", {}, "without noise", None),
    "acrobot-fine": TableRow("acrobot", "ours", {}, "integrated finely", None),
    "acrobot-short": TableRow("acrobot", "ours", {"horizon": 10.0}, "integrated finely, episodes of 10 s", None),
    "hiv-whole": TableRow(
        "hiv", "ours", {"max_decisions": None}, f"whole episodes of 1000 days, solver {MIDPOINT}", None, solver=MIDPOINT
    ),
    "hiv-whole-cooled": TableRow(
        "hiv", "ours", {"max_decisions": None}, f"whole episodes, {COOLING}", None, COOLED, MIDPOINT
    ),
    "hiv-fine": TableRow(
        "hiv", "ours", {}, "as published, with a fine solver: four steps of RK4", "hiv", solver="rk4:4"
    ),
    "hiv-partial": TableRow("hiv-partial", "ours", {}, "without the infected cells", None),
    "pendulum": TableRow(
        "pendulum", "ours", {"horizon": 2.0}, "episodes of 2 s", None, {"iterations": 8000, "cooldown": 0.4}
    ),
}
USUAL = ("gridworld", "acrobot", "hiv", "hiv-whole")
"""Rows shown by default: the paper's three, and HIV in full length."""
EACH = ("median_episode", "worst_share", "by_time", "timer_hits", "validation_best", "iterations", "skipped", "solver")
"""Figures of a fit with one value per seed."""


def cell_config(row: str, model: str, seed: int) -> FitConfig:
    """The fit behind a row, a model and a seed: the environment's preset with the row's settings."""
    this = ROWS[row]
    preset = fit_preset(this.env)
    sizes, training = preset.sizes, dataclasses.replace(preset.training, **this.settings)
    if this.solver is not None:
        sizes = dataclasses.replace(sizes, solver=this.solver)
        training = dataclasses.replace(training, weights=dataclasses.replace(training.weights, consistency=0.0))
    return dataclasses.replace(
        preset,
        model=model,
        seed=seed,
        sizes=sizes,
        training=training,
        setting=this.setting,
        env_fields={**preset.env_fields, **this.fields},
    )


def gather(row: str, model: str, seeds: Sequence[int], runs: Path, results: Path, options: str = "") -> None:
    """Combine the records of the seeds of a cell into one in `results`."""
    parts = [read_record(runs / f"{row}-{model}-{seed}" / "record.json") for seed in seeds]
    errors = [part["figures"]["test_error"][0] for part in parts]
    figures: dict[str, Any] = {"test_error": errors, "mean": mean(errors), "std": std(errors)}
    split = [part["figures"]["by_dimension"] for part in parts]
    figures["by_dimension"] = {name: [errors[name][0] for errors in split] for name in split[0]}
    figures["time_edges"] = parts[0]["figures"]["time_edges"]
    for name in EACH:
        values = [part["figures"].get(name) for part in parts]
        figures[name] = None if values[0] is None else [value[0] for value in values]
    config = {**parts[0]["config"], "seed": list(seeds)}
    command = f"kairode reproduce table1 --rows {row} --models {model} --seeds {len(parts)} --again{options}"
    made = make_record(
        "table1", config, rounded(figures), command=command, seconds=sum(part["seconds"] for part in parts)
    )
    made |= {key: parts[0][key] for key in ("commit", "machine", "versions", "made")}
    save_json(results / f"{row}-{model}.json", made)


def read_cell(results: Path, row: str, model: str) -> dict[str, Any]:
    """Mean, std and values of the test error over the seeds of a cell.

    For models with an ODE also `solver` and `tight`, the mean error with a tight solver in place of it (None if that
    fails in a seed); where the model published with the paper was tested on the same episodes, `published_model`.
    """
    record = read_record(results / f"{row}-{model}.json")
    found = record["figures"]
    values = found["test_error"]
    cell = {"mean": found["mean"], "std": found["std"], "n": len(values), "values": values}
    if found.get("solver"):
        tight = [check["error_tight"] for check in found["solver"]]
        cell["solver"] = record["config"]["sizes"]["solver"]
        cell["tight"] = None if None in tight else mean(tight)
    published = PUBLISHED_MODELS.get(ROWS[row].paper or "", {})
    return cell | ({"published_model": published[model]} if model in published else {})
