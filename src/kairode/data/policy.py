"""Policies: choose actions from observations, with a memory."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from kairode.envs.core import Action, Continuous, Discrete, Obs, Spec, Tau
from kairode.errors import KairodeError

Memory = Any
"""Any pytree of arrays."""


class Policy(eqx.Module):
    """Chooses an action at each decision, with a memory carried from one decision to the next (empty if not needed).

    A policy is a frozen Equinox module; its state is the memory it returns. This one cycles through four actions:

        class Cycle(Policy):
            def start(self, *, key):
                return jnp.zeros((), jnp.int32)

            def act(self, memory, obs, elapsed, *, key):
                return memory % 4, memory + 1
    """

    def start(self, *, key: Key[Array, ""]) -> Memory:
        """Memory before the first observation."""
        return ()

    @abc.abstractmethod
    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        """Action and new memory, given the observation and the time since the last decision (0 at the first one)."""


class Random(Policy):
    """Uniformly random actions."""

    actions: Discrete | Continuous = eqx.field(static=True)

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        if isinstance(self.actions, Discrete):
            return jax.random.randint(key, (), 0, self.actions.n), memory
        low, high = jnp.array(self.actions.low), jnp.array(self.actions.high)
        return jax.random.uniform(key, (self.actions.n,), minval=low, maxval=high), memory


class Constant(Policy):
    """Always the same action."""

    action: Any

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        return jnp.asarray(self.action), memory


class Memoryless(Policy):
    """A plain function of the observation and a random key."""

    choose: Callable[[Obs, Key[Array, ""]], Action]

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        return jnp.asarray(self.choose(obs, key)), memory


def as_policy(policy: Policy | Callable[..., Any] | None, spec: Spec) -> Policy:
    """Convert None (random), a function of (observation, key), or a `Policy` to a policy."""
    if policy is None:
        return Random(spec.actions)
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, type):
        raise KairodeError(f"{policy.__name__} is a class: pass an instance, {policy.__name__}(...).")
    if callable(policy):
        return Memoryless(policy)
    raise KairodeError(f"{policy!r} is not a policy: pass None (random), a function of (obs, key), or a Policy.")
