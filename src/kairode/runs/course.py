"""The trajectory of one episode as plain numbers for a record: observations, actions and a model's predictions."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kairode.data import Trajectory
from kairode.data.describe import spec_to_dict
from kairode.envs import Environment, HostEnvironment
from kairode.envs.core import Spec
from kairode.models.dynamics import DynamicsModel

POINTS = 12
"""Points per interval."""

Course = dict[str, Any]


def course(
    env: Environment | HostEnvironment | None,
    episode: Trajectory,
    model: DynamicsModel | None = None,
    kind: str = "expected",
    most: int | None = None,
    points: int = POINTS,
) -> Course:
    """An episode (its first `most` decisions) as lists, in readable units.

    With a model also its predictions: `expected` from every decision to the next, or `predicted` from the first
    observation.
    """
    steps = min(int(episode.length), most or int(episode.length))
    decisions, seen = np.asarray(episode.time)[: steps + 1], np.asarray(episode.observation)[: steps + 1]
    time, between = decisions, seen
    if isinstance(env, Environment) and env.deterministic:
        time, between = between_decisions(env, episode, points)
        time, between = time[: steps * points + 1], between[: steps * points + 1]
    spec = episode.spec
    found: Course = {
        "spec": {name: spec_to_dict(spec)[name] for name in ("environment", "time_unit", "actions")},
        "variables": [{"name": v.name, "unit": v.read_in, "log": v.log is not None} for v in spec.observations],
        "decisions": _short(decisions),
        "seen": _short(_readable(spec, seen)),
        "actions": _short(np.asarray(episode.action)[:steps]),
        "intervals": _short(np.asarray(episode.interval)[:steps]),
        "time": _short(time),
        "true": _short(_readable(spec, between)),
    }
    if model is not None:
        times, values = predictions(model, episode, points, open_loop=kind == "predicted")
        found |= {
            "kind": kind,
            "model_time": _short(times[:steps]),
            "model": _short(_readable(spec, values[:steps])),
        }
    return found


def prediction_errors(course: Course) -> Float[np.ndarray, " obs"]:
    """Mean squared error of each variable at the decisions that follow a prediction, relative to its variance.

    Of the logarithm where a variable is shown on such an axis; infinite where a prediction is not finite, 0 for a
    variable that does not change. Missing values are left out.
    """
    seen, ahead = np.asarray(course["seen"])[1:], np.asarray(course["model"])[:, -1]
    log = [variable["log"] for variable in course["variables"]]
    with np.errstate(all="ignore"):
        seen, ahead = (np.where(log, np.log10(values), values) for values in (seen, ahead))
        known = ~np.isnan(seen)
        count = np.maximum(known.sum(0), 1)
        error = np.where(known, (ahead - seen) ** 2, 0.0).sum(0) / count
        apart = np.where(known, seen - np.where(known, seen, 0.0).sum(0) / count, 0.0)
        spread = (apart**2).sum(0) / count
        found = np.where(spread > 0, error / spread, 0.0)
    return np.where(np.isfinite(error) & np.isfinite(found), found, np.inf)


def _readable(spec: Spec, seen: np.ndarray) -> np.ndarray:
    return np.stack([v.quantity(seen[..., i]) for i, v in enumerate(spec.observations)], -1)


def _short(values: Any) -> Any:
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.floating):
        return array.tolist()
    return np.vectorize(lambda x: float(f"{x:.5g}"), otypes=[float])(array).tolist() if array.size else []


def between_decisions(
    env: Environment, episode: Trajectory, points: int = POINTS
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n obs"]]:
    """Times and observations between decisions, by simulating a deterministic environment again.

    If the state can be recovered, from every decision, because near an unstable equilibrium rounding decides; otherwise
    from the start.
    """
    parts = _parts(points)
    start = env.reset(key=jax.random.key(0))

    @eqx.filter_jit
    def run(observations: Array, actions: Array, intervals: Array) -> Array:
        def hold(state: Any, decision: tuple[Array, Array, Array]) -> tuple[Any, Array]:
            obs, action, tau = decision
            known = env.restored(obs)
            state = state if known is None else known
            at = partial(env.transition, state, action, key=jax.random.key(0))
            states = jax.vmap(at)(parts * tau)
            return jax.tree.map(lambda x: x[-1], states), jax.vmap(env.observe)(states)

        return jax.lax.scan(hold, start, (observations, actions, intervals))[1]

    seen = np.asarray(run(*_rows(episode)))
    first = np.asarray(episode.observation[:1])
    times = _times(episode, parts)
    return np.append(0.0, times.ravel()), np.concatenate([first, seen.reshape(-1, first.shape[1])])


def predictions(
    model: DynamicsModel, episode: Trajectory, points: int = POINTS, open_loop: bool = False
) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k n obs"]]:
    """Times and predicted observations from each decision to the next: from the observation at each decision, or (open
    loop) from the first observation."""
    parts = _parts(points)

    @eqx.filter_jit
    def run(observations: Array, actions: Array, intervals: Array) -> Array:
        def hold(carry: tuple[Any, ...], decision: tuple[Array, Array, Array]) -> tuple[tuple[Any, ...], Array]:
            (z, predicted, observed), (seen, action, tau) = carry, decision
            if not open_loop:
                observed = ~jnp.isnan(seen)
            obs = predicted if open_loop else jnp.where(observed, seen, predicted)
            zs, ahead = model.path(z, obs, action, parts * tau, observed)
            after = model.step(z, obs, action, tau, observed) if open_loop else (zs[-1], ahead[-1])
            return (*after, jnp.ones_like(observed)), jnp.concatenate([obs[None], ahead])

        observed, mean = ~jnp.isnan(observations[0]), jnp.asarray(model.scale.mean, observations.dtype)
        start = (model.start(key=jax.random.key(0)), jnp.where(observed, observations[0], mean), observed)
        return jax.lax.scan(hold, start, (observations, actions, intervals))[1]

    return _times(episode, np.append(0.0, parts)), np.asarray(run(*_rows(episode)))


def _parts(points: int) -> Any:
    return jnp.linspace(0.0, 1.0, points + 1)[1:]


def _rows(episode: Trajectory) -> tuple[Any, Any, Any]:
    steps = int(episode.length)
    rows = (episode.observation[:steps], episode.action[:steps], episode.interval[:steps])
    return tuple(map(jnp.asarray, rows))  # type: ignore[return-value]


def _times(episode: Trajectory, parts: Any) -> np.ndarray:
    steps = int(episode.length)
    return np.asarray(episode.time)[:steps, None] + np.asarray(parts) * np.asarray(episode.interval)[:steps, None]
