"""A learned model is an environment: imagination.

A `World` wraps one or several fitted models and a task as an `Environment`, so that the rollout, the agents and the
evaluation that serve the real system serve the imagined one too (the paper's algorithm 2).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from kairode.data.trajectory import Trajectory
from kairode.envs.core import Action, Environment, Obs, Spec, Task, Tau
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import check_same
from kairode.models.timer import NoTimer
from kairode.trees import one, stack


class ModelEnvState(NamedTuple):
    """A state of the world."""

    obs: Any
    """As the models last predicted it."""
    z: Any
    """The latent state of every model, [models, z]."""
    member: Any
    """Which model this episode (or step) happens in."""
    disagreement: Any
    """How far the models' predictions lay apart: standard deviation in units of the scale, mean over variables."""


class ModelEnv(Environment):
    """An imagined system: the models' own predictions are fed back until the horizon or a predicted terminal."""

    task: Task
    models: DynamicsModel
    """The members of the ensemble, stacked: an axis in front of every array."""
    starts: Environment | Float[Array, "n obs"]
    """Where episodes start: as this environment resets, or one of these observations."""
    sample_intervals: bool = eqx.field(static=True, default=True)
    """Whether intervals are drawn from the timer's distribution; otherwise the most likely one is taken, as in the
    paper, so that a system whose intervals vary is imagined with intervals that do not."""
    resample_member: bool = eqx.field(static=True, default=False)
    """Whether every step happens in a member drawn anew, not every episode."""
    obs_bounds: Float[Array, "*agents 2 obs"] | None = None
    """Least and most that a prediction may be: outside what was ever seen, models have no reason to be right, and a
    reward that grows without bound there is what a policy would find."""

    @property
    def size(self) -> int:
        """How many models there are."""
        return self.models.decoder.weight.shape[0]

    def reset(self, *, key: Key[Array, ""]) -> ModelEnvState:
        """A start of the real system; every member's z as where nothing was seen."""
        start_key, latent_key, member_key = jax.random.split(key, 3)
        if isinstance(self.starts, Environment):
            obs = self.starts.observe(self.starts.reset(key=start_key))
        else:
            obs = self.starts[jax.random.randint(start_key, (), 0, self.starts.shape[0])]
        keys = jax.random.split(latent_key, self.size)
        z = eqx.filter_vmap(lambda model, key: model.start(key=key))(self.models, keys)
        return ModelEnvState(obs, z, self._member(member_key), jnp.zeros(()))

    def observe(self, state: ModelEnvState) -> Obs:
        """What the models predicted."""
        return state.obs

    def interval(self, state: ModelEnvState, action: Action, *, key: Key[Array, ""]) -> Tau:
        """The member's timer; without one, the intervals are known: uniform on the task's."""
        if isinstance(self.models.timer, NoTimer):
            return _uniform(self.task, key)
        own = one((self.models, state.z), state.member)
        return own[0].interval(own[1], state.obs, action, key=key if self.sample_intervals else None)

    def transition(self, state: ModelEnvState, action: Action, tau: Tau, *, key: Key[Array, ""]) -> ModelEnvState:
        """Every member steps along; the prediction of one is what happens."""

        def predict(model: DynamicsModel, z: Any) -> tuple[Any, Obs]:
            return model.step(z, state.obs, action, tau)

        z, seen = eqx.filter_vmap(predict)(self.models, state.z)
        return self._happens(z, seen, self._member(key) if self.resample_member else state.member)

    def course(
        self, state: ModelEnvState, action: Action, taus: Float[Array, " k"], *, key: Key[Array, ""]
    ) -> ModelEnvState:
        """Along the flow of every member, in one solve each."""

        def along(model: DynamicsModel, z: Any) -> tuple[Any, Any]:
            return model.path(z, state.obs, action, taus)

        z, seen = eqx.filter_vmap(along, out_axes=1)(self.models, state.z)
        member = self._member(key) if self.resample_member else state.member
        return jax.vmap(self._happens, in_axes=(0, 0, None))(z, seen, member)

    def _happens(self, z: Any, seen: Float[Array, "models obs"], member: Int[Array, ""]) -> ModelEnvState:
        """The state, where all members' predictions are these and one of them comes true."""
        obs = seen[member]
        if self.obs_bounds is not None:
            obs = jnp.clip(obs, self.obs_bounds[0], self.obs_bounds[1])
        spread = jax.vmap(self.models.scale.apply)(seen).std(0).mean()
        return ModelEnvState(obs, z, member, spread)

    def _member(self, key: Key[Array, ""]) -> Int[Array, ""]:
        return jax.random.randint(key, (), 0, self.size)


