"""Actors learned from records, with behaviour cloning: TD3+BC (Fujimoto and Gu 2021), on real transitions alone or
mixed with imagined ones that branch off from the records (MBPO, Janner et al. 2019; MOPO, Yu et al. 2020).

Several agents that differ only in numbers are trained in one compiled loop. The discount is gamma^tau, and values are
bounded by the returns of the data.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from kairode._xla import jit_once
from kairode.agents.actor_critic import (
    ActorCritic,
    Critic,
    Networks,
    critic_values,
    explore,
    greedy,
    init_actor_critic,
    update_actor_critic,
)
from kairode.agents.actor_policy import ActorPolicy, actions, controls
from kairode.agents.dqn import ReplayTransition
from kairode.agents.fitted_q import lasting_bounds
from kairode.agents.network import ReLUNetwork
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.agents.train_step import transitions_from_data
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.agents import ActorCriticConfig, OfflineActorConfig
from kairode.data.normalize import mean_and_std
from kairode.data.replay import Replay, add, empty, sample
from kairode.data.trajectory import Trajectory, carried_forward
from kairode.envs.core import Environment, Moment, Spec, begin_episode
from kairode.envs.schedule import Own, hold
from kairode.errors import KairodeError
from kairode.training.session import Session
from kairode.trees import choose, copies, one

SMALL = 1e-6
"""Least mean |Q| that losses are divided by."""
CHUNK = 512
"""Updates per compiled call, about."""
SAVE_SECONDS = 30.0
"""Time between checkpoints."""


class OfflineRecords(eqx.Module):
    """What all agents learn from."""

    real: ReplayTransition
    """Every transition of the data: normalised features, actions in [-1, 1], scaled rewards."""
    normalizer: ObsNormalizer
    bounds: Float[Array, "2"]
    """Of the values, in units of the scaled reward."""
    settings: ActorCriticConfig = eqx.field(static=True)
    """With the scale of the rewards found from the data."""
    spec: Spec = eqx.field(static=True)


class OfflineAgents(eqx.Module):
    """Several agents; agents are the first axis of every array."""

    alpha: Float[Array, "*agents"]
    """Weight of the values relative to that of cloning the actions of the data."""
    env: Environment | None = None
    """Where transitions are imagined, its episodes being short; None for real ones alone."""


class Imagination(NamedTuple):
    """Imagined episodes of an agent, and their latest transitions."""

    moments: Moment
    replay: Replay


class OfflineState(eqx.Module):
    """Train state of all agents; agents are the first axis of every array (absent inside a vmap)."""

    key: UInt32[Array, "*agents 2"]
    agent: ActorCritic
    imagination: Imagination | None
    rounds: Int[Array, "*agents"]
    diverged: Bool[Array, "*agents"]
    """True if a value was not finite: the agent has then stopped, with its last finite weights."""


def offline_records(data: Trajectory, settings: ActorCriticConfig) -> OfflineRecords:
    """Normalise the data, and scale rewards such that the mean absolute return is about 1."""
    spec = data.spec
    rows = np.asarray(carried_forward(data).observation)[:, :-1][data.mask]
    normalizer = ObsNormalizer.fixed(spec, *mean_and_std(rows))
    size = float(np.abs(data.discounted).mean()) or 1.0
    settings = dataclasses.replace(settings, reward_scale=settings.reward_scale / size)
    every = dataclasses.replace(settings, replay_capacity=2 * data.decisions)  # of which half may be real
    found = transitions_from_data(every, data, spec)
    real = found._replace(
        features=normalizer.features(found.features),
        action=jnp.clip(actions(spec, found.action), -1.0, 1.0),
        next_features=normalizer.features(found.next_features),
    )
    bounds = settings.reward_scale * np.array(lasting_bounds(data))
    return OfflineRecords(real, normalizer, jnp.asarray(bounds, jnp.float32), settings, spec)


def cloning_loss(
    alpha: Float[Array, ""],
    real: int,
    actor: ReLUNetwork,
    critics: Critic,
    temperature: Float[Array, ""],
    settings: ActorCriticConfig,
    batch: ReplayTransition,
    *,
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """-lambda Q(s, pi(s)) + (pi(s) - a)^2, lambda = alpha / mean |Q| (Fujimoto and Gu 2021, equations 3 and 5); the
    second term for the first `real` transitions alone. Also 0, in place of a log density."""
    action = greedy(settings, actor, batch.features)
    values = critic_values(critics, batch.features, action)[0]
    weight = alpha / jnp.maximum(jax.lax.stop_gradient(jnp.abs(values).mean()), SMALL)
    distance = ((action[:real] - batch.action[:real]) ** 2).mean()
    return distance - weight * values.mean(), jnp.zeros(())


@jit_once
def init_offline(
    config: OfflineActorConfig, records: OfflineRecords, agents: OfflineAgents, keys: Key[Array, " n"]
) -> OfflineState:
    """State before the first update, one key for each agent."""
    return eqx.filter_vmap(partial(_init_one, config, records))(agents, keys)


def _init_one(
    config: OfflineActorConfig, records: OfflineRecords, agent: OfflineAgents, key: Key[Array, ""]
) -> OfflineState:
    weights_key, start_key, run_key = jax.random.split(key, 3)
    features, count = records.real.features.shape[1], records.real.action.shape[1]
    learner = init_actor_critic(features, count, records.settings, key=weights_key)
    env, imagination = agent.env, None
    if env is not None:
        starts = jax.random.split(start_key, config.imagined)
        moments = jax.vmap(lambda key: begin_episode(env, key=key))(starts)
        example = jax.tree.map(lambda x: x[0], records.real)
        imagination = Imagination(moments, empty(records.settings.replay_capacity, example))
    zero = jnp.zeros((), jnp.int32)
    return OfflineState(jax.random.key_data(run_key), learner, imagination, zero, jnp.zeros((), bool))


def imagine(
    records: OfflineRecords, env: Environment, actor: ReLUNetwork, moment: Moment, key: Key[Array, ""]
) -> tuple[Moment, ReplayTransition]:
    """One decision of an imagined episode, which begins anew if it ended."""
    action_key, hold_key, next_key = jax.random.split(key, 3)
    settings, spec, normalizer = records.settings, records.spec, records.normalizer
    features = normalizer.features(moment.obs)
    action = explore(settings, actor, features, key=action_key)
    after, outcome = hold(env, Own(), moment, controls(spec, action), keys=jax.random.split(hold_key))
    gamma = jnp.where(outcome.terminated, 0.0, spec.discount ** (outcome.tau / spec.tick))
    reward = settings.reward_scale * outcome.reward
    transition = ReplayTransition(features, action, reward, gamma, normalizer.features(after.obs))
    return choose(outcome.terminated | outcome.truncated, begin_episode(env, key=next_key), after), transition


def learn_round(
    config: OfflineActorConfig, records: OfflineRecords, agent: OfflineAgents, state: OfflineState
) -> OfflineState:
    """One decision of every imagined episode, if there are any, then `period` updates, of one agent."""
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.rounds)
    imagine_key, update_key = jax.random.split(key)
    imagination, fine = state.imagination, jnp.ones((), bool)
    if agent.env is not None:
        assert imagination is not None
        step = partial(imagine, records, agent.env, state.agent.networks.actor)
        moments, new = jax.vmap(step)(imagination.moments, jax.random.split(imagine_key, config.imagined))
        fine = jnp.isfinite(new.next_features).all() & jnp.isfinite(new.reward).all()
        imagination = Imagination(moments, add(imagination.replay, new))
    size = records.settings.batch_size
    real = size if imagination is None else max(1, round(config.real_share * size))
    objective = partial(cloning_loss, agent.alpha, real)

    def update(learner: ActorCritic, key: Key[Array, ""]) -> tuple[ActorCritic, Bool[Array, ""]]:
        draw_key, other_key, update_key = jax.random.split(key, 3)
        where = jax.random.randint(draw_key, (real,), 0, records.real.reward.shape[0])
        batch = jax.tree.map(lambda x: x[where], records.real)
        if imagination is not None and real < size:
            other = sample(imagination.replay, size - real, key=other_key)
            batch = jax.tree.map(lambda *x: jnp.concatenate(x), batch, other)
        return update_actor_critic(
            learner, records.settings, batch, key=update_key, policy_objective=objective, bounds=records.bounds
        )

    learner, sane = jax.lax.scan(update, state.agent, jax.random.split(update_key, config.period))
    diverged = state.diverged | ~(fine & sane.all())
    after = OfflineState(state.key, learner, imagination, state.rounds + 1, diverged)
    return choose(state.diverged | ~fine, eqx.tree_at(lambda s: s.diverged, state, diverged), after)


@eqx.filter_jit(donate="all-except-first")
def update_rounds(
    fixed: tuple[OfflineActorConfig, OfflineRecords, OfflineAgents, Int[Array, ""]], state: OfflineState
) -> OfflineState:
    """Several rounds of all agents; `fixed` holds config, records, agents and the number of rounds."""
    config, records, agents, count = fixed
    step = eqx.filter_vmap(partial(learn_round, config, records))
    return jax.lax.fori_loop(0, count, lambda _, state: step(agents, state), state)


class _State(eqx.Module):
    """Contents of a checkpoint."""

    train_state: OfflineState
    kept: Networks
    """Those of every stop, [agents, stops, ..]."""


class TrainedActors(NamedTuple):
    """Policies of every agent and stop, [agents][stops]."""

    policies: list[list[ActorPolicy]]
    diverged: list[bool]


def train_offline_actors(
    config: OfflineActorConfig,
    records: OfflineRecords,
    agents: OfflineAgents,
    seeds: Sequence[int],
    *,
    folder: Path | None = None,
    identity: dict[str, Any] | None = None,
    callback: Callback = no_callback,
    stage: str = "learning from the records",
) -> TrainedActors:
    """Train one agent per seed. With a folder, a checkpoint is kept there and training resumes from it.

    Args:
        config: how to train.
        records: from `offline_records`.
        agents: as many as seeds.
        seeds: of weights, batches and imagined episodes.
        folder: of the checkpoint.
        identity: identifies this training (data, models); a checkpoint with another identity is refused.
        callback: called with a `kairode.callbacks.Progress` during training.
        stage: its name in the callback.
    """
    total = max(config.stops, -(-config.updates // config.period))
    stops = [total * (k + 1) // config.stops for k in range(config.stops)]
    what = {"config": dataclasses.asdict(config), "seeds": list(seeds), "about": identity}
    with Session(folder, what, save_seconds=SAVE_SECONDS) as session:
        first = copies(init_offline(config, records, agents, jnp.stack([jax.random.key(seed) for seed in seeds])))
        kept = jax.tree.map(lambda x: jnp.repeat(x[:, None], config.stops, axis=1), first.agent.networks)
        state = session.restore(_State(first, kept))
        done = int(session.earlier.get("rounds", 0))
        session.complete = done == total
        callback(Progress(stage, done * config.period, total * config.period))
        while done < total:
            following = min(stop for stop in stops if stop > done)
            some = min(following - done, max(1, CHUNK // config.period))
            trained = update_rounds((config, records, agents, jnp.asarray(some)), state.train_state)
            done += some
            state = _State(trained, _with_stop(state.kept, trained, stops.index(done)) if done in stops else state.kept)
            callback(Progress(stage, done * config.period, total * config.period, seconds=session.here))
            if session.due():
                session.save(state, rounds=done)
            if session.interrupted() and done < total:
                raise session.stop(f"in '{stage}' after {done * config.period:,} of {total * config.period:,} updates")
        if not session.complete:
            session.save(state, rounds=done)
    return _result(records, state, seeds)


def _with_stop(kept: Networks, trained: OfflineState, index: int) -> Networks:
    return jax.tree.map(lambda every, now: every.at[:, index].set(now), kept, trained.agent.networks)


def _result(records: OfflineRecords, state: _State, seeds: Sequence[int]) -> TrainedActors:
    diverged = np.asarray(state.train_state.diverged).tolist()
    if all(diverged):
        raise KairodeError(
            f"the policy of seed {seeds[0]} diverged: a value or an observation was not finite. Try a smaller "
            "reward_scale or learning rate; in imagination, bound predictions to the range of the data."
        )
    stops = jax.tree.leaves(state.kept)[0].shape[1]

    def policy(i: int, k: int) -> ActorPolicy:
        networks = one(one(state.kept, i), k)
        return ActorPolicy(networks, records.normalizer, records.settings, records.spec)

    return TrainedActors([[policy(i, k) for k in range(stops)] for i in range(len(seeds))], diverged)
