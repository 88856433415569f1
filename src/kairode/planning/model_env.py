"""A learned model as an environment.

A `ModelEnv` wraps one or several fitted models and a task as an `Environment`: rollouts, agents and evaluation work
the same way on the real system and in imagination (the paper's algorithm 2).
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kairode.data.trajectory import Trajectory, carried_forward
from kairode.envs.core import Action, Environment, Obs, Spec, Task, Tau
from kairode.envs.host import HostEnvironment
from kairode.errors import KairodeError, KairodeWarning
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import check_same
from kairode.models.timer import ContinuousTimer, NoTimer
from kairode.planning.learned_task import system_task
from kairode.trees import one, stack


class ModelEnvState(NamedTuple):
    """State of a model environment."""

    obs: Any
    """The last prediction."""
    z: Any
    """Latent state of every model, [models, z]."""
    member: Any
    """Index of the model that generates this episode (or step)."""
    disagreement: Any
    """Standard deviation of the members' predictions in standardised units, mean over variables."""


class ModelEnv(Environment):
    """Environment of a learned model: predictions are fed back until the horizon or a predicted terminal state."""

    task: Task
    models: DynamicsModel
    """Members of the ensemble, stacked along the first axis."""
    starts: Environment | Float[Array, "n obs"]
    """Initial states: the resets of an environment, or a set of observations to draw from."""
    sample_intervals: bool = eqx.field(static=True, default=True)
    """Sample intervals from the timer's distribution. False takes the most likely interval, as in the paper: intervals
    that vary in the data are then constant in imagination."""
    resample_member: bool = eqx.field(static=True, default=False)
    """Draw a member for every step rather than for every episode."""
    obs_bounds: Float[Array, "*agents 2 obs"] | None = None
    """Lower and upper bound of predictions. Outside the range of the data models extrapolate, and a policy would
    exploit rewards that grow there without bound."""
    constant: Bool[Array, "*agents obs"] | None = None
    """Variables that keep their value throughout an episode, such as age (`constant_variables` finds them)."""

    @property
    def size(self) -> int:
        """Number of models."""
        return self.models.decoder.weight.shape[0]

    def reset(self, *, key: Key[Array, ""]) -> ModelEnvState:
        start_key, latent_key, member_key = jax.random.split(key, 3)
        if isinstance(self.starts, Environment):
            obs = self.starts.observe(self.starts.reset(key=start_key))
        else:
            obs = self.starts[jax.random.randint(start_key, (), 0, self.starts.shape[0])]
        keys = jax.random.split(latent_key, self.size)
        z = eqx.filter_vmap(lambda model, key: model.start(key=key))(self.models, keys)
        return ModelEnvState(obs, z, self._member(member_key), jnp.zeros(()))

    def observe(self, state: ModelEnvState) -> Obs:
        return state.obs

    def interval(self, state: ModelEnvState, action: Action, *, key: Key[Array, ""]) -> Tau:
        """Interval of the member's timer; without a timer, uniform on the task's intervals."""
        if isinstance(self.models.timer, NoTimer):
            return _uniform(self.task, key)
        own = one((self.models, state.z), state.member)
        return own[0].interval(own[1], state.obs, action, key=key if self.sample_intervals else None)

    def transition(self, state: ModelEnvState, action: Action, tau: Tau, *, key: Key[Array, ""]) -> ModelEnvState:
        """Step every member; the prediction of one is the next observation."""

        def predict(model: DynamicsModel, z: Any) -> tuple[Any, Obs]:
            return model.step(z, state.obs, action, tau)

        z, seen = eqx.filter_vmap(predict)(self.models, state.z)
        return self._next_state(state.obs, z, seen, self._member(key) if self.resample_member else state.member)

    def course(
        self, state: ModelEnvState, action: Action, taus: Float[Array, " k"], *, key: Key[Array, ""]
    ) -> ModelEnvState:
        """Path of every member, in one solve each."""

        def along(model: DynamicsModel, z: Any) -> tuple[Any, Any]:
            return model.path(z, state.obs, action, taus)

        z, seen = eqx.filter_vmap(along, out_axes=1)(self.models, state.z)
        member = self._member(key) if self.resample_member else state.member
        return jax.vmap(self._next_state, in_axes=(None, 0, 0, None))(state.obs, z, seen, member)

    def _next_state(
        self, before: Obs, z: Any, seen: Float[Array, "models obs"], member: Int[Array, ""]
    ) -> ModelEnvState:
        """State after predictions `seen` of all members, with `member` as the one that generates the observation."""
        if self.constant is not None:
            seen = jnp.where(self.constant, before, seen)
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
    env: Environment | HostEnvironment | Task,
    *,
    starts: Environment | Trajectory | np.ndarray | None = None,
    branch: int | None = None,
    sample_intervals: bool = True,
    **options: Any,
) -> ModelEnv:
    """Build an environment from one or several fitted models.

    Args:
        models: fitted models of one kind.
        env: the real system, which provides task and initial states; or a task alone.
        starts: initial states, if not those of `env`: a trajectory (its first observations), or observations [n, obs].
        branch: truncate imagined episodes after this many decisions, so that prediction errors do not accumulate; with
            `starts` along real episodes (`decision_observations`), imagination branches off from real data.
        sample_intervals: draw intervals from the timer's distribution; False takes the most likely one, as in the
            paper. Without a timer, intervals are always uniform on the task's.
        options: `resample_member`, `obs_bounds` and `constant` of `ModelEnv` (`obs_range` and `constant_variables`
            compute the latter two from data).
    """
    members = [models] if isinstance(models, DynamicsModel) else list(models)
    if not members or not all(isinstance(model, DynamicsModel) for model in members):
        raise KairodeError("a model environment needs one fitted model or a list of them.")
    if isinstance(env, HostEnvironment):
        env = system_task(env, starts if isinstance(starts, Trajectory) else None)
    task = task_of(env)
    check_same(members[0].spec, task.spec)
    found: Any = env if starts is None else starts
    if isinstance(found, Trajectory):
        found = carried_forward(found).observation[:, 0]
    if isinstance(found, Task):
        raise KairodeError(
            "a task does not define initial states: pass data too (starts=data here, data=data in "
            "kairode.learn), or the environment."
        )
    if not isinstance(found, Environment):
        found = jnp.asarray(found, jnp.float32)
        if found.ndim != 2 or found.shape[1] != len(task.spec.observations) or not len(found):
            raise KairodeError(
                f"initial states must be observations of shape (n, {len(task.spec.observations)}), got {found.shape}."
            )
    if branch is not None:
        task = dataclasses.replace(task, spec=dataclasses.replace(task.spec, max_decisions=branch))
    timer = members[0].timer
    if sample_intervals and isinstance(timer, ContinuousTimer) and timer.spread is None:
        warnings.warn(
            "this model was saved by an older version, which did not learn how intervals vary: sample_intervals has no "
            "effect, and intervals are the most likely ones. Fit it again to sample them.",
            KairodeWarning,
            stacklevel=2,
        )
    # Horizon and names are the task's; the unit of time (tick) is the model's.
    spec = dataclasses.replace(task.spec, tick=members[0].spec.tick)
    return ModelEnv(task, ensemble(members, spec), found, sample_intervals=sample_intervals, **options)


