"""The learner of MPC: agent, replay buffer and model of each seed, and the compiled calls that use them."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kairode.agents.actor_critic import ActorCritic, Networks, update_actor_critic
from kairode.agents.actor_policy import ActorPolicy, actions
from kairode.agents.dqn import ReplayTransition
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.config.agents import ActorCriticConfig
from kairode.config.algorithms import MPCConfig
from kairode.data.policy import Policy
from kairode.data.replay import Replay, add, sample
from kairode.data.rows import unpack_row
from kairode.envs.core import Spec, Task
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import Episodes, open_loop
from kairode.planning.learned_task import LearnedTask
from kairode.planning.mpc import LearnedDynamics, Planner
from kairode.trees import choose


class LearnerState(eqx.Module):
    """Agent and replay buffer; seeds are the first axis of every array."""

    agent: ActorCritic
    replay: Replay
    """Packed rows, in order."""
    skipped: Any
    """Updates skipped because a value was not finite."""


class FinishedEpisode(NamedTuple):
    """A finished episode."""

    seed: int
    """Index of the seed."""
    decision: int
    """Decisions of the seed when it ended."""
    earned: float
    length: int


def make_policy(
    config: MPCConfig,
    task: Task,
    networks: Networks,
    normalizer: ObsNormalizer,
    model: DynamicsModel | None,
    explores: bool,
) -> Policy:
    """Policy of one seed: planning in its model, or its actor without one."""
    if model is None:
        return ActorPolicy(networks, normalizer, config.agent, task.spec, explores)
    return Planner(LearnedDynamics(model, normalizer), task, networks, normalizer, config.agent, config.plan)


def compile_mpc(config: MPCConfig, task: Task, static: Any) -> tuple[Callable[..., Any], ...]:
    """Compiled calls for all seeds at once: one acts, one stores and updates, one tests the model's rewards.

    Where rewards are learned, their networks take the place of the task.
    """
    spec, settings = task.spec, config.agent

    def acting(
        networks: Any,
        normalizer: Any,
        params: Any,
        learned: LearnedTask | None,
        memory: Any,
        obs: Any,
        elapsed: Any,
        data: Any,
        k: Any,
    ) -> Any:
        model = None if params is None else eqx.combine(params, static)
        policy = make_policy(config, learned or task, networks, normalizer, model, explores=True)
        key = jax.random.fold_in(jax.random.wrap_key_data(data), k)
        start_key, act_key = jax.random.split(key)
        fresh = policy.start(key=start_key)
        memory = fresh if memory is None else choose(elapsed == 0, fresh, memory)
        return policy.act(memory, obs, elapsed, key=act_key)

    def learning(learner: LearnerState, normalizer: ObsNormalizer, row: Any, data: Any, k: Any) -> LearnerState:
        learner = dataclasses.replace(learner, replay=add(learner.replay, row[None]))
        key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(data), 1), k)

        def update(learner: LearnerState, key: Any) -> tuple[LearnerState, None]:
            draw_key, update_key = jax.random.split(key)
            batch = transitions(spec, settings, normalizer, sample(learner.replay, settings.batch_size, key=draw_key))
            agent, sane = update_actor_critic(learner.agent, settings, batch, key=update_key)
            return dataclasses.replace(learner, agent=agent, skipped=learner.skipped + ~sane), None

        if settings.updates == 1:
            return update(learner, key)[0]
        return jax.lax.scan(update, learner, jax.random.split(key, settings.updates))[0]

    def predicting(
        params: Any, learned: LearnedTask | None, normalizer: ObsNormalizer, episodes: Episodes, data: Any
    ) -> Any:
        return reward_skill(
            eqx.combine(params, static), learned or task, normalizer, episodes, jax.random.wrap_key_data(data)
        )

    return (
        jax.jit(jax.vmap(acting, in_axes=(0, 0, 0, 0, 0, 0, 0, 0, None))),
        jax.jit(jax.vmap(learning, in_axes=(0, 0, 0, 0, None)), donate_argnums=0),
        jax.jit(jax.vmap(predicting)),
    )


def reward_skill(
    model: DynamicsModel, task: Task, normalizer: ObsNormalizer, episodes: Episodes, key: Key[Array, ""]
) -> Float[Array, " steps"]:
    """R^2 of the model's predicted rewards, of the 1st, 2nd, .. decision ahead."""
    batch = episodes.batch_last()
    real, tau = batch.real, batch.tau * task.spec.tick

    def seen_obs(x: Array) -> Array:
        return normalizer.unnormalized(jnp.moveaxis(x, 1, -1))

    def reward(before: Array, after: Array) -> Array:
        each = jax.vmap(jax.vmap(task.reward))(normalizer.origin(before), jnp.moveaxis(batch.action, 1, -1), after, tau)
        return jnp.where(real, each, 0.0)

    true, imagined = seen_obs(batch.obs), seen_obs(open_loop(model, batch, key).obs)
    earned, predicted = reward(true[:-1], true[1:]), reward(jnp.concatenate([true[:1], imagined[:-1]]), imagined)
    count = jnp.maximum(real.sum(1), 1)
    spread = jnp.where(real, (earned - (earned.sum(1) / count)[:, None]) ** 2, 0.0).sum(1)
    return 1.0 - ((predicted - earned) ** 2).sum(1) / jnp.maximum(spread, 1e-12)


def transitions(spec: Spec, settings: ActorCriticConfig, normalizer: ObsNormalizer, rows: Any) -> ReplayTransition:
    """Rows as replay transitions: normalised by the current statistics, with discount gamma^tau."""
    row = unpack_row(spec, rows)
    return ReplayTransition(
        normalizer.features(row.seen_obs),
        actions(spec, row.control),
        row.reward * settings.reward_scale,
        spec.discount ** (row.tau / spec.tick) * (1.0 - row.terminated),
        normalizer.features(row.next_seen_obs),
    )
