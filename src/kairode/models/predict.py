"""Predictions along whole episodes: teacher forcing, scheduled sampling, open loop.

Time is the first axis and the batch the last ([time, feature, batch]): each step is then a product of a matrix with
many columns and elementwise operations on whole vectors.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kairode.data.trajectory import Trajectory
from kairode.envs.core import Spec
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel, encode_action
from kairode.models.initial import Gaussian, Variational
from kairode.models.networks import unfold


class Episodes(eqx.Module):
    """Model inputs of episodes: standardised observations, encoded actions, time in ticks."""

    obs: Float[Array, "*n moments d"]
    action: Float[Array, "*n T a"]
    tau: Float[Array, "*n T"]
    real: Bool[Array, "*n T"]
    """Mask of the decisions that are not padding."""
    observed: Bool[Array, "*n moments d"] | None = None
    """Mask of the values that were measured; `obs` is not used elsewhere (and 0). None if all were."""

    def batch_last(self) -> "Episodes":
        """From [episode, time, feature] to [time, feature, episode]."""
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), self)


def prepare(model: DynamicsModel, trajectory: Trajectory) -> Episodes:
    """Episodes as inputs of a model; raises if observations or actions differ from the model's."""
    if not (isinstance(model, DynamicsModel) and isinstance(trajectory, Trajectory)):
        raise KairodeError(
            f"expected a model and a trajectory, in this order, got {type(model).__name__} and "
            f"{type(trajectory).__name__}."
        )
    spec = model.spec
    check_same(spec, trajectory.spec)
    obs = model.scale.apply(np.asarray(trajectory.observation, np.float32))
    observed = model.scale.usable(obs)
    masked = model.masked or not bool(observed.all())
    return Episodes(
        obs=jnp.asarray(np.where(observed, obs, 0.0) if masked else obs, jnp.float32),
        action=jnp.asarray(encode_action(spec, jnp.asarray(trajectory.action)), jnp.float32),
        tau=jnp.asarray(np.asarray(trajectory.interval) / spec.tick, jnp.float32),
        real=jnp.asarray(trajectory.mask),
        observed=jnp.asarray(observed) if masked else None,
    )


def check_same(model: Spec, data: Spec, who: str = "model") -> None:
    """Raise if a system or data has other observations or actions than the model (or policy)."""

    def names(spec: Spec) -> tuple[list[str], list[str]]:
        return [v.name for v in spec.observations], list(spec.actions.names)

    for what, mine, theirs in zip(("observations", "actions"), names(model), names(data), strict=True):
        if mine != theirs:
            raise KairodeError(
                f"the {who} has {len(mine)} {what} ({', '.join(mine)}), but '{data.name}' has {len(theirs)} "
                f"({', '.join(theirs)}): they must match."
            )
    if type(model.actions) is not type(data.actions):
        raise KairodeError(f"the {who}'s actions and those of '{data.name}' are not both discrete or both continuous.")


class Course(NamedTuple):
    """Latent states and predictions along episodes, batch last."""

    before: Float[Array, "T z n"]
    """z_0 .. z_{T-1}, the latent states at the decisions."""
    after: Float[Array, "T z n"]
    """z_1 .. z_T."""
    drive: Float[Array, "T d n"]
    """Contribution of observation and action."""
    obs: Float[Array, "T d n"]
    """Predicted observations 1 .. T, standardised."""
    known: Float[Array, "T d n"] | None = None
    """Observations 0 .. T-1, with the model's predictions in place of missing values; None if none is missing."""