def task_of(env: Any) -> Task:
    """The task of an environment, or the task itself; raises for anything else."""
    task = env.task if isinstance(env, Environment) else env
    if not isinstance(task, Task):
        raise KairodeError(f"{env!r} is neither an environment nor a task: pass e.g. kairode.make('hiv') or its task.")
    return task


def ensemble(members: Sequence[DynamicsModel], spec: Spec) -> DynamicsModel:
    """Stack models of one kind along a new first axis, all with the same spec."""
    same = [dataclasses.replace(model, spec=spec) for model in members]
    kinds: list[Any] = [jax.tree.structure(eqx.filter(model, eqx.is_array)) for model in same]
    shapes = [[x.shape for x in jax.tree.leaves(model)] for model in same]
    if any(kind != kinds[0] for kind in kinds) or any(shape != shapes[0] for shape in shapes):
        raise KairodeError(
            "the members of an ensemble must have the same kind and size: fit them with the same settings, and all to "
            "data with missing values or all to data without."
        )
    return stack(same)


def decision_observations(data: Trajectory) -> Float[np.ndarray, "n obs"]:
    """All observations at which an action was chosen."""
    return np.asarray(carried_forward(data).observation)[:, :-1][data.mask]


STARTS = 4096
"""Number of initial observations drawn from data; constant, so that programs compile once."""


def sample_start_observations(data: Trajectory, seed: int = 0) -> Float[np.ndarray, "n obs"]:
    """Observations at decisions, drawn with replacement."""
    every = decision_observations(data)
    return every[np.random.default_rng(seed).choice(len(every), STARTS)]


def obs_range(data: Trajectory, margin: float) -> Float[np.ndarray, "2 obs"]:
    """Range of each variable in the data, widened on both sides by `margin` times its width.

    Bounds that the task defines for a variable also apply.
    """
    rows = np.concatenate([np.asarray(data.observation)[:, 0], np.asarray(data.observation)[:, 1:][data.mask]])
    low = np.where(np.isnan(rows), np.inf, rows).min(0)
    high = np.where(np.isnan(rows), -np.inf, rows).max(0)
    unmeasured = low > high
    low, high = np.where(unmeasured, -np.inf, low), np.where(unmeasured, np.inf, high)
    bounds = np.array([(v.low, v.high) for v in data.spec.observations]).T
    width = np.where(unmeasured, 0.0, margin * (high - low))
    return np.stack([np.maximum(low - width, bounds[0]), np.minimum(high + width, bounds[1])]).astype(np.float32)
