"""Rewards between decisions, computed along a model's trajectory."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kairode.data.trajectory import Trajectory, carried_forward
from kairode.envs.accrual import accrued
from kairode.envs.core import Task
from kairode.models.dynamics import DynamicsModel


def interpolated(model: DynamicsModel, task: Task, data: Trajectory, *, seed: int = 0) -> Trajectory:
    """Replace the rewards of a trajectory by rewards accrued on every finest time step along a model's predictions.

    Predictions from each decision are corrected towards the next true observation, by a fraction of the error that
    grows linearly with time.
    """
    spec, data = task.spec, carried_forward(data)
    steps = math.ceil(float(np.max(data.interval)) / spec.finest - 1e-6)
    keys = jax.random.split(jax.random.key(seed), len(data))
    parts = (data.observation[:, :-1], data.action, data.interval, data.observation[:, 1:])
    rewards = np.asarray(_rewards(model, task, steps, keys, *map(jnp.asarray, parts)))
    return dataclasses.replace(data, reward=np.where(data.mask, rewards, 0.0))


@eqx.filter_jit
def _rewards(
    model: DynamicsModel, task: Task, steps: int, keys: Any, obs: Any, action: Any, tau: Any, next_obs: Any
) -> Float[Array, "episodes decisions"]:
    def decision(z: Any, row: Any) -> tuple[Any, Any]:
        obs, action, tau, next_obs = row
        ends = jnp.minimum(task.spec.finest * jnp.arange(1.0, steps + 1), tau)
        zs, seen = model.path(z, obs, action, ends)
        share = ends / jnp.maximum(tau, 1e-6)
        bent = seen + share[:, None] * (next_obs - seen[-1])[None]
        return zs[-1], accrued(task, obs, action, bent, ends)[0]

    def episode(key: Any, *rows: Any) -> Any:
        return jax.lax.scan(decision, model.start(key=key), rows)[1]

    return jax.vmap(episode)(keys, obs, action, tau, next_obs)
