"""Rewrite records in today's format: `python tools/migrate_records.py [FOLDER ..]` (results/ by default).

Records in today's format whose commands are today's stay as they are, to the byte.
"""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kairode.config.algorithms import DynaConfig, FitConfig, MPCConfig, ScheduleConfig
from kairode.config.commands import command_of, command_of_schedule
from kairode.config.run import RunConfig
from kairode.config.serialize import from_dict
from kairode.files import load_json, save_json
from kairode.runs.record import read_record

CONFIGS: dict[str, Any] = {"fit": FitConfig, "rounds": DynaConfig, "control": MPCConfig, "run": RunConfig}
"""Kinds of records whose command follows from their config."""


def migrate_folder(folder: Path) -> list[Path]:
    """Rewrite the records of a folder; those that changed."""
    changed = []
    for path in sorted(folder.rglob("*.json")):
        before = load_json(path)
        if not (isinstance(before, dict) and {"kind", "figures"} <= before.keys()):
            continue  # no record
        after = read_record(path)
        if "command" in after:
            after["command"] = current_command(after, f"{path.parent.name}/{path.stem}")
        if after != before:
            save_json(path, after)
            changed.append(path)
    return changed


def current_command(record: dict[str, Any], name: str) -> str:
    """The command of a record, named as in `kairode study`, in today's options."""
    kind, config, command = record["kind"], record["config"], record["command"]
    if kind in CONFIGS:
        return command_of(from_dict(CONFIGS[kind], config), _out(command))
    if kind == "schedule":
        return command_of_schedule(from_dict(ScheduleConfig, config), shlex.split(command)[2])
    if kind == "runs":
        return _of_several(config, command)
    if kind == "visits" and any("planned_episodes" in point for point in record["figures"]["points"].values()):
        return f"kairode study {name} --replace --time-limit {record['figures']['training_seconds']:g}"
    return command


def _of_several(config: dict[str, Any], command: str) -> str:
    """Runs that differ by their seed, then the report of them."""
    *runs, report = command.split("; ")
    first = from_dict(RunConfig, {**config, "seed": 0})
    parts = [
        command_of(dataclasses.replace(first, seed=seed), _out(run))
        for seed, run in zip(config["seed"], runs, strict=True)
    ]
    return "; ".join([*parts, report])


def _out(command: str) -> str | None:
    """The folder that a command names."""
    words = shlex.split(command)
    return words[words.index("--out") + 1] if "--out" in words else None


def main(folders: Sequence[str]) -> None:
    """Of each folder the records that were rewritten."""
    for folder in folders or ["results"]:
        changed = migrate_folder(Path(folder))
        print(f"{folder}: {len(changed)} records rewritten.")


if __name__ == "__main__":
    main(sys.argv[1:])
