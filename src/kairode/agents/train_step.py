"""Training: act, step, store, sample, update, reset, as one compiled loop over decisions, for all agents at once.

Agents that differ only in numbers (seeds, fixed intervals, model weights) share a `TrainingBatch`; batches differ in
structure (the kind of model). Environments are stepped under one `vmap` per batch, then all agents are updated under
one.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from kairode._xla import jit_once
from kairode.agents.dqn import (
    Learner,
    ReplayTransition,
    epsilon,
    epsilon_greedy,
    init_learner,
    learning_rate_factor,
    store_transitions,
    update_q,
    update_target,
)
from kairode.agents.encoder import ObsEncoder
from kairode.agents.network import ReLUNetwork
from kairode.config.agents import ActorCriticConfig, DQNConfig
from kairode.data.policy import Memory
from kairode.data.trajectory import Trajectory, carried_forward
from kairode.envs.accrual import inner_state, time_held
from kairode.envs.core import Discrete, Environment, Moment, Spec, begin_episode
from kairode.envs.schedule import Schedule, hold
from kairode.errors import KairodeError
from kairode.trees import choose, one


class TrainingBatch(eqx.Module):
    """Environments, schedules and encoders of several agents; agents are the first axis of every array."""

    env: Environment
    schedule: Schedule
    encoder: ObsEncoder
    agents: int = eqx.field(static=True)


class EpisodeState(eqx.Module):
    """State of an agent's current episode."""

    moment: Moment
    memory: Memory
    """Memory of the encoder."""
    features: Float[Array, "*agents f"]
    total: Float[Array, "*agents"]
    """Return so far."""
    discounted: Float[Array, "*agents"]
    """Discounted return so far."""


class TrainState(eqx.Module):
    """Train state of all agents; agents are the first axis of every array (absent inside a vmap)."""

    key: UInt32[Array, "*agents 2"]
    """Key data of the agent's random key."""
    episode: EpisodeState
    learner: Learner
    decisions: Int[Array, "*agents"]
    episodes: Int[Array, "*agents"]
    returns: Float[Array, "*agents episodes 2"]
    """Return and discounted return of each finished episode; NaN for the others."""
    diverged: Bool[Array, "*agents"]
    """True if a value was not finite: the agent has then stopped, with its last finite weights."""


def init_train_state(
    batches: Sequence[TrainingBatch], settings: DQNConfig, episodes: int, seeds: Sequence[int]
) -> TrainState:
    """State before the first decision; one seed per agent, in the order of the batches."""
    for batch in batches:
        if not isinstance(batch.env.task.spec.actions, Discrete):
            raise KairodeError(f"DQN needs discrete actions; those of '{batch.env.task.spec.name}' are continuous.")
    count = sum(batch.agents for batch in batches)
    if count != len(seeds):
        raise KairodeError(f"one seed per agent is needed: {count} agents, {len(seeds)} seeds.")
    return _init_train_state(tuple(batches), settings, episodes, jnp.stack([jax.random.key(seed) for seed in seeds]))


@jit_once
def _init_train_state(
    batches: tuple[TrainingBatch, ...], settings: DQNConfig, episodes: int, keys: Key[Array, " agents"]
) -> TrainState:
    return _for_all_agents(partial(_init_one, settings, episodes), batches, keys)


def _init_one(settings: DQNConfig, episodes: int, batch: TrainingBatch, key: Key[Array, ""]) -> TrainState:
    weights_key, start_key, run_key = jax.random.split(key, 3)
    episode = _begin(batch, start_key)
    actions = batch.env.task.spec.actions.n
    return TrainState(
        key=jax.random.key_data(run_key),
        episode=episode,
        learner=init_learner(episode.features.shape[0], actions, settings, key=weights_key),
        decisions=jnp.zeros((), jnp.int32),
        episodes=jnp.zeros((), jnp.int32),
        returns=jnp.full((episodes, 2), jnp.nan, episode.total.dtype),
        diverged=jnp.zeros((), bool),
    )


def _begin(batch: TrainingBatch, key: Key[Array, ""]) -> EpisodeState:
    reset_key, memory_key = jax.random.split(key)
    moment = begin_episode(batch.env, key=reset_key)
    memory = batch.encoder.start(batch.env.task.spec, key=memory_key)
    zero = jnp.zeros_like(moment.time)
    features, memory = batch.encoder.encode(memory, moment.obs, zero)
    return EpisodeState(moment, memory, features, zero, zero)


class StepResult(eqx.Module):
    """Outcome of one decision."""

    transition: ReplayTransition
    episode: EpisodeState
    """After the decision; a new episode if this one ended."""
    ended: Bool[Array, ""]
    returns: Float[Array, "2"]
    """Return and discounted return of the episode so far."""


class DecisionRandom(NamedTuple):
    """Randomness of one decision: keys of the action and of the environment, and numbers that select the batch."""

    action: Any
    step: Any
    uniform: Any


