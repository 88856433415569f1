"""Studies: many policies of one environment (models, schedules, seeds) as agents of one compiled loop.

The paper's tables of returns are made of studies. The record of a study has a cell for each model and schedule.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kairode.agents.encoder import IdentityEncoder, LatentEncoder, ObsEncoder
from kairode.agents.evaluate import Scores, mean_return, score_many, to_result
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_loop import TrainResult, Validator, train_agents
from kairode.agents.train_step import (
    TrainingBatch,
    TrainState,
    init_train_state,
    transitions_from_data,
    with_transitions,
)
from kairode.algorithms.fit import load_data
from kairode.callbacks import Callback, no_callback
from kairode.config.agents import DQNConfig
from kairode.data import Trajectory
from kairode.data.rollout import episode_keys
from kairode.envs import make
from kairode.envs.core import Environment
from kairode.envs.schedule import FixedOrOwn
from kairode.paper.table1 import cell_config
from kairode.planning.model_env import ModelEnv, ensemble, make_model_env, obs_range, sample_start_observations
from kairode.result import objective_of, rounded
from kairode.seeds import Purpose, derive, derive_many
from kairode.training.model_files import load_models
from kairode.trees import one, stack

ORACLE = "oracle"
"""In place of a model: training on the real system, the model-free baseline."""


@dataclasses.dataclass(frozen=True)
class Study:
    """Policies of one environment."""

    env: str
    setting: str
    """Setting of the environment: ours or paper."""
    fits: str
    """Row of table 1 whose fitted models are used."""
    models: tuple[str, ...]
    """Dynamics models to train in; `oracle` trains on the real system."""
    schedules: tuple[float, ...]
    """Intervals; 0 is the environment's own schedule."""
    episodes: int
    """Training episodes."""
    dqn: DQNConfig = dataclasses.field(default_factory=DQNConfig)
    seeds: int = 5
    """Agents per model and schedule; agent i is trained in the model of seed i."""
    agents_from: int = 0
    """Seed of the first agent; settings are tuned with agents from 100 on."""
    latent_policy: bool = False
    """Whether the policy is conditioned on the model's latent state."""
    ensemble: bool = False
    """Train agent i in all models but i, validate it in model i, and keep its best policy."""
    model_env: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options of `ModelEnv`: resample_member; sample_intervals, by default False."""
    obs_margin: float | None = None
    """Clip imagined observations to the range of the data, widened on both sides by this multiple of its width; None
    for no bounds."""
    rollout_length: int | None = None
    """Start imagined episodes anywhere along the data and truncate them after this many decisions; None for whole
    episodes."""
    real_transitions: bool = False
    """Add the models' data to the replay buffer (for policies without a latent state)."""
    validate_every: int = 5000
    """Decisions between validations on the real system, which only record the curve."""
    validation_episodes: int = 20
    """Episodes per validation."""
    test_episodes: int = 100


def run_study(
    study: Study,
    fits: Path,
    *,
    folder: Path | None = None,
    callback: Callback = no_callback,
    time_limit: float = float("inf"),
) -> dict[str, Any]:
    """Train, validate and test; returns the figures of a record."""
    env = make(study.env, setting=study.setting)
    batches, validation_envs = build_batches(study, env, fits)
    numbers = derive_many(study.agents_from, Purpose.AGENT, study.seeds)
    seeds = numbers * len(study.models) * len(study.schedules)
    limit = env.task.spec.longest(_least(study, env))
    validate = study_validator(study, env, batches, validation_envs, limit)
    initial_state = None
    if study.real_transitions and study.models != (ORACLE,):
        initial_state = _with_data(study, env, init_train_state(batches, study.dqn, study.episodes, seeds))
    done = train_agents(
        batches,
        study.dqn,
        study.episodes,
        seeds,
        initial_state=initial_state,
        identity=dataclasses.asdict(study),
        validate=validate,
        validate_every=study.validate_every,
        folder=folder,
        callback=callback,
        time_limit=time_limit,
    )
    figures: dict[str, Any] = {
        "cells": cells(study, env, evaluate_study(study, env, batches, done.q, limit), done),
        "training_seconds": round(done.seconds, 1),
        "curves": curves(study, done),
    }
    if study.ensemble:
        last = evaluate_study(study, env, batches, done.last, limit)
        figures["last"] = {
            name: {schedule: objective_of(cell) for schedule, cell in row.items()}
            for name, row in cells(study, env, last, done).items()
        }
    if study.env == "gridworld":
        figures["values"] = value_grids(study, done.q)
    return figures


