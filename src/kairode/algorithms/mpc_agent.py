"""What a seed that steers has in mind: agent, model and statistics, and the compiled calls that use them."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kairode.agents.actor_critic import (
    ActorCritic,
    ActorCriticSettings,
    Networks,
    improve_actor_critic,
)
from kairode.agents.actor_policy import Pilot, actions
from kairode.agents.dqn import Transition
from kairode.agents.obs_normalizer import Sight
from kairode.data.policy import Policy
from kairode.data.replay import Replay, add, sample
from kairode.data.rows import unpack
from kairode.envs.core import Spec, Task
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import Episodes, open_loop
from kairode.models.zoo import Sizes
from kairode.planning.mpc import Learned, Planner, PlanSettings
from kairode.training.step import FitSettings

FREE = "free"
"""In place of a model's name: no model, the actor acts alone."""


@dataclasses.dataclass(frozen=True)
class Ways:
    """How a crew learns."""

    model: str
    """Name of the dynamics model, or free."""
    agent: ActorCriticSettings
    plan: PlanSettings
    sizes: Sizes
    fit: FitSettings
    changes: bool
    """Whether relative variables (the root's x) are seen by their changes; the paper shows them as they are."""
    most_iterations: int
    """In one fit of the model."""


class Mind(eqx.Module):
    """What a seed has learned and lived through; seeds in front of every array."""

    agent: ActorCritic
    replay: Replay
    """Of packed rows, in order."""
    skipped: Any
    """Updates that were not finite."""


class Calls(NamedTuple):
    """What is compiled, for all seeds at once."""

    decide: Callable[..., Any]
    learn: Callable[..., Mind]
    skill: Callable[..., Any]


class Ended(NamedTuple):
    """An episode that came to its end."""

    seed: int
    """Index of the seed."""
    decision: int
    """How many decisions the seed had taken by then."""
    earned: float
    length: int


def policy_of(
    ways: Ways, task: Task, networks: Networks, sight: Sight, model: DynamicsModel | None, explores: bool
) -> Policy:
    """How one seed acts: it plans in its model, or without one follows its actor."""
    if model is None:
        return Pilot(networks, sight, ways.agent, task.spec, explores)
    return Planner(Learned(model, sight), task, networks, sight, ways.agent, ways.plan)


def compiled(ways: Ways, task: Task, static: Any) -> Calls:
    """One call that acts for all seeds, one that stores and updates for all."""
    spec, settings = task.spec, ways.agent

    def acting(networks: Any, sight: Any, params: Any, memory: Any, obs: Any, elapsed: Any, data: Any, k: Any) -> Any:
        model = None if params is None else eqx.combine(params, static)
        policy = policy_of(ways, task, networks, sight, model, explores=True)
        key = jax.random.fold_in(jax.random.wrap_key_data(data), k)
        start_key, act_key = jax.random.split(key)
        fresh = policy.start(key=start_key)
        memory = fresh if memory is None else jax.tree.map(lambda a, b: jnp.where(elapsed == 0, a, b), fresh, memory)
        return policy.act(memory, obs, elapsed, key=act_key)

    def learning(mind: Mind, sight: Sight, row: Any, data: Any, k: Any) -> Mind:
        mind = dataclasses.replace(mind, replay=add(mind.replay, row[None]))
        key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(data), 1), k)

        def update(mind: Mind, key: Any) -> tuple[Mind, None]:
            draw_key, update_key = jax.random.split(key)
            batch = transitions(spec, settings, sight, sample(mind.replay, settings.batch, key=draw_key))
            agent, sane = improve_actor_critic(mind.agent, settings, batch, key=update_key)
            return dataclasses.replace(mind, agent=agent, skipped=mind.skipped + ~sane), None

        if settings.updates == 1:
            return update(mind, key)[0]
        return jax.lax.scan(update, mind, jax.random.split(key, settings.updates))[0]

    def foretelling(params: Any, sight: Sight, episodes: Episodes, data: Any) -> Any:
        return reward_skill(eqx.combine(params, static), task, sight, episodes, jax.random.wrap_key_data(data))

    return Calls(
        decide=jax.jit(jax.vmap(acting, in_axes=(0, 0, 0, 0, 0, 0, 0, None))),
        learn=jax.jit(jax.vmap(learning, in_axes=(0, 0, 0, 0, None)), donate_argnums=0),
        skill=jax.jit(jax.vmap(foretelling)),
    )


def reward_skill(
    model: DynamicsModel, task: Task, sight: Sight, episodes: Episodes, key: Key[Array, ""]
) -> Float[Array, " steps"]:
    """How well the model foretells what a planner adds up: R^2 of the reward of the 1st, 2nd, .. decision ahead."""
    batch = episodes.batch_last()
    real, tau = batch.real, batch.tau * task.spec.tick

    def shown(x: Array) -> Array:
        return sight.unnormalised(jnp.moveaxis(x, 1, -1))

    def reward(before: Array, after: Array) -> Array:
        each = jax.vmap(jax.vmap(task.reward))(sight.origin(before), jnp.moveaxis(batch.action, 1, -1), after, tau)
        return jnp.where(real, each, 0.0)

    true, told = shown(batch.obs), shown(open_loop(model, batch, key).obs)
    earned, foretold = reward(true[:-1], true[1:]), reward(jnp.concatenate([true[:1], told[:-1]]), told)
    count = jnp.maximum(real.sum(1), 1)
    spread = jnp.where(real, (earned - (earned.sum(1) / count)[:, None]) ** 2, 0.0).sum(1)
    return 1.0 - ((foretold - earned) ** 2).sum(1) / jnp.maximum(spread, 1e-12)


def transitions(spec: Spec, settings: ActorCriticSettings, sight: Sight, rows: Any) -> Transition:
    """Rows as an agent sees them: normalised by today's statistics, with the discount gamma^tau."""
    row = unpack(spec, rows)
    return Transition(
        sight.features(row.shown),
        actions(spec, row.control),
        row.reward * settings.reward_scale,
        spec.discount ** (row.tau / spec.tick) * (1.0 - row.terminated),
        sight.features(row.next_shown),
    )
