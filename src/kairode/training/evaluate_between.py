"""Evaluation of fitted models between decisions, and at intervals shorter and longer than those of the data.

The system is known at all times while an action is held (`Environment.course`), so an open-loop prediction can be
compared with it between two decisions as well as at decisions.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kairode.callbacks import Callback, no_callback
from kairode.data.collect import collect, collect_between
from kairode.data.policy import Policy
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Environment
from kairode.envs.host import HostEnvironment
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import Episodes, join_inputs, open_loop, prepare

FRACTIONS = (0.25, 0.5, 0.75)
"""Times between two decisions, as fractions of the interval."""


@dataclasses.dataclass(frozen=True)
class BetweenEpisodes:
    """Test episodes with the course between decisions, and two sets of episodes at intervals that models have not
    seen."""

    own: Trajectory
    """On the environment's own schedule."""
    fractions: tuple[float, ...]
    between: Float[np.ndarray, "n T k obs"]
    """Observations at these fractions of every interval of `own`."""
    half: Trajectory
    """Decisions at half the shortest interval."""
    double: Trajectory
    """Decisions at twice the longest interval."""


@dataclasses.dataclass(frozen=True)
class BetweenEvaluation:
    """Squared errors of open-loop predictions, in standardised units if the model standardises.

    Means over valid steps and dimensions, as `ModelEvaluation.error`; None if predictions are not finite.
    """

    at_decisions: float | None
    """On the environment's own schedule: the state prediction error of the paper's table 1."""
    between: float | None
    """At times between the same decisions."""
    by_fraction: list[float | None]
    """The same at each fraction of the interval."""
    half: float | None
    """At decisions, at half the shortest interval."""
    double: float | None
    """At decisions, at twice the longest interval."""

    @property
    def ratio(self) -> float | None:
        """Error between decisions, relative to the error at decisions."""
        if self.between is None or not self.at_decisions:
            return None
        return self.between / self.at_decisions


def evaluate_between(
    model: DynamicsModel,
    env: Environment | HostEnvironment,
    policy: Policy | Callable[..., Any] | None = None,
    *,
    episodes: int = 1000,
    seed: int = 2,
    fractions: Sequence[float] = FRACTIONS,
    callback: Callback = no_callback,
) -> BetweenEvaluation:
    """Open-loop errors of a model at decisions, between them, and at unseen intervals.

    Predictions start from the first observation, with true actions and intervals. Between decisions they start from the
    model's own latent state at the last decision. A model without the interval as an input predicts the next decision
    at all times before it.

    Args:
        model: from `kairode.fit` or `kairode.load_models`.
        env: the system, a `kairode.Environment`. One on the host does not report states between decisions.
        policy: chooses the actions, as for `kairode.collect`; None for random ones.
        episodes: number of test episodes.
        seed: of the test episodes; by default those of `kairode fit`.
        fractions: times between two decisions, as fractions of the interval, ascending and below 1.
        callback: called with a `kairode.callbacks.Progress` as episodes are collected.
    """
    found = collect_between_episodes(env, policy, episodes=episodes, seed=seed, fractions=fractions, callback=callback)
    return evaluate_on_between_episodes(model, found)


def collect_between_episodes(
    env: Environment | HostEnvironment,
    policy: Policy | Callable[..., Any] | None = None,
    *,
    episodes: int,
    seed: int,
    fractions: Sequence[float] = FRACTIONS,
    callback: Callback = no_callback,
) -> BetweenEpisodes:
    """The test episodes of `evaluate_between`. All three sets have the same seed, so the same initial states."""
    spec = env.task.spec
    if 2 * spec.intervals.high > spec.horizon:
        raise KairodeError(
            f"'{spec.name}' ends after {spec.horizon:g} {spec.time_unit}s, so it has no episodes at twice its longest "
            f"interval ({2 * spec.intervals.high:g}): use a longer horizon."
        )
    own, between = collect_between(env, policy, episodes=episodes, fractions=fractions, seed=seed, callback=callback)
    low, high = own.spec.intervals.low, own.spec.intervals.high
    half, double = (
        collect(env, policy, episodes=episodes, seed=seed, schedule=tau, callback=callback)
        for tau in (low / 2, 2 * high)
    )
    return BetweenEpisodes(own, tuple(map(float, fractions)), between, half, double)


