"""Rewards that accrue while an action is held: on every finest step, whatever the schedule.

A reward at the next decision alone makes frequent decisions look better than they are. For schedules to be compared,
the reward is collected on every day of the same horizon (the paper's section on optimised interval times).
"""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from kairode.envs.consistency import check_course
from kairode.envs.core import Action, Environment, Moment, Obs, State, Task, Tau
from kairode.errors import KairodeError


class AccruedState(NamedTuple):
    """A state, and what was earned on the way to it."""

    inner: Any
    time: Any
    """Since the episode began."""
    earned: Any
    """Over the interval that ended here."""
    held: Any
    """How long that was: shorter than was meant where the horizon came first."""


class AccruedRewards(Environment):
    """An environment that gives its reward on every finest step while an action is held.

    An interval earns sum_i gamma^(i-1) R(s_(i-1), a, s_i) over its steps, and a share of that where a step is cut
    short. Nothing happens beyond the horizon, nor after a terminal state that is passed on the way.
    """

    task: Task
    """That of the environment: its reward is what a finest step earns."""
    env: Environment
    longest: float = eqx.field(static=True)
    """The longest interval that will be held."""
    price: float | Float[Array, "*agents"] = 0.0
    """Taken for each decision, in the unit of the reward."""

    def __check_init__(self) -> None:
        if not 0 < self.longest < math.inf:
            raise KairodeError(f"the longest interval must be a positive, finite time, got {self.longest}.")

    @classmethod
    def of(cls, env: Environment, longest: float, price: float | Array = 0.0) -> "AccruedRewards":
        """An environment, with the longest interval; refused where its courses would be those of another system."""
        check_course(env)
        return cls(env.task, env, longest, price)

    def reset(self, *, key: Key[Array, ""]) -> AccruedState:
        """A start of the environment; nothing was earned."""
        zero = jnp.zeros(())
        return AccruedState(self.env.reset(key=key), zero, zero, zero)

    def observe(self, state: AccruedState) -> Obs:
        """What the environment shows."""
        return self.env.observe(state.inner)

    def interval(self, state: AccruedState, action: Action, *, key: Key[Array, ""]) -> Tau:
        """The environment's own rule."""
        return self.env.interval(state.inner, action, key=key)

    def transition(self, state: AccruedState, action: Action, tau: Tau, *, key: Key[Array, ""]) -> AccruedState:
        """Through every finest step, up to the horizon."""
        spec, task = self.task.spec, self.task
        step = jnp.asarray(spec.finest, tau.dtype)
        steps = math.ceil(self.longest / spec.finest - 1e-6)
        held = jnp.clip(spec.horizon - state.time, 0.0, tau)
        ends = jnp.minimum(step * jnp.arange(1.0, steps + 1), held).at[-1].set(held)
        passed = self.env.course(state.inner, action, ends, key=key)
        obs = jax.vmap(self.env.observe)(passed)
        total, last = accrued(task, self.env.observe(state.inner), action, obs, ends)
        final = jax.tree.map(lambda x: x[last], passed)
        return AccruedState(final, state.time + tau, total - self.price, held)

    def course(self, state: AccruedState, action: Action, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> State:
        """That of the environment; what is earned on the way is not kept."""
        inner = self.env.course(state.inner, action, taus, key=key)
        return AccruedState(inner, state.time + taus, jnp.zeros_like(taus), taus)

    def earned(self, moment: Moment, action: Action, state: AccruedState, obs: Obs, tau: Tau) -> Float[Array, ""]:
        """What accrued."""
        return state.earned


def accrued(
    task: Task, obs: Obs, action: Action, after: Float[Array, "k obs"], ends: Float[Array, " k"]
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """sum_i gamma^(i-1) R(s_(i-1), a, s_i) over the steps of a course that end at these times; and the step at which
    it ends (the first terminal one, or the last)."""
    spec = task.spec
    starts = jnp.concatenate([jnp.zeros(1), ends[:-1]])
    rewards = step_rewards(task, jnp.concatenate([obs[None], after[:-1]]), action, after, ends - starts)
    ended = jax.vmap(task.terminal)(after)
    alive = jnp.concatenate([jnp.ones(1, bool), ~jnp.logical_or.accumulate(ended)[:-1]])
    last = jnp.where(ended.any(), jnp.argmax(ended), len(ends) - 1)
    return (spec.discount ** (starts / spec.tick) * rewards * alive).sum(), last


def step_rewards(
    task: Task, before: Float[Array, "k obs"], action: Action, after: Float[Array, "k obs"], waits: Float[Array, " k"]
) -> Float[Array, " k"]:
    """R(s_(i-1), a, s_i) of every step; of one that is shorter than the finest, that share."""
    finest = jnp.asarray(task.spec.finest, waits.dtype)
    full = jax.vmap(task.reward, in_axes=(0, None, 0, None))(before, action, after, finest)
    return full * waits / finest


def inner_state(state: Any) -> Any:
    """The state itself, where it is kept with what it earned."""
    return state.inner if isinstance(state, AccruedState) else state


def time_held(state: Any, tau: Tau) -> Tau:
    """How long the action was held that led here, where it was meant to be held for tau."""
    return state.held if isinstance(state, AccruedState) else tau


def undiscounted(env: Environment, longest: float) -> AccruedRewards:
    """The environment with rewards that accrue without a discount: what was earned, step by step."""
    check_course(env)
    task: Any = env.task
    spec = dataclasses.replace(task.spec, discount=1.0)
    return AccruedRewards(dataclasses.replace(task, spec=spec), env, longest)
