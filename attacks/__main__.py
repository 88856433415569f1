"""The campaign: all attacks, a table of what they found, a record."""

import dataclasses
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import tyro

import attacks.concurrency
import attacks.damage
import attacks.data
import attacks.folders
import attacks.kills
import attacks.names  # noqa: F401
from attacks._common import ATTACKS, Effort, Outcome
from kairode.errors import unknown
from kairode.files import load_json, save_json
from kairode.report.table import Column, Table, print_table
from kairode.runs.record import make_record

LONGEST = ("kill-run", "two-processes", "kill-fit", "determinism", "odd-folders", "kill-dyna", "kill-control")
"""Attacks that are started first where several run at a time."""


def campaign(names: list[str], effort: Effort, save: Path | None = None) -> dict[str, dict[str, Any]]:
    """Run attacks one after the other; a failure of the attack itself counts as not held.

    With a folder, the record of each is written there as it ends.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        one = ATTACKS[name]
        folder, began = Path(tempfile.mkdtemp(prefix=f"attack-{name}-")), time.perf_counter()
        print(f"{name}: {one.what} ..", file=sys.stderr, flush=True)
        try:
            outcome = one.run(folder, effort)
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome(f"the attack itself failed: {error!r}"[:200], False)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seconds = round(time.perf_counter() - began, 1)
        found[name] = {"what": one.what, "goal": one.goal, **dataclasses.asdict(outcome), "seconds": seconds}
        found[name]["position"] = [*ATTACKS].index(name)  # in the table
        held = "held" if outcome.held else "NOT HELD"
        print(f"  {held}: {outcome.figure} ({seconds:g} s)", file=sys.stderr, flush=True)
        if save is not None:
            config, command = {"attack": name, "effort": effort}, f"python -m attacks {name} --effort {effort}"
            record = make_record("attack", config, found[name], command=command, seconds=seconds)
            save_json(save / f"{name}.json", record)
    return found


def parallel(chosen: list[str], effort: Effort, workers: int, save: Path | None) -> dict[str, dict[str, Any]]:
    """Run attacks in processes of their own, several at a time, each on its share of the cores."""
    cores, free = sorted(os.sched_getaffinity(0)), queue.SimpleQueue[list[int]]()
    for i in range(workers):
        free.put(cores[i::workers])

    def one(name: str) -> dict[str, Any]:
        mine = free.get()
        with tempfile.TemporaryDirectory() as place:
            words = ["taskset", "-c", ",".join(map(str, mine)), sys.executable, "-m", "attacks", name]
            subprocess.run([*words, "--effort", effort, "--save", str(save or place)], stdout=subprocess.DEVNULL)
            free.put(mine)
            return load_json((save or Path(place)) / f"{name}.json")["figures"]

    order = sorted(chosen, key=lambda name: name not in LONGEST)
    with ThreadPoolExecutor(workers) as pool:
        found = dict(zip(order, pool.map(one, order), strict=True))
    return {name: found[name] for name in chosen}


def main(
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    effort: Effort = "full",
    workers: int = 1,
    save: Path | None = None,
) -> None:
    """Attack Kairode: kills, damaged files, concurrency, odd names, misleading data, limits.

    Args:
        names: attacks to run; all by default.
        effort: full (an hour and more), slow (minutes) or quick (seconds).
        workers: attacks that run at a time, each on its share of the cores (Linux).
        save: write the record of each attack to this folder.
    """
    for name in names:
        if name not in ATTACKS:
            raise unknown("attack", name, ATTACKS)
    chosen = [name for name in names or ATTACKS if effort in ATTACKS[name].efforts]
    found = campaign(chosen, effort, save) if workers == 1 else parallel(chosen, effort, workers, save)
    rows = [(one["what"], one["figure"], one["goal"], "yes" if one["held"] else "no") for one in found.values()]
    columns = [Column(name, wrap=True) for name in ("attack", "found", "to reach")]
    print_table(Table.of([*columns, "reached"], rows))
    sys.exit(0 if all(one["held"] for one in found.values()) else 1)


if __name__ == "__main__":
    tyro.cli(main)
