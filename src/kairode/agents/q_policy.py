"""Epsilon-greedy policy of a Q network."""

import equinox as eqx
from jaxtyping import Array, Float, Key

from kairode.agents.dqn import epsilon_greedy
from kairode.agents.encoder import Features, ObsEncoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.support import ActionSupport
from kairode.data.policy import Memory, Policy
from kairode.envs.core import Action, Obs, Spec, Tau


class QPolicy(Policy):
    """The greedy action; with probability `epsilon`, a uniformly random one."""

    q: ReLUNetwork
    encoder: ObsEncoder
    spec: Spec = eqx.field(static=True)
    epsilon: float = eqx.field(static=True, default=0.05)
    scale: float = eqx.field(static=True, default=1.0)
    """Factor of the rewards during training."""
    accrues: bool = eqx.field(static=True, default=False)
    """Whether the values count rewards on every finest time step, as `optimize_schedule` requires."""
    support: ActionSupport | None = None
    """Excludes actions that the data do not support."""

    def values(self, features: Features, obs: Obs) -> Float[Array, " a"]:
        """Q(s, a) in units of the scaled reward; -inf for actions without support."""
        found = self.q(features)
        return found if self.support is None else self.support.restrict(obs, found)

    def start(self, *, key: Key[Array, ""]) -> Memory:
        return self.encoder.start(self.spec, key=key)

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        features, memory = self.encoder.encode(memory, obs, elapsed)
        action = epsilon_greedy(self.values(features, obs), self.epsilon, key=key)
        return action, self.encoder.remember(memory, obs, action)
