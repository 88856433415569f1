"""Policies with continuous actions from records alone: what `kairode.learn_offline` chooses among."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from kairode.agents.actor_policy import ActorPolicy
from kairode.agents.fitted_q import least_value
from kairode.agents.offline_actor import OfflineAgents, offline_records, train_offline_actors
from kairode.algorithms.fit import digest
from kairode.callbacks import Callback, no_callback
from kairode.config.agents import OfflineActorConfig
from kairode.data.describe import spec_identity
from kairode.data.trajectory import Trajectory, constant_variables
from kairode.envs.core import Task
from kairode.models.dynamics import DynamicsModel
from kairode.planning.model_env import make_model_env, obs_range, sample_start_observations
from kairode.planning.pessimism import PessimisticEnv
from kairode.seeds import Purpose, derive
from kairode.training.session import ADDED
from kairode.trees import stack


@dataclasses.dataclass(frozen=True)
class ControlRecipe:
    """One way to learn from records with continuous actions."""

    alpha: float
    """Weight of the values relative to that of cloning the actions of the data (TD3+BC)."""
    penalty: float | None = None
    """Reward that a unit of the models' disagreement costs, in standard deviations of the rewards of the data (MOPO);
    None learns from real transitions alone."""


CONTROL_RECIPES: dict[str, ControlRecipe] = {
    "cloning": ControlRecipe(2.5),
    "values": ControlRecipe(10.0),
    "cloning-small-penalty": ControlRecipe(2.5, 1.0),
    "cloning-large-penalty": ControlRecipe(2.5, 10.0),
    "values-small-penalty": ControlRecipe(10.0, 1.0),
    "values-large-penalty": ControlRecipe(10.0, 10.0),
}
"""Those that are tried, by name."""


def learn_controls(
    models: DynamicsModel | Sequence[DynamicsModel] | None,
    data: Trajectory,
    *,
    task: Task,
    seed: int = 0,
    callback: Callback = no_callback,
    folder: Path | None = None,
    config: OfflineActorConfig | None = None,
) -> list[tuple[str, ActorPolicy]]:
    """Candidates for a policy with continuous actions: every recipe at every stop of its training.

    Args:
        models: an ensemble fitted to the data; None for the recipes without models alone.
        data: records.
        task: reward and termination of imagined transitions; its discount is that of the data.
        seed: random seed.
        callback: called with a `kairode.callbacks.Progress` during training.
        folder: keep checkpoints there, and resume from them.
        config: settings other than the default ones.

    Returns:
        Names, such as `cloning 1/2`, and policies; agents that diverged are left out.
    """
    config = config or OfflineActorConfig()
    members = [models] if isinstance(models, DynamicsModel) else list(models or ())
    real = {name: recipe for name, recipe in CONTROL_RECIPES.items() if recipe.penalty is None}
    found = _trained(config, data, real, None, seed, callback, folder)
    if members:
        imagined = {name: recipe for name, recipe in CONTROL_RECIPES.items() if recipe.penalty is not None}
        if len(members) == 1:  # no disagreement: penalties make no difference
            imagined = {name: recipe for name, recipe in imagined.items() if "small" in name}
        envs = _environments(config, members, data, task, [*imagined.values()])
        found += _trained(config, data, imagined, envs, seed, callback, folder)
    return found


def _trained(
    config: OfflineActorConfig,
    data: Trajectory,
    recipes: dict[str, ControlRecipe],
    envs: list[PessimisticEnv] | None,
    seed: int,
    callback: Callback,
    folder: Path | None,
) -> list[tuple[str, ActorPolicy]]:
    """Agents that differ in numbers alone, side by side."""
    alphas = jnp.asarray([recipe.alpha for recipe in recipes.values()], jnp.float32)
    agents = OfflineAgents(alphas, None if envs is None else stack(envs))
    part, stage = ("records", "learning from the records") if envs is None else ("models", "learning in imagination")
    trained = train_offline_actors(
        config,
        offline_records(data, config.agent),
        agents,
        [derive(seed, Purpose.AGENT)] * len(recipes),
        folder=None if folder is None else folder / part,
        identity={"data": digest(data), "agents": digest(agents), ADDED: {"system": spec_identity(data.spec)}},
        callback=callback,
        stage=stage,
    )
    return [
        (f"{name} {k + 1}/{config.stops}", policy)
        for name, policies, diverged in zip(recipes, trained.policies, trained.diverged, strict=True)
        for k, policy in enumerate(policies)
        if not diverged
    ]


def _environments(
    config: OfflineActorConfig,
    members: list[DynamicsModel],
    data: Trajectory,
    task: Task,
    recipes: Sequence[ControlRecipe],
) -> list[PessimisticEnv]:
    """Imagination that branches off from the records; one for each recipe, which differ in numbers alone."""
    constant = constant_variables(data)
    inner = make_model_env(
        members,
        task,
        starts=sample_start_observations(data),
        branch=config.rollout_length,
        resample_member=True,
        obs_bounds=jnp.asarray(obs_range(data, config.obs_margin)),
        constant=None if constant is None else jnp.asarray(constant),
    )
    spread, floor = float(np.asarray(data.reward)[data.mask].std()), least_value(data)

    def env(recipe: ControlRecipe) -> PessimisticEnv:
        penalty = jnp.asarray((recipe.penalty or 0.0) * spread, jnp.float32)
        return PessimisticEnv(inner.task, inner, penalty, jnp.asarray(np.inf), jnp.asarray(floor, jnp.float32))

    return [env(recipe) for recipe in recipes]
