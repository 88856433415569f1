"""Predictions corrected by their mean error on real transitions.

A model can be right on average and wrong about the interval: fitted to intervals of 1 to 7 seconds, it may predict the
same displacement after each of them. Deciding often then seems to gain ground, and waiting to lose it.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete
from kairode.errors import KairodeError
from kairode.models.correction import Correction
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import predict

MIN_TRANSITIONS = 10
"""Minimum per action and interval; with fewer, the correction is interpolated between neighbouring intervals."""


def calibrate_model(model: DynamicsModel, data: Trajectory) -> DynamicsModel:
    """Correct a model's predictions by their mean error on the data (one step, teacher forcing), for each action and
    interval.

    For imagination and planning; fit the uncorrected model further, not the corrected one.
    """
    actions = model.spec.actions
    if not isinstance(actions, Discrete):
        raise KairodeError(f"calibration needs discrete actions; those of '{model.spec.name}' are continuous.")
    mask, finest = np.asarray(data.mask), model.spec.finest
    residuals = (np.asarray(data.observation)[:, 1:] - predict(model, data, teacher_forcing=True))[mask]
    # The taus of continuous intervals are counted with the nearest finest step.
    steps = np.maximum(np.rint(np.asarray(data.interval)[mask] / finest), 1).astype(int)
    table = mean_residuals(residuals, np.asarray(data.action)[mask], steps, actions.n)
    taus = finest * np.unique(steps)
    return dataclasses.replace(
        model, correction=Correction(jnp.asarray(taus, jnp.float32), jnp.asarray(table, jnp.float32))
    )


def mean_residuals(
    residuals: Float[np.ndarray, "n obs"], actions: Int[np.ndarray, " n"], steps: Int[np.ndarray, " n"], count: int
) -> Float[np.ndarray, "actions k obs"]:
    """Mean residual of every action and interval, shrunk towards 0 if it may be due to chance.

    Intervals with too few transitions are interpolated; actions without any get zeros.
    """
    every = np.unique(steps)
    table = np.zeros((count, len(every), residuals.shape[1]))
    for action in range(count):
        groups = {step: residuals[(actions == action) & (steps == step)] for step in every}
        found = {step: shrunk_mean(group) for step, group in groups.items() if len(group) >= MIN_TRANSITIONS}
        steps_found = np.array(list(found))
        for i, column in enumerate(np.array(list(found.values())).T):
            known = ~np.isnan(column)
            if known.any():
                table[action, :, i] = np.interp(every, steps_found[known], column[known])
    return table


def shrunk_mean(values: Float[np.ndarray, "n obs"]) -> Float[np.ndarray, " obs"]:
    """m max(0, 1 - e^2 / m^2), with m the mean and e its standard error (James and Stein's positive part).

    Of a variable with missing values, those that were measured; NaN if they are fewer than `MIN_TRANSITIONS`.
    """
    lost = np.isnan(values)
    if lost.any():
        known = (values[~lost[:, i], i : i + 1] for i in range(values.shape[1]))
        return np.array([shrunk_mean(one)[0] if len(one) >= MIN_TRANSITIONS else np.nan for one in known])
    values = values.astype(np.float64)
    mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))
    return mean * np.maximum(0.0, 1.0 - np.divide(error**2, mean**2, out=np.ones_like(mean), where=mean != 0))
