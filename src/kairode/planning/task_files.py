"""Saved tasks of tables: a JSON description, and the weights of learned rewards and terminations."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

from kairode.data.describe import spec_from_dict, spec_to_dict
from kairode.envs.core import Spec
from kairode.errors import MALFORMED, KairodeError
from kairode.models.dynamics import Scale
from kairode.models.outcomes import OutcomeModel
from kairode.planning.table_task import TableTask
from kairode.training import checkpoint

NAME = "task"


def save_task(folder: str | Path, task: TableTask) -> None:
    """Save the task of a table, from `kairode.learn_task`."""
    outcomes = task.outcomes
    net = None if outcomes is None else (outcomes.reward or outcomes.hazard)
    checkpoint.save(
        folder,
        {} if outcomes is None else eqx.filter(outcomes, eqx.is_array),
        NAME,
        spec=spec_to_dict(task.spec),
        caution=task.caution,
        least=task.least,
        members=0 if net is None else net.layers[0].weight.shape[0],
        hidden=0 if net is None else net.layers[0].weight.shape[-2],
        scale=None if outcomes is None else [list(outcomes.scale.mean), list(outcomes.scale.std)],
        rewards=None if outcomes is None or outcomes.reward is None else list(outcomes.reward_scale),
        hazard=outcomes is not None and outcomes.hazard is not None,
    )


def load_task(folder: str | Path) -> TableTask:
    """Load a task that `save_task` saved."""
    about = checkpoint.describe(folder, NAME)
    path = Path(folder) / f"{NAME}.json"
    try:
        spec, members, hidden = spec_from_dict(about["spec"]), int(about["members"]), int(about["hidden"])
        caution, least = float(about["caution"]), float(about["least"])
        if not members:
            return TableTask(spec, None, caution, least)
        mean, std = (tuple(map(float, numbers)) for numbers in about["scale"])
        rewards = None if about["rewards"] is None else (float(about["rewards"][0]), float(about["rewards"][1]))
        arguments = (spec, Scale(mean, std), rewards, bool(about["hazard"]), hidden, members)
        shapes = eqx.filter_eval_shape(_new, *arguments)
    except MALFORMED as error:
        raise KairodeError(f"{path} is damaged: it does not describe a task ({error}).") from error
    checkpoint.compare_description(folder, eqx.filter(shapes, lambda x: isinstance(x, jax.ShapeDtypeStruct)), NAME)
    params, static = eqx.partition(_new(*arguments), eqx.is_array)
    outcomes = eqx.combine(checkpoint.load(folder, params, NAME), static)
    if checkpoint.describe(folder, NAME)["sha256"] != about["sha256"]:  # another process has replaced it meanwhile
        return load_task(folder)
    return TableTask(spec, outcomes, caution, least)


def _new(
    spec: Spec, scale: Scale, rewards: tuple[float, float] | None, hazard: bool, hidden: int, members: int
) -> OutcomeModel:
    keys = jnp.stack([jax.random.key(seed) for seed in range(members)])
    return eqx.filter_vmap(lambda key: OutcomeModel.new(spec, scale, rewards, hazard, hidden, key=key))(keys)