def _least(study: Study, env: Environment) -> float:
    return min(tau or env.task.spec.intervals.low for tau in study.schedules)


def build_batches(study: Study, env: Environment, fits: Path) -> tuple[list[TrainingBatch], list[ModelEnv | None]]:
    """One batch per model; and the model environments that validate its agents, if `ensemble`."""
    agents = len(study.schedules) * study.seeds
    taus = jnp.repeat(jnp.array(study.schedules, jnp.float32), study.seeds)
    schedule = FixedOrOwn(taus, _least(study, env))
    options = _model_env_options(study)
    batches: list[TrainingBatch] = []
    validation_envs: list[ModelEnv | None] = []
    for model in study.models:
        if model == ORACLE:
            batches.append(TrainingBatch(env, schedule, IdentityEncoder(), agents))
            validation_envs.append(None)
            continue
        found = [load_models(fits / f"{study.fits}-{model}-{seed}")[0] for seed in range(study.seeds)]
        ensembles = [found[:i] + found[i + 1 :] if study.ensemble else [found[i]] for i in range(study.seeds)]
        model_envs = [make_model_env(members, env, **options) for members in ensembles]
        encoder: ObsEncoder = IdentityEncoder()
        if study.latent_policy:
            # A member of the agent's own ensemble, not its validation model.
            encoders = [members[0] for members in ensembles] * len(study.schedules)
            encoder = LatentEncoder(ensemble(encoders, model_envs[0].models.spec))
        batches.append(TrainingBatch(stack(model_envs * len(study.schedules)), schedule, encoder, agents))
        whole = {name: value for name, value in options.items() if name not in ("starts", "branch")}
        alone = [make_model_env(model, env, **whole) for model in found]
        validation_envs.append(stack(alone * len(study.schedules)) if study.ensemble else None)
    return batches, validation_envs


def _with_data(study: Study, env: Environment, train_state: TrainState) -> TrainState:
    """Add the models' data to every agent's replay buffer: transitions with the intervals of its schedule."""
    data, parts = _training_data(study), []
    for i, tau in enumerate(study.schedules * len(study.models)):
        these = transitions_from_data(study.dqn, data, env.task.spec, tau or None)
        part = one(train_state, slice(i * study.seeds, (i + 1) * study.seeds))
        parts.append(with_transitions(part, these) if len(these.action) else part)
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def _training_data(study: Study) -> Trajectory:
    return load_data(cell_config(study.fits, study.models[0], 0)).train


def _model_env_options(study: Study) -> dict[str, Any]:
    # The paper uses the most likely interval; so do our studies, for comparison.
    options = {"sample_intervals": False, **study.model_env}
    if study.models == (ORACLE,) or (study.obs_margin is None and study.rollout_length is None):
        return options
    seen = _training_data(study)
    if study.obs_margin is not None:
        options["obs_bounds"] = jnp.asarray(obs_range(seen, study.obs_margin))
    if study.rollout_length is not None:
        options |= {"starts": sample_start_observations(seen), "branch": study.rollout_length}
    return options


def _policies_by_batch(batches: Sequence[TrainingBatch], q: ReLUNetwork, epsilon: float) -> list[QPolicy]:
    found, start = [], 0
    for batch in batches:
        part = one(q, slice(start, start + batch.agents))
        found.append(QPolicy(part, batch.encoder, batch.env.task.spec, epsilon))
        start += batch.agents
    return found


