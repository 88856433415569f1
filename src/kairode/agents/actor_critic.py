"""Actor-critic for continuous actions in continuous time: DDPG, TD3 and SAC, with discount gamma^tau.

DDPG (Lillicrap et al. 2016) is the paper's agent. TD3 (Fujimoto et al. 2018) adds a second critic, target noise and
delayed actor updates; SAC (Haarnoja et al. 2018) adds a stochastic actor with an entropy bonus. Actions are in
[-1, 1]; features and actions are on the last axis.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from kairode.agents.dqn import ReplayTransition, td_target
from kairode.agents.network import ReLUNetwork
from kairode.config.agents import ActorCriticConfig
from kairode.trees import choose

LOG_STD = (-5.0, 2.0)
"""Bounds of the log standard deviation of SAC's actions."""


class Critic(eqx.Module):
    """Q(s, a): the action enters the second layer."""

    first: ReLUNetwork
    rest: ReLUNetwork

    @classmethod
    def new(cls, features: int, actions: int, hidden: tuple[int, int], *, key: Key[Array, ""]) -> "Critic":
        first_key, rest_key = jax.random.split(key)
        return cls(
            ReLUNetwork.new(features, hidden[0], key=first_key),
            ReLUNetwork.new(hidden[0] + actions, hidden[1], 1, key=rest_key),
        )

    def __call__(self, features: Float[Array, "*b f"], action: Float[Array, "*b act"]) -> Float[Array, "*b"]:
        seen = jax.nn.relu(self.first(features))
        return self.rest(jnp.concatenate([seen, action], axis=-1))[..., 0]


class Networks(eqx.Module):
    """An actor and its critics."""

    actor: ReLUNetwork
    """Outputs the arguments of tanh; for SAC, their means and log standard deviations."""
    critics: Critic
    """Stacked along the first axis."""


class ActorCritic(eqx.Module):
    """Train state of the agent, without the replay buffer."""

    networks: Networks
    target: Networks
    log_temperature: Float[Array, "*n"]
    """Logarithm of SAC's entropy coefficient."""
    actor_state: Any
    critic_state: Any
    temperature_state: Any
    updates: Int[Array, "*n"]


def init_actor_critic(features: int, actions: int, settings: ActorCriticConfig, *, key: Key[Array, ""]) -> ActorCritic:
    """Random networks, targets equal to them, fresh optimiser states."""
    actor_key, critic_key = jax.random.split(key)
    outputs = 2 * actions if settings.stochastic else actions
    actor = ReLUNetwork.new(features, *settings.hidden, outputs, key=actor_key)
    make = jax.vmap(lambda key: Critic.new(features, actions, settings.hidden, key=key))
    networks = Networks(actor, make(jax.random.split(critic_key, settings.critics)))
    zero = jnp.zeros(())
    return ActorCritic(
        networks,
        networks,
        zero,
        optax.adam(settings.actor_learning_rate).init(actor),
        optax.adam(settings.critic_learning_rate).init(networks.critics),
        optax.adam(settings.actor_learning_rate).init(zero),
        jnp.zeros((), jnp.int32),
    )