def encode(model: DynamicsModel, episodes: Episodes) -> Gaussian | None:
    """q(z_0 | episode), mean and log variance with the batch last; None for models that start from zeros."""
    if not isinstance(model.initial, Variational):
        return None
    batch = episodes.tau.shape[-1]
    gates, initial = jax.vmap(model.initial.gates)(_inputs(model, episodes)), unfold(model.initial, batch)

    def read(h: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        return initial.read(h, *step), None

    h, _ = jax.lax.scan(read, jnp.zeros((initial.size, batch)), (gates, episodes.real))
    return model.initial.posterior(h)


def follow(
    model: DynamicsModel, z: Float[Array, "z n"], episodes: Episodes, sees: Bool[Array, "T n"] | None = None
) -> Course:
    """Predict along episodes (batch last) from the latent states z.

    `sees` marks the steps at which the model is given the true observation; elsewhere it is given its own prediction.
    The first observation is always given. None gives all of them (teacher forcing; inputs are then known in advance).
    In place of a value that was not measured the model is given its own prediction, before the first one the mean.
    Padding leaves z unchanged.
    """
    x, tau, observed = _inputs(model, episodes), episodes.tau, episodes.observed
    transition, decoder = unfold((model.transition, model.decoder), tau.shape[-1])
    if sees is None and observed is None:
        drive = jax.vmap(model.transition.inputs)(x, tau)

        def move(z: Array, step: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            drive, tau, real = step
            after = jnp.where(real[None], transition.move(z, drive, tau), z)
            return after, (z, after)

        _, (before, after) = jax.lax.scan(move, z, (drive, tau, episodes.real))
        return Course(before, after, drive, jax.vmap(model.decoder)(after))

    def choose(carry: tuple[Array, Array], step: tuple[Any, ...]) -> tuple[tuple[Array, Array], Course]:
        (z, own), (obs, action, tau, seen, real, measured) = carry, step
        known = obs if measured is None else jnp.where(measured, obs, own)
        last_obs = known if seen is None else jnp.where(seen[None], known, own)
        if seen is not None and measured is not None:
            measured = measured | ~seen[None]  # a prediction that is fed back counts as measured, as in imagination
        drive = transition.inputs(join_inputs(model, last_obs, action, measured), tau)
        after = jnp.where(real[None], transition.move(z, drive, tau), z)
        predicted = decoder(after)
        return (after, predicted), Course(z, after, drive, predicted, None if observed is None else known)

    sees = None if sees is None else sees.at[0].set(True)
    steps = (episodes.obs[:-1], episodes.action, tau, sees, episodes.real, None if observed is None else observed[:-1])
    first = episodes.obs[0] if observed is None else jnp.where(observed[0], episodes.obs[0], 0.0)
    _, course = jax.lax.scan(choose, (z, first), steps)
    return course


def open_loop(model: DynamicsModel, episodes: Episodes, key: Any) -> Course:
    """Open-loop predictions from the first observation, z_0 from the prior (batch last)."""
    return follow(model, _prior(model, episodes, key), episodes, jnp.zeros(episodes.tau.shape, bool))


def teacher_forced(model: DynamicsModel, episodes: Episodes, key: Any) -> Course:
    """One-step predictions with teacher forcing, z_0 from the prior (batch last)."""
    return follow(model, _prior(model, episodes, key), episodes)


def _prior(model: DynamicsModel, episodes: Episodes, key: Any) -> Float[Array, "z n"]:
    keys = jax.random.split(key, episodes.tau.shape[-1])
    return jax.vmap(lambda key: model.start(key=key), out_axes=-1)(keys)


@eqx.filter_jit
def _rollout(model: DynamicsModel, episodes: Episodes, key: Any, teacher_forcing: bool) -> tuple[Array, Array]:
    along = teacher_forced if teacher_forcing else open_loop
    course = along(model, episodes.batch_last(), key)
    return course.obs, course.after


def predict_with_states(
    model: DynamicsModel, trajectory: Trajectory, *, teacher_forcing: bool = False, seed: int = 0
) -> tuple[Float[np.ndarray, "*n T d"], Float[np.ndarray, "*n T z"]]:
    """Predicted observations and latent states 1 .. T of one or many episodes; see `predict`."""
    single = isinstance(trajectory, Trajectory) and np.ndim(trajectory.length) == 0
    many = jax.tree.map(lambda x: np.asarray(x)[None], trajectory) if single else trajectory
    found = _rollout(model, prepare(model, many), jax.random.key(seed), teacher_forcing)
    obs, latent = (np.moveaxis(np.asarray(x), -1, 0) for x in found)
    obs = model.scale.undo(obs)
    return (obs[0], latent[0]) if single else (obs, latent)


def predict(
    model: DynamicsModel, trajectory: Trajectory, *, teacher_forcing: bool = False, seed: int = 0
) -> Float[np.ndarray, "*n T d"]:
    """Predicted observations 1 .. T of one or many episodes, in the environment's units.

    By default open loop, from the first observation. With `teacher_forcing` the model is given the true observation at
    every decision, so that each prediction is one interval ahead.
    """
    return predict_with_states(model, trajectory, teacher_forcing=teacher_forcing, seed=seed)[0]


def _inputs(model: DynamicsModel, episodes: Episodes) -> Float[Array, "T i n"]:
    measured = None if episodes.observed is None else episodes.observed[:-1]
    return join_inputs(model, episodes.obs[:-1], episodes.action, measured)


def join_inputs(
    model: DynamicsModel,
    obs: Float[Array, "*T d n"],
    action: Float[Array, "*T a n"],
    observed: Bool[Array, "*T d n"] | None = None,
) -> Float[Array, "*T i n"]:
    """[s a], or [s m a] for a model with masks m of the measured values, standardised and encoded (batch last)."""
    if not model.masked:
        return jnp.concatenate([obs, action], axis=-2)
    mask = jnp.ones_like(obs) if observed is None else observed.astype(obs.dtype)
    return jnp.concatenate([obs, mask, action], axis=-2)


def timer_features(model: DynamicsModel, course: Course, episodes: Episodes) -> Float[Array, "T f n"]:
    """[s a z] at the decisions, given true observations (predictions in place of missing values)."""
    measured = None if episodes.observed is None else episodes.observed[:-1]
    obs = episodes.obs[:-1] if course.known is None else course.known
    return jnp.concatenate([join_inputs(model, obs, episodes.action, measured), course.before], axis=1)