def evaluate_on_between_episodes(model: DynamicsModel, test: BetweenEpisodes, *, seed: int = 0) -> BetweenEvaluation:
    """The errors of `evaluate_between` on episodes collected before."""
    real = test.own.mask
    at, between = _predictions(model, test.own, test.fractions, seed)
    squares = (between - _standardised(model, test.between)) ** 2
    each = [_mean(squares[:, :, i][real]) for i in range(len(test.fractions))]
    return BetweenEvaluation(
        at_decisions=_error(model, test.own, at),
        between=_mean(squares[real]),
        by_fraction=each,
        half=_error(model, test.half, _predictions(model, test.half, (), seed)[0]),
        double=_error(model, test.double, _predictions(model, test.double, (), seed)[0]),
    )


def predict_between(
    model: DynamicsModel, trajectory: Trajectory, fractions: Sequence[float] = FRACTIONS, *, seed: int = 0
) -> Float[np.ndarray, "n T k obs"]:
    """Open-loop predictions at fractions of every interval of episodes, in the environment's units."""
    return model.scale.undo(_predictions(model, trajectory, tuple(map(float, fractions)), seed)[1])


def variances(model: DynamicsModel, test: BetweenEpisodes) -> dict[str, float]:
    """Variance of the observations at each of the times, mean over dimensions: the error of predicting their mean."""
    sets = {"at_decisions": test.own, "half": test.half, "double": test.double}
    found = {name: np.asarray(one.observation)[:, 1:][one.mask] for name, one in sets.items()}
    found["between"] = test.between[test.own.mask].reshape(-1, test.between.shape[-1])
    return {name: float(_standardised(model, rows).var(0).mean()) for name, rows in found.items()}


def _standardised(model: DynamicsModel, obs: np.ndarray) -> np.ndarray:
    return np.asarray(model.scale.apply(np.asarray(obs, np.float32)), np.float64)


def _error(model: DynamicsModel, test: Trajectory, predicted: np.ndarray) -> float | None:
    true = _standardised(model, np.asarray(test.observation)[:, 1:])
    return _mean(((predicted - true) ** 2)[test.mask])


def _mean(squares: np.ndarray) -> float | None:
    found = float(squares.mean())
    return found if np.isfinite(found) else None


def _predictions(
    model: DynamicsModel, test: Trajectory, fractions: tuple[float, ...], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Standardised open-loop predictions at decisions [n, T, obs] and between them [n, T, k, obs]."""
    found = _open_loop_path(model, prepare(model, test), fractions, jax.random.key(seed))
    at, between = (np.asarray(x, np.float64) for x in found)
    return at, between


@eqx.filter_jit
def _open_loop_path(
    model: DynamicsModel, episodes: Episodes, fractions: tuple[float, ...], key: Any
) -> tuple[Float[Array, "n T obs"], Float[Array, "n T k obs"]]:
    data = episodes.batch_last()
    course = open_loop(model, data, key)
    seen = jnp.concatenate([data.obs[:1], course.obs[:-1]])
    # As `follow` does: what is fed back counts as measured.
    measured = None if data.observed is None else data.observed[:-1].at[1:].set(True)
    x = join_inputs(model, seen, data.action, measured)
    taus = data.tau[:, None] * jnp.array(fractions, data.tau.dtype)[None, :, None]

    def between(step: tuple[Array, Array, Array]) -> Float[Array, "k obs n"]:
        return jax.vmap(model.decoder)(model.transition.path(*step))

    at = jnp.moveaxis(course.obs, -1, 0)
    if not fractions:
        return at, jnp.zeros((*at.shape[:2], 0, at.shape[2]))
    return at, jnp.moveaxis(jax.lax.map(between, (course.before, x, taus)), -1, 0)
