"""Predictions of the observations while an action is held: by the true dynamics, or by fitted models."""

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
"""Predicted observations at several times, for every member."""


class Lookahead(eqx.Module):
    """Predicts the observations while an action is held."""

    @abc.abstractmethod
    def predict(self, decision: Decision, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> Course:
        """Observations at several times (ascending) after a decision."""

    def track(self, policy: Policy, spec: Spec) -> Policy:
        """The policy, with a memory that holds what `predict` needs."""
        return policy


class TrueLookahead(Lookahead):
    """The true dynamics: the oracle of the paper's figure."""

    env: Environment

    def predict(self, decision: Decision, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> Course:
        state = inner_state(decision.state)
        own: Any = jax.tree.structure(jax.eval_shape(lambda: self.env.reset(key=key)))
        if own != jax.tree.structure(state):
            raise KairodeError(
                "the true dynamics can choose intervals only on the real system: in a model environment use "
                "optimize_schedule(models, ..)."
            )
        states = self.env.course(state, decision.action, taus, key=key)
        return jax.vmap(self.env.observe)(states)[None]


class ModelLookahead(Lookahead):
    """Fitted models whose latent states are tracked along the episode."""

    models: DynamicsModel
    """Stacked along the first axis."""
    obs_bounds: Float[Array, "*agents 2 obs"] | None = None
    """Lower and upper bound of predictions, as in `ModelEnv`."""

    def predict(self, decision: Decision, taus: Float[Array, " k"], *, key: Key[Array, ""]) -> Course:
        if not isinstance(decision.memory, TrackedMemory):
            raise KairodeError(
                "this schedule needs the models' latent states along the episode: use it with kairode.evaluate, "
                "kairode.collect or kairode.learn, which track them."
            )

        def along(model: DynamicsModel, z: Any) -> Array:
            return model.path(z, decision.obs, decision.action, taus)[1]

        seen = eqx.filter_vmap(along)(self.models, decision.memory.latents.z)
        if self.obs_bounds is None:
            return seen
        return jnp.clip(seen, self.obs_bounds[0][None, None], self.obs_bounds[1][None, None])

    def track(self, policy: Policy, spec: Spec) -> Policy:
        if isinstance(policy, QPolicy) and isinstance(policy.encoder, TrackingEncoder):
            return policy
        return TrackingPolicy(policy, self.models, spec)
