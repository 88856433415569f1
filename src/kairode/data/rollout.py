"""Whole episodes in one compiled call: any policy and schedule, on any JAX environment."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from kairode.data.policy import Memory, Policy
from kairode.envs.core import Action, Discrete, Environment, Moment, Spec, State, Tau, begin_episode
from kairode.envs.schedule import Schedule, hold
from kairode.errors import KairodeError
from kairode.trees import choose


class Record(NamedTuple):
    """Recorded data of one decision."""

    action: Any
    interval: Any
    reward: Any
    next_obs: Any
    between: Any = ()
    """Observations at fractions of the interval, if they were asked for."""


class RolloutState(NamedTuple):
    """State of one episode, including the policy's memory."""

    moment: Moment
    memory: Memory
    elapsed: Array
    terminated: Array
    truncated: Array


class Rollout(NamedTuple):
    """Several episodes."""

    first_obs: Any
    records: Record
    """Axes (decision, episode); zeros after the end of an episode."""
    length: Any
    terminated: Any
    truncated: Any


def rollout(
    env: Environment,
    policy: Policy,
    schedule: Schedule,
    keys: Key[Array, " n"],
    limit: int,
    fractions: tuple[float, ...] = (),
) -> Rollout:
    """One episode per key, until all have ended or `limit` decisions are taken. The caller compiles it.

    With `fractions`, the observations at these fractions of every interval are recorded too.
    """
    episodes = jax.vmap(partial(start, env, policy))(keys)
    first_obs = episodes.moment.obs
    step = jax.vmap(partial(rollout_step, env, policy, schedule, fractions=fractions))
    one_decision = jax.eval_shape(lambda: step(episodes, keys)[1])
    blank = jax.tree.map(lambda x: jnp.zeros((limit, *x.shape), x.dtype), one_decision)

    def unfinished(carry: tuple[Array, RolloutState, Record]) -> Array:
        k, episodes, _ = carry
        return (k < limit) & ~jnp.all(episodes.terminated | episodes.truncated)

    def write_down(carry: tuple[Array, RolloutState, Record]) -> tuple[Array, RolloutState, Record]:
        k, episodes, records = carry
        episodes, record = step(episodes, keys)
        return k + 1, episodes, jax.tree.map(lambda all, now: all.at[k].set(now), records, record)

    _, episodes, records = jax.lax.while_loop(unfinished, write_down, (jnp.zeros((), jnp.int32), episodes, blank))
    return Rollout(first_obs, records, episodes.moment.count, episodes.terminated, episodes.truncated)


def episode_keys(seed: int, episodes: int, first: int = 0) -> Key[Array, " n"]:
    """Keys of consecutive episodes of a seed."""
    return _fold_in_each(jax.random.key(seed), jnp.asarray(np.arange(first, first + episodes)))


@jax.jit
def _fold_in_each(key: Key[Array, ""], numbers: Int[Array, " n"]) -> Key[Array, " n"]:
    return jax.vmap(partial(jax.random.fold_in, key))(numbers)


def start(env: Environment, policy: Policy, key: Key[Array, ""]) -> RolloutState:
    """State at the start of an episode, with random numbers of its own for policy and environment."""
    policy_key, reset_key = jax.random.split(jax.random.fold_in(key, 0))
    moment = begin_episode(env, key=reset_key)
    off = jnp.zeros((), bool)
    return RolloutState(moment, policy.start(key=policy_key), jnp.zeros_like(moment.time), off, off)


def rollout_step(
    env: Environment,
    policy: Policy,
    schedule: Schedule,
    episode: RolloutState,
    key: Key[Array, ""],
    fractions: tuple[float, ...] = (),
) -> tuple[RolloutState, Record]:
    """One decision of one episode. If the episode is over, nothing changes."""
    going = ~(episode.terminated | episode.truncated)
    keys = jax.random.split(jax.random.fold_in(key, episode.moment.count + 1), 3)
    action, memory = policy.act(episode.memory, episode.moment.obs, episode.elapsed, key=keys[0])
    check_kind(env.task.spec, action)
    moment, outcome = hold(env, schedule, episode.moment, action, memory, keys=keys[1:], going=going)
    between = _between(env, episode.moment.state, action, outcome.tau, fractions, keys[2])
    new = RolloutState(moment, memory, outcome.tau, outcome.terminated, outcome.truncated)
    episode = choose(going, new, episode)
    action, reward = jnp.where(going, action, jnp.zeros_like(action)), jnp.where(going, outcome.reward, 0.0)
    return episode, Record(action, outcome.tau, reward, episode.moment.obs, between)


def _between(
    env: Environment, state: State, action: Action, tau: Tau, fractions: tuple[float, ...], key: Key[Array, ""]
) -> Float[Array, "k obs"] | tuple[()]:
    """Observations at fractions of an interval. With noise they are not of the path to the next decision, but of the
    same distribution."""
    if not fractions:
        return ()
    passed = env.course(state, action, tau * jnp.array(fractions, tau.dtype), key=key)
    return jax.vmap(env.observe)(passed)


def check_kind(spec: Spec, action: Any) -> None:
    """Check the shape and type of an action; its value is checked after the episodes."""
    if isinstance(spec.actions, Discrete):
        if jnp.shape(action) != () or not jnp.issubdtype(jnp.result_type(action), jnp.integer):
            raise KairodeError(
                f"a policy for '{spec.name}' must return one integer, got {jax.typeof(jnp.asarray(action))}."
            )
    elif jnp.shape(action) != (spec.actions.n,):
        raise KairodeError(
            f"a policy for '{spec.name}' must return {spec.actions.n} numbers ({', '.join(spec.actions.names)}), "
            f"got an array of shape {jnp.shape(action)}."
        )


rollout_compiled = eqx.filter_jit(rollout)
