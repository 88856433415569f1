"""`kairode schedule`: visit times chosen by the models of a run, beside fixed ones.

First a policy is learned in the models' imagination under the schedule that it chooses itself (the paper's algorithm 1
with imagined rewards and observations); then intervals are chosen by its values for any price or budget, and tested on
the real system, where rewards are collected on every finest step.
"""

import dataclasses
import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from kairode.agents.evaluate import TEST_SEED, bootstrap
from kairode.agents.train_loop import PracticeReport
from kairode.agents.q_policy import SoftGreedy
from kairode.agents.train_step import Room
from kairode.agents.policy_files import describe_policy, load_policy, save_policy
from kairode.data import Trajectory, collect
from kairode.envs.accrual import Accruing
from kairode.envs.core import Spec
from kairode.envs.schedule import Schedule, Timed
from kairode.errors import KairodeError, Stopped
from kairode.algorithms.fit import digest
from kairode.algorithms.learn import learn_more
from kairode.runs.record import record, save
from kairode.runs.revisit import check_revisits, revisited
from kairode.runs.load import Source, read_run
from kairode.paper.schedule_study import SETTINGS, intervals_by_condition, judged, tests
from kairode.planning.optimize_schedule import best_intervals, check_candidates, check_wishes, frontier, imagined_place
from kairode.training.loop import Report
from kairode.trees import alone, stack


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
    imagined: int | None = None
    """Episodes of practice in imagination; None for what belongs to the environment."""
    revisits: int | None = None
    """How often real episodes are collected at the visits that the models choose, and the models refitted."""
    episodes: int = 20
    """Of the test."""
    seed: int = 0
    """Of the test's episodes."""


def learned_policy(
    source: Source,
    wish: Wish,
    *,
    tell: Callable[[PracticeReport], None] = lambda report: None,
    said: Callable[[str], None] = lambda text: None,
) -> SoftGreedy:
    """The policy under its own chosen schedule, learned in imagination.

    One that the folder holds is taken where it is of the same models, experience, candidates and practice; one of
    others is learned anew.
    """
    folder = source.folder / "schedule"
    candidates = _candidates(source, wish)
    same = {
        "numbers": digest(*source.models, source.data),
        "candidates": list(candidates),
        "imagined": wish.imagined,
    }
    if (folder / "policy.json").exists():
        before = describe_policy(folder)
        if {name: before.get(name) for name in same} == same:
            return load_policy(folder, source.models[0] if source.latent else None)
    said("Learning a policy in imagination under the schedule that it chooses; this takes some minutes.")
    # Under a name of its own, so that an interrupted practice goes on, whatever else was learned here before.
    practice = folder / f"practice-{hashlib.sha256(json.dumps(same).encode()).hexdigest()[:12]}"
    schedule = best_intervals(source.models, None, source.env, taus=candidates, data=source.data)
    options: dict[str, Any] = {}
    if source.name in SETTINGS:
        options["reward_scale"] = SETTINGS[source.name].reward_scale
    found = learn_more(
        source.models,
        source.env,
        data=source.data,
        schedule=schedule,
        episodes=wish.imagined,
        latent=source.latent,
        folder=practice,
        tell=tell,
        watch=source.env,
        cooldown=0.3,
        **options,
    )
    where = {name: source.about[name] for name in ("env", "setting", "fields")}
    save_policy(folder, found.policy, {**where, "schedule": "chosen", **same})
    shutil.rmtree(practice, ignore_errors=True)
    return found.policy


def _candidates(source: Source, wish: Wish) -> tuple[float, ...]:
    """Those that a policy is learned with: never continuous ones, which would be slow."""
    return check_candidates(None if wish.continuous else wish.taus or None, source.env.task.spec)


def as_before(wish: Wish, folder: Path) -> Wish:
    """With the candidates, practice and revisits of a run of `kairode run`, where the wish does not say others."""
    path = folder / "config.json"
    about = json.loads(path.read_text()) if path.exists() else {}
    if not about.get("visits"):
        return wish
    same = not (wish.taus or wish.continuous)
    return dataclasses.replace(
        wish,
        taus=tuple(about["candidates"]) if same else wish.taus,
        imagined=about["visits"] if wish.imagined is None else wish.imagined,
        revisits=(0 if wish.oracle else about.get("revisits", 0)) if wish.revisits is None else wish.revisits,
    )


def check_wish(wish: Wish, spec: Spec) -> None:
    """Refuse what cannot be before anything is learned."""
    ends = check_candidates(wish.taus or None, spec, wish.continuous)
    check_wishes(spec, ends[-1], quantile=wish.quantile)
    for price in wish.prices:
        check_wishes(spec, ends[-1], price=price)
    for budget in wish.budgets:
        check_wishes(spec, ends[-1], budget=budget)
    if wish.oracle and wish.revisits:
        raise KairodeError(
            "--revisits teaches the models, and with --oracle they choose nothing: leave one of them out."
        )
    if not (wish.prices or wish.budgets):
        raise KairodeError("give at least one price (0 for none) or budget.")
    for name, least in (("episodes", 1), ("seed", 0), ("imagined", 1), ("revisits", 0)):
        value = getattr(wish, name)
        if value is not None and not (isinstance(value, int) and least <= value < 2**30):
            raise KairodeError(f"--{name} must be a whole number of at least {least}, got {value}.")


