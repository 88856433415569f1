"""Evaluation of fitted models on held-out episodes: open-loop errors, intervals, and the ODE solver."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool
from scipy import stats

from kairode.data.trajectory import Trajectory, constant_variables
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.ode import TIGHT, Adaptive, Solver
from kairode.models.predict import Episodes, prepare, teacher_forced, timer_features
from kairode.models.predict import open_loop as follow_open_loop
from kairode.models.timer import ClassTimer, NoTimer
from kairode.models.transition import FlowTransition

FAR = 0.1
"""Distance above which the timer's intervals count as different from the data's: a tenth of the decisions have another
interval, or intervals deviate by a tenth of their mean. The discount over an imagined episode then deviates as much."""
BINS = 10
"""Number of bins of the prediction time."""


@dataclasses.dataclass(frozen=True)
class ModelEvaluation:
    """Squared errors of open-loop predictions, in standardised units if the model standardises."""

    error: float
    """Mean over valid steps and dimensions: the state prediction error of the paper's table 1. Variables that never
    change within an episode, such as age, do not count: nobody needs a prediction of them."""
    variance: float
    """Variance of the observations about the mean of each dimension, averaged like `error`: the error of predicting
    these means."""
    by_dimension: list[float | None]
    """Mean over valid steps; None for a variable that was never measured, or that never changes."""
    time_edges: list[float]
    """Edges of the time bins, in the environment's unit."""
    by_time: list[float | None]
    """Mean over the steps that end in each bin; None for empty bins."""
    median_episode: float
    """Median over episodes of the mean error of an episode."""
    worst_share: float
    """Fraction of the total squared error in the worst 1 % of the episodes."""
    timer_hits: float | None
    """Accuracy of the most likely interval, given true observations (teacher forcing); None without a class timer."""
    intervals: "IntervalCheck | None"
    """Distribution of the timer's intervals compared with the data's; None without a timer."""


@dataclasses.dataclass(frozen=True)
class IntervalCheck:
    """Intervals of all decisions pooled: the timer's, given true observations, compared with the data's.

    Distances are total variation for a class timer, otherwise the 1-Wasserstein distance divided by the data's mean
    interval.
    """

    measure: str
    """`total variation` or `Wasserstein / mean`."""
    mean: float
    """Mean interval of the data, in the environment's unit; also the unit of the next two."""
    drawn_mean: float
    """Mean of intervals drawn from the timer's distribution."""
    likely_mean: float
    """Mean of the timer's most likely intervals."""
    drawn: float
    """Distance of the drawn intervals from the data's."""
    likely: float
    """Distance of the most likely intervals from the data's."""
    chance: float
    """Expected distance between two samples of this size from the data's distribution."""

    @property
    def far(self) -> bool:
        """Whether the drawn intervals differ from the data's by more than chance explains."""
        return self.drawn > FAR + self.chance

    def figures(self) -> dict[str, Any]:
        """For a record."""
        return {**dataclasses.asdict(self), "far": self.far, "threshold": FAR}


@dataclasses.dataclass(frozen=True)
class SolverCheck:
    """The chosen solver compared with a tight one, on the fitted model."""

    difference: float | None
    """Root mean square difference of their open-loop predictions (standardised); None if the tight solver failed."""
    worst: float | None
    error_tight: float | None
    """Test error with the tight solver."""


@eqx.filter_jit
def _open_loop(model: DynamicsModel, episodes: Episodes, key: Any) -> Any:
    return jnp.moveaxis(follow_open_loop(model, episodes.batch_last(), key).obs, -1, 0)


