"""How good a policy is on a system: whole episodes, returns as the experiments define them, intervals of confidence."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kairode.agents.q_policy import QPolicy
from kairode.data.collect import collect
from kairode.data.policy import Policy
from kairode.data.rollout import rollout
from kairode.data.trajectory import Trajectory
from kairode.envs.accrual import AccruedRewards, undiscounted
from kairode.envs.core import Environment, Task
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import Schedule, as_schedule
from kairode.errors import KairodeError
from kairode.models.predict import check_same
from kairode.result import Result, Spread, objective_name
from kairode.seeds import Purpose, derive
from kairode.stats import bootstrap_interval, mean


class Scores(NamedTuple):
    """Of each episode."""

    total: Any
    """The sum of rewards."""
    discounted: Any
    """Each reward times gamma^t, t the time of its decision."""
    decisions: Any
    time: Any
    """Until the episode's end."""
    reached: Any
    """Whether the process ended it (a goal reached, a fall)."""
    healthy: Any
    """Share of the time that ended in health; NaN where the task knows no such thing."""


def score(task: Task, next_obs: Any, interval: Any, reward: Any, length: Any, terminated: Any) -> Scores:
    """Of episodes with the decisions on axis 0: [decision, *episodes]."""
    spec = task.spec
    ends = jnp.cumsum(interval, axis=0)
    gamma = spec.discount ** ((ends - interval) / spec.tick)
    healthy = getattr(task, "healthy", None)
    time = ends[-1]
    well = jnp.full(time.shape, jnp.nan) if healthy is None else (healthy(next_obs) * interval).sum(0) / time
    return Scores(reward.sum(0), (gamma * reward).sum(0), length, time, terminated, well)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The test episodes of a policy."""

    returns: np.ndarray
    """The objective of each episode: discounted where the task is evaluated so (HIV)."""
    scores: Scores
    time_unit: str
    discounted: bool = False
    accrued: bool = False
    """Whether the rewards of `scores` were counted on every finest step."""

    @property
    def mean(self) -> float:
        """The mean of the objective."""
        return float(self.returns.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """A 95 % bootstrap interval of the mean of the objective."""
        return bootstrap_interval(self.returns)

    @property
    def result(self) -> Result:
        """Means over the episodes, every return by its name."""
        healthy = float(np.mean(self.scores.healthy))
        objective = objective_name(discounted=self.discounted, accrued=self.accrued)
        returns = {
            objective_name(discounted=False, accrued=self.accrued): mean(self.scores.total),
            objective_name(discounted=True, accrued=self.accrued): mean(self.scores.discounted),
        }
        return Result(
            objective=objective,
            returns=returns | {objective: self.mean},
            spread=Spread.of(self.returns),
            decisions=float(np.mean(self.scores.decisions)),
            time=float(np.mean(self.scores.time)),
            terminated=float(np.mean(self.scores.reached)),
            measures={} if np.isnan(healthy) else {"healthy": healthy},
            episodes=len(self.returns),
        )

    def figures(self) -> dict[str, Any]:
        """For a record, in the form that `kairode.records_migration.evaluation_figures` reads."""
        low, high = self.interval
        healthy = float(np.mean(self.scores.healthy))
        return {
            "return": self.mean,
            "return_std": float(self.returns.std()),
            "return_low": low,
            "return_high": high,
            "decisions": float(np.mean(self.scores.decisions)),
            "time": float(np.mean(self.scores.time)),
            "reached": float(np.mean(self.scores.reached)),
            "healthy": None if np.isnan(healthy) else healthy,
            "discounted": self.discounted,
            "episodes": len(self.returns),
        }

    def __str__(self) -> str:
        return str(self.result)


def evaluate(
    env: Environment | HostEnvironment,
    policy: Policy | Callable[..., Any] | None = None,
    *,
    episodes: int = 100,
    schedule: Schedule | float | Sequence[Any] | str | None = None,
    accrue: bool | None = None,
    seed: int = 0,
) -> Evaluation:
    """Test a policy on a system: `kairode.evaluate(env, policy, schedule=5)`.

    Args:
        env: the real system (an imagined one works too).
        policy: from `kairode.learn`; also None for random actions, or a function of (observation, key).
        episodes: how many.
        schedule: None for the system's own, an interval, a list of intervals, or a `Schedule`.
        accrue: whether the reward is counted on every finest step (each day of HIV) up to the same horizon, so that
            schedules can be compared, not at the next decision alone; None does so for a schedule of
            `kairode.best_intervals`.
        seed: fixes everything random.
    """
    if not (isinstance(seed, int) and 0 <= seed < 2**30):
        raise KairodeError(f"seed must be a whole number between 0 and 2^30, got {seed}.")
    if isinstance(policy, QPolicy) and isinstance(env, Environment | HostEnvironment):
        check_same(policy.spec, env.task.spec, "policy")
    if accrue is None:
        accrue = isinstance(schedule, Schedule) and schedule.accrued()
    if not accrue:
        found = collect(env, policy, episodes=episodes, seed=derive(seed, Purpose.TEST), schedule=schedule)
        return summarize(env.task, found)
    if not isinstance(env, Environment):
        raise KairodeError(
            f"what '{env.task.spec.name}' passes through between decisions is not seen: it cannot accrue."
        )
    if isinstance(env, AccruedRewards):
        env = env.env
    spec = env.task.spec
    longest = as_schedule(schedule, spec).longest(spec)
    kinds = (AccruedRewards.of(env, longest), undiscounted(env, longest))
    both = [
        collect(kind, policy, episodes=episodes, seed=derive(seed, Purpose.TEST), schedule=schedule) for kind in kinds
    ]
    discounted, plain = (summarize(kind.task, part).scores for kind, part in zip(kinds, both, strict=True))
    scores = discounted._replace(total=plain.total, time=np.minimum(discounted.time, spec.horizon))
    return Evaluation(objective_return(env.task, scores), scores, spec.time_unit, spec.judged_discounted, accrued=True)


def summarize(task: Task, found: Trajectory) -> Evaluation:
    """The evaluation of episodes that were collected."""

    def turned(x: Any) -> np.ndarray:
        return np.swapaxes(np.asarray(x), 0, 1)

    parts = (turned(found.observation[:, 1:]), turned(found.interval), turned(found.reward))
    scores = Scores(*map(np.asarray, score(task, *parts, found.length, found.terminated)))
    return Evaluation(objective_return(task, scores), scores, task.spec.time_unit, task.spec.judged_discounted)


def objective_return(task: Task, scores: Scores) -> np.ndarray:
    """The return that counts."""
    return np.asarray(scores.discounted if task.spec.judged_discounted else scores.total, np.float64)


@eqx.filter_jit
def score_many(
    env: Environment, policies: Policy, schedules: Schedule, keys: Key[Array, " episodes"], limit: int, agents: int
) -> Scores:
    """Scores [agents, episodes] of many policies at once, each under its schedule; agents in front of all arrays.

    A GPU takes all agents side by side, a CPU one after the other.
    """
    arrays, static = eqx.partition((policies, schedules, env), eqx.is_array)

    def one(arrays: Any) -> Scores:
        policy, schedule, env = eqx.combine(arrays, static)
        found = rollout(env, schedule.track(policy), schedule, keys, limit)
        records = found.records
        return score(env.task, records.next_obs, records.interval, records.reward, found.length, found.terminated)

    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda i: one(jax.tree.map(lambda x: x[i], arrays)), jnp.arange(agents))
    return jax.vmap(one, axis_size=agents)(arrays)


def episode_keys(seed: int, episodes: int) -> Key[Array, " n"]:
    """Those that `evaluate` uses for the same seed."""
    return jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(episodes))


def mean_return(task: Task, scores: Scores) -> Float[np.ndarray, " agents"]:
    """The mean over the episodes, for each agent."""
    return objective_return(task, scores).mean(-1)
