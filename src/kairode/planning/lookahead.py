"""What would be observed while an action is held: by the true dynamics, or as fitted models believe."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kairode.agents.encoder import TrackedMemory, TrackingEncoder, TrackingPolicy
from kairode.agents.q_policy import QPolicy
from kairode.data.policy import Policy
from kairode.envs.accrual import inner_state
from kairode.envs.core import Environment, Spec
from kairode.envs.schedule import Decision
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel

Course = Float[Array, "members k obs"]
"""What would be observed at several times, as every member believes."""


class Lookahead(eqx.Module):
    """What will be observed while an action is held."""

    @abc.abstractmethod
    def predict(self, decision: Decision, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> Course:
        """Observations at several times (ascending) after a decision."""

    @abc.abstractmethod
    def track(self, policy: Policy, spec: Spec) -> Policy:
        """The policy, remembering what is needed to look ahead."""


class TrueLookahead(Lookahead):
    """The true dynamics: the oracle of the paper's figure."""

    env: Environment

    def predict(self, decision: Decision, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> Course:
        """What really would be observed."""
        state = inner_state(decision.state)
        own: Any = jax.tree.structure(jax.eval_shape(lambda: self.env.reset(key=key)))
        if own != jax.tree.structure(state):
            raise KairodeError(
                "the true dynamics choose intervals on the real system alone: in imagination let the models choose, "
                "best_intervals(models, ..)."
            )
        states = self.env.course(state, decision.action, taus, key=key)
        return jax.vmap(self.env.observe)(states)[None]

    def track(self, policy: Policy, spec: Spec) -> Policy:
        """Nothing is needed but the state."""
        return policy


class ModelLookahead(Lookahead):
    """Fitted models, each with its latent state carried along the episode."""

    models: DynamicsModel
    """Stacked: an axis in front of every array."""
    obs_bounds: Float[Array, "*agents 2 obs"] | None = None
    """Least and most that a prediction may be, as in an imagined world."""

    def predict(self, decision: Decision, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> Course:
        """What each model says along its path."""
        if not isinstance(decision.memory, TrackedMemory):
            raise KairodeError(
                "a schedule chosen by models follows them along the episode: use it with kairode.evaluate, "
                "kairode.collect or kairode.learn, which let the policy remember their latent states."
            )

        def along(model: DynamicsModel, z: Any) -> Array:
            return model.path(z, decision.obs, decision.action, taus)[1]

        seen = eqx.filter_vmap(along)(self.models, decision.memory.latents.z)
        if self.obs_bounds is None:
            return seen
        return jnp.clip(seen, self.obs_bounds[0][None, None], self.obs_bounds[1][None, None])

    def track(self, policy: Policy, spec: Spec) -> Policy:
        """The models' latent states are carried along."""
        if isinstance(policy, QPolicy) and isinstance(policy.encoder, TrackingEncoder):
            return policy
        return TrackingPolicy(policy, self.models, spec)
