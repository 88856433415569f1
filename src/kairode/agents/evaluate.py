"""Evaluation of policies: returns over whole episodes, with confidence intervals."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kairode.agents.actor_policy import ActorPolicy
from kairode.agents.q_policy import QPolicy
from kairode.data.collect import collect, collect_scored
from kairode.data.policy import Policy
from kairode.data.rollout import episode_keys, rollout
from kairode.data.trajectory import Trajectory
from kairode.envs.accrual import AccruedRewards, with_and_without_discount
from kairode.envs.core import Environment, Spec, Task
from kairode.envs.host import HostEnvironment
from kairode.envs.interval_actions import IntervalActions
from kairode.envs.schedule import Schedule, as_schedule
from kairode.errors import KairodeError
from kairode.models.predict import check_same
from kairode.result import Result, Spread, objective_name
from kairode.seeds import Purpose, derive


class Scores(NamedTuple):
    """Results of each episode."""

    total: Any
    discounted: Any
    """Sum of gamma^t times the reward, t being the time of its decision."""
    decisions: Any
    time: Any
    terminated: Any
    """Whether the episode ended in a terminal state."""
    measures: dict[str, Any]
    """Fraction of time in each condition of `Task.measures`."""


def score(task: Task, next_obs: Any, interval: Any, reward: Any, length: Any, terminated: Any) -> Scores:
    """Score episodes whose decisions are on axis 0: [decision, *episodes]; arrays of NumPy or JAX."""
    spec = task.spec
    ends = interval.cumsum(axis=0)
    gamma = spec.discount ** ((ends - interval) / spec.tick)
    time = ends[-1]
    measures = {name: (holds * interval).sum(0) / time for name, holds in task.measures(next_obs).items()}
    return Scores(reward.sum(0), (gamma * reward).sum(0), length, time, terminated, measures)


def evaluate(
    env: Environment | HostEnvironment,
    policy: Policy | Callable[..., Any] | None = None,
    *,
    episodes: int = 100,
    schedule: Schedule | float | Sequence[Any] | str | None = None,
    accrue: bool | None = None,
    seed: int = 0,
) -> Result:
    """Evaluate a policy on a system: `kairode.evaluate(env, policy, schedule=5)`.

    Args:
        env: the system, real or a model environment.
        policy: from `kairode.learn`; None for random actions, or a function of (observation, key).
        episodes: number of episodes.
        schedule: None for the system's own, an interval, a list of intervals, or a `Schedule`.
        accrue: count the reward on every finest time step (each day for HIV) up to the same horizon, so that schedules
            are comparable. None: only for schedules of `kairode.optimize_schedule` and agents that choose intervals.
        seed: random seed.
    """
    if not (isinstance(seed, int) and 0 <= seed < 2**30):
        raise KairodeError(f"seed must be an integer between 0 and 2^30, got {seed}.")
    if isinstance(policy, QPolicy | ActorPolicy) and isinstance(env, Environment | HostEnvironment):
        check_same(policy.spec, env.task.spec, "policy")
    if accrue is None:
        accrue = isinstance(env, IntervalActions) or (isinstance(schedule, Schedule) and schedule.accrued())
    if isinstance(env, HostEnvironment):
        found, totals = collect_scored(
            env, policy, episodes=episodes, seed=derive(seed, Purpose.TEST), schedule=schedule, accrued=accrue
        )
        return to_result(env.task.spec, score_episodes(env.task, found)._replace(total=totals), accrued=accrue)
    if not accrue:
        found = collect(env, policy, episodes=episodes, seed=derive(seed, Purpose.TEST), schedule=schedule)
        return to_result(env.task.spec, score_episodes(env.task, found))
    if not isinstance(env, Environment):
        raise KairodeError(f"{env!r} is not an environment: create one, e.g. with kairode.make('hiv').")
    if isinstance(env, AccruedRewards):
        env = env.env
    spec = env.task.spec
    longest = as_schedule(schedule, spec).longest(spec)
    kinds = with_and_without_discount(env, longest)
    both = [
        collect(kind, policy, episodes=episodes, seed=derive(seed, Purpose.TEST), schedule=schedule) for kind in kinds
    ]
    discounted, plain = (score_episodes(kind.task, part) for kind, part in zip(kinds, both, strict=True))
    return to_result(spec, _accrued_scores(spec, discounted, plain), accrued=True)


def score_episodes(task: Task, found: Trajectory) -> Scores:
    """Score collected episodes."""

    def turned(x: Any) -> np.ndarray:
        return np.swapaxes(np.asarray(x), 0, 1)

    parts = (turned(found.observation[:, 1:]), turned(found.interval), turned(found.reward))
    return jax.tree.map(np.asarray, score(task, *parts, found.length, found.terminated))


def to_result(spec: Spec, scores: Scores, *, accrued: bool = False) -> Result:
    """Mean over the episodes (last axis), of one policy [episodes] or of one policy per seed [seeds, episodes].

    With `accrued`, the scores count rewards on every finest time step.
    """
    values = objective_scores(spec, scores)
    several = values.ndim == 2
    totals = {False: scores.total, True: scores.discounted}
    return Result(
        objective=objective_name(discounted=spec.discounted_objective, accrued=accrued),
        returns={
            objective_name(discounted=discounted, accrued=accrued): _means(np.asarray(total, np.float64))
            for discounted, total in totals.items()
        },
        spread=Spread.of(values.mean(-1) if several else values),
        decisions=_means(scores.decisions),
        time=_means(scores.time),
        terminated=_means(scores.terminated),
        measures={name: _means(shares) for name, shares in scores.measures.items()},
        episodes=values.shape[-1],
        episode_scores=values,
    )


def _means(values: Any) -> Any:
    return np.asarray(values).mean(-1).tolist()


def objective_scores(spec: Spec, scores: Scores) -> np.ndarray:
    """The return that defines the task's objective."""
    return np.asarray(scores.discounted if spec.discounted_objective else scores.total, np.float64)


@eqx.filter_jit
def score_many(
    env: Environment, policies: Policy, schedules: Schedule, keys: Key[Array, " episodes"], limit: int, agents: int
) -> Scores:
    """Scores [agents, episodes] of several policies, each under its own schedule; agents are the first axis of all
    arrays.

    Agents run in parallel on a GPU, one after the other on a CPU.
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


def mean_return(task: Task, scores: Scores) -> Float[np.ndarray, " agents"]:
    """Mean objective over the episodes, for each agent."""
    return objective_scores(task.spec, scores).mean(-1)


def score_accrued(
    env: Environment, policies: QPolicy, schedules: Schedule, seed: int, episodes: int, agents: int
) -> Scores:
    """Scores [agents, episodes] of several policies, with rewards counted on every finest time step."""
    schedules, spec = schedules.with_q(policies.q), env.task.spec
    limit, longest = spec.longest(schedules.shortest(spec)), schedules.longest(spec)
    keys = episode_keys(seed, episodes)
    kinds = with_and_without_discount(env, longest, agents)
    found = [score_many(kind, policies, schedules, keys, limit, agents) for kind in kinds]
    discounted, plain = jax.tree.map(lambda x: np.asarray(x, np.float64), found)
    return _accrued_scores(spec, discounted, plain)


def _accrued_scores(spec: Spec, discounted: Scores, plain: Scores) -> Scores:
    """Combine scores with and without discounting; the last interval may end after the horizon."""
    return discounted._replace(total=plain.total, time=np.minimum(discounted.time, spec.horizon))
