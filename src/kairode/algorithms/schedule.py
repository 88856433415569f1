"""Decision times chosen by models: the policy for them, and tests of schedules."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from kairode.algorithms.learn import LearnResult, learn_policy
from kairode.config.algorithms import LearnConfig
from kairode.config.presets import ACCRUED_DQN, learn_preset
from kairode.data import Trajectory
from kairode.envs.core import Environment, Task
from kairode.envs.host import HostEnvironment
from kairode.models.dynamics import DynamicsModel
from kairode.planning.optimize_schedule import schedule_for_learning

STAGE = "learning decision times"


def schedule_learn_config(
    env: str, episodes: int | None, latent_policy: bool, learn: LearnConfig | None = None
) -> LearnConfig:
    """Settings of a policy that is learned together with its schedule; `learn` replaces the environment's preset."""
    config = learn_preset(env, rollouts=not latent_policy) if learn is None else learn
    scale: float | None
    scale = ACCRUED_DQN[env].reward_scale if env in ACCRUED_DQN else config.dqn.reward_scale
    dqn = dataclasses.replace(config.dqn, cooldown=0.3, reward_scale=scale)
    return dataclasses.replace(config, dqn=dqn, episodes=config.episodes if episodes is None else episodes)


def learn_schedule_policy(
    models: list[DynamicsModel],
    env: Environment | HostEnvironment,
    config: LearnConfig,
    *,
    candidates: tuple[float, ...],
    data: Trajectory,
    calibrated: bool = False,
    **options: Any,
) -> LearnResult:
    """Learn a policy in imagination together with its schedule (algorithm 1 with imagined rewards).

    With three or more models, the last one validates the policy learned in the others. With `calibrated` models, which
    do not overestimate the gain of short intervals, the environment's own schedule is used instead: inaccurate values
    choose the shortest interval, with which random actions explore little. `options` are those of `learn_policy`.
    """
    members, validation_model = split_ensemble(models)
    schedule = None if calibrated else schedule_for_learning(models, env, candidates=candidates, data=data)
    return learn_policy(
        members,
        env,
        config,
        data=data,
        schedule=schedule,
        accrue=True,
        validation_model=validation_model,
        monitor=env,
        stage=STAGE,
        **options,
    )


def split_ensemble(models: list[DynamicsModel]) -> tuple[list[DynamicsModel], DynamicsModel | None]:
    """Models to learn in and, if there are three or more, one to validate with."""
    return (models[:-1], models[-1]) if len(models) > 2 else (models, None)


def intervals_by_regime(task: Task, found: Trajectory) -> dict[str, dict[str, int]]:
    """How often each interval was chosen in each regime."""
    where, intervals = np.asarray(task.regime(jnp.asarray(found.observation[:, :-1]))), np.asarray(found.interval)
    made: dict[str, dict[str, int]] = {}
    for i, name in enumerate(task.spec.regimes):
        taus, counts = np.unique(np.round(intervals[found.mask & (where == i)], 2), return_counts=True)
        made[name] = {f"{tau:g}": int(count) for tau, count in zip(taus, counts, strict=True)}
    return made
