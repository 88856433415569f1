"""The task of a system whose rewards and terminations are its simulator's own: both learned from experience."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kairode.data.checks import warn
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Action, Environment, Obs, Spec, Task, Tau
from kairode.envs.host import HostEnvironment, SimulatorTask
from kairode.errors import KairodeError
from kairode.models.dynamics import Scale
from kairode.models.outcomes import OutcomeModel
from kairode.seeds import Purpose, derive_many
from kairode.training.outcomes import (
    IntervalRows,
    advance_outcomes,
    held_out_episodes,
    intervals_of,
    new_outcomes,
    rows_of,
)

MEMBERS, ITERATIONS = 3, 2000
"""Networks of a learned reward, and iterations of fitting them: fewer than for a table, since they are fitted again
whenever there are more data."""


class LearnedTask(Task):
    """An ensemble of rewards and hazards, whose scales are arrays: refitted to more data, it is the same program."""

    spec: Spec = eqx.field(static=True)
    outcomes: OutcomeModel
    """Members, stacked along the first axis, of standardised observations and rewards."""
    mean: Float[Array, "*seeds obs"]
    std: Float[Array, "*seeds obs"]
    reward_mean: Float[Array, "*seeds"]
    reward_std: Float[Array, "*seeds"]

    def reward(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """Mean over the members of the reward of an interval."""
        before, after = self._standardized(obs), self._standardized(next_obs)
        each = eqx.filter_vmap(lambda one: one.reward_distribution(before, action, after, tau)[0])(self.outcomes)
        return self.reward_mean + self.reward_std * each.mean()

    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        """Never by the observation alone: see `end_probability`."""
        return jnp.zeros((), bool)

    def end_probability(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """1 - exp(-h tau), mean over the members."""
        before, after = self._standardized(obs), self._standardized(next_obs)
        return eqx.filter_vmap(lambda one: one.end_probability(before, action, after, tau))(self.outcomes).mean()

    def _standardized(self, obs: Obs) -> Obs:
        return (obs - self.mean) / self.std


def task_of_system(env: Environment | HostEnvironment, data: Trajectory, *, seed: int = 0) -> Task:
    """What imagination knows of a system: its task; where reward and termination are the simulator's own, they are
    learned from its data."""
    if not isinstance(env.task, SimulatorTask):
        return env.task
    if len(data) < 2:
        raise KairodeError(
            f"the reward of '{data.spec.name}' is learned from data, of which a part is held out: give at least two "
            "episodes."
        )
    if not np.any(data.reward):
        warn(
            [
                f"no reward but 0 was seen in {len(data):,} episodes of '{data.spec.name}', so imagination has nothing "
                "to learn from: hold actions for longer (intervals), collect more episodes, or give a Task that knows "
                "the reward (task=..)"
            ]
        )
    held_out, intervals = held_out_episodes(np.asarray(data.terminated)), intervals_of(data)
    train, valid = (rows_of(intervals, data, part) for part in (~held_out, held_out))
    return fit_learned_task(env.task.spec, train, valid, seed)


def system_task(env: HostEnvironment, data: Trajectory | None) -> Task:
    """`task_of_system`; raises where the task must be learned and there are no data."""
    if data is None and isinstance(env.task, SimulatorTask):
        raise KairodeError(
            f"the rewards of '{env.task.spec.name}' are its simulator's own, and are learned from data: pass data=.. "
            "(or starts=.., a trajectory), such as kairode.collect(env, episodes=100)."
        )
    return env.task if data is None else task_of_system(env, data)


def new_learned_task(spec: Spec, seed: int = 0) -> LearnedTask:
    """The task before anything was learned."""
    size = len(spec.observations)
    outcomes = new_outcomes(spec, Scale.none(size), (0.0, 1.0), True, derive_many(seed, Purpose.OUTCOMES, MEMBERS))
    return LearnedTask(spec, outcomes, jnp.zeros(size), jnp.ones(size), jnp.zeros(()), jnp.ones(()))


def fit_learned_task(
    spec: Spec, train: IntervalRows, valid: IntervalRows, seed: int = 0, iterations: int = ITERATIONS
) -> LearnedTask:
    """Fit reward and hazard of a system to its intervals; `valid` are those of other episodes."""
    mean, std = train.obs.mean(0), train.obs.std(0)
    std = np.where(std > 1e-6 * np.maximum(np.abs(mean), 1e-3), std, 1.0)
    least, spread = float(train.reward.mean()), float(train.reward.std()) or 1.0

    def standardized(rows: IntervalRows) -> IntervalRows:
        obs, after = ((x - mean) / std for x in (rows.obs, rows.next_obs))
        return rows._replace(
            obs=obs.astype(np.float32),
            next_obs=after.astype(np.float32),
            reward=((rows.reward - least) / spread).astype(np.float32),
        )

    new, seeds = new_learned_task(spec, seed), derive_many(seed, Purpose.OUTCOMES, MEMBERS)
    outcomes = advance_outcomes(new.outcomes, standardized(train), standardized(valid), seeds, iterations, padded=True)
    arrays = (jnp.asarray(x, jnp.float32) for x in (mean, std, least, spread))
    return LearnedTask(spec, outcomes, *arrays)