def study_validator(
    study: Study, env: Environment, batches: list[TrainingBatch], validation_envs: list[ModelEnv | None], limit: int
) -> Validator:
    """Validation by the return on the real system and, with an ensemble, in the validation model."""
    keys = episode_keys(derive(0, Purpose.VALIDATION), study.validation_episodes)
    epsilon = study.dqn.final_epsilon

    def validate(q: ReLUNetwork) -> dict[str, Any]:
        figures: dict[str, list[np.ndarray]] = {"real": []}
        for batch, validation_env, policies in zip(
            batches, validation_envs, _policies_by_batch(batches, q, epsilon), strict=True
        ):
            found = score_many(env, policies, batch.schedule, keys, limit, batch.agents)
            figures["real"].append(mean_return(env.task, found))
            if validation_env is not None:
                validated = score_many(validation_env, policies, batch.schedule, keys, limit, batch.agents)
                figures.setdefault("score", []).append(mean_return(env.task, validated))
        return {name: np.concatenate(parts) for name, parts in figures.items()}

    return validate


def evaluate_study(study: Study, env: Environment, batches: list[TrainingBatch], q: ReLUNetwork, limit: int) -> Scores:
    """Scores of every agent on the same test episodes, with the order of the agents in the batches."""
    seed = derive(study.agents_from, Purpose.TUNING_TEST)  # tuning uses other test episodes
    keys = episode_keys(seed, study.test_episodes)
    parts = [
        score_many(env, policies, batch.schedule, keys, limit, batch.agents)
        for batch, policies in zip(batches, _policies_by_batch(batches, q, study.dqn.final_epsilon), strict=True)
    ]
    return jax.tree.map(lambda *each: np.concatenate([np.asarray(x) for x in each]), *parts)


def cells(study: Study, env: Environment, tested: Scores, done: TrainResult) -> dict[str, dict[str, Any]]:
    """Results for each model and schedule over its seeds, with training statistics."""
    spec = env.task.spec
    found: dict[str, dict[str, Any]] = {model: {} for model in study.models}
    for i, (model, tau) in enumerate(itertools.product(study.models, study.schedules)):
        these = slice(i * study.seeds, (i + 1) * study.seeds)
        returns = done.returns[these]
        found[model][interval_label(tau)] = {
            **rounded(to_result(spec, jax.tree.map(lambda x, these=these: x[these], tested)).figures()),
            "training_episodes": np.isfinite(returns[..., 0]).sum(-1).tolist(),
            "training_decisions": done.decisions[these],
            "training_return": rounded(np.nanmean(returns[:, -50:, int(spec.discounted_objective)], axis=1)),
            "diverged": done.diverged[these],
        }
    return found


def curves(study: Study, done: TrainResult) -> dict[str, Any]:
    """Validation curves of the first schedule of each model."""
    found: dict[str, Any] = {}
    each = len(study.schedules) * study.seeds
    names = [name for name in ("episodes", "real", "score") if done.curve and name in done.curve[0]]
    for k, model in enumerate(study.models):
        these = slice(k * each, k * each + study.seeds)
        found[model] = {name: [rounded(point[name][these], 4) for point in done.curve] for name in names}
    return found


GRID = (21, 30)
"""Points along x and y of a stored value function."""


def value_grids(study: Study, q: ReLUNetwork) -> dict[str, Any]:
    """V over the gridworld for the first agent of each model: [x, y], in units of reward."""
    x, y = (np.linspace(-half, half, n) for half, n in zip((3.5, 5.0), GRID, strict=True))
    points = jnp.asarray(np.stack(np.meshgrid(x, y, indexing="ij"), -1), jnp.float32)
    each = len(study.schedules) * study.seeds
    values = {model: one(q, k * each)(points).max(-1) for k, model in enumerate(study.models)}
    return {model: rounded(np.asarray(value) / study.dqn.reward_scale, 4) for model, value in values.items()}


def interval_label(tau: float) -> str:
    """Key of an interval in records; 0 is the environment's own schedule."""
    return f"{tau:g}" if tau else "own"
