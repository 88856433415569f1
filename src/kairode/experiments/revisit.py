"""Turns at chosen visits: collect at the times that the models chose, and refit them to what was seen there.

A model errs most where nobody has been yet, and a schedule of its own choice leads there: it waits where it wrongly
foresees that nothing happens. A few real episodes at its visits show it what does.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from kairode.agents.policy import SoftGreedy
from kairode.data import collect
from kairode.data.trajectory import join
from kairode.errors import KairodeError
from kairode.experiments.fitting import digest
from kairode.experiments.rounds import Standing, keep_standing, read_config, read_rounds, refit, round_seed
from kairode.experiments.source import Source, rounds_of
from kairode.planning.schedule import best_intervals
from kairode.training import checkpoint
from kairode.training.loop import Report


def check_turns(folder: Path, turns: int | None) -> None:
    """Refuse turns where there are no rounds to go on from."""
    if turns and not checkpoint.exists(rounds_of(folder)):
        raise KairodeError(
            f"{folder} took no rounds, so its models cannot take turns at chosen visits: leave --turns out."
        )


def revisited(
    source: Source,
    policy: SoftGreedy,
    candidates: tuple[float, ...],
    turns: int | None,
    *,
    fitting: Callable[[Report], None] = lambda report: None,
    said: Callable[[str], None] = lambda text: None,
) -> Source:
    """A run with its models refitted, after so many turns at the visits that they chose for this policy.

    Turns that its folder holds are not taken again; None for as many as it holds.
    """
    place, rounds = source.folder / "schedule" / "turns", rounds_of(source.folder)
    about = {"of": digest(policy.q, *source.models, source.data), "candidates": list(candidates)}
    before = checkpoint.describe(place) if checkpoint.exists(place) else {}
    done = before["turns"] if {name: before.get(name) for name in about} == about else 0
    wanted = done if turns is None else turns
    if not wanted:
        return source
    check_turns(source.folder, wanted)
    config = read_config(rounds)
    if done > wanted:
        done = 0
    standing = read_rounds(config, source.env, place if done else rounds)
    for turn in range(done + 1, wanted + 1):
        schedule = best_intervals(standing.members, policy, source.env, taus=candidates, data=standing.data)
        number = standing.number + 1
        new = collect(source.env, policy, episodes=config.each, seed=round_seed(config, number), schedule=schedule)
        data = join([standing.data, new])
        models, _ = refit(config, data, standing.models, number, fitting)
        standing = Standing(number, data, models, standing.network)
        keep_standing(place, standing, turns=turn, **about)
        said(
            f"Collected {len(new)} real episodes at visits that the models chose, and refitted them to all {len(data)}."
        )
    return dataclasses.replace(source, models=standing.members, data=standing.data)
