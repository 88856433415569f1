"""The paper's figure of the three robots: its runs, one record each."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from kairode.envs.locomotion import ROBOTS
from kairode.experiments.control import Control, Tell, run_control, usual
from kairode.experiments.crew import FREE
from kairode.experiments.record import save, without_record
from kairode.models.zoo import PAPER_MODELS

SEEDS = 3

STUDIES: dict[str, Control] = {
    f"{env}-{model}": usual(env, model, seeds=SEEDS) for env in ROBOTS for model in (*PAPER_MODELS, FREE)
}
"""Every model on every robot: the paper's planner, agents and sizes; docs/results.md says what differs."""


def reproduce(
    *,
    results: Path,
    runs: Path,
    run: bool,
    again: bool,
    only: Sequence[str],
    watch: Callable[[str], AbstractContextManager[Tell]],
) -> list[str]:
    """Run the studies that have no record, where that is asked for; those that still have none."""
    missing = without_record(STUDIES, results, only, again)
    if not (run or again):
        return missing
    for name in missing:
        folder = runs / "control" / name
        if again:
            shutil.rmtree(folder, ignore_errors=True)
        with watch(name) as tell:
            save(results / f"{name}.json", run_control(STUDIES[name], folder, tell))
    return []
