"""Practice: act, step, store, sample, update, reset, as one compiled loop over decisions; all agents together.

An agent practises in an environment, real or imagined, under a schedule. Agents that differ in numbers alone (seeds,
fixed intervals, weights of their models) stand in one `Room`; rooms differ in kind (models), not in sizes. The
environments of each room move under a `vmap` of their own, then all agents learn under one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from kairode.agents.dqn import (
    DQNSettings,
    Learner,
    Transition,
    epsilon,
    improve,
    new_learner,
    pace,
    remember,
    renew_target,
    soft_greedy,
)
from kairode.agents.encoder import Perception
from kairode.agents.network import ReLUNetwork
from kairode.data.policy import Memory
from kairode.data.trajectory import Trajectory
from kairode.envs.accrual import inner_state, time_held
from kairode.envs.core import Discrete, Environment, Moment, Spec, begin
from kairode.envs.schedule import Schedule, hold
from kairode.errors import KairodeError


class Room(eqx.Module):
    """Where agents practise. Every array has an axis in front, one entry for each agent of the room."""

    env: Environment
    schedule: Schedule
    perception: Perception
    agents: int = eqx.field(static=True)


class Lane(eqx.Module):
    """Where an agent's episode stands."""

    moment: Moment
    memory: Memory
    """What its perception remembers."""
    features: Float[Array, "*agents f"]
    total: Float[Array, "*agents"]
    """Rewards so far."""
    discounted: Float[Array, "*agents"]
    """The same, each times gamma^t."""


class Practice(eqx.Module):
    """Everything that changes; arrays have the agents in front (none inside a vmap)."""

    key: UInt32[Array, "*agents 2"]
    """Fixes everything random, as plain numbers."""
    lane: Lane
    learner: Learner
    decisions: Int[Array, "*agents"]
    episodes: Int[Array, "*agents"]
    returns: Float[Array, "*agents episodes 2"]
    """Of each finished episode: plain and discounted; NaN where there is none yet."""
    diverged: Bool[Array, "*agents"]
    """Whether something was not finite: the agent then stopped, with its last good weights."""


def enter(rooms: Sequence[Room], settings: DQNSettings, episodes: int, seeds: Sequence[int]) -> Practice:
    """Before the first decision; a seed for each agent of all rooms, in order."""
    for room in rooms:
        if not isinstance(room.env.task.spec.actions, Discrete):
            raise KairodeError(f"DQN chooses among named actions, and those of '{room.env.task.spec.name}' are not.")
    wanted = sum(room.agents for room in rooms)
    if wanted != len(seeds):
        raise KairodeError(f"{wanted} agents need as many seeds, got {len(seeds)}.")
    return _enter(tuple(rooms), settings, episodes, jnp.stack([jax.random.key(seed) for seed in seeds]))


@eqx.filter_jit
def _enter(rooms: tuple[Room, ...], settings: DQNSettings, episodes: int, keys: Key[Array, " agents"]) -> Practice:
    parts, start = [], 0
    for room in rooms:
        here = keys[start : start + room.agents]
        parts.append(_in_room(room, partial(_enter_one, settings, episodes))(room, here))
        start += room.agents
    return _joined(parts)


def _enter_one(settings: DQNSettings, episodes: int, room: Room, key: Key[Array, ""]) -> Practice:
    weights_key, start_key, run_key = jax.random.split(key, 3)
    lane = _first(room, start_key)
    actions = room.env.task.spec.actions.n
    return Practice(
        key=jax.random.key_data(run_key),
        lane=lane,
        learner=new_learner(lane.features.shape[0], actions, settings, key=weights_key),
        decisions=jnp.zeros((), jnp.int32),
        episodes=jnp.zeros((), jnp.int32),
        returns=jnp.full((episodes, 2), jnp.nan, lane.total.dtype),
        diverged=jnp.zeros((), bool),
    )


def _first(room: Room, key: Key[Array, ""]) -> Lane:
    """The beginning of an episode."""
    reset_key, memory_key = jax.random.split(key)
    moment = begin(room.env, key=reset_key)
    memory = room.perception.start(room.env.task.spec, key=memory_key)
    zero = jnp.zeros_like(moment.time)
    features, memory = room.perception.look(memory, moment.obs, zero)
    return Lane(moment, memory, features, zero, zero)


class _Moved(eqx.Module):
    """What the environment makes of one decision."""

    transition: Transition
    lane: Lane
    """As it goes on: a new episode, where this one ended."""
    ended: Bool[Array, ""]
    returns: Float[Array, "2"]
    """Of the episode so far."""


def decide(settings: DQNSettings, practice: Practice) -> tuple[Int[Array, ""], Key[Array, ""]]:
    """Choose an action; also the key of this decision."""
    key = jax.random.fold_in(jax.random.wrap_key_data(practice.key), practice.decisions)
    values = practice.learner.q(practice.lane.features)
    share = epsilon(settings, practice.decisions)
    return soft_greedy(values, share, key=jax.random.fold_in(key, 0)), key


