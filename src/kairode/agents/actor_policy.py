"""An actor network as a policy."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from kairode.agents.actor_critic import Networks, explore, greedy
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.config.agents import ActorCriticConfig
from kairode.data.policy import Memory, Policy
from kairode.envs.core import Action, Continuous, Obs, Spec, Tau
from kairode.errors import KairodeError


def bounds(spec: Spec, like: Any) -> tuple[Any, Any]:
    """Midpoint and half width of each action's range, broadcast to the shape of `like` (actions on the last axis)."""
    if not isinstance(spec.actions, Continuous):
        raise KairodeError(
            f"actor-critic agents need continuous actions; those of '{spec.name}' are discrete. Use DQN."
        )
    low, high = np.array(spec.actions.low), np.array(spec.actions.high)
    middle, reach = ((low + high) / 2).astype(like.dtype), ((high - low) / 2).astype(like.dtype)
    return np.broadcast_to(middle, like.shape), np.broadcast_to(reach, like.shape)


def controls(spec: Spec, action: Any) -> Any:
    """Scale actions in [-1, 1] to the bounds of the action space."""
    middle, reach = bounds(spec, action)
    return middle + reach * action


def actions(spec: Spec, control: Any) -> Any:
    """The inverse of `controls`; 0 for an action that is constant."""
    middle, reach = bounds(spec, control)
    return (control - middle) / np.where(reach > 0, reach, 1)


class PreviousObs(NamedTuple):
    """Memory of an `ActorPolicy`: the last observation."""

    obs: Any


class ActorPolicy(Policy):
    """The actor's action, with exploration noise if `explores`."""

    networks: Networks
    normalizer: ObsNormalizer
    settings: ActorCriticConfig = eqx.field(static=True)
    spec: Spec = eqx.field(static=True)
    explores: bool = eqx.field(static=True, default=False)

    def start(self, *, key: Key[Array, ""]) -> Memory:
        return PreviousObs(jnp.zeros(len(self.spec.observations)))

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        features = self.normalizer.features(self.normalizer.seen(obs, memory.obs, elapsed == 0))
        actor = self.networks.actor
        if self.explores:
            action = explore(self.settings, actor, features, key=key)
        else:
            action = greedy(self.settings, actor, features)
        return controls(self.spec, action), PreviousObs(obs)
