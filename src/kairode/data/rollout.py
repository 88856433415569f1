"""Whole episodes in one compiled call: any policy and schedule, on any JAX environment, real or imagined."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from kairode.data.policy import Memory, Policy
from kairode.envs.core import Discrete, Environment, Moment, Spec, advance, begin
from kairode.envs.schedule import Schedule, due
from kairode.errors import KairodeError


class Record(NamedTuple):
    """What is written down of one decision."""

    action: Any
    interval: Any
    reward: Any
    next_obs: Any


class Lane(NamedTuple):
    """Where one episode stands, with what its policy remembers."""

    moment: Moment
    memory: Memory
    elapsed: Array
    terminated: Array
    truncated: Array


class Rollout(NamedTuple):
    """Episodes side by side."""

    first_obs: Any
    records: Record
    """With axes (decision, episode); zeros where an episode is over."""
    length: Any
    terminated: Any
    truncated: Any


def rollout(env: Environment, policy: Policy, schedule: Schedule, keys: Key[Array, " n"], limit: int) -> Rollout:
    """An episode for each key, until the last one ends or `limit` decisions are taken. To be compiled by the caller."""
    lanes = jax.vmap(partial(start, env, policy))(keys)
    first_obs = lanes.moment.obs
    step = jax.vmap(partial(decide, env, policy, schedule))
    one_decision = jax.eval_shape(lambda: step(lanes, keys)[1])
    blank = jax.tree.map(lambda x: jnp.zeros((limit, *x.shape), x.dtype), one_decision)

    def unfinished(carry: tuple[Array, Lane, Record]) -> Array:
        k, lanes, _ = carry
        return (k < limit) & ~jnp.all(lanes.terminated | lanes.truncated)

    def write_down(carry: tuple[Array, Lane, Record]) -> tuple[Array, Lane, Record]:
        k, lanes, records = carry
        lanes, record = step(lanes, keys)
        return k + 1, lanes, jax.tree.map(lambda all, now: all.at[k].set(now), records, record)

    _, lanes, records = jax.lax.while_loop(unfinished, write_down, (jnp.zeros((), jnp.int32), lanes, blank))
    return Rollout(first_obs, records, lanes.moment.count, lanes.terminated, lanes.truncated)


def start(env: Environment, policy: Policy, key: Key[Array, ""]) -> Lane:
    """The beginning of one episode."""
    policy_key, reset_key = jax.random.split(jax.random.fold_in(key, 0))
    moment = begin(env, key=reset_key)
    off = jnp.zeros((), bool)
    return Lane(moment, policy.start(key=policy_key), jnp.zeros_like(moment.time), off, off)


def decide(
    env: Environment, policy: Policy, schedule: Schedule, lane: Lane, key: Key[Array, ""]
) -> tuple[Lane, Record]:
    """One decision of one episode. Where the episode is over, no time passes and nothing changes."""
    going = ~(lane.terminated | lane.truncated)
    act_key, due_key, advance_key = jax.random.split(jax.random.fold_in(key, lane.moment.count + 1), 3)
    action, memory = policy.act(lane.memory, lane.moment.obs, lane.elapsed, key=act_key)
    check_kind(env.task.spec, action)
    tau = jnp.where(going, due(env, schedule, lane.moment, action, memory, key=due_key), 0.0)
    moment, outcome = advance(env, lane.moment, action, tau, key=advance_key)
    new = Lane(moment, memory, tau, outcome.terminated, outcome.truncated)
    lane = jax.tree.map(lambda new, old: jnp.where(going, new, old), new, lane)
    nothing = jnp.zeros_like(action)
    return lane, Record(jnp.where(going, action, nothing), tau, jnp.where(going, outcome.reward, 0.0), lane.moment.obs)


def check_kind(spec: Spec, action: Any) -> None:
    """Refuse an action of the wrong shape or kind; its value is looked at after the episodes."""
    if isinstance(spec.actions, Discrete):
        if jnp.shape(action) != () or not jnp.issubdtype(jnp.result_type(action), jnp.integer):
            raise KairodeError(
                f"a policy for '{spec.name}' must return one whole number, got {jax.typeof(jnp.asarray(action))}."
            )
    elif jnp.shape(action) != (spec.actions.n,):
        raise KairodeError(
            f"a policy for '{spec.name}' must return {spec.actions.n} numbers ({', '.join(spec.actions.names)}), "
            f"got an array of shape {jnp.shape(action)}."
        )


rollout_compiled = eqx.filter_jit(rollout)
