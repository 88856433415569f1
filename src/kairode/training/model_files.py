"""Saved models: a JSON description and weights in safetensors format."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from kairode.config.models import ModelConfig
from kairode.config.renames import SIZES
from kairode.data.describe import spec_from_dict, spec_to_dict
from kairode.errors import MALFORMED, KairodeError
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.initial import Variational
from kairode.models.ode import Adaptive, FixedSteps
from kairode.models.timer import ClassTimer, ContinuousTimer
from kairode.models.transition import FlowTransition
from kairode.models.zoo import MODELS, build
from kairode.training import checkpoint
from kairode.trees import one, stack

NAME = "models"


def save_models(folder: str | Path, name: str, sizes: ModelConfig, models: list[DynamicsModel]) -> None:
    """Save fitted models of one kind in one file, with what `load_models` needs to rebuild them."""
    stacked = stack([eqx.filter(model, eqx.is_array) for model in models])
    scale = models[0].scale
    checkpoint.save(
        folder,
        stacked,
        NAME,
        model=name,
        sizes=dataclasses.asdict(sizes),
        scale=[list(scale.mean), list(scale.std)],
        scale_limit=scale.limit,
        masked=models[0].masked,
        seeds=len(models),
        spec=spec_to_dict(models[0].spec),
    )


def load_models(folder: str | Path) -> list[DynamicsModel]:
    """Load the fitted models of a run folder, one per seed."""
    if not checkpoint.exists(folder, NAME) and checkpoint.exists(folder):
        raise KairodeError(f"the fit in {folder} is not finished: run the same command again to resume it.")
    about = checkpoint.describe(folder, NAME)
    path = Path(folder) / f"{NAME}.json"
    try:
        # Fields of earlier versions had other names.
        sizes = ModelConfig(**{SIZES.get(name, name): value for name, value in about["sizes"].items()})
        spec = spec_from_dict(about["spec"])
        mean, std = (tuple(map(float, numbers)) for numbers in about["scale"])
        scale = Scale(mean, std, about.get("scale_limit"))
        seeds, masked = int(about["seeds"]), bool(about.get("masked"))
        shapes = eqx.filter_eval_shape(build, about["model"], spec, sizes, scale, masked, key=jax.random.key(0))
    except MALFORMED as error:
        raise KairodeError(f"{path} is damaged: it does not describe a model ({error}).") from error
    shapes = eqx.filter(as_saved(folder, shapes, NAME), lambda x: isinstance(x, jax.ShapeDtypeStruct))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype), shapes)
    checkpoint.compare_description(folder, shapes, NAME)  # before any memory is taken
    model = build(about["model"], spec, sizes, scale, masked, key=jax.random.key(0))
    params, static = eqx.partition(as_saved(folder, model, NAME), eqx.is_array)
    weights = checkpoint.load(folder, jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), params), NAME)
    if checkpoint.describe(folder, NAME)["sha256"] != about["sha256"]:  # another process has replaced them meanwhile
        return load_models(folder)
    return [eqx.combine(one(weights, i), static) for i in range(seeds)]


def as_saved(folder: str | Path, model: DynamicsModel, name: str = checkpoint.NAME) -> DynamicsModel:
    """Drop the timer's spread if the checkpoint, of an older version, has none."""
    if not isinstance(model.timer, ContinuousTimer) or checkpoint.holds(folder, "timer.spread", name):
        return model
    return dataclasses.replace(model, timer=dataclasses.replace(model.timer, spread=None))


def recognize_model(model: DynamicsModel) -> tuple[str, ModelConfig]:
    """The name and sizes of a fitted model, with which `build` makes one of the same structure."""
    model = dataclasses.replace(model, correction=None)
    sizes, shapes = _sizes(model), _structure(model)
    for name in MODELS:
        built = eqx.filter_eval_shape(build, name, model.spec, sizes, model.scale, model.masked, key=jax.random.key(0))
        if isinstance(model.timer, ContinuousTimer) and model.timer.spread is None:
            built = dataclasses.replace(built, timer=dataclasses.replace(built.timer, spread=None))
        if _structure(built) == shapes:
            return name, sizes
    raise KairodeError("only models of kairode.fit can be saved, and this is none of them.")


def _structure(model: DynamicsModel) -> tuple[str, list[tuple[int, ...]]]:
    """Everything but the weights."""
    parts = eqx.filter(model, lambda x: isinstance(x, jax.Array | jax.ShapeDtypeStruct))
    return str(jax.tree.structure(parts)), [x.shape for x in jax.tree.leaves(parts)]


def _sizes(model: DynamicsModel) -> ModelConfig:
    transition, timer = model.transition, model.timer
    found: dict[str, Any] = {"latent_size": model.decoder.weight.shape[1]}
    if isinstance(model.initial, Variational):
        found["encoder_hidden"] = model.initial.head.layers[0].weight.shape[0]
    if isinstance(transition, FlowTransition):
        solver = transition.solver
        found["field_hidden"] = transition.field.layers[0].weight.shape[0]
        if isinstance(solver, Adaptive):
            found["solver"] = f"dopri5:{solver.rtol},{solver.atol},{solver.max_steps}"
        elif isinstance(solver, FixedSteps):
            found["solver"] = f"{solver.method}:{solver.steps}"
    if isinstance(timer, ClassTimer | ContinuousTimer):
        found["timer"] = "classes" if isinstance(timer, ClassTimer) else "continuous"
        found["timer_hidden"] = timer.net.layers[0].weight.shape[0]
    return ModelConfig(**{"timer": "none", **found})