def choose(source: Source, policy: SoftGreedy, wish: Wish) -> dict[str, Schedule]:
    """A schedule for each price and each budget."""
    ahead: Any = source.env if wish.oracle else source.models
    common: dict[str, Any] = {
        "taus": wish.taus or None,
        "continuous": wish.continuous,
        "quantile": wish.quantile,
        "data": None if wish.oracle else source.data,
    }
    tried = None
    if any(wish.prices):
        free = best_intervals(ahead, policy, source.env, **common)
        tried = frontier(free, policy, imagined_place(ahead, source.env, common["data"]))
    made: dict[str, Schedule] = {}
    for price in wish.prices:
        made[f"price {_short(price)}"] = best_intervals(ahead, policy, source.env, price=price, tried=tried, **common)
    for budget in wish.budgets:
        made[f"budget {budget}"] = best_intervals(ahead, policy, source.env, budget=budget, **common)
    return made


def _short(number: float) -> str:
    """A number as people write it, to all its digits."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def chosen_of(folder: Path) -> tuple[Source, SoftGreedy, Schedule]:
    """The policy that `kairode schedule` left in a run, and the schedule it chooses without a price."""
    source = read_run(folder)
    place = folder / "schedule"
    if not (place / "policy.json").exists():
        raise KairodeError(f"no visits were chosen in {folder} yet: `kairode schedule {folder}` does that.")
    policy = load_policy(place, source.models[0] if source.latent else None)
    taus = tuple(describe_policy(place)["candidates"])
    made = place / "record.json"
    count = json.loads(made.read_text())["config"].get("revisits") if made.exists() else 0
    source = revisited(source, policy, taus, count or 0)
    return source, policy, best_intervals(source.models, policy, source.env, taus=taus, data=source.data)


def run_schedule(
    folder: Path,
    wish: Wish,
    *,
    tell: Callable[[PracticeReport], None] = lambda report: None,
    said: Callable[[str], None] = lambda text: None,
    ended: Callable[[str], None] = lambda text: None,
    fitting: Callable[[Report], None] = lambda report: None,
) -> tuple[dict[str, Any], Source, dict[str, Trajectory]]:
    """Learn (once), revisit, choose, test; the record, and the episodes of each choice.

    What the wish leaves open is as in the visits of the run, where it has chosen some.
    """
    started = time.perf_counter()
    source = read_run(folder)
    wish = as_before(wish, folder)
    check_wish(wish, source.env.task.spec)
    check_revisits(folder, wish.revisits or 0)
    command = shlex.join(["kairode", "schedule", str(folder), *_options(wish)])
    try:
        policy = learned_policy(source, wish, tell=tell, said=said)
        tell_of: dict[str, Any] = {"fitting": fitting, "said": said, "ended": ended}
        source = revisited(source, policy, _candidates(source, wish), wish.revisits or 0, **tell_of)
    except Stopped:
        raise Stopped(f"interrupted; the same command goes on from there: {command}") from None
    said("Testing fixed intervals and the environment's own.")
    rows = fixed_rows(source, policy, wish)
    said("Trying what prices and budgets come to, in imagination." if any(wish.prices) or wish.budgets else "")
    histograms: dict[str, Any] = {}
    episodes: dict[str, Trajectory] = {}
    for label, schedule in choose(source, policy, wish).items():
        said(f"Testing {label}.")
        rows[label] = chosen_row(source, policy, schedule, wish)
        place = Accruing.of(source.env, schedule.longest(source.env.task.spec))
        episodes[label] = collect(place, policy, episodes=wish.episodes, seed=TEST_SEED + wish.seed, schedule=schedule)
        histograms[label] = intervals_by_condition(source.env.task, episodes[label])
    figures = {"rows": rows, "intervals": histograms, "real_episodes": len(source.data)}
    made = record("schedule", wish, figures, command=command, seconds=time.perf_counter() - started)
    save(folder / "schedule" / "record.json", made)
    return made, source, episodes


def _options(wish: Wish) -> list[str]:
    words: list[str] = []
    for name, value in dataclasses.asdict(wish).items():
        if value == getattr(Wish(), name) or value == ():
            continue
        option = {"prices": "price", "budgets": "budget", "taus": "candidates"}.get(name, name)
        values = [] if value is True else list(map(_short, value)) if isinstance(value, tuple) else [str(value)]
        words += [f"--{option}", *values]
    return words


def fixed_rows(source: Source, policy: SoftGreedy, wish: Wish) -> dict[str, Any]:
    """The same policy at every fixed interval of the environment, and on its own schedule."""
    spec = source.env.task.spec
    taus = (0.0, *check_candidates(None, spec))
    least = min(tau or spec.intervals.low for tau in taus)
    many = stack([policy] * len(taus))
    room = Room(source.env, Timed(jnp.array(taus, jnp.float32), least), many.perception, len(taus))
    found = tests(source.env, room, many, TEST_SEED + wish.seed, wish.episodes)
    labels = ["own" if not tau else f"every {tau:g}" for tau in taus]
    return {label: _row(source, {name: x[i] for name, x in found.items()}) for i, label in enumerate(labels)}


def chosen_row(source: Source, policy: SoftGreedy, schedule: Schedule, wish: Wish) -> dict[str, Any]:
    """The policy under a chosen schedule."""
    room = Room(source.env, alone(schedule), alone(policy.perception), 1)
    found = tests(source.env, room, alone(policy), TEST_SEED + wish.seed, wish.episodes)
    shadow = float(getattr(schedule, "shadow", 0.0))
    return {**_row(source, {name: x[0] for name, x in found.items()}), "shadow_price": shadow}


def _row(source: Source, found: dict[str, np.ndarray]) -> dict[str, Any]:
    low, high = bootstrap(judged(source.env.task, found))
    means = {name: float(values.mean()) for name, values in found.items()}
    healthy = None if np.isnan(means["healthy"]) else means["healthy"]
    return {**means, "low": low, "high": high, "healthy": healthy}