def evaluate_model(model: DynamicsModel, test: Trajectory, *, seed: int = 0) -> ModelEvaluation:
    """Open-loop evaluation from the first observation of each episode, with true actions and intervals."""
    episodes = prepare(model, test)
    predicted, changing = _predictions(model, episodes, seed), changing_variables(test)
    squares = np.where(changing, _squares(predicted, episodes), np.nan)
    real = np.asarray(episodes.real)
    each = squares[real]
    # NaN where nothing was measured; without such values the sums keep their order
    average = np.mean if episodes.observed is None and changing.all() else _nanmean
    times = test.time[:, 1:][real]
    edges = np.linspace(0.0, times.max(), BINS + 1)
    part = np.minimum(np.searchsorted(edges, times, side="left") - 1, BINS - 1)
    means = [float(average(each[part == i])) if np.isfinite(each[part == i]).any() else None for i in range(BINS)]
    episode = np.where(real, average(squares, -1), 0.0)
    steps = real & np.isfinite(episode)
    episode, counts = np.where(steps, episode, 0.0).sum(1), steps.sum(1)
    worst = np.sort(episode)[-max(1, len(episode) // 100) :]
    return ModelEvaluation(
        median_episode=float(np.median(episode[counts > 0] / counts[counts > 0])),
        worst_share=float(worst.sum() / max(episode.sum(), 1e-30)),
        error=float(average(each)),
        variance=_variance(np.asarray(episodes.obs, np.float64)[:, 1:], episodes, changing),
        by_dimension=[None if np.isnan(found) else found for found in average(each, 0).tolist()],
        time_edges=edges.tolist(),
        by_time=means,
        timer_hits=_timer_hits(model, episodes, seed),
        intervals=compare_intervals(model, test, seed=seed),
    )


def changing_variables(data: Trajectory) -> Bool[np.ndarray, " obs"]:
    """Mask of the variables that change within an episode; of all, if none does."""
    constant = constant_variables(data)
    return np.ones(len(data.spec.observations), bool) if constant is None or constant.all() else ~constant


def check_solver(model: DynamicsModel, test: Trajectory, *, seed: int = 0, tight: Solver = TIGHT) -> SolverCheck | None:
    """Difference between the chosen solver and a tight one; None for models without an ODE."""
    if not isinstance(model.transition, FlowTransition):
        return None
    episodes = prepare(model, test)
    chosen = _predictions(model, episodes, seed)
    careful = eqx.tree_at(lambda model: model.transition.solver, model, tight)
    exact = np.asarray(_open_loop(careful, episodes, jax.random.key(seed)), np.float64)
    real = np.asarray(episodes.real)
    if not np.isfinite(exact[real]).all():
        return SolverCheck(None, None, None)
    apart = (exact - chosen)[real]
    changing = changing_variables(test)
    squares = np.where(changing, _squares(exact, episodes), np.nan)[real]
    error = (np.mean if episodes.observed is None and changing.all() else _nanmean)(squares)
    return SolverCheck(float(np.sqrt((apart**2).mean())), float(np.abs(apart).max()), float(error))


def _squares(predicted: np.ndarray, episodes: Episodes) -> np.ndarray:
    """Squared errors of predicted observations 1 .. T; NaN where nothing was measured."""
    squares = (predicted - np.asarray(episodes.obs, np.float64)[:, 1:]) ** 2
    return squares if episodes.observed is None else np.where(np.asarray(episodes.observed)[:, 1:], squares, np.nan)


def _variance(obs: np.ndarray, episodes: Episodes, changing: np.ndarray) -> float:
    """Of observations 1 .. T, mean over all that were measured, of variables that change."""
    known = np.asarray(episodes.real)[..., None] & np.broadcast_to(changing, obs.shape)
    if episodes.observed is not None:
        known = known & np.asarray(episodes.observed)[:, 1:]
    count = np.maximum(known.sum((0, 1)), 1)
    apart = np.where(known, obs - np.where(known, obs, 0.0).sum((0, 1)) / count, 0.0)
    return float((apart**2).sum() / max(known.sum(), 1))


def _nanmean(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Mean of what is not NaN; NaN where everything is."""
    known = ~np.isnan(values)
    count = known.sum(axis)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis) / np.maximum(count, 1), np.nan)


def _predictions(model: DynamicsModel, episodes: Episodes, seed: int) -> np.ndarray:
    """Standardised predictions; raises if they are not finite."""
    predicted = np.asarray(_open_loop(model, episodes, jax.random.key(seed)), np.float64)
    lost = ~np.isfinite(predicted).all(-1) & np.asarray(episodes.real)
    if lost.any():
        raise KairodeError(
            f"the model's predictions are not finite from step {np.argwhere(lost)[0][1] + 1} of an "
            f"episode on.{_solver_advice(model)}"
        )
    return predicted


def _solver_advice(model: DynamicsModel) -> str:
    transition = model.transition
    if isinstance(transition, FlowTransition) and isinstance(transition.solver, Adaptive):
        return (
            f" The ODE solver may need more than {transition.solver.max_steps} steps: allow more, loosen the "
            "tolerances, or use a fixed-step solver."
        )
    return " Fit it longer or with a smaller learning rate."


def compare_intervals(model: DynamicsModel, test: Trajectory, *, seed: int = 0) -> IntervalCheck | None:
    """Compare the timer's intervals with the data's; None for models without a timer."""
    if isinstance(model.timer, NoTimer):
        return None
    episodes = prepare(model, test)
    real, tick = np.asarray(episodes.real), model.spec.tick
    found = (episodes.tau, *_timed(model, episodes, jax.random.key(seed)))
    true, likely, drawn = (tick * np.asarray(x, np.float64)[real] for x in found)
    if isinstance(model.timer, ClassTimer):
        measure, low, step = "total variation", tick * model.timer.low, tick * model.timer.step
        count = model.timer.net.layers[-1].weight.shape[-2]
        split = [_shares(x, low, step, count) for x in (true, likely, drawn)]
        far_likely, far_drawn = (float(0.5 * np.abs(share - split[0]).sum()) for share in split[1:])
        chance = float(_chance(split[0], len(true)).sum() / 2)
    else:
        measure = "Wasserstein / mean"
        far_likely, far_drawn = (float(stats.wasserstein_distance(x, true) / true.mean()) for x in (likely, drawn))
        below = np.arange(1, len(true)) / len(true)  # cumulative distribution between neighbouring intervals
        chance = float((_chance(below, len(true)) * np.diff(np.sort(true))).sum() / true.mean())
    mean, drawn_mean, likely_mean = (float(x.mean()) for x in (true, drawn, likely))
    return IntervalCheck(measure, mean, drawn_mean, likely_mean, far_drawn, far_likely, chance)


def _shares(taus: np.ndarray, low: float, step: float, count: int) -> np.ndarray:
    number = np.clip(np.round((taus - low) / step).astype(int), 0, count - 1)
    return np.bincount(number, minlength=count) / len(taus)


def _chance(p: np.ndarray, n: int) -> np.ndarray:
    """E|p1 - p2| of the relative frequencies in two samples of size n (normal approximation)."""
    return 2 * np.sqrt(p * (1 - p) / (np.pi * n))


@eqx.filter_jit
def _timed(model: DynamicsModel, episodes: Episodes, key: Any) -> tuple[Any, Any]:
    """Most likely and sampled interval at every decision, in ticks, given true observations."""
    start_key, draw_key = key, jax.random.fold_in(key, 1)
    data = episodes.batch_last()
    features = timer_features(model, teacher_forced(model, data, start_key), data)
    keys = jax.random.split(draw_key, len(features))
    likely = jax.vmap(model.timer.interval)(features)
    drawn = jax.vmap(lambda x, key: model.timer.interval(x, key=key))(features, keys)
    return jnp.moveaxis(likely, -1, 0), jnp.moveaxis(drawn, -1, 0)


def _timer_hits(model: DynamicsModel, episodes: Episodes, seed: int) -> float | None:
    if not isinstance(model.timer, ClassTimer):
        return None
    likely = np.asarray(_timed(model, episodes, jax.random.key(seed))[0])
    hit = np.abs(likely - np.asarray(episodes.tau)) < 0.5 * model.timer.step
    return float(hit[np.asarray(episodes.real)].mean())
