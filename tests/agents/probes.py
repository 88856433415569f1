"""Processes so small that every value is known by hand, and what the tests of agents share."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from kairode.envs.core import Discrete, Environment, Intervals, Spec, Task, Variable


def abreast(*modules: Any) -> Any:
    """Several modules of one kind as one, an axis in front of every array, as a room has it."""
    arrays, rest = zip(*(eqx.partition(module, eqx.is_array) for module in modules), strict=True)
    return eqx.combine(jax.tree.map(lambda *x: jnp.stack(x), *arrays), rest[0])


def one_of(tree: Any, i: int) -> Any:
    """One of several."""
    return jax.tree.map(lambda x: x[i] if eqx.is_array(x) else x, tree)


def some_of(tree: Any, start: int, stop: int) -> Any:
    """Some of several, with their axis."""
    return jax.tree.map(lambda x: x[start:stop] if eqx.is_array(x) else x, tree)


END = 3
"""The last of four states ends the process."""


class TableTask(Task):
    spec: Spec = eqx.field(static=True)
    pays: Array

    def reward(self, obs, action, next_obs, tau):
        return obs @ self.pays[:, action]

    def terminal(self, obs):
        return obs[END] > 0.5


class Table(Environment):
    """Four states and two actions in tables [state, action]: where an action leads, what it pays, how long it lasts."""

    goes: Array
    pays: Array
    lasts: Array
    tick: float = eqx.field(static=True, default=1.0)
    gamma: float = eqx.field(static=True, default=0.9)

    @property
    def task(self) -> TableTask:
        spec = Spec(
            name="table",
            observations=tuple(Variable(name, "") for name in ("start", "left", "right", "end")),
            actions=Discrete(("zero", "one")),
            intervals=Intervals(self.tick, 10 * self.tick, step=0),
            time_unit="second",
            tick=self.tick,
            max_decisions=2,
            discount=self.gamma,
        )
        return TableTask(spec, self.pays)

    def reset(self, *, key):
        return jnp.zeros((), jnp.int32)

    def observe(self, state):
        return jax.nn.one_hot(state, 4)

    def interval(self, state, action, *, key):
        return self.tick * self.lasts[state, action]

    def transition(self, state, action, tau, *, key):
        return self.goes[state, action]


def table(ways: dict[int, list[tuple[int, float, float]]], tick: float = 1.0) -> Table:
    """From state: [(next state, reward, interval in ticks) of each action]; what is not named ends for nothing."""
    rows = [ways.get(state, [(END, 0.0, 1.0)] * 2) for state in range(4)]
    goes, pays, lasts = (jnp.array([[way[k] for way in row] for row in rows]) for k in range(3))
    return Table(goes.astype(jnp.int32), pays.astype(jnp.float32), lasts.astype(jnp.float32), tick)


class CueTask(Task):
    spec: Spec = eqx.field(static=True)

    def reward(self, obs, action, next_obs, tau):
        return jnp.where(self.terminal(next_obs), next_obs[0], 0.0)

    def terminal(self, obs):
        return obs[3] > 0.5


class Cue(Environment):
    """A cue of -1 or 1 is seen at first and never again; the second decision must follow it: 1 if right, -1 if not."""

    @property
    def task(self) -> CueTask:
        return CueTask(
            Spec(
                name="cue",
                observations=tuple(Variable(name, "") for name in ("cue", "first", "second", "end")),
                actions=Discrete(("minus", "plus")),
                intervals=Intervals(1, 1, step=1),
                time_unit="second",
                max_decisions=3,
                discount=0.9,
            )
        )

    def reset(self, *, key):
        # 0 and 1 are the cues, 2 and 3 the same a decision later, 4 is wrong and 5 is right.
        return jax.random.bernoulli(key).astype(jnp.int32)

    def observe(self, state):
        stage, bit = state // 2, state % 2
        return jnp.concatenate([jnp.where(stage == 1, 0.0, 2.0 * bit - 1.0)[None], jax.nn.one_hot(stage, 3)])

    def interval(self, state, action, *, key):
        return jnp.ones(())

    def transition(self, state, action, tau, *, key):
        return jnp.where(state < 2, state + 2, 4 + (action == state % 2))


class FragileTask(Task):
    spec: Spec = eqx.field(static=True)
    last_reward: Array

    def reward(self, obs, action, next_obs, tau):
        return jnp.where(10 * next_obs[0] > self.last_reward, jnp.nan, 1.0)

    def terminal(self, obs):
        return jnp.zeros((), bool)


class Fragile(Environment):
    """Counts its decisions; beyond a given one the observation, or the reward, is no number."""

    last_obs: Array
    last_reward: Array

    @property
    def task(self) -> FragileTask:
        spec = Spec(
            name="fragile",
            observations=(Variable("count", "ten"),),
            actions=Discrete(("zero", "one")),
            intervals=Intervals(1, 1, step=1),
            time_unit="second",
            max_decisions=60,
            discount=0.9,
        )
        return FragileTask(spec, self.last_reward)

    def reset(self, *, key):
        return jnp.zeros(())

    def observe(self, state):
        return jnp.where(state > self.last_obs, jnp.nan, state / 10)[None]

    def interval(self, state, action, *, key):
        return jnp.ones(())

    def transition(self, state, action, tau, *, key):
        return state + 1