def move(
    settings: DQNSettings, room: Room, lane: Lane, action: Int[Array, ""], key: Key[Array, ""], q: ReLUNetwork
) -> _Moved:
    """Hold the action, look, and begin anew where the episode ended."""
    hold_key, next_key = jax.random.split(jax.random.fold_in(key, 1))
    env, spec, before = room.env, room.env.task.spec, lane.moment
    noted = room.perception.note(lane.memory, before.obs, action)
    moment, outcome = hold(env, room.schedule.informed(q), before, action, noted, key=hold_key)
    features, memory = room.perception.look(noted, moment.obs, outcome.tau)
    reward = settings.reward_scale * outcome.reward
    if settings.penalty:
        reward = reward - settings.penalty * _doubt(moment.state)
    going = jnp.where(outcome.terminated, 0.0, 1.0)
    gamma = spec.discount ** (time_held(moment.state, outcome.tau) / spec.tick)
    transition = Transition(lane.features, action, reward, going * gamma, features)
    total = lane.total + outcome.reward
    discounted = lane.discounted + outcome.reward * spec.discount ** (before.time / spec.tick)
    ended = outcome.terminated | outcome.truncated
    on = Lane(moment, memory, features, total, discounted)
    new = _first(room, next_key)
    lane = jax.tree.map(lambda new, on: jnp.where(ended, new, on), new, on)
    return _Moved(transition, lane, ended, jnp.stack([total, discounted]))


def _doubt(state: Any) -> Float[Array, ""]:
    inner = inner_state(state)
    if not hasattr(inner, "doubt"):
        raise KairodeError("a penalty on disagreement needs an imagined world: set penalty=0 on a real system.")
    return inner.doubt


def learn(settings: DQNSettings, practice: Practice, moved: _Moved, key: Key[Array, ""]) -> Practice:
    """Remember the transition, update once, renew the target after some episodes."""
    limit = practice.returns.shape[0]
    going = (practice.episodes < limit) & ~practice.diverged
    fine = jnp.isfinite(moved.transition.next_features).all() & jnp.isfinite(moved.transition.reward)
    learner = remember(practice.learner, jax.tree.map(lambda x: x[None], moved.transition))
    speed = pace(settings, practice.episodes / limit)
    learner, sane = improve(learner, settings, going & fine, speed, key=jax.random.fold_in(key, 2))
    ended = moved.ended & going
    episodes = practice.episodes + ended.astype(jnp.int32)
    where = jnp.where(ended, practice.episodes, limit)
    return Practice(
        key=practice.key,
        lane=moved.lane,
        learner=renew_target(learner, ended & (episodes % settings.target_every == 0)),
        decisions=practice.decisions + going.astype(jnp.int32),
        episodes=episodes,
        returns=practice.returns.at[where].set(moved.returns, mode="drop"),
        diverged=practice.diverged | (going & ~(fine & sane)),
    )


def step(settings: DQNSettings, rooms: Sequence[Room], practice: Practice) -> Practice:
    """One decision of every agent."""
    action, key = jax.vmap(partial(decide, settings))(practice)
    parts, start = [], 0
    for room in rooms:
        them = (practice.lane, action, key, practice.learner.q)
        here = jax.tree.map(lambda x, a=start, b=start + room.agents: x[a:b], them)
        parts.append(_in_room(room, partial(move, settings))(room, *here))
        start += room.agents
    return jax.vmap(partial(learn, settings))(practice, _joined(parts), key)


def _in_room(room: Room, function: Any) -> Any:
    """`vmap` over the agents of a room: over every array of the room as of the rest."""
    return eqx.filter_vmap(function, in_axes=eqx.if_array(0), axis_size=room.agents)


def _joined(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


@eqx.filter_jit(donate="all-except-first")
def advance(fixed: tuple[DQNSettings, tuple[Room, ...], int], practice: Practice) -> Practice:
    """Some decisions of all agents; `fixed` says how, where and how many."""
    settings, rooms, count = fixed

    def body(practice: Practice, _: None) -> tuple[Practice, None]:
        return step(settings, rooms, practice), None

    return jax.lax.scan(body, practice, None, length=count)[0]


def finished(practice: Practice) -> Bool[Array, " agents"]:
    """Which agents have practised all their episodes, or had to stop."""
    return (practice.episodes >= practice.returns.shape[1]) | practice.diverged


def remembering(practice: Practice, transitions: Transition) -> Practice:
    """With the same transitions added to every agent's replay."""
    learner = jax.vmap(remember, in_axes=(0, None))(practice.learner, transitions)
    return eqx.tree_at(lambda p: p.learner, practice, learner)


def real_transitions(settings: DQNSettings, data: Trajectory, spec: Spec, interval: float | None = None) -> Transition:
    """What really happened, as an agent that sees the observation alone remembers it: up to half a replay of it.

    With an interval only what happened over such a time: an agent of a fixed schedule never holds an action longer.
    """
    mask = data.mask
    if interval is not None:
        mask = mask & (np.abs(np.asarray(data.interval) - interval) < 1e-3 * spec.tick)
    seen = np.asarray(data.observation, np.float32)
    last = np.arange(data.interval.shape[1]) == np.asarray(data.length)[:, None] - 1
    ended = last & np.asarray(data.terminated)[:, None]
    discount = np.where(ended, 0.0, spec.discount ** (np.asarray(data.interval) / spec.tick))
    keep = np.flatnonzero(mask.ravel())
    most = settings.capacity // 2
    if len(keep) > most:
        keep = np.random.default_rng(0).choice(keep, most, replace=False)

    def rows(x: Any, kind: Any = np.float32) -> Any:
        flat = np.asarray(x).reshape(mask.size, *np.shape(x)[2:])
        return jnp.asarray(flat[keep], kind)

    return Transition(
        features=rows(seen[:, :-1]),
        action=rows(data.action, np.int32),
        reward=rows(settings.reward_scale * np.asarray(data.reward)),
        discount=rows(discount),
        next_features=rows(seen[:, 1:]),
    )
