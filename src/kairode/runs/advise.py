"""`kairode.load_advisor`: the advisor of a run of `kairode learn`, or a saved one; and the advice for a table."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kairode.agents.policy_files import read_policy
from kairode.agents.q_policy import QPolicy
from kairode.algorithms.advise import Advisor
from kairode.algorithms.advisor_files import FIT, TIMED, saved_interval
from kairode.config.serialize import from_dict
from kairode.config.tables import TableConfig
from kairode.data.tables.histories import LoadedHistories, load_histories
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Spec
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.planning.model_env import make_model_env
from kairode.planning.optimize_schedule import optimize_schedule
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.planning.reference import Reference
from kairode.planning.reference_files import NAME, load_reference, save_reference
from kairode.planning.schedule_files import load_schedule, save_schedule
from kairode.planning.table_task import TableTask
from kairode.planning.task_files import NAME as TASK
from kairode.planning.task_files import load_task
from kairode.runs.folder import RunFolder
from kairode.training import checkpoint
from kairode.training.model_files import load_models

ENDED = "by these records the episode has ended, and no decision follows: the advice is what it would be otherwise"


def load_advisor(run: str | Path, *, price: float | None = None, budget: int | None = None) -> Advisor:
    """Load the advisor of a run: `kairode.load_advisor("runs/learn-visits")`.

    Args:
        run: folder of `kairode learn`, or of `Advisor.save`.
        price: cost of a decision in units of reward, in place of the one that the run was given.
        budget: maximum number of decisions per episode, in place of the run's.
    """
    folder = Path(run)
    if not checkpoint.exists(folder, NAME):
        raise KairodeError(f"there is no advisor in {folder}: give a folder of `kairode learn` or of Advisor.save.")
    RunFolder(folder).check()
    models, reference = load_models(folder / FIT), load_reference(folder)
    task = load_task(folder) if checkpoint.exists(folder, TASK) else None
    timed = _timed_schedule(folder, models, task, reference, price, budget)
    if timed is not None:
        policy, schedule = timed
        return Advisor(models, policy, task=task, schedule=schedule, reference=reference)
    policy = read_policy(folder, models[0])
    return Advisor(models, policy, task=task, schedule=saved_interval(folder), reference=reference)


def _timed_schedule(
    folder: Path,
    models: list[DynamicsModel],
    task: TableTask | None,
    reference: Reference,
    price: float | None,
    budget: int | None,
) -> tuple[Any, OptimizedSchedule] | None:
    """The policy and schedule of a run that chooses decision times; None of one that does not."""
    asked = price is not None or budget is not None
    place = folder / TIMED
    if task is None or not checkpoint.exists(place, "policy"):
        if asked:
            raise KairodeError(
                f"the run in {folder} has no policy for chosen decision times, so it takes neither price nor budget: "
                "learn one by `kairode learn TABLE` with --price or --budget."
            )
        return None
    policy = read_policy(place, models[0])
    task = with_discount_of(policy, task)
    saved = None if asked else load_schedule(place, models, policy, task)
    if saved is not None:
        return policy, saved
    config = _config(folder)
    if not asked:
        price, budget = config.get("price"), config.get("budget")
    imagined = make_model_env(models, task, starts=np.asarray(reference.starts, np.float32))
    return policy, optimize_schedule(models, policy, imagined, price=price or 0.0, budget=budget)


def with_discount_of(policy: QPolicy, task: TableTask) -> TableTask:
    """The task with the discount that the policy was learned with: its values are of that one, also where the discount
    of the table is 1 and values would have no bound."""
    return dataclasses.replace(task, spec=dataclasses.replace(task.spec, discount=policy.spec.discount))


def _config(folder: Path) -> dict[str, Any]:
    """The config of a run; empty for a saved advisor."""
    run = RunFolder(folder)
    return run.manifest.config if run.exists else {}


def table_config(folder: str | Path, spec: Spec) -> TableConfig:
    """How the run's table was loaded; for a saved advisor and for tables that Kairode wrote, as these are written."""
    found = _config(Path(folder)).get("table")
    if found is not None:
        return from_dict(TableConfig, found, file=Path(folder) / "manifest.json")
    if isinstance(spec.actions, Discrete):
        return TableConfig()
    return TableConfig(controls=tuple(f"action_{name}" for name in spec.actions.names), action=())


def advise_table(advisor: Advisor, source: Any, config: TableConfig) -> tuple[list[dict[str, Any]], LoadedHistories]:
    """The advice for every episode of a table, with its history, as plain JSON."""
    found = load_histories(source, config, advisor.spec)
    return [_advise_one(advisor, found, i) for i in range(len(found.names))], found


def _advise_one(advisor: Advisor, found: LoadedHistories, i: int) -> dict[str, Any]:
    origin = found.origins[i]
    start = origin if isinstance(origin, float) else 0.0
    said = [ENDED, *found.warnings] if found.data.terminated[i] else found.warnings
    figures = episode_figures(advisor, found.data[i], start, said)
    date = found.date(i, figures["next_time"] - start)
    return {"episode": found.names[i], **figures, **({} if date is None else {"next_date": date})}


def episode_figures(
    advisor: Advisor, episode: Trajectory, start: float = 0.0, warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """The advice at the end of an episode, in words too, and its history: all that is drawn."""
    advisor.observe_episode(episode, start)
    advice = advisor.advise()
    advice = dataclasses.replace(advice, warnings=(*warnings, *advice.warnings))
    count, names = int(episode.length), advisor.spec.actions.names
    seen = np.asarray(episode.observation, np.float64)[: count + 1]
    history = {
        "times": (start + episode.time[: count + 1]).tolist(),
        "observations": {
            variable.name: [None if np.isnan(x) else float(x) for x in seen[:, j]]
            for j, variable in enumerate(advisor.spec.observations)
        },
        "actions": [
            names[int(a)] if np.ndim(a) == 0 else dict(zip(names, map(float, a), strict=True))
            for a in np.asarray(episode.action)[:count]
        ],
    }
    return {**advice.figures(), "text": str(advice), "history": history}


def add_advisor(
    folder: Path,
    models: list[DynamicsModel],
    policy: Any,
    task: TableTask,
    data: Trajectory,
    *,
    timed: QPolicy | None = None,
    price: float | None = None,
    budget: int | None = None,
) -> Advisor:
    """Write what advice needs into a run folder that has models, policy and task; returns the advisor.

    `timed` is a policy for decision times chosen at this price or within this budget.
    """
    schedule = None
    if timed is not None:
        task = with_discount_of(timed, task)
        schedule = optimize_schedule(models, timed, task, data=data, price=price or 0.0, budget=budget)
        save_schedule(folder / TIMED, schedule)
    advisor = Advisor(models, policy if timed is None else timed, data=data, task=task, schedule=schedule)
    assert advisor.reference is not None
    save_reference(folder, advisor.reference, interval=None)
    return advisor


def example_advice(advisor: Advisor, data: Trajectory) -> dict[str, Any]:
    """The advice in the middle of one of these episodes, of median length."""
    length = np.asarray(data.length)
    episode = data[int(np.argsort(length, kind="stable")[len(length) // 2])]
    half = np.asarray(max(int(episode.length) // 2, 1), np.int32)
    return episode_figures(advisor, dataclasses.replace(episode, length=half))
