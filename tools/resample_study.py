"""What resampling costs: policies learned from HIV records as they are, and from the same records put on a grid.

    python tools/offline_study.py policies FOLDER                          # who makes the second table (once)
    python tools/resample_study.py learn FOLDER random own --seed 0        # a table, and own or a grid of 1, 3, 7 days
    python tools/resample_study.py record FOLDER                           # writes results/resampling.json
    python tools/resample_study.py figure                                  # docs/resampling.svg, from the record

On a grid (`tools/resample.py`) the records are learned from as a regular process: models without a timer, a policy for
the fixed interval. Its off-policy estimates are from 200 other episodes of the same kind, on the same grid. The true
returns are those on the simulator, which nothing was learned from: on HIV's own schedule and with a visit every 1, 3
and 7 days, counted at visits and accrued daily (the latter compare schedules). An estimate from records (fitted Q,
doubly robust) counts the rewards of the visits that were made, that of the models one in every interval of the grid.
The models are given HIV's reward function. Each step skips what is already in the folder.
"""

import argparse
import dataclasses
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from offline_study import TABLES, TEST_EPISODES, TEST_SEED, made, table_of
from resample import resample

import kairode
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Task
from kairode.files import save_json
from kairode.models.dynamics import DynamicsModel
from kairode.report.figures import CHOSEN, EXPECTED, FIXED, OWN, RANDOM, TRUTH, finish_axes, save_figure
from kairode.result import rounded
from kairode.runs.record import make_record, read_record

ROOT = Path(__file__).parents[1]
RECORD, PICTURE = ROOT / "results" / "resampling.json", ROOT / "docs" / "resampling.svg"
GRIDS = {"own": None, "1": 1.0, "3": 3.0, "7": 7.0}
"""Days; None leaves the records as they are."""
SEEDS = (0, 1, 2)
MODELS, ITERATIONS, CHUNK = 5, 6000, 50
ESTIMATE_EPISODES, ESTIMATE_SEED = 200, 800_000
LEARN: dict[str, Any] = {}
"""Options of `kairode.learn_offline`."""
LEAST = 1e-3
"""Of the returns that the figure shows, 1e7: ends of intervals below it are cut off."""
ESTIMATORS = {"fitted_q": EXPECTED, "doubly_robust": RANDOM, "model": OWN}


def put_on(data: Trajectory, grid: str) -> Trajectory:
    days = GRIDS[grid]
    return data if days is None else resample(data, days)


def task_on(data: Trajectory) -> Task:
    """HIV's rewards, with the intervals of the grid."""
    task: Any = kairode.make("hiv").task
    return dataclasses.replace(task, spec=data.spec)


def fit_to(data: Trajectory, grid: str, folder: Path) -> list[DynamicsModel]:
    options: dict[str, Any] = {} if GRIDS[grid] is None else {"timer": "none"}  # intervals are known on a grid
    return kairode.fit(
        "latent-ode", data, seeds=MODELS, iterations=ITERATIONS, chunk_length=CHUNK, folder=folder, **options
    )


def learn_from(models: list[DynamicsModel], data: Trajectory, seed: int) -> Any:
    """The learner: the same for all tables and grids."""
    return kairode.learn_offline(models, data, task=task_on(data), seed=seed, **LEARN)


def true_returns(policy: Any) -> dict[str, dict[str, float]]:
    """By schedule; `accrued` counts the reward of every day, so that schedules can be compared."""
    env = kairode.make("hiv")
    return {
        grid: {
            name: kairode.evaluate(
                env, policy, episodes=TEST_EPISODES, seed=TEST_SEED, schedule=days, accrue=accrue
            ).score
            for name, accrue in (("visits", False), ("accrued", True))
        }
        for grid, days in GRIDS.items()
    }


