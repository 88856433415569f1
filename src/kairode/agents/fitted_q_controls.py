"""Fitted Q evaluation with continuous actions, the controls that a policy chooses at the moments of the data, and how
far they are from those of the data.

A network has an action as an input. Q(s, a) = r + gamma^tau Q(s', pi(s')): of a policy that draws its actions, one is
drawn for every moment of the data.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.spatial import KDTree

from kairode.agents.actor_policy import ActorPolicy
from kairode.agents.fitted_q import ITERATIONS, MEMBERS, ActionValues, QInputs, fit_values, moment_features
from kairode.data.normalize import mean_and_std
from kairode.data.policy import Memory, Policy
from kairode.data.rollout import check_kind
from kairode.data.trajectory import Trajectory, carried_forward
from kairode.envs.core import Continuous, Obs, Spec
from kairode.errors import KairodeError

NEIGHBOURS = 50
"""Decisions of the data that a state is compared with."""
RANGE = (1.0, 99.0)
"""Percentiles of their actions, between which an action is supported."""
WIDER = 0.1
"""The range is extended on both sides by this multiple of its width,"""
TOLERANCE = 0.01
"""and by this multiple of the standard deviation of the actions of all data."""
ASKED, KNOWN = 2000, 50_000
"""Decisions at which support is asked for, and decisions it is searched among, at most."""


def policy_controls(policy: Policy, data: Trajectory, *, seed: int = 0) -> Float[np.ndarray, "n moments act"]:
    """The policy's action at every moment of the data (the last observation too)."""
    assert isinstance(data.spec.actions, Continuous)
    keys = jax.random.split(jax.random.key(seed), len(data))
    if jax.tree.leaves(policy.start(key=keys[0])) and not isinstance(policy, ActorPolicy):
        raise KairodeError(
            "off-policy estimates need a policy's actions where the actions of the data were taken, and those of a "
            "policy with a memory of its own are not known: give one from kairode.learn_offline, or a function of "
            "(observation, key)."
        )
    obs = np.asarray(carried_forward(data).observation, np.float32)
    elapsed = np.concatenate([np.zeros((len(data), 1)), np.asarray(data.interval)], axis=1).astype(np.float32)
    found = np.asarray(_controls(policy, data.spec, jnp.asarray(obs), jnp.asarray(elapsed), keys))
    real = np.arange(obs.shape[1]) <= np.asarray(data.length)[:, None]
    wrong = real & ~data.spec.actions.contain(found).all(-1)
    if wrong.any():
        episode, k = np.argwhere(wrong)[0]
        raise KairodeError(
            f"the policy chose an action outside those of '{data.spec.name}': {found[episode, k]} at moment {k} of "
            f"episode {episode}."
        )
    return found


@eqx.filter_jit
def _controls(
    policy: Policy,
    spec: Spec,
    obs: Float[Array, "n moments obs"],
    elapsed: Float[Array, "n moments"],
    keys: Key[Array, " n"],
) -> Float[Array, "n moments act"]:
    def moment(memory: Memory, row: tuple[Obs, Array, Key[Array, ""]]) -> tuple[Memory, Array]:
        action, memory = policy.act(memory, row[0], row[1], key=row[2])
        check_kind(spec, action)
        return memory, jnp.asarray(action, obs.dtype)

    def episode(obs: Array, elapsed: Array, key: Key[Array, ""]) -> Array:
        start_key, act_key = jax.random.split(key)
        rows = (obs, elapsed, jax.random.split(act_key, obs.shape[0]))
        return jax.lax.scan(moment, policy.start(key=start_key), rows)[1]

    return jax.vmap(episode)(obs, elapsed, keys)


def fit_control_values(
    data: Trajectory,
    chosen: Float[np.ndarray, "n moments act"],
    *,
    seed: int = 0,
    members: int = MEMBERS,
    iterations: int = ITERATIONS,
) -> ActionValues:
    """Fit Q^pi, given pi's actions at every moment of the data; values are those of these actions."""
    features, taken = moment_features(data), np.asarray(data.action, np.float32)
    mean, std = mean_and_std(taken[data.mask])

    def joined(features: np.ndarray, action: np.ndarray) -> np.ndarray:
        scaled = ((action - mean) / std).astype(np.float32)
        return np.concatenate([features, scaled], axis=-1)

    moments, none = joined(features, chosen), np.zeros(taken.shape[:2], np.int32)
    inputs = QInputs(joined(features[:, :-1], taken), none, moments[:, 1:], np.ones((*none.shape, 1)), moments)
    return fit_values(data, inputs, seed=seed, members=members, iterations=iterations)


def control_support(data: Trajectory, chosen: Float[np.ndarray, "n moments act"], *, seed: int = 0) -> float:
    """Share of the policy's actions that lie, in every dimension, within the range of those that the data took at the
    nearest decisions."""
    mask = np.asarray(data.mask)
    states = np.asarray(carried_forward(data).observation, np.float64)[:, :-1][mask]
    taken, own = np.asarray(data.action, np.float64)[mask], np.asarray(chosen, np.float64)[:, :-1][mask]
    states = states / mean_and_std(states)[1]
    order = np.random.default_rng([seed, 5]).permutation(len(states))
    asked, known = order[:ASKED], order[:KNOWN]
    _, near = KDTree(states[known]).query(states[asked], k=min(NEIGHBOURS, len(known)))
    actions = taken[known][near.reshape(len(asked), -1)]  # [asked, neighbours, act]
    low, high = np.percentile(actions, RANGE, axis=1)
    slack = WIDER * (high - low) + TOLERANCE * taken.std(0)
    within = (own[asked] >= low - slack) & (own[asked] <= high + slack)
    return float(within.all(-1).mean())