def greedy(settings: ActorCriticConfig, actor: ReLUNetwork, features: Float[Array, "*b f"]) -> Float[Array, "*b act"]:
    """pi(s) without exploration noise."""
    out = actor(features)
    return jnp.tanh(out[..., : out.shape[-1] // 2] if settings.stochastic else out)


def drawn(
    actor: ReLUNetwork, features: Float[Array, "*b f"], *, key: Key[Array, ""]
) -> tuple[Float[Array, "*b act"], Float[Array, "*b"]]:
    """Sample SAC's action, tanh of a normal variable; also its log density."""
    mean, log_std = jnp.split(actor(features), 2, axis=-1)
    log_std = jnp.clip(log_std, *LOG_STD)
    noise = jax.random.normal(key, mean.shape)
    raw = mean + jnp.exp(log_std) * noise
    density = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(x)^2), without loss of digits.
    squash = 2 * (math.log(2) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), (density - squash).sum(-1)


def explore(
    settings: ActorCriticConfig, actor: ReLUNetwork, features: Float[Array, "*b f"], *, key: Key[Array, ""]
) -> Float[Array, "*b act"]:
    """Actions for collecting data: sampled by SAC, otherwise the greedy ones with noise, clipped to [-1, 1]."""
    if settings.stochastic:
        return drawn(actor, features, key=key)[0]
    action = greedy(settings, actor, features)
    return jnp.clip(action + settings.noise * jax.random.normal(key, action.shape), -1.0, 1.0)


def value(critics: Critic, features: Float[Array, "*b f"], action: Float[Array, "*b act"]) -> Float[Array, "*b"]:
    """Q(s, a): the minimum over the critics."""
    return critic_values(critics, features, action).min(0)


def critic_values(
    critics: Critic, features: Float[Array, "*b f"], action: Float[Array, "*b act"]
) -> Float[Array, "n *b"]:
    """Q of every critic, along a new first axis."""
    return jax.vmap(lambda critic: critic(features, action))(critics)


def next_values(
    agent: ActorCritic, settings: ActorCriticConfig, batch: ReplayTransition, *, key: Key[Array, ""]
) -> Float[Array, " b"]:
    """Value of the next state by the target networks; TD3 adds noise to the action, SAC counts entropy."""
    target, features = agent.target, batch.next_features
    if settings.stochastic:
        action, density = drawn(agent.networks.actor, features, key=key)
        return value(target.critics, features, action) - jnp.exp(agent.log_temperature) * density
    action = greedy(settings, target.actor, features)
    if settings.kind == "td3":
        noise = settings.target_noise * jax.random.normal(key, action.shape)
        action = jnp.clip(action + jnp.clip(noise, -settings.target_noise_clip, settings.target_noise_clip), -1.0, 1.0)
    return value(target.critics, features, action)


def critic_loss(critics: Critic, batch: ReplayTransition, targets: Float[Array, " b"]) -> Float[Array, ""]:
    """Mean squared error of each critic, summed over the critics."""
    errors = critic_values(critics, batch.features, batch.action) - targets[None]
    return (errors**2).mean(1).sum()


def actor_loss(
    actor: ReLUNetwork,
    critics: Critic,
    temperature: Float[Array, ""],
    settings: ActorCriticConfig,
    batch: ReplayTransition,
    *,
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Minus the value of the actor's action (SAC: plus the entropy term); also the mean log density."""
    if settings.stochastic:
        action, density = drawn(actor, batch.features, key=key)
        return (temperature * density - value(critics, batch.features, action)).mean(), density.mean()
    action = greedy(settings, actor, batch.features)
    return -critic_values(critics, batch.features, action)[0].mean(), jnp.zeros(())


def update_actor_critic(
    agent: ActorCritic,
    settings: ActorCriticConfig,
    batch: ReplayTransition,
    *,
    key: Key[Array, ""],
    policy_objective: Callable[..., Any] = actor_loss,
    bounds: Float[Array, "2"] | None = None,
) -> tuple[ActorCritic, Bool[Array, ""]]:
    """One update of critics and actor, skipped if a loss is not finite; also whether it was applied.

    `policy_objective` has the arguments of `actor_loss`; with `bounds`, values of the next state are clipped to them.
    """
    next_key, actor_key = jax.random.split(key)
    critics, actor = agent.networks.critics, agent.networks.actor
    following = next_values(agent, settings, batch, key=next_key)
    if bounds is not None:
        following = jnp.clip(following, bounds[0], bounds[1])
    targets = td_target(batch.reward, batch.discount, following)
    loss, slope = jax.value_and_grad(critic_loss)(critics, batch, jax.lax.stop_gradient(targets))
    change, critic_state = optax.adam(settings.critic_learning_rate).update(slope, agent.critic_state)
    critics = optax.apply_updates(critics, change)

    temperature = jnp.exp(agent.log_temperature)
    (policy_loss, density), slope = jax.value_and_grad(policy_objective, has_aux=True)(
        actor, critics, temperature, settings, batch, key=actor_key
    )
    change, actor_state = optax.adam(settings.actor_learning_rate).update(slope, agent.actor_state)
    networks = Networks(optax.apply_updates(actor, change), critics)
    moved = dataclasses.replace(
        agent,
        networks=networks,
        target=jax.tree.map(lambda target, new: target + settings.polyak * (new - target), agent.target, networks),
        actor_state=actor_state,
        critic_state=critic_state,
        updates=agent.updates + 1,
    )
    if settings.stochastic:  # the target entropy is minus one per action dimension
        slope = -temperature * (density - batch.action.shape[-1])
        change, state = optax.adam(settings.actor_learning_rate).update(slope, agent.temperature_state)
        log_temperature = agent.log_temperature + change
        moved = dataclasses.replace(moved, log_temperature=log_temperature, temperature_state=state)
    if settings.kind == "td3":  # the actor and the targets move less often than the critics
        held = dataclasses.replace(
            agent, networks=Networks(actor, critics), critic_state=critic_state, updates=moved.updates
        )
        moved = choose(agent.updates % settings.policy_delay == 0, moved, held)
    sane = jnp.isfinite(loss) & jnp.isfinite(policy_loss)
    return choose(sane, moved, agent), sane
