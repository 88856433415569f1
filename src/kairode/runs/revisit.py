"""Chosen visits revisited: collect at the times that the models chose, and refit them to what was seen there.

A model errs most where nobody has been yet, and a schedule of its own choice leads there: it waits where it wrongly
foresees that nothing happens. A few real episodes at its visits show it what does.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kairode.agents.q_policy import QPolicy
from kairode.algorithms.dyna import DynaState, read_config, read_dyna_state, refit_ensemble, save_dyna_state
from kairode.algorithms.fit import digest
from kairode.data import collect
from kairode.data.trajectory import join
from kairode.errors import KairodeError
from kairode.planning.optimize_schedule import optimize_schedule
from kairode.runs.load import LoadedRun, rounds_of
from kairode.seeds import Purpose, derive
from kairode.training import checkpoint
from kairode.training.loop import FitProgress

NAME = "revisits"
"""Folders of them begin so."""


def check_revisits(folder: Path, count: int) -> None:
    """Refuse them where there are no rounds to go on from."""
    if count and not checkpoint.exists(rounds_of(folder)):
        raise KairodeError(
            f"{folder} took no rounds, whose experience and models --revisits goes on from: leave it out, or take "
            "rounds first."
        )


def refit_at_visits(
    run: LoadedRun,
    policy: QPolicy,
    candidates: tuple[float, ...],
    count: int,
    *,
    tolerance: float = 0.0,
    fitting: Callable[[FitProgress], None] = lambda report: None,
    said: Callable[[str], None] = lambda text: None,
    ended: Callable[[str], None] = lambda text: None,
) -> LoadedRun:
    """A run with its models refitted so often to real episodes at the visits that they chose for this policy.

    Each time is kept in a folder of its own, and not done again.
    """
    if not count:
        return run
    check_revisits(run.folder, count)
    same: dict[str, Any] = {"of": digest(policy.q, *run.models, run.data), "candidates": list(candidates)}
    same |= {"tolerance": tolerance} if tolerance else {}
    name = f"{NAME}-{hashlib.sha256(json.dumps(same).encode()).hexdigest()[:12]}"
    for other in (run.folder / "schedule").glob(f"{NAME}-*"):  # those of another policy
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)
    places = [run.folder / "schedule" / name / str(number) for number in range(1, count + 1)]
    config = read_config(rounds_of(run.folder))
    done = sum(checkpoint.exists(place) for place in places)
    state = read_dyna_state(config, run.env, places[done - 1] if done else rounds_of(run.folder))
    for place in places[done:]:
        said(f"collecting {config.each} episodes at chosen visits")
        schedule = optimize_schedule(
            state.members, policy, run.env, taus=candidates, tolerance=tolerance, data=state.data
        )
        number = state.number + 1
        seed = derive(config.seed, Purpose.DYNA_EPISODES, number)
        new = collect(run.env, policy, episodes=config.each, seed=seed, schedule=schedule)
        data = join([state.data, new])
        models, _ = refit_ensemble(config, data, state.models, number, fitting)
        state = DynaState(number, data, models, state.network)
        save_dyna_state(place, state)
        ended(
            f"Collected {len(new)} real episodes at visits that the models chose, and refitted them to all {len(data)}."
        )
    return dataclasses.replace(run, models=state.members, data=state.data)
