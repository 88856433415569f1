"""What came out of a fit: a table of errors, and a figure of predicted and true courses."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kairode.data import Trajectory
from kairode.envs import HIV, make
from kairode.envs.core import Spec
from kairode.experiments.fitting import Fit
from kairode.models.dynamics import DynamicsModel
from kairode.report.course import DECISION, LINE, POINTS, between_decisions, draw_actions, save_figure

PREDICTED = "#dd6b20"


def print_fit(made: dict[str, Any], spec: Spec) -> None:
    """Test error of every seed, by dimension and by time ahead, and what the solver's check said."""
    figures, console = made["figures"], Console()
    errors = figures["test_error"]
    seeds = [f"seed {made['config']['seed'] + i}" for i in range(len(errors))]
    table = Table("test error", *seeds, "mean", "std", box=SIMPLE_HEAD, pad_edge=False)

    def row(name: str, values: list[float | None], style: str = "") -> None:
        known = [value for value in values if value is not None]
        cells = ["" if value is None else f"{value:.4f}" for value in values]
        spread = [f"{np.mean(known):.4f}", f"{np.std(known):.4f}"] if known else ["", ""]
        table.add_row(name, *cells, *spread, style=style)

    row("all", errors, "bold")
    table.add_section()
    for name, values in figures["by_dimension"].items():
        row(name, values)
    table.add_section()
    edges = figures["time_edges"]
    for i in range(len(edges) - 1):
        row(f"up to {edges[i + 1]:.4g} {spec.time_unit}s", [seed[i] for seed in figures["by_time"]])
    console.print(table)
    mean, std = figures["mean"], figures["std"]
    spread = f" (std {std:.2g} over {len(errors)} seeds)" if len(errors) > 1 else ""
    unit = " (of standardised variables)" if made["config"]["preset"]["standardise"] else ""
    name, most = made["config"]["model"], spec.max_decisions
    what = f"test episodes of up to {most} decisions" if most else "whole test episodes"
    print(f"{name} predicts {what} from their first observation with a mean squared error of {mean:.4g}{unit}{spread}.")
    median, share = np.mean(figures["median_episode"]), 100 * np.mean(figures["worst_share"])
    worst = "worst hundredth" if made["config"]["preset"]["test"] >= 100 else "worst one"
    print(f"In the middle one of the episodes it is {median:.4g}; the {worst} has {share:.0f} % of all error.")
    if figures["timer_hits"]:
        hits = 100 * np.mean(figures["timer_hits"])
        print(f"The timer's most likely interval is the right one in {hits:.0f} % of cases.")
    if figures["solver"]:
        print(_about_solver(made["config"]["preset"]["sizes"]["solver"], figures["solver"], mean))
    if any(figures["skipped"]):
        print(f"{sum(figures['skipped'])} batches were not finite and were skipped.")


def _about_solver(solver: str, checks: list[dict[str, Any]], error: float) -> str:
    """What the comparison with a tight solver says."""
    if any(check["difference"] is None for check in checks):
        return f"Solver {solver}: a tight solver cannot follow the fitted field, so do not take it for an ODE."
    tight = float(np.mean([check["error_tight"] for check in checks]))
    apart = float(np.mean([check["difference"] for check in checks]))
    found = (
        f"Solver {solver}: with a tight solver in its place the error would be {tight:.4g} (predictions differ by "
        f"{apart:.2g}, root mean square)."
    )
    if tight <= 1.2 * error:
        return found
    return (
        f"{found} So this is a map from interval to interval rather than the flow of an ODE: use it with the solver it "
        "was fitted with, or fit with more steps (--solver rk4:4) or dopri5."
    )


def predicted_course(model: DynamicsModel, episode: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Times and predictions between and at decision times, from the first observation alone."""
    steps = int(episode.length)
    parts = jnp.linspace(0.0, 1.0, POINTS + 1)[1:]

    @eqx.filter_jit
    def run(model: DynamicsModel, actions: Any, intervals: Any, obs: Any) -> Any:
        def hold(carry: tuple[Any, Any], decision: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
            (z, obs), (action, tau) = carry, decision
            _, seen = model.path(z, obs, action, parts * tau)
            return model.step(z, obs, action, tau), seen

        start = (model.start(key=jax.random.key(0)), obs)
        return jax.lax.scan(hold, start, (actions, intervals))[1]

    actions, intervals = (jnp.asarray(x)[:steps] for x in (episode.action, episode.interval))
    seen = np.asarray(run(model, actions, intervals, jnp.asarray(episode.observation)[0]))
    time = episode.time[:steps, None] + np.asarray(parts) * np.asarray(episode.interval)[:steps, None]
    first = np.asarray(episode.observation)[:1]
    return np.append(0.0, time.ravel()), np.concatenate([first, seen.reshape(-1, first.shape[1])])


def draw_predictions(config: Fit, model: DynamicsModel, test: Trajectory, path: Path, most: int = 60) -> None:
    """A panel for each observed variable: the true course, the predicted one, and the decision times."""
    episode = test[0]
    steps = min(int(episode.length), most)
    spec, decisions = episode.spec, episode.time[: steps + 1]
    env = None if config.is_file else make(config.source, setting=config.setting, **config.preset.fields)
    time, predicted = predicted_course(model, episode)
    inside = time <= decisions[-1]
    true_time, true = decisions, np.asarray(episode.observation)[: steps + 1]
    if isinstance(env, HIV):
        true_time, true = between_decisions(env, episode)
        true = true[true_time <= decisions[-1]]
        true_time = true_time[true_time <= decisions[-1]]
    count, units = len(spec.observations), {v.unit for v in spec.observations}
    figure = Figure(figsize=(9, 1.25 * count + 1.9), layout="constrained")
    panels = figure.subplots(count + 1, 1, sharex=True, squeeze=False, height_ratios=[1.0] * count + [0.45])[:, 0]
    for i, (axes, variable) in enumerate(zip(panels, spec.observations, strict=False)):
        axes.plot(true_time, true[:, i], color=LINE, lw=1.4, label="true")
        axes.plot(time[inside], predicted[inside, i], color=PREDICTED, lw=1.1, label="predicted")
        axes.plot(
            decisions, np.asarray(episode.observation)[: steps + 1, i], "o", color=DECISION, ms=2.4, label="decision"
        )
        axes.set_ylabel(variable.name if len(units) == 1 else f"{variable.name}\n{variable.unit}", fontsize=8)
        axes.tick_params(labelsize=7)
    draw_actions(panels[-1], episode)
    panels[-1].set_xlim(0, float(decisions[-1]))
    panels[-1].set_xlabel(f"time, {spec.time_unit}s")
    unit = f" ({next(iter(units))})" if len(units) == 1 else ""
    title = f"{config.model} on {spec.name}: predicted from the first observation alone{unit}"
    panels[0].set_title(title, fontsize=11, loc="left")
    panels[0].legend(loc="upper right", fontsize=7, frameon=False, ncols=3)
    figure.align_ylabels()
    save_figure(figure, path)
