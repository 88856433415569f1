"""What chooses the actions: anything that remembers, observes and acts."""

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
    """Chooses an action at each decision, with a memory carried from one to the next (empty, if it needs none).

    A policy is a frozen Equinox module: what changes is the memory it returns. This one takes turns:

        class Turns(Policy):
            def start(self, *, key):
                return jnp.zeros((), jnp.int32)

            def act(self, memory, obs, elapsed, *, key):
                return memory % 4, memory + 1
    """

    @abc.abstractmethod
    def start(self, *, key: Key[Array, ""]) -> Memory:
        """The memory before the first observation."""

    @abc.abstractmethod
    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        """The action, given what is seen and the time since the last decision (0 at the first)."""


class Random(Policy):
    """Every action alike."""

    actions: Discrete | Continuous = eqx.field(static=True)

    def start(self, *, key: Key[Array, ""]) -> Memory:
        """Nothing."""
        return ()

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        """Uniform over the actions."""
        if isinstance(self.actions, Discrete):
            return jax.random.randint(key, (), 0, self.actions.n), memory
        low, high = jnp.array(self.actions.low), jnp.array(self.actions.high)
        return jax.random.uniform(key, (self.actions.n,), minval=low, maxval=high), memory


class Constant(Policy):
    """The same action always."""

    action: Any

    def start(self, *, key: Key[Array, ""]) -> Memory:
        """Nothing."""
        return ()

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        """The action."""
        return jnp.asarray(self.action), memory


class Memoryless(Policy):
    """A plain function of the observation and a random key."""

    choose: Callable[[Obs, Key[Array, ""]], Action]

    def start(self, *, key: Key[Array, ""]) -> Memory:
        """Nothing."""
        return ()

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        """What the function says."""
        return jnp.asarray(self.choose(obs, key)), memory


def as_policy(policy: Policy | Callable[..., Any] | None, spec: Spec) -> Policy:
    """A policy from what people write: None for random, a function of observation and key, or a policy."""
    if policy is None:
        return Random(spec.actions)
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, type):
        raise KairodeError(f"{policy.__name__} is a class: give an instance of it, {policy.__name__}(...).")
    if callable(policy):
        return Memoryless(policy)
    raise KairodeError(f"{policy!r} is no policy: give None for random, a function of (obs, key), or a Policy.")
