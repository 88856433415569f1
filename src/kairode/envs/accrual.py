"""Accrued rewards: counted on every finest time step, whatever the schedule.

Counting the reward only at the next decision makes frequent decisions look better than they are. To compare schedules,
the reward is counted on every day of the same horizon (the paper's section on optimised interval times).
"""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from kairode.envs.consistency import check_course
from kairode.envs.core import Action, Environment, Moment, Obs, State, Task, Tau
from kairode.errors import KairodeError


class AccruedState(NamedTuple):
    """A state, and the reward accrued on the way to it."""

    inner: Any
    time: Any
    """Time since the start of the episode."""
    earned: Any
    """Reward of the interval that ended here."""
    held: Any
    """Its actual length: shorter than tau if the horizon came first."""


class AccruedRewards(Environment):
    """Wraps an environment so that rewards accrue on every finest time step while an action is held.

    An interval earns sum_i gamma^(i-1) R(s_(i-1), a, s_i) over its steps, and a proportional part of that for a shorter
    step. Time stops at the horizon and at a terminal state on the way.
    """

    task: Task
    """The environment's task; its reward is that of one finest time step."""
    env: Environment
    longest: float = eqx.field(static=True)
    """The longest interval that will be held."""
    price: float | Float[Array, "*agents"] = 0.0
    """Subtracted at each decision, in units of reward."""
    discount: Float[Array, "*agents"] | None = None
    """gamma within an interval, if it is not the task's. As an array it is a number of the compiled program, which then
    serves both kinds of returns."""

    def __check_init__(self) -> None:
        if not 0 < self.longest < math.inf:
            raise KairodeError(f"the longest interval must be a positive, finite time, got {self.longest}.")

    @classmethod
    def of(cls, env: Environment, longest: float, price: float | Array = 0.0) -> "AccruedRewards":
        """Wrap an environment; raises if its states between decisions are inconsistent (`check_course`)."""
        check_course(env)
        return cls(env.task, env, longest, price)

    def reset(self, *, key: Key[Array, ""]) -> AccruedState:
        zero = jnp.zeros(())
        return AccruedState(self.env.reset(key=key), zero, zero, zero)

    def observe(self, state: AccruedState) -> Obs:
        return self.env.observe(state.inner)

    def halted(self, state: AccruedState) -> Any:
        return self.env.halted(state.inner)

    def interval(self, state: AccruedState, action: Action, *, key: Key[Array, ""]) -> Tau:
        return self.env.interval(state.inner, action, key=key)

    def transition(self, state: AccruedState, action: Action, tau: Tau, *, key: Key[Array, ""]) -> AccruedState:
        """Through every finest time step, up to the horizon."""
        spec, task = self.task.spec, self.task
        step = jnp.asarray(spec.finest, tau.dtype)
        steps = math.ceil(self.longest / spec.finest - 1e-6)
        held = jnp.clip(spec.horizon - state.time, 0.0, tau)
        ends = jnp.minimum(step * jnp.arange(1.0, steps + 1), held).at[-1].set(held)
        passed = self.env.course(state.inner, action, ends, key=key)
        obs = jax.vmap(self.env.observe)(passed)
        total, last = accrued(task, self.env.observe(state.inner), action, obs, ends, self.discount)
        final = jax.tree.map(lambda x: x[last], passed)
        return AccruedState(final, state.time + tau, total - self.price, held)

    def course(self, state: AccruedState, action: Action, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> State:
        inner = self.env.course(state.inner, action, taus, key=key)
        return AccruedState(inner, state.time + taus, jnp.zeros_like(taus), taus)

    def earned(self, moment: Moment, action: Action, state: AccruedState, obs: Obs, tau: Tau) -> Float[Array, ""]:
        return state.earned


def accrued(
    task: Task,
    obs: Obs,
    action: Action,
    after: Float[Array, "k obs"],
    ends: Float[Array, " k"],
    discount: Float[Array, ""] | None = None,
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """sum_i gamma^(i-1) R(s_(i-1), a, s_i) over steps that end at these times; also the index of the last step (the
    first terminal one, or the last). gamma is the task's unless a `discount` is given."""
    spec = task.spec
    gamma = spec.discount if discount is None else discount
    starts = jnp.concatenate([jnp.zeros(1), ends[:-1]])
    rewards = step_rewards(task, jnp.concatenate([obs[None], after[:-1]]), action, after, ends - starts)
    ended = jax.vmap(task.terminal)(after)
    alive = jnp.concatenate([jnp.ones(1, bool), ~jnp.logical_or.accumulate(ended)[:-1]])
    last = jnp.where(ended.any(), jnp.argmax(ended), len(ends) - 1)
    return (gamma ** (starts / spec.tick) * rewards * alive).sum(), last


def step_rewards(
    task: Task, before: Float[Array, "k obs"], action: Action, after: Float[Array, "k obs"], waits: Float[Array, " k"]
) -> Float[Array, " k"]:
    """R(s_(i-1), a, s_i) of every step, in proportion for steps shorter than the finest."""
    finest = jnp.asarray(task.spec.finest, waits.dtype)
    full = jax.vmap(task.reward, in_axes=(0, None, 0, None))(before, action, after, finest)
    return full * waits / finest


def inner_state(state: Any) -> Any:
    """The environment's own state inside an `AccruedState`."""
    return state.inner if isinstance(state, AccruedState) else state


def time_held(state: Any, tau: Tau) -> Tau:
    """How long the last action was held; shorter than tau if the horizon came first."""
    return state.held if isinstance(state, AccruedState) else tau


def with_and_without_discount(env: Environment, longest: float, *agents: int) -> tuple[AccruedRewards, AccruedRewards]:
    """The environment with accrued rewards, discounted within intervals and not; for several agents, their number."""
    place = AccruedRewards.of(env, longest)
    gammas = (np.full(agents, gamma, np.float32) for gamma in (env.task.spec.discount, 1.0))
    discounted, plain = (dataclasses.replace(place, discount=jnp.asarray(gamma)) for gamma in gammas)
    return discounted, plain
