"""Saved schedules that models choose: settings, bounds and corrections; models and policy are saved beside them."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from kairode.agents.q_policy import QPolicy
from kairode.envs.core import Task
from kairode.errors import MALFORMED, KairodeError
from kairode.models.correction import Correction
from kairode.models.dynamics import DynamicsModel
from kairode.planning.lookahead import ModelLookahead
from kairode.planning.model_env import ensemble
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.training import checkpoint

NAME = "timing"
_SETTINGS = ("taus", "scale", "quantile", "continuous", "tolerance")
_NUMBERS = ("price", "decision_penalty")


def save_schedule(folder: str | Path, schedule: OptimizedSchedule) -> None:
    """Save a schedule of `kairode.optimize_schedule`."""
    lookahead: Any = schedule.lookahead
    correction = lookahead.models.correction
    arrays = {} if lookahead.obs_bounds is None else {"obs_bounds": np.asarray(lookahead.obs_bounds)}
    if correction is not None:
        arrays |= {"taus": np.asarray(correction.taus), "table": np.asarray(correction.table)}
    settings = {name: getattr(schedule, name) for name in _SETTINGS}
    numbers = {name: float(np.asarray(getattr(schedule, name))) for name in _NUMBERS}
    budget = None if schedule.budget is None else int(schedule.budget)
    checkpoint.save(folder, arrays, NAME, **settings, **numbers, budget=budget)


def load_schedule(
    folder: str | Path, models: list[DynamicsModel], policy: QPolicy, task: Task
) -> OptimizedSchedule | None:
    """Load a schedule with its models, policy and task; None if there is none."""
    if not checkpoint.exists(folder, NAME):
        return None
    about, path = checkpoint.describe(folder, NAME), Path(folder) / f"{NAME}.json"
    try:
        like = {name: np.empty(entry[1], entry[0]) for name, entry in about["arrays"].items()}
        settings: dict[str, Any] = {name: about[name] for name in _SETTINGS}
        settings["taus"] = tuple(map(float, settings["taus"]))
        numbers: dict[str, Any] = {name: jnp.asarray(float(about[name]), jnp.float32) for name in _NUMBERS}
        budget = None if about["budget"] is None else jnp.asarray(int(about["budget"]), jnp.int32)
    except (*MALFORMED, MemoryError) as error:
        raise KairodeError(f"{path} is damaged: it does not describe a schedule ({error}).") from error
    arrays = {name: jnp.asarray(x) for name, x in checkpoint.load(folder, like, NAME).items()}
    spec = dataclasses.replace(task.spec, tick=models[0].spec.tick)
    members = ensemble([dataclasses.replace(model, correction=None) for model in models], spec)
    if "table" in arrays:
        members = dataclasses.replace(members, correction=Correction(arrays["taus"], arrays["table"]))
    lookahead = ModelLookahead(members, arrays.get("obs_bounds"))
    return OptimizedSchedule(lookahead, policy.q, policy.encoder, task, budget=budget, **settings, **numbers)