def make_cell(folder: Path, table: str, grid: str, seed: int) -> None:
    """Learn from a table on a grid, and evaluate."""
    path = folder / f"resample-{table}-{grid}-{seed}.json"
    if path.exists():
        return
    began = time.process_time()
    data, test = (
        put_on(table_of(folder, table, **which)[0], grid)
        for which in ({}, {"episodes": ESTIMATE_EPISODES, "seed": ESTIMATE_SEED})
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = fit_to(data, grid, folder / f"resample-models-{table}-{grid}")
        policy = learn_from(models, data, seed)
        estimates = kairode.evaluate_offline(policy, test, models, task=task_on(test), seed=seed)
    found = {
        "true": true_returns(policy),
        **estimates.figures(),
        "lower_bound": estimates.lower_bound,
        "decisions": float(np.mean(data.length)),
        **made(),
        "seconds": time.process_time() - began,
    }
    kairode.save_policy(folder / path.stem, policy)
    save_json(path, rounded(found))
    print(path.stem, json.dumps(rounded(found["true"], 3)), estimates, sep="\n", flush=True)


def make_the_record(folder: Path) -> None:
    figures: dict[str, Any] = {}
    for table in TABLES:
        cells = {
            grid: [json.loads(path.read_text()) for path in sorted(folder.glob(f"resample-{table}-{grid}-*.json"))]
            for grid in GRIDS
        }
        cells = {grid: found for grid, found in cells.items() if found}
        if cells:
            figures[table] = {grid: {**_means(found), "seeds": found} for grid, found in cells.items()}
            print(table, json.dumps({grid: _means(found) for grid, found in cells.items()}))
    if not figures:
        raise SystemExit(f"{folder} has no policies yet: run the step learn first.")
    seconds = sum(seed["seconds"] for grids in figures.values() for cell in grids.values() for seed in cell["seeds"])
    config = {
        "tables": TABLES,
        "grids": GRIDS,
        "models": MODELS,
        "iterations": ITERATIONS,
        "chunk_length": CHUNK,
        "learn": LEARN,
        "estimate_episodes": ESTIMATE_EPISODES,
        "test_episodes": TEST_EPISODES,
    }
    command = "python tools/resample_study.py record FOLDER"
    save_json(RECORD, make_record("resampling", config, rounded(figures), command=command, seconds=seconds))


def _means(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Over seeds: true returns by schedule, estimates with the ends of their intervals."""
    true = {
        grid: {kind: [seed["true"][grid][kind] for seed in found] for kind in ("visits", "accrued")} for grid in GRIDS
    }
    estimates = {
        name: {end: _mean([seed["estimates"][name][end] for seed in found]) for end in ("mean", "low", "high")}
        for name in found[0]["estimates"]
    }
    mean = {grid: {kind: _mean(values) for kind, values in each.items()} for grid, each in true.items()}
    behavior = _mean([seed["behavior"]["mean"] for seed in found])
    return rounded({"true": mean, "estimates": estimates, "behavior": behavior})


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else float("nan")


def resampling_figure(figures: dict[str, Any]) -> Figure:
    """A column for each table: returns accrued daily above, estimates beside true returns (at visits) below."""
    figure = Figure(figsize=(max(6.4, 4.6 * len(figures)), 6.8), layout="constrained")
    panels = figure.subplots(2, len(figures), squeeze=False, sharex="col")
    for (above, below), (table, cells) in zip(panels.T, figures.items(), strict=True):
        _draw_returns(above, cells)
        _draw_estimates(below, cells)
        above.set_title(f"{TABLES[table]:,} episodes, {table.replace('-', ' ')} treatment", fontsize=10, loc="left")
    figure.legend(
        *panels[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8, frameon=False
    )
    return figure


def _draw_returns(axes: Axes, cells: dict[str, Any]) -> None:
    """On HIV's own schedule, and on the grid that the policy was learned on."""
    for i, (grid, cell) in enumerate(cells.items()):
        kinds = [("own", -0.1, TRUTH, "o", "on HIV's own schedule")]
        if grid != "own":
            kinds.append((grid, 0.1, CHOSEN, "s", "with visits on the grid"))
        for schedule, shift, colour, marker, name in kinds:
            values = [seed["true"][schedule]["accrued"] / 1e7 for seed in cell["seeds"]]
            axes.plot([i + shift] * len(values), values, marker, ms=4, color=colour, mfc="white", zorder=2)
            label = name if i == (schedule != "own") else None
            axes.plot([i + shift - 0.1, i + shift + 0.1], [np.mean(values)] * 2, color=colour, lw=2, label=label)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    finish_axes(axes, "", "true return, accrued daily, 1e7")


def _draw_estimates(axes: Axes, cells: dict[str, Any]) -> None:
    """Means over seeds of estimates with the ends of their intervals, between the true returns."""
    truths: list[float] = []

    def line(i: int, value: float, style: str, colour: str, name: str, *, first: int = 0) -> None:
        axes.plot(
            [i - 0.3, i + 0.3], [value / 1e7] * 2, style, color=colour, lw=1.8, label=name if i == first else None
        )
        truths.append(abs(value) / 1e7)

    for i, (grid, cell) in enumerate(cells.items()):
        line(i, cell["true"]["own"]["visits"], "-", TRUTH, "true, own schedule")
        if grid != "own":
            line(i, cell["true"][grid]["visits"], "-", CHOSEN, "true, visits on the grid", first=1)
        line(i, cell["behavior"], ":", FIXED, "of the records themselves")
        for k, (name, colour) in enumerate(ESTIMATORS.items()):
            one = cell["estimates"].get(name)
            if one is None or None in one.values():
                continue
            x = i + 0.14 * (k - 1)
            low, mean, high = (max(one[end] / 1e7, LEAST) for end in ("low", "mean", "high"))
            axes.plot([x, x], [low, high], color=colour, lw=1.4)
            axes.plot([x], [mean], "D", ms=4, color=colour)
    for name, colour in ESTIMATORS.items():
        axes.plot([], [], "D-", ms=4, lw=1.4, color=colour, label=f"estimate, {name.replace('_', ' ')}")
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(min(truths) / 5, LEAST))
    axes.set_xticks(range(len(cells)), ["as they are" if g == "own" else f"{g} day{'s' * (g != '1')}" for g in cells])
    axes.set(xlabel="grid that the records were put on", ylabel="return at visits, 1e7")
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """One step of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("learn", "record", "figure"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("table", nargs="?", choices=tuple(TABLES))
    parser.add_argument("grid", nargs="?", choices=tuple(GRIDS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.step == "figure":
        save_figure(resampling_figure(read_record(RECORD)["figures"]), PICTURE)
        return
    if given.folder is None or (given.step == "learn" and None in (given.table, given.grid)):
        parser.error("give a folder, and for learn a table and a grid.")
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.step == "learn":
        make_cell(given.folder, given.table, given.grid, given.seed)
    else:
        make_the_record(given.folder)


if __name__ == "__main__":
    main()
