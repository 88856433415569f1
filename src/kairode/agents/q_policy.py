"""A learned policy: greedy on Q, softened by a small share of random actions."""

import equinox as eqx
from jaxtyping import Array, Key

from kairode.agents.dqn import epsilon_greedy
from kairode.agents.encoder import ObsEncoder
from kairode.agents.network import ReLUNetwork
from kairode.data.policy import Memory, Policy
from kairode.envs.core import Action, Obs, Spec, Tau


class QPolicy(Policy):
    """The action with the highest value, or with probability `epsilon` any."""

    q: ReLUNetwork
    encoder: ObsEncoder
    spec: Spec = eqx.field(static=True)
    epsilon: float = eqx.field(static=True, default=0.05)
    scale: float = eqx.field(static=True, default=1.0)
    """What rewards were multiplied with when the values were learned."""
    accrues: bool = eqx.field(static=True, default=False)
    """Whether the values are of rewards on every finest step, so that intervals can be chosen by them."""

    def start(self, *, key: Key[Array, ""]) -> Memory:
        """What its perception starts with."""
        return self.encoder.start(self.spec, key=key)

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        """Look, choose, and note what was chosen."""
        features, memory = self.encoder.encode(memory, obs, elapsed)
        action = epsilon_greedy(self.q(features), self.epsilon, key=key)
        return action, self.encoder.remember(memory, obs, action)
