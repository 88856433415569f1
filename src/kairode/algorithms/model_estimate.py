"""The return of a policy by simulation in fitted models, within the length of records, and how wrong the models are."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kairode.algorithms.estimate import RESAMPLES, Estimate, percentiles
from kairode.algorithms.task import learn_task, rewarded
from kairode.data.checks import warn
from kairode.data.collect import collect
from kairode.data.policy import Policy
from kairode.data.trajectory import Trajectory, carried_forward, constant_variables
from kairode.envs.core import Environment, Task
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import predict
from kairode.planning.model_env import make_model_env, obs_range
from kairode.planning.table_task import TableTask
from kairode.result import short_number
from kairode.seeds import Purpose, derive

MODEL_MARGIN = 0.1
"""Predictions are clipped to the range of the data, extended by this multiple of it: a reward of quantities on a
logarithmic scale grows without bound beyond."""
BIASED = 0.1
"""Error of the models' return of the records, relative to it, from which on it is said."""


def estimate_in_models(
    policy: Policy,
    data: Trajectory,
    members: list[DynamicsModel],
    task: Task,
    train: Trajectory | None,
    seed: int,
    episodes: int,
) -> Estimate:
    """Return in each model alone; the interval resamples models and imagined episodes."""
    known = data if train is None else train
    returns, constant = [], constant_variables(known)
    rng = np.random.default_rng([seed, 1])
    for i, model in enumerate(members):
        env: Environment = make_model_env(
            model,
            task,
            starts=data,
            obs_bounds=jnp.asarray(obs_range(known, MODEL_MARGIN)),
            constant=None if constant is None else jnp.asarray(constant),
        )
        found = collect(env, policy, episodes=episodes, seed=derive(seed + i, Purpose.TEST))
        returns.append(returns_within(found, *record_ends(data, np.asarray(found.observation)[:, 0], rng)))
    each = np.stack(returns)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(each), (RESAMPLES, len(each)))
    within = each[drawn[..., None], rng.integers(0, each.shape[1], (RESAMPLES, 1, each.shape[1]))]
    return Estimate(float(each.mean()), *percentiles(within.mean((1, 2))))


def model_task(data: Trajectory, members: list[DynamicsModel], train: Trajectory | None) -> TableTask:
    """Reward and termination, learned from the training episodes if there are any."""
    task = learn_task(data if train is None else train, members)
    if train is None and task.outcomes is not None:
        warn(
            [
                "rewards or terminations of the models' estimate were learned from the very episodes it is compared "
                "with: pass train=.. (the episodes that the models were fitted to), or task=.."
            ]
        )
    return task


def model_bias(
    data: Trajectory, members: list[DynamicsModel], task: Task, train: Trajectory | None, counts: np.ndarray
) -> list[str]:
    """A warning if the models are wrong about the return of the records themselves, which is known.

    Each model predicts the observations of an episode from the first one, given its actions and intervals; the rewards
    are those of the task there. A prediction is a mean, so that a reward that is no linear function of the observations
    is misjudged even by a model without error.
    """
    known, seen = (data if train is None else train), carried_forward(data)
    low, high = obs_range(known, MODEL_MARGIN)
    constant = constant_variables(known)
    observed = np.asarray(seen.observation)
    returns = []
    for model in members:
        predicted = np.concatenate([observed[:, :1], np.clip(predict(model, data), low, high)], axis=1)
        predicted = predicted if constant is None else np.where(constant, observed, predicted)
        returns.append(rewarded(task, dataclasses.replace(seen, observation=predicted.astype(np.float32))).discounted)
    apart = np.mean(returns, 0) - data.discounted
    lowest, highest = percentiles(counts @ apart / len(apart))
    own, off = float(data.discounted.mean()), float(apart.mean())
    if not (lowest > 0 or highest < 0) or abs(off) <= BIASED * abs(own):
        return []
    return [
        f"the models put the return of these records at {short_number(own + off)}, and it is {short_number(own)} "
        f"(difference {short_number(off)}, 95 % CI {short_number(lowest)} to {short_number(highest)}): expect an error "
        "of this size in their estimate of the policy too, which its interval does not contain"
    ]


def record_ends(
    data: Trajectory, starts: Float[np.ndarray, "k obs"], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The time and the number of decisions after which an imagined episode no longer counts, [k] each: those of a
    record with the same first observation, drawn at random if there are several.

    A record of the usual number of decisions (half of those that were cut off have the largest one) ends by its number
    and not by its time, any other one by its time. Neither ends a record that reached the system's own horizon, which
    ends imagined episodes too. A record that terminated does not say how long it would have been kept otherwise: its
    end is that of another record, drawn from those that lasted longer or were cut off as late (Efron's redistribution
    to the right, which draws from the Kaplan-Meier estimate); if there is none, it has no end.
    """
    first = np.asarray(carried_forward(data).observation, np.float32)[:, 0]
    times, lengths = np.asarray(data.time, np.float64)[:, -1], np.asarray(data.length)
    open_ended = np.asarray(data.terminated) | (times >= data.spec.horizon - 1e-3 * data.spec.tick)
    cut = lengths[~open_ended]
    most = cut.max() if cut.size and np.mean(cut == cut.max()) >= 0.5 else np.inf
    counted = lengths == most
    ends = np.where(open_ended | counted, np.inf, times)
    numbers = np.where(counted & ~open_ended, most, np.inf)
    terminated, lasted = np.asarray(data.terminated), lengths if np.isfinite(most) else times

    def kept(i: int) -> int:
        """The record whose end counts for record i."""
        while terminated[i]:
            later = np.flatnonzero((lasted > lasted[i]) | ((lasted == lasted[i]) & ~terminated))
            if not len(later):
                break
            i = int(rng.choice(later))
        return i

    same: dict[bytes, list[int]] = {}
    for i, row in enumerate(first):
        same.setdefault(row.tobytes(), []).append(i)
    drawn = [kept(int(rng.choice(same[row.tobytes()]))) for row in np.asarray(starts, np.float32)]
    return ends[drawn], numbers[drawn]


def returns_within(found: Trajectory, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Discounted returns of the first decisions, this many, and before these times.

    An interval that the time cuts counts by its part before it: as many decisions are then expected as in records that
    were cut at a time, whether or not these include the interval that went beyond it.
    """
    spec, times = found.spec, np.asarray(found.time, np.float64)
    interval = np.maximum(np.diff(times, axis=1), 1e-9 * spec.tick)
    part = np.clip((ends[:, None] - times[:, :-1]) / interval, 0.0, 1.0)
    part = np.where(np.arange(part.shape[1]) < numbers[:, None], part, 0.0)
    rewards = np.where(np.asarray(found.mask), np.asarray(found.reward, np.float64), 0.0)
    return (part * rewards * spec.discount ** (times[:, :-1] / spec.tick)).sum(1)
