"""Runs that differ only by their seed: a joint record, a table, a sentence."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kairode.errors import KairodeError
from kairode.report.summary import (
    compact_number,
    compare_with_fixed,
    every_interval,
    kind_of_return,
    spec_of,
    using_record,
)
from kairode.report.table import Table
from kairode.result import objective_of
from kairode.runs.folder import RunFolder
from kairode.runs.labels import best_constant
from kairode.runs.record import make_record, read_record
from kairode.stats import mean, std

HEADS = {
    "policy": "policy",
    "model-free": "model-free",
    "constant": "best constant",
    "random": "random",
    "visits": "visits chosen",
    "chosen": "their return",
    "as few": "fixed, as few",
    "fixed": "best fixed",
    "fixed visits": "its visits",
}
"""Figures taken from each run, with their column headers."""


def compare_runs(folders: Sequence[Path], path: Path | None = None) -> dict[str, Any]:
    """One record of several runs with discrete actions: the figures of each, their mean and standard deviation."""
    with using_record(", ".join(map(str, folders))):
        return _compare_runs(folders, path)


def _compare_runs(folders: Sequence[Path], path: Path | None) -> dict[str, Any]:
    parts = [read_record(RunFolder(folder).check("record.json").path / "record.json") for folder in folders]
    for folder, part in zip(folders, parts, strict=True):
        if part["kind"] != "run":
            raise KairodeError(f"{folder} is not a run with discrete actions: leave it out.")
        if _without_seed(part) != _without_seed(parts[0]):
            raise KairodeError(f"{folder} and {folders[0]} differ by more than their seeds.")
    seeds = [part["seed"] for part in parts]
    if len(set(seeds)) < len(seeds):
        raise KairodeError(f"two of the runs have the same seed: {', '.join(map(str, seeds))}.")
    runs = [{"seed": part["seed"], **key_figures(part)} for part in parts]
    known = [name for name in HEADS if all(name in run for run in runs)]
    first = parts[0]["figures"]
    figures = {
        "real_episodes": {**first["real_episodes"], "visits": first.get("visits", {}).get("real_episodes")},
        "spec": first["spec"],
        "runs": [{**run, "commit": part["commit"]} for run, part in zip(runs, parts, strict=True)],
        "mean": {name: mean([run[name] for run in runs]) for name in known},
        "std": {name: std([run[name] for run in runs]) for name in known},
    }
    last = shlex.join(["kairode", "report", *map(str, folders), *([] if path is None else ["--record", str(path)])])
    command = "; ".join([*(part["command"] for part in parts), last])
    seconds = sum(part["seconds"] for part in parts)
    record = make_record("runs", {**parts[0]["config"], "seed": seeds}, figures, command=command, seconds=seconds)
    return record | {name: parts[0][name] for name in ("commit", "machine", "versions")}


def _without_seed(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part["config"].items() if name != "seed"}


def key_figures(record: dict[str, Any]) -> dict[str, float]:
    tests = record["figures"]["tests"]
    found = {
        "policy": objective_of(tests["imagination"]),
        "constant": objective_of(tests[best_constant(tests)]),
        "random": objective_of(tests["random"]),
    }
    if "model-free" in tests:
        found["model-free"] = objective_of(tests["model-free"])
    if visits := record["figures"].get("visits"):
        chosen, best, rarer = compare_with_fixed(visits)
        found |= {"visits": chosen["decisions"], "chosen": objective_of(chosen)}
        found |= {"fixed": objective_of(best), "fixed visits": best["decisions"]}
        if rarer is not None:
            found["as few"] = objective_of(rarer)
    return found


def runs_table(record: dict[str, Any]) -> Table:
    figures, spec = record["figures"], spec_of(record)
    runs, names = figures["runs"], [name for name in HEADS if any(name in run for run in figures["runs"])]
    rows = [[f"seed {run['seed']}", *(_short(run.get(name)) for name in names)] for run in runs]
    average, spread = ([_short(figures[what].get(name)) for name in names] for what in ("mean", "std"))
    seen = figures["real_episodes"]
    kind = kind_of_return(spec)
    caption = f"Mean {kind} on test episodes; policies learned from {seen['imagination']:,} real episodes"
    if "visits" in names:
        caption += (
            f"; visits chosen by models of {seen['visits'] or seen['imagination']:,} episodes, with returns accrued "
            f"{every_interval(spec.finest, spec.time_unit)}. Fixed, as few: the best fixed interval "
            "with at most as many visits"
        )
    headers = ["", *(HEADS[name] for name in names)]
    return Table.in_sections(headers, [rows, [["mean", *average], ["std", *spread]]], f"{caption}.")


def _short(number: float | None) -> str | None:
    return None if number is None else compact_number(number)


def comparison_sentence(record: dict[str, Any]) -> str:
    runs = record["figures"]["runs"]

    def above(mine: str, other: str) -> str:
        both = [run for run in runs if mine in run and other in run]
        return f"{sum(run[mine] > run[other] for run in both)} of {len(both)}"

    text = f"The policy has a higher return than the best constant policy in {above('policy', 'constant')} runs"
    if any("model-free" in run for run in runs):
        text += f", than the model-free policy in {above('policy', 'model-free')}"
    if any("as few" in run for run in runs):
        text += (
            "; chosen visits have a higher return than fixed intervals with as few visits in "
            f"{above('chosen', 'as few')}"
        )
    return f"{text}."
