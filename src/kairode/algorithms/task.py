"""`kairode.learn_task`: the task of data whose reward or termination is not given as a function."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from kairode.data.checks import warn
from kairode.data.trajectory import Trajectory, carried_forward
from kairode.envs.core import Spec, Task
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.planning.table_task import TableTask
from kairode.seeds import Purpose, derive_many
from kairode.training.outcomes import check_outcomes, fit_outcomes, held_out_episodes, intervals_of, rows_of

POOR = 0.5
"""Error of a learned reward, relative to its variance, from which on a warning is issued."""
MANY, OFF = 10, 2.0
"""Held-out terminations from which on their number is compared with the predicted one, and the factor between them."""


def check_rewarded(data: Trajectory) -> None:
    """Raise if no reward is known."""
    if data.spec.reward_expression is None and not np.any(data.reward):
        raise KairodeError(
            f"all rewards of '{data.spec.name}' are 0, so there is nothing to learn from: load the table with "
            "reward=.., a column or an expression of columns."
        )


def with_rewards_of(task: Task, data: Trajectory) -> Trajectory:
    """The data with the rewards of a task of the user's own, computed where values are missing from the last ones; with
    the task of a table, the data as they are."""
    if isinstance(task, TableTask):
        return data
    own, given = (spec.discount ** (1 / spec.tick) for spec in (task.spec, data.spec))
    if not np.isclose(own, given, rtol=1e-6, atol=0):
        raise KairodeError(
            f"the discount per {data.spec.time_unit} is {own:.6g} in the task and {given:.6g} in the data: make them "
            "the same, for a table with kairode.load_table(.., discount=..)."
        )
    return rewarded(task, data)


def rewarded(task: Task, data: Trajectory) -> Trajectory:
    """The data with the rewards that a task gives to their observations, actions and intervals."""
    seen = jnp.asarray(carried_forward(data).observation, jnp.float32)
    reward = jax.vmap(jax.vmap(task.reward))
    found = reward(seen[:, :-1], jnp.asarray(data.action), seen[:, 1:], jnp.asarray(data.interval, jnp.float32))
    return dataclasses.replace(data, reward=np.where(data.mask, np.asarray(found, np.float32), 0))


def learn_task(
    data: Trajectory,
    models: DynamicsModel | Sequence[DynamicsModel] | None = None,
    *,
    members: int = 5,
    caution: float = 0.0,
    seed: int = 0,
) -> TableTask:
    """The task of data from a table: `kairode.learn(models, kairode.learn_task(data), data=data)`.

    The reward is the expression that the table was loaded with, if it uses observations and actions alone; otherwise
    an ensemble of networks learns it from the data, as a function of the observations at both ends of an interval, the
    action and the length of the interval. Where episodes terminate, a hazard is learned in the same way. Episodes in
    imagination last as long as the longest one of the data.

    Args:
        data: episodes, from `kairode.load_table` or `kairode.read`.
        models: fitted models, of which the first one fills in missing values; by default they are carried forward.
        members: networks in the ensemble.
        caution: subtract so many standard deviations of the members' rewards from their mean; for learned rewards.
        seed: of the networks and their batches.
    """
    if not isinstance(data, Trajectory):
        raise KairodeError(f"data must be episodes, from kairode.load_table or kairode.read, got {data!r}.")
    if not (isinstance(members, int) and members >= 1):
        raise KairodeError(f"members must be an integer of at least 1, got {members!r}.")
    if not (isinstance(caution, int | float) and caution >= 0):
        raise KairodeError(f"caution must not be negative, got {caution!r}.")
    if len(data) < 2:
        raise KairodeError("a single episode cannot be split into training and validation: give several.")
    spec = dataclasses.replace(
        data.spec,
        horizon=float(data.time[:, -1].max()),
        max_decisions=int(np.max(data.length)),
    )
    check_rewarded(data)
    return fit_task(data, spec, models, members=members, caution=caution, seed=seed)


def fit_task(
    data: Trajectory,
    spec: Spec,
    models: DynamicsModel | Sequence[DynamicsModel] | None,
    *,
    members: int,
    caution: float = 0.0,
    seed: int = 0,
) -> TableTask:
    """Fit reward and hazard to data, and warn of what they do not explain."""
    rewards, ends = spec.reward_expression is None, bool(np.any(data.terminated))
    if caution and not rewards:
        raise KairodeError("caution is for learned rewards; the reward of these data is an expression: leave it out.")
    least = float(np.min(np.asarray(data.reward)[data.mask]))
    if not (rewards or ends):
        return TableTask(spec, least=least)
    first = models if isinstance(models, DynamicsModel) else next(iter(models or ()), None)
    held_out, intervals = held_out_episodes(np.asarray(data.terminated)), intervals_of(data, first)
    train, valid = (rows_of(intervals, data, part) for part in (~held_out, held_out))
    seeds = derive_many(seed, Purpose.OUTCOMES, members)
    found = fit_outcomes(train, valid, data, seeds=seeds, rewards=rewards)
    check = check_outcomes(found, valid)
    said = []
    if check.reward_error is not None and not check.reward_error <= POOR:
        said.append(
            f"the learned reward leaves {check.reward_error:.0%} of the variance of the rewards of held-out episodes "
            "unexplained, so policies are learned from rewards that are often wrong: give the reward as an expression, "
            "or add the variables that it depends on"
        )
    if check.expected is not None and check.terminations >= MANY:
        ratio = check.expected / check.terminations
        if not 1 / OFF <= ratio <= OFF:
            said.append(
                f"{check.expected:.0f} of the held-out episodes are predicted to terminate, and {check.terminations} "
                "do: add the variables that termination depends on"
            )
    warn(said)
    return TableTask(spec, found, float(caution), least)
