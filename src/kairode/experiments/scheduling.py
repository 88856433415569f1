"""`kairode schedule`: visit times chosen by the models of a run, beside fixed ones.

First a policy is learned in the models' imagination under the schedule that it chooses itself (the paper's algorithm 1
with imagined rewards and observations); then intervals are chosen by its values for any price or budget, and tested on
the real system, where rewards are collected on every finest step.
"""

import dataclasses
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from kairode.agents.evaluate import TEST_SEED, bootstrap
from kairode.agents.learn import PracticeReport
from kairode.agents.policy import SoftGreedy
from kairode.agents.practice import Room
from kairode.agents.store import describe_policy, load_policy, save_policy
from kairode.data import Trajectory, collect, read
from kairode.envs import make
from kairode.envs.accrual import Accruing
from kairode.envs.core import Environment
from kairode.envs.schedule import Schedule, Timed
from kairode.errors import KairodeError, Stopped
from kairode.experiments.learning import learn_more
from kairode.experiments.record import record, save
from kairode.experiments.rounds import load_rounds
from kairode.experiments.visits import SETTINGS, intervals_by_condition, judged, tests
from kairode.models.dynamics import DynamicsModel
from kairode.planning.schedule import best_intervals, check_budget, check_candidates
from kairode.training.store import load_models
from kairode.trees import alone


@dataclasses.dataclass(frozen=True)
class Wish:
    """How visits are to be chosen."""

    prices: tuple[float, ...] = (0.0,)
    """Of a visit, in the unit of the reward: a schedule for each."""
    budgets: tuple[int, ...] = ()
    """Visits in an episode: a schedule for each."""
    taus: tuple[float, ...] = ()
    """Candidates; those of the environment by default."""
    continuous: bool = False
    quantile: float | None = None
    """Over the models of the run; None for their mean."""
    oracle: bool = False
    """Whether the true dynamics choose, not the models."""
    episodes: int = 20
    """Of the test."""
    seed: int = 0
    """Fixes everything random."""


@dataclasses.dataclass(frozen=True)
class Source:
    """What a run's folder holds."""

    name: str
    """Of its environment."""
    env: Environment
    models: list[DynamicsModel]
    data: Trajectory


def read_run(folder: Path) -> Source:
    """The models and experience of a run, from `kairode run` or `kairode rounds`."""
    about = describe_policy(folder)
    env = make(about["env"], setting=about["setting"], **about["fields"])
    if (folder / "fit").is_dir():
        return Source(about["env"], env, load_models(folder / "fit"), read(folder / "experience.parquet"))
    standing = load_rounds(folder)
    return Source(about["env"], env, standing.members, standing.data)


def learned_policy(
    source: Source,
    folder: Path,
    wish: Wish,
    *,
    imagined: int | None = None,
    tell: Callable[[PracticeReport], None] = lambda report: None,
) -> SoftGreedy:
    """The policy under its own chosen schedule, learned in imagination; the one of the folder, where it is there."""
    if (folder / "policy.json").exists():
        return load_policy(folder)
    schedule = best_intervals(source.models, None, source.env, taus=_candidates(source, wish), data=source.data)
    options: dict[str, Any] = {}
    if source.name in SETTINGS:
        options["reward_scale"] = SETTINGS[source.name].reward_scale
    found = learn_more(
        source.models,
        source.env,
        data=source.data,
        schedule=schedule,
        episodes=imagined,
        seed=wish.seed,
        folder=folder / "practice",
        tell=tell,
        watch=source.env,
        cooldown=0.3,
        **options,
    )
    save_policy(folder, found.policy, {"env": source.name, "schedule": "chosen"})
    return found.policy


def _candidates(source: Source, wish: Wish) -> tuple[float, ...]:
    given = wish.taus if not wish.continuous else ()
    return check_candidates(given or None, source.env.task.spec)


def check_wish(wish: Wish, source: Source) -> None:
    """Refuse what cannot be before anything is learned."""
    spec = source.env.task.spec
    ends = check_candidates(wish.taus or None, spec, wish.continuous)
    for price in wish.prices:
        best_intervals(source.env, None, source.env, price=price)
    for budget in wish.budgets:
        check_budget(budget, spec, ends[-1])
    if wish.quantile is not None and not 0 <= wish.quantile <= 1:
        raise KairodeError(f"quantile must lie in [0, 1], got {wish.quantile}.")


