"""Imagination that is pessimistic outside of the data.

Three ways, which combine: the reward is reduced by the ensemble's disagreement (MOPO, Yu et al. 2020), an imagined
episode ends where the disagreement passes a limit (MOReL, Kidambi et al. 2020), and where an action is taken that the
data do not support in such a state (BCQ, Fujimoto et al. 2019).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from kairode.agents.support import ActionSupport
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Action, Discrete, Environment, Moment, Obs, Task, Tau
from kairode.models.predict import predict_with_states
from kairode.planning.model_env import ModelEnv, ModelEnvState


class PessimisticState(NamedTuple):
    """State of a pessimistic model environment."""

    inner: Any
    """That of the model environment."""
    halted: Any
    """Whether the episode ended because it left the data."""

    @property
    def disagreement(self) -> Any:
        """The ensemble's disagreement at the last prediction."""
        return self.inner.disagreement


class PessimisticEnv(Environment):
    """A model environment that is left at a loss where it is not to be trusted."""

    task: Task
    """That of the model environment."""
    env: ModelEnv
    penalty: Float[Array, "*agents"]
    """Reward that a unit of disagreement costs."""
    limit: Float[Array, "*agents"]
    """Disagreement beyond which the episode ends; inf for never."""
    floor: Float[Array, "*agents"]
    """Reward at such an end: the value of the worst that the data show."""
    support: ActionSupport | None = None
    """Actions outside of it end the episode too."""

    def reset(self, *, key: Key[Array, ""]) -> PessimisticState:
        return PessimisticState(self.env.reset(key=key), jnp.zeros((), bool))

    def observe(self, state: PessimisticState) -> Obs:
        return self.env.observe(state.inner)

    def interval(self, state: PessimisticState, action: Action, *, key: Key[Array, ""]) -> Tau:
        return self.env.interval(state.inner, action, key=key)

    def transition(self, state: PessimisticState, action: Action, tau: Tau, *, key: Key[Array, ""]) -> PessimisticState:
        inner = self.env.transition(state.inner, action, tau, key=key)
        return PessimisticState(inner, self._left(state, action, inner))

    def course(
        self, state: PessimisticState, action: Action, taus: Float[Array, " k"], *, key: Key[Array, ""]
    ) -> PessimisticState:
        inner = self.env.course(state.inner, action, taus, key=key)
        return PessimisticState(inner, jax.vmap(lambda one: self._left(state, action, one))(inner))

    def _left(self, state: PessimisticState, action: Action, inner: ModelEnvState) -> Bool[Array, ""]:
        """Whether a step left the data, by its action or by the models' disagreement about it."""
        left = inner.disagreement > self.limit
        if self.support is not None and isinstance(self.task.spec.actions, Discrete):
            left = left | ~self.support.mask(state.inner.obs)[action]
        return left

    def halted(self, state: PessimisticState) -> Bool[Array, ""]:
        return state.halted

    def earned(self, moment: Moment, action: Action, state: PessimisticState, obs: Obs, tau: Tau) -> Float[Array, ""]:
        """r - penalty disagreement, and the floor in place of all rewards after an end."""
        reward = self.task.reward(moment.obs, action, obs, tau) - self.penalty * state.disagreement
        return jnp.where(state.halted, self.floor, reward)


def data_disagreement(
    models: Any, data: Trajectory, constant: Bool[np.ndarray, " obs"] | None = None
) -> Float[np.ndarray, " n"]:
    """Disagreement of an ensemble about the next observation at every decision of the data, in standardised units: the
    mean over variables of the standard deviation over members, as in `ModelEnvState`. About variables that are constant
    there is none."""
    members = list(models)
    if len(members) < 2:
        return np.zeros(int(np.sum(data.mask)))
    each = np.stack([predict_with_states(one, data, teacher_forcing=True)[0] for one in members])
    std = np.array(members[0].scale.std)
    spread = each.std(0) / std
    return (spread if constant is None else np.where(constant, 0.0, spread)).mean(-1)[data.mask]