def decision_random(settings: DQNConfig, train_state: TrainState, number: Int[Array, ""]) -> DecisionRandom:
    """Randomness of one agent's decision, a function of its seed and the decision's number."""
    key = jax.random.fold_in(jax.random.wrap_key_data(train_state.key), number)
    uniform = jax.random.uniform(jax.random.fold_in(key, 2), (settings.batch_size,))
    return DecisionRandom(jax.random.fold_in(key, 0), jax.random.fold_in(key, 1), uniform)


def select_action(settings: DQNConfig, train_state: TrainState, key: Key[Array, ""]) -> Int[Array, ""]:
    """Epsilon-greedy action of one agent."""
    values = train_state.learner.q(train_state.episode.features)
    return epsilon_greedy(values, epsilon(settings, train_state.decisions), key=key)


def env_step(
    settings: DQNConfig,
    batch: TrainingBatch,
    episode: EpisodeState,
    action: Int[Array, ""],
    key: Key[Array, ""],
    q: ReLUNetwork,
) -> StepResult:
    """Hold the action for its interval, and reset if the episode ended."""
    hold_key, next_key = jax.random.split(key)
    env, spec, before = batch.env, batch.env.task.spec, episode.moment
    noted = batch.encoder.remember(episode.memory, before.obs, action)
    moment, outcome = hold(env, batch.schedule.with_q(q), before, action, noted, keys=jax.random.split(hold_key))
    features, memory = batch.encoder.encode(noted, moment.obs, outcome.tau)
    reward = settings.reward_scale * outcome.reward
    if settings.disagreement_penalty:
        reward = reward - settings.disagreement_penalty * _disagreement(moment.state)
    going = jnp.where(outcome.terminated, 0.0, 1.0)
    gamma = spec.discount ** (time_held(moment.state, outcome.tau) / spec.tick)
    transition = ReplayTransition(episode.features, action, reward, going * gamma, features)
    total = episode.total + outcome.reward
    discounted = episode.discounted + outcome.reward * spec.discount ** (before.time / spec.tick)
    ended = outcome.terminated | outcome.truncated
    episode = EpisodeState(moment, memory, features, total, discounted)
    episode = choose(ended, _begin(batch, next_key), episode)
    return StepResult(transition, episode, ended, jnp.stack([total, discounted]))


def _disagreement(state: Any) -> Float[Array, ""]:
    inner = inner_state(state)
    if not hasattr(inner, "disagreement"):
        raise KairodeError(
            "a disagreement penalty needs a model environment: set disagreement_penalty=0 on a real system."
        )
    return inner.disagreement


def update_agent(
    settings: DQNConfig, train_state: TrainState, step: StepResult, uniform: Float[Array, " batch"]
) -> TrainState:
    """Store the transition, update once, and copy the target network every `target_period` episodes."""
    limit = train_state.returns.shape[0]
    going = (train_state.episodes < limit) & ~train_state.diverged
    fine = jnp.isfinite(step.transition.next_features).all() & jnp.isfinite(step.transition.reward)
    learner = store_transitions(train_state.learner, jax.tree.map(lambda x: x[None], step.transition))
    speed = learning_rate_factor(settings, train_state.episodes / limit)
    learner, sane = update_q(learner, settings, going & fine, speed, uniform=uniform)
    ended = step.ended & going
    episodes = train_state.episodes + ended.astype(jnp.int32)
    where = jnp.where(ended, train_state.episodes, limit)
    due = ended & (episodes % settings.target_period == 0)
    if settings.target_decisions is not None:
        due = going & ((train_state.decisions + 1) % settings.target_decisions == 0)
    return TrainState(
        key=train_state.key,
        episode=step.episode,
        learner=update_target(learner, due),
        decisions=train_state.decisions + going.astype(jnp.int32),
        episodes=episodes,
        returns=train_state.returns.at[where].set(step.returns, mode="drop"),
        diverged=train_state.diverged | (going & ~(fine & sane)),
    )


def train_step(
    settings: DQNConfig, batches: Sequence[TrainingBatch], train_state: TrainState, random: DecisionRandom
) -> TrainState:
    """One decision of every agent: act, step its environment, store, update."""
    action = jax.vmap(partial(select_action, settings))(train_state, random.action)
    inputs = (train_state.episode, action, random.step, train_state.learner.q)
    steps = _for_all_agents(partial(env_step, settings), batches, *inputs)
    return jax.vmap(partial(update_agent, settings))(train_state, steps, random.uniform)


def _for_all_agents(function: Callable[..., Any], batches: Sequence[TrainingBatch], *inputs: Any) -> Any:
    """Call a function with every batch and its agents' part of the inputs, and join the results."""
    parts, start = [], 0
    for batch in batches:
        here = one(inputs, slice(start, start + batch.agents))
        parts.append(eqx.filter_vmap(function, in_axes=eqx.if_array(0), axis_size=batch.agents)(batch, *here))
        start += batch.agents
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