def _uniform(task: Task, key: Key[Array, ""]) -> Tau:
    intervals = task.spec.intervals
    if intervals.classes is None:
        return jax.random.uniform(key, (), minval=intervals.low, maxval=intervals.high)
    return intervals.low + intervals.step * jax.random.randint(key, (), 0, intervals.classes).astype(jnp.float32)


def make_model_env(
    models: DynamicsModel | Sequence[DynamicsModel],
    env: Environment | Task,
    *,
    starts: Environment | Trajectory | np.ndarray | None = None,
    branch: int | None = None,
    sample_intervals: bool = True,
    **options: Any,
) -> ModelEnv:
    """The world that one or several fitted models believe in.

    Args:
        models: fitted models of one kind.
        env: the real system, of which the task and the start states are taken; or a task alone.
        starts: where episodes start, if not as `env` does: experience (its first observations), or observations [n,
            obs].
        branch: cut imagined episodes after so many decisions, so that errors have little time to add up; with `starts`
            all along real episodes (`moments`), imagination branches off from what really happened.
        sample_intervals: draw intervals from the timer's distribution; False takes the most likely one, as in the
            paper. Without a timer intervals are drawn uniformly from the task's, whatever this says.
        options: `switching`, `within` of `World` (`seen_range` makes the last from experience).
    """
    members = [models] if isinstance(models, DynamicsModel) else list(models)
    if not members or not all(isinstance(model, DynamicsModel) for model in members):
        raise KairodeError("an imagined world needs fitted models: give one, or a list of them.")
    task = env.task if isinstance(env, Environment) else env
    if not isinstance(task, Task):
        raise KairodeError(f"{env!r} is neither an environment nor a task: give kairode.make('hiv') or its task.")
    check_same(members[0].spec, task.spec)
    found: Any = env if starts is None else starts
    if isinstance(found, Trajectory):
        found = found.observation[:, 0]
    if isinstance(found, Task):
        raise KairodeError(
            "a task says nothing of where episodes start: give experience too (starts=data here, data=data in "
            "kairode.learn), or the environment."
        )
    if not isinstance(found, Environment):
        found = jnp.asarray(found, jnp.float32)
        if found.ndim != 2 or found.shape[1] != len(task.spec.observations) or not len(found):
            raise KairodeError(
                f"start states must be observations of shape (n, {len(task.spec.observations)}), got {found.shape}."
            )
    if branch is not None:
        task = dataclasses.replace(task, spec=dataclasses.replace(task.spec, max_decisions=branch))
    # The task knows the horizon and the names; the time that counts as one is the model's own.
    spec = dataclasses.replace(task.spec, tick=members[0].spec.tick)
    return ModelEnv(task, ensemble(members, spec), found, sample_intervals=sample_intervals, **options)


def ensemble(members: Sequence[DynamicsModel], spec: Spec) -> DynamicsModel:
    """Several models of one kind as one, an axis in front of every array, all for the same task."""
    same = [dataclasses.replace(model, spec=spec) for model in members]
    kinds: list[Any] = [jax.tree.structure(eqx.filter(model, eqx.is_array)) for model in same]
    shapes = [[x.shape for x in jax.tree.leaves(model)] for model in same]
    if any(kind != kinds[0] for kind in kinds) or any(shape != shapes[0] for shape in shapes):
        raise KairodeError("the models of one world must be of one kind and size: fit them with the same settings.")
    return stack(same)


def decision_observations(data: Trajectory) -> Float[np.ndarray, "n obs"]:
    """Every observation at which something was decided."""
    return np.asarray(data.observation)[:, :-1][data.mask]


STARTS = 4096
"""Observations along real episodes that imagined episodes start from: always as many, so that programs compile once."""


def sample_start_observations(data: Trajectory, seed: int = 0) -> Float[np.ndarray, "n obs"]:
    """Observations at decisions, drawn with replacement."""
    every = decision_observations(data)
    return every[np.random.default_rng(seed).choice(len(every), STARTS)]


def obs_range(data: Trajectory, margin: float) -> Float[np.ndarray, "2 obs"]:
    """The range of each variable in some experience, widened on both sides by so many times itself.

    Where the task knows bounds of a variable, they hold too.
    """
    rows = np.concatenate([np.asarray(data.observation)[:, 0], np.asarray(data.observation)[:, 1:][data.mask]])
    low, high = rows.min(0), rows.max(0)
    bounds = np.array([(v.low, v.high) for v in data.spec.observations]).T
    width = margin * (high - low)
    return np.stack([np.maximum(low - width, bounds[0]), np.minimum(high + width, bounds[1])]).astype(np.float32)