def choose(source: Source, policy: SoftGreedy, wish: Wish) -> dict[str, Schedule]:
    """A schedule for each price and each budget."""
    ahead = source.env if wish.oracle else source.models
    taus = wish.taus or (None if wish.continuous else _candidates(source, wish))
    common: dict[str, Any] = {"taus": taus, "continuous": wish.continuous, "quantile": wish.quantile}
    if not wish.oracle:
        common["data"] = source.data
    made: dict[str, Schedule] = {}
    for price in wish.prices:
        made[f"price {price:g}"] = best_intervals(ahead, policy, source.env, price=price, **common)
    for budget in wish.budgets:
        made[f"budget {budget}"] = best_intervals(ahead, policy, source.env, budget=budget, **common)
    return made


def run_schedule(
    folder: Path,
    wish: Wish,
    *,
    imagined: int | None = None,
    tell: Callable[[PracticeReport], None] = lambda report: None,
    said: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Any], Source, Trajectory]:
    """Learn (once), choose, test; the record, and the episodes of the last choice."""
    started = time.perf_counter()
    source = read_run(folder)
    check_wish(wish, source)
    try:
        policy = learned_policy(source, folder / "schedule", wish, imagined=imagined, tell=tell)
    except Stopped:
        raise Stopped(f"interrupted; the same command goes on from there: kairode schedule {folder}") from None
    said("Testing fixed intervals and the environment's own.")
    rows = fixed_rows(source, policy, wish)
    histograms: dict[str, Any] = {}
    found: Trajectory | None = None
    for label, schedule in choose(source, policy, wish).items():
        said(f"Testing {label}.")
        rows[label] = chosen_row(source, policy, schedule, wish)
        place = Accruing.of(source.env, schedule.longest(source.env.task.spec))
        found = collect(place, policy, episodes=wish.episodes, seed=TEST_SEED + wish.seed, schedule=schedule)
        histograms[label] = intervals_by_condition(source.env.task, found)
    assert found is not None
    figures = {"rows": rows, "intervals": histograms}
    command = shlex.join(["kairode", "schedule", str(folder), *_options(wish)])
    made = record("schedule", wish, figures, command=command, seconds=time.perf_counter() - started)
    save(folder / "schedule" / "record.json", made)
    return made, source, found


def _options(wish: Wish) -> list[str]:
    words: list[str] = []
    for name, value in dataclasses.asdict(wish).items():
        if value == getattr(Wish(), name):
            continue
        option = {"prices": "price", "budgets": "budget", "taus": "candidates"}.get(name, name)
        values = [] if value is True else [f"{x:g}" for x in value] if isinstance(value, tuple) else [str(value)]
        words += [f"--{option}", *values]
    return words


def fixed_rows(source: Source, policy: SoftGreedy, wish: Wish) -> dict[str, Any]:
    """The same policy at every fixed interval, and on the environment's own schedule."""
    spec = source.env.task.spec
    taus = (0.0, *_candidates(source, wish))
    least = min(tau or spec.intervals.low for tau in taus)
    agents = len(taus)
    room = Room(source.env, Timed(jnp.array(taus, jnp.float32), least), alone(policy.perception), agents)
    many = dataclasses.replace(policy, q=_repeated(policy.q, agents), perception=_repeated(policy.perception, agents))
    found = tests(source.env, room, many, TEST_SEED + wish.seed, wish.episodes)
    labels = ["own" if not tau else f"every {tau:g}" for tau in taus]
    return {label: _row(source, {name: x[i] for name, x in found.items()}) for i, label in enumerate(labels)}


def chosen_row(source: Source, policy: SoftGreedy, schedule: Schedule, wish: Wish) -> dict[str, Any]:
    """The policy under a chosen schedule."""
    room = Room(source.env, alone(schedule), alone(policy.perception), 1)
    found = tests(source.env, room, alone(policy), TEST_SEED + wish.seed, wish.episodes)
    price = float(getattr(schedule, "price", 0.0))
    return {**_row(source, {name: x[0] for name, x in found.items()}), "price": price}


def _row(source: Source, found: dict[str, np.ndarray]) -> dict[str, Any]:
    low, high = bootstrap(judged(source.env.task, found))
    means = {name: float(values.mean()) for name, values in found.items()}
    return {
        "return": means["return"],
        "plain": means["plain"],
        "low": low,
        "high": high,
        "visits": means["visits"],
        "healthy": None if np.isnan(means["healthy"]) else means["healthy"],
        "reached": means["reached"],
        "time": means["time"],
    }


def _repeated(tree: Any, count: int) -> Any:
    from kairode.trees import stack

    return stack([tree] * count)
