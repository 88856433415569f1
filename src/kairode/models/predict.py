"""A model along whole episodes: teacher forcing, scheduled sampling, open loop.

Inside, time comes first and the batch last ([time, feature, batch]): a step of the loop is then products of a matrix
with many columns and elementwise work on whole vectors.
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
from kairode.models.initial import Encoded, Gaussian
from kairode.models.networks import unfold


class Episodes(eqx.Module):
    """What a model needs of episodes: standardised, actions as numbers, time in ticks."""

    obs: Float[Array, "*n moments d"]
    action: Float[Array, "*n T a"]
    tau: Float[Array, "*n T"]
    real: Bool[Array, "*n T"]
    """Which decisions are not padding."""

    def batch_last(self) -> "Episodes":
        """From [episode, time, feature] to [time, feature, episode]."""
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), self)


def prepare(model: DynamicsModel, trajectory: Trajectory) -> Episodes:
    """Episodes as the model sees them; refused where they are about something else."""
    if not (isinstance(model, DynamicsModel) and isinstance(trajectory, Trajectory)):
        raise KairodeError(
            f"a model and experience are needed, in this order, got a {type(model).__name__} and a "
            f"{type(trajectory).__name__}."
        )
    spec = model.spec
    check_same(spec, trajectory.spec)
    return Episodes(
        obs=jnp.asarray(model.scale.apply(np.asarray(trajectory.observation, np.float32)), jnp.float32),
        action=jnp.asarray(encode_action(spec, jnp.asarray(trajectory.action)), jnp.float32),
        tau=jnp.asarray(np.asarray(trajectory.interval) / spec.tick, jnp.float32),
        real=jnp.asarray(trajectory.mask),
    )


def check_same(model: Spec, data: Spec, who: str = "model") -> None:
    """Refuse data or a system with other observations or actions than those of the model (or the policy)."""

    def names(spec: Spec) -> tuple[list[str], list[str]]:
        return [v.name for v in spec.observations], list(spec.actions.names)

    for what, mine, theirs in zip(("observations", "actions"), names(model), names(data), strict=True):
        if mine != theirs:
            raise KairodeError(
                f"the {who} knows {len(mine)} {what} ({', '.join(mine)}), the data of '{data.name}' have {len(theirs)} "
                f"({', '.join(theirs)}): give it what it was made for."
            )
    if type(model.actions) is not type(data.actions):
        raise KairodeError(f"the {who}'s actions and those of '{data.name}' are not of one kind (named, or controls).")


class Course(NamedTuple):
    """Latent states and predictions along episodes, batch last."""

    before: Float[Array, "T z n"]
    """z_0 .. z_{T-1}: what is known at each decision."""
    after: Float[Array, "T z n"]
    """z_1 .. z_T."""
    drive: Float[Array, "T d n"]
    """What observation and action contributed."""
    obs: Float[Array, "T d n"]
    """Predicted observations 1 .. T, standardised."""


def encode(model: DynamicsModel, episodes: Episodes) -> Gaussian | None:
    """q(z_0 | episode), mean and log variance with the batch last; None for models that start from zeros."""
    if not isinstance(model.initial, Encoded):
        return None
    lanes = episodes.tau.shape[-1]
    gates, initial = jax.vmap(model.initial.gates)(_inputs(episodes)), unfold(model.initial, lanes)

    def read(h: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        return initial.read(h, *step), None

    h, _ = jax.lax.scan(read, jnp.zeros((initial.size, lanes)), (gates, episodes.real))
    return model.initial.posterior(h)


def follow(
    model: DynamicsModel, z: Float[Array, "z n"], episodes: Episodes, sees: Bool[Array, "T n"] | None = None
) -> Course:
    """Predict along episodes (batch last) from the latent states z.

    `sees` says where the model is shown the true observation; elsewhere it sees its own prediction. The first one is
    always shown. None shows all of them: teacher forcing, where the inputs are known beforehand. Padding leaves z as it
    is.
    """
    x, tau = _inputs(episodes), episodes.tau
    transition, decoder = unfold((model.transition, model.decoder), tau.shape[-1])
    if sees is None:
        drive = jax.vmap(model.transition.inputs)(x, tau)

        def move(z: Array, step: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            drive, tau, real = step
            after = jnp.where(real[None], transition.move(z, drive, tau), z)
            return after, (z, after)

        _, (before, after) = jax.lax.scan(move, z, (drive, tau, episodes.real))
        return Course(before, after, drive, jax.vmap(model.decoder)(after))

    def choose(
        carry: tuple[Array, Array], step: tuple[Array, Array, Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Course]:
        (z, own), (obs, action, tau, seen, real) = carry, step
        shown = jnp.where(seen[None], obs, own)
        drive = transition.inputs(jnp.concatenate([shown, action]), tau)
        after = jnp.where(real[None], transition.move(z, drive, tau), z)
        predicted = decoder(after)
        return (after, predicted), Course(z, after, drive, predicted)

    sees = sees.at[0].set(True)
    steps = (episodes.obs[:-1], episodes.action, tau, sees, episodes.real)
    _, course = jax.lax.scan(choose, (z, episodes.obs[0]), steps)
    return course


def open_loop(model: DynamicsModel, episodes: Episodes, key: Any) -> Course:
    """From the first observation alone, on its own predictions, z_0 from the prior (batch last)."""
    return follow(model, _prior(model, episodes, key), episodes, jnp.zeros(episodes.tau.shape, bool))


def shown_the_truth(model: DynamicsModel, episodes: Episodes, key: Any) -> Course:
    """One interval ahead at a time, z_0 from the prior (batch last)."""
    return follow(model, _prior(model, episodes, key), episodes)


def _prior(model: DynamicsModel, episodes: Episodes, key: Any) -> Float[Array, "z n"]:
    keys = jax.random.split(key, episodes.tau.shape[-1])
    return jax.vmap(lambda key: model.start(key=key), out_axes=-1)(keys)


@eqx.filter_jit
def _rollout(model: DynamicsModel, episodes: Episodes, key: Any, shown: bool) -> tuple[Array, Array]:
    along = shown_the_truth if shown else open_loop
    course = along(model, episodes.batch_last(), key)
    return course.obs, course.after


def predict_with_states(
    model: DynamicsModel, trajectory: Trajectory, *, shown: bool = False, seed: int = 0
) -> tuple[Float[np.ndarray, "*n T d"], Float[np.ndarray, "*n T z"]]:
    """Predicted observations and latent states 1 .. T of one or many episodes; see `predict`."""
    single = isinstance(trajectory, Trajectory) and np.ndim(trajectory.length) == 0
    many = jax.tree.map(lambda x: np.asarray(x)[None], trajectory) if single else trajectory
    found = _rollout(model, prepare(model, many), jax.random.key(seed), shown)
    obs, latent = (np.moveaxis(np.asarray(x), -1, 0) for x in found)
    obs = model.scale.undo(obs)
    return (obs[0], latent[0]) if single else (obs, latent)


def predict(
    model: DynamicsModel, trajectory: Trajectory, *, shown: bool = False, seed: int = 0
) -> Float[np.ndarray, "*n T d"]:
    """Predicted observations 1 .. T of one or many episodes, in the environment's units.

    By default from the first observation alone, the model's own predictions fed back. With `shown` it is shown the
    truth at every decision, so that each prediction looks one interval ahead.
    """
    return predict_with_states(model, trajectory, shown=shown, seed=seed)[0]


def _inputs(episodes: Episodes) -> Float[Array, "T i n"]:
    return jnp.concatenate([episodes.obs[:-1], episodes.action], axis=1)
