"""Saved advisors: the files of a run of `kairode learn` that advice needs.

fit/models.json                       the ensemble
policy.json                           the policy
task.json                             the task of the table, if it is known
advisor.json                          what the data look like, and a fixed interval
timed/policy.json, timed/timing.json  the policy of an optimized schedule, and the schedule
"""

import contextlib
from pathlib import Path
from typing import Any

import equinox as eqx

from kairode.agents.actor_policy import ActorPolicy
from kairode.agents.encoder import LatentEncoder
from kairode.agents.policy_files import NAME as POLICY
from kairode.agents.policy_files import save_policy
from kairode.agents.q_policy import QPolicy
from kairode.envs.core import Task
from kairode.envs.schedule import Fixed, Schedule
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.planning.reference import Reference
from kairode.planning.reference_files import NAME, save_reference
from kairode.planning.schedule_files import NAME as TIMING
from kairode.planning.schedule_files import save_schedule
from kairode.planning.table_task import TableTask
from kairode.planning.task_files import NAME as TASK
from kairode.planning.task_files import save_task
from kairode.training import checkpoint
from kairode.training.model_files import recognize_model, save_models

FIT, TIMED = "fit", "timed"
"""Folders inside that of an advisor."""


def save_advisor(
    folder: str | Path,
    models: list[DynamicsModel],
    policy: QPolicy | ActorPolicy,
    task: Task | None,
    schedule: Schedule | None,
    reference: Reference | None,
) -> None:
    """Save the parts of an advisor; raises before anything is written if one of them cannot be saved."""
    place = Path(folder)
    if schedule is not None and not isinstance(schedule, Fixed | OptimizedSchedule):
        raise KairodeError("of schedules, one interval and those of kairode.optimize_schedule can be saved.")
    if isinstance(schedule, OptimizedSchedule):
        task = schedule.task
    if not (task is None or isinstance(task, TableTask)):
        raise KairodeError("only the task of a table, from kairode.learn_task, can be saved: leave task out.")
    encoder = policy.encoder if isinstance(policy, QPolicy) else None
    if isinstance(encoder, LatentEncoder) and not bool(eqx.tree_equal(encoder.model, models[0])):
        raise KairodeError("the policy sees the latent state of a model that is not the first of the advisor's.")
    if reference is None:
        raise KairodeError("an advisor is saved with what its data look like: make it with data=..")
    name, sizes = recognize_model(models[0])
    if (place / "manifest.json").exists():
        raise KairodeError(f"{place} holds a run: choose another folder.")
    if checkpoint.exists(place, NAME):  # an advisor is replaced, with the parts that this one does not have
        for owner, part in ((place, TASK), (place / TIMED, POLICY), (place / TIMED, TIMING)):
            checkpoint.remove(owner, part)
    save_models(place / FIT, name, sizes, models)
    save_policy(place, policy)
    if task is not None:
        save_task(place, task)
    save_reference(place, reference, interval=float(schedule.tau) if isinstance(schedule, Fixed) else None)
    if isinstance(schedule, OptimizedSchedule):
        save_policy(place / TIMED, policy)
        save_schedule(place / TIMED, schedule)


def saved_interval(folder: str | Path) -> float | None:
    """The fixed interval of a saved advisor."""
    found: Any = checkpoint.describe(folder, NAME).get("interval")
    with contextlib.suppress(TypeError, ValueError):
        return None if found is None else float(found)
    raise KairodeError(f"{Path(folder) / f'{NAME}.json'} is damaged: its interval is no number.")
