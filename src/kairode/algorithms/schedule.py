"""Decision times chosen by models: the policy for them, and tests of schedules."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from kairode.agents.evaluate import episode_keys, score_many
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_step import TrainingBatch
from kairode.algorithms.learn import LearnResult, learn_policy
from kairode.callbacks import Callback, no_callback
from kairode.config.algorithms import LearnConfig
from kairode.config.presets import ACCRUED_DQN, learn_preset
from kairode.data import Trajectory
from kairode.envs.accrual import AccruedRewards, undiscounted
from kairode.envs.core import Environment, Task
from kairode.models.dynamics import DynamicsModel
from kairode.planning.optimize_schedule import schedule_for_learning

STAGE = "learning decision times"


def schedule_learn_config(env: str, episodes: int | None, latent_policy: bool) -> LearnConfig:
    """How a policy is learned under the schedule that it chooses itself."""
    config = learn_preset(env, rollouts=not latent_policy)
    dqn = dataclasses.replace(config.dqn, cooldown=0.3)
    if env in ACCRUED_DQN:
        dqn = dataclasses.replace(dqn, reward_scale=ACCRUED_DQN[env].reward_scale)
    return dataclasses.replace(config, dqn=dqn, episodes=config.episodes if episodes is None else episodes)


def learn_schedule_policy(
    models: list[DynamicsModel],
    env: Environment,
    config: LearnConfig,
    *,
    candidates: tuple[float, ...],
    data: Trajectory,
    seed: int,
    latent_policy: bool = False,
    folder: Path | None = None,
    callback: Callback = no_callback,
) -> LearnResult:
    """Learn a policy in imagination under the schedule that it chooses itself (algorithm 1 with imagined rewards).

    From three models on, the last one validates the policy learned in the others.
    """
    members, validation_model = split_ensemble(models)
    schedule = schedule_for_learning(models, env, taus=candidates, data=data)
    return learn_policy(
        members,
        env,
        config,
        data=data,
        schedule=schedule,
        seed=seed,
        latent_policy=latent_policy,
        validation_model=validation_model,
        monitor=env,
        folder=folder,
        callback=callback,
        stage=STAGE,
    )


def split_ensemble(models: list[DynamicsModel]) -> tuple[list[DynamicsModel], DynamicsModel | None]:
    """Models to learn in and, if there are three or more, one to validate with."""
    return (models[:-1], models[-1]) if len(models) > 2 else (models, None)


def evaluate_policies(
    env: Environment, batch: TrainingBatch, policies: QPolicy, seed: int, episodes: int
) -> dict[str, np.ndarray]:
    """Of each agent [agents, episodes]: return, discounted and plain, on every finest step; visits; health."""
    schedule = batch.schedule.with_q(policies.q)
    limit = env.task.spec.longest(schedule.shortest(env.task.spec))
    longest = schedule.longest(env.task.spec)
    keys = episode_keys(seed, episodes)
    places = (AccruedRewards.of(env, longest), undiscounted(env, longest))
    found, plain = (score_many(place, policies, schedule, keys, limit, batch.agents) for place in places)
    return {
        "return": np.asarray(found.discounted, np.float64),
        "plain": np.asarray(plain.total, np.float64),
        "visits": np.asarray(found.decisions, np.float64),
        "healthy": np.asarray(found.healthy, np.float64),
        "reached": np.asarray(found.reached, np.float64),
        "time": np.minimum(np.asarray(found.time, np.float64), env.task.spec.horizon),
    }


def objective_return(task: Task, found: dict[str, np.ndarray]) -> np.ndarray:
    """The return that counts."""
    return found["return"] if task.spec.judged_discounted else found["plain"]


def intervals_by_condition(task: Task, found: Trajectory) -> dict[str, dict[str, int]]:
    """How often each interval was chosen, by the state of health in which (all in one where a task tells none)."""
    names = getattr(task, "conditions", ("all",))
    seen, mask = np.asarray(found.observation)[:, :-1], found.mask
    where = np.asarray(task.condition(jnp.asarray(seen))) if hasattr(task, "condition") else np.zeros(mask.shape, int)
    made: dict[str, dict[str, int]] = {}
    for i, name in enumerate(names):
        taus, counts = np.unique(np.round(np.asarray(found.interval)[mask & (where == i)], 2), return_counts=True)
        made[name] = {f"{tau:g}": int(count) for tau, count in zip(taus, counts, strict=True)}
    return made