@eqx.filter_jit(donate="all-except-first")
def run_steps(fixed: tuple[DQNConfig, tuple[TrainingBatch, ...], int], train_state: TrainState) -> TrainState:
    """`count` decisions of all agents; `fixed` holds settings, batches and count."""
    settings, batches, count = fixed

    def body(train_state: TrainState, random: DecisionRandom) -> tuple[TrainState, None]:
        return train_step(settings, batches, train_state, random), None

    # Generated at once, which is faster than in every step. An agent that has ended takes no more decisions, and the
    # numbers that it would have are not used.
    each = jax.vmap(partial(decision_random, settings))
    random = jax.vmap(lambda k: each(train_state, train_state.decisions + k))(jnp.arange(count))
    return jax.lax.scan(body, train_state, random)[0]


@eqx.filter_jit(donate="all-except-first")
def run_steps_on(fixed: tuple[DQNConfig, tuple[TrainingBatch, ...], int, Mesh], train_state: TrainState) -> TrainState:
    """Like `run_steps`, on the devices of a mesh: each takes its part of the agents, nothing is exchanged.

    The arrays of batches and state have all agents; `agents` of a batch is the number on one device.
    """
    settings, batches, count, mesh = fixed
    arrays, static = eqx.partition(batches, eqx.is_array)

    def part(arrays: Any, train_state: TrainState) -> TrainState:
        return run_steps((settings, eqx.combine(arrays, static), count), train_state)

    agents = PartitionSpec(*mesh.axis_names)
    return jax.shard_map(part, mesh=mesh, in_specs=agents, out_specs=agents, check_vma=False)(arrays, train_state)


def with_transitions(train_state: TrainState, transitions: ReplayTransition) -> TrainState:
    """The state with these transitions in the replay buffer of every agent."""
    learner = jax.vmap(store_transitions, in_axes=(0, None))(train_state.learner, transitions)
    return eqx.tree_at(lambda p: p.learner, train_state, learner)


def transitions_from_data(
    settings: DQNConfig | ActorCriticConfig, data: Trajectory, spec: Spec, interval: float | None = None
) -> ReplayTransition:
    """Transitions of real data for agents that observe s alone; at most half a replay buffer.

    With an interval, only transitions of that interval: an agent on a fixed schedule never holds an action longer. A
    simulator that ends an interval where the process terminates would have done so in that interval too.
    """
    mask, held = data.mask, np.asarray(data.interval)
    last = np.arange(data.interval.shape[1]) == np.asarray(data.length)[:, None] - 1
    ended = last & np.asarray(data.terminated)[:, None]
    if interval is not None:
        same = np.abs(held - interval) < 1e-3 * spec.tick
        mask = mask & (same if spec.intervals.divisible else same | (ended & (held < interval)))
    seen = np.asarray(carried_forward(data).observation, np.float32)
    discount = np.where(ended, 0.0, spec.discount ** (np.asarray(data.interval) / spec.tick))
    keep = np.flatnonzero(mask.ravel())
    most = settings.replay_capacity // 2
    if len(keep) > most:
        keep = np.random.default_rng(0).choice(keep, most, replace=False)

    def rows(x: Any, kind: Any = np.float32) -> Any:
        flat = np.asarray(x).reshape(mask.size, *np.shape(x)[2:])
        return jnp.asarray(flat[keep], kind)

    return ReplayTransition(
        features=rows(seen[:, :-1]),
        action=rows(data.action, np.int32 if isinstance(spec.actions, Discrete) else np.float32),
        reward=rows(settings.reward_scale * np.asarray(data.reward)),
        discount=rows(discount),
        next_features=rows(seen[:, 1:]),
    )


VALUE = 10.0
"""Size of values that the scale of rewards aims at."""


def with_reward_scale(settings: DQNConfig, data: Trajectory | None) -> DQNConfig:
    """The settings with a scale of the rewards that makes values about 10 in size, if the data are to give it.

    The size of values is that of the mean reward times the decisions that count: those of an episode, or fewer where
    the discount ends before it.
    """
    if not settings.scale_rewards:
        return settings
    plain = dataclasses.replace(settings, scale_rewards=False)
    if data is None:
        return plain
    mask = data.mask
    size = float(np.abs(np.asarray(data.reward, np.float64)[mask]).mean())
    gamma = data.spec.discount ** (float(np.asarray(data.interval, np.float64)[mask].mean()) / data.spec.tick)
    count = float(np.asarray(data.length).max())
    ahead = min(count, 1 / (1 - gamma)) if gamma < 1 else count
    factor = float(f"{VALUE / (size * ahead):.3g}") if size > 0 else 1.0
    return dataclasses.replace(plain, reward_scale=factor * settings.reward_scale)


def obs_scale(data: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the observations at decisions; 1 for those that do not change."""
    seen = np.asarray(carried_forward(data).observation, np.float64)[:, :-1][data.mask]
    mean, std = seen.mean(0), seen.std(0)
    return mean, np.where(std > 1e-6 * np.maximum(np.abs(mean), 1e-3), std, 1.0)


def standardized(transitions: ReplayTransition, scale: tuple[np.ndarray, np.ndarray]) -> ReplayTransition:
    """Transitions with observations in units of `obs_scale`."""
    mean, std = (jnp.asarray(x, jnp.float32)[None] for x in scale)
    before, after = ((x - mean) / std for x in (transitions.features, transitions.next_features))
    return transitions._replace(features=before, next_features=after)
