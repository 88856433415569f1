"""The loop around the compiled training steps: validation, the best policy so far, checkpoints, divergence."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.agents.encoder import TrackingEncoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_step import TrainingBatch, TrainState, init_train_state, run_steps, run_steps_on
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.agents import DQNConfig
from kairode.data.checks import check_rewards, warn
from kairode.devices import AgentDevices
from kairode.errors import KairodeError
from kairode.training.session import Session
from kairode.trees import choose, copies, one

CHUNK = 500
"""Decisions per compiled call."""
SAVE_SECONDS = float(os.environ.get("KAIRODE_SAVE_SECONDS", "30"))
"""Time between checkpoints; longer than elsewhere because replay buffers are large."""
STAGE = "learning"

Validator = Callable[[ReLUNetwork], dict[str, Any]]
"""Maps the agents' networks to metrics, one value per agent; `score` selects the best policy."""


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Trained networks and training curves of all agents."""

    q: ReLUNetwork
    """Each agent's final network, or the best one if `score` was among the validation metrics."""
    last: ReLUNetwork
    curve: list[dict[str, Any]]
    """One entry per validation: episodes and decisions of every agent, and the metrics."""
    returns: np.ndarray
    """[agents, episodes, 2]: return and discounted return of every training episode."""
    decisions: list[int]
    diverged: list[bool]
    seconds: float
    snapshots: ReLUNetwork | None = None
    """[agents, snapshots, ..]: the networks at every multiple of `validate_every` decisions, if they were asked for."""

    def policies(self, batches: Sequence[TrainingBatch], epsilon: float = 0.05, scale: float = 1.0) -> list[QPolicy]:
        """One policy per agent; `scale` is the reward scale of training."""
        found: list[QPolicy] = []
        for batch in batches:
            for i in range(batch.agents):
                encoder = one(batch.encoder, i)
                encoder = encoder.inner if isinstance(encoder, TrackingEncoder) else encoder
                found.append(QPolicy(one(self.q, len(found)), encoder, batch.env.task.spec, epsilon, scale))
        return found


class _State(eqx.Module):
    """Contents of a checkpoint."""

    train_state: TrainState
    best: ReLUNetwork
    best_score: Any
    snapshots: Any = None
    """Networks [agents, snapshots, ..]; None if none are kept."""


def train_agents(
    batches: Sequence[TrainingBatch],
    settings: DQNConfig,
    episodes: int,
    seeds: Sequence[int],
    *,
    validate: Validator | None = None,
    validate_every: int = 5000,
    chunk: int = CHUNK,
    folder: Path | None = None,
    callback: Callback = no_callback,
    stage: str = STAGE,
    initial_state: TrainState | None = None,
    identity: dict[str, Any] | None = None,
    time_limit: float = float("inf"),
    decisions: int | None = None,
    snapshots: bool = False,
) -> TrainResult:
    """Train one agent per seed. With a folder, checkpoints are kept there and training resumes from them.

    Args:
        episodes: training episodes per agent.
        validate: called with the networks every `validate_every` decisions and at the end; its metrics form the curve.
        validate_every: decisions between validations.
        chunk: decisions per compiled call, after each of which the callback is called with `stage`.
        initial_state: agents to start from, instead of new ones.
        identity: identifies this training (models, schedules); a checkpoint with another identity is refused.
        time_limit: seconds after which training stops.
        decisions: decisions of each agent after which training stops, however many episodes they were.
        snapshots: keep the networks at every multiple of `validate_every` decisions; with `decisions`.
    """
    batches = tuple(batches)
    what = {"seeds": list(seeds), "settings": dataclasses.asdict(settings), "episodes": episodes, "about": identity}
    if initial_state is None:
        initial_state = init_train_state(batches, settings, episodes, seeds)
    with Session(folder, what, save_seconds=SAVE_SECONDS) as session:
        count = decisions // validate_every if snapshots and decisions is not None else 0
        state = session.restore(_new_state(initial_state, count))
        devices = AgentDevices.of([batch.agents for batch in batches])
        spread = _spread_batches(devices, batches)
        state = dataclasses.replace(state, train_state=devices.spread(state.train_state))
        curve: list[dict[str, Any]] = session.earlier.get("curve", [])
        checked = False
        session.complete = session.resumable and _ended(state, decisions)
        total = decisions if snapshots else None
        callback(_progress(stage, devices, state.train_state, {}, 0.0, total))
        while not _ended(state, decisions):
            taken = int(state.train_state.decisions.max())
            some = min(chunk, validate_every - taken % validate_every)
            state = dataclasses.replace(state, train_state=_advance(devices, settings, spread, some, state.train_state))
            figures: dict[str, Any] = {}
            if state.snapshots is not None and (taken + some) % validate_every == 0:
                networks = devices.together(state.train_state.learner.q)
                state = _with_snapshot(state, networks, (taken + some) // validate_every - 1)
            if validate is not None and ((taken + some) % validate_every == 0 or _ended(state, decisions)):
                state, figures = _validated(state, devices, validate)
                curve.append(_point(devices, state.train_state, figures, session.seconds))
            callback(_progress(stage, devices, state.train_state, figures, session.here, total))
            checked = checked or _checked_rewards(devices, state.train_state, settings)
            stop, late = session.interrupted(), session.here > time_limit
            if session.due():
                session.save(_together(devices, state), curve=curve)
            if stop and not _ended(state, decisions):
                at = f"episode {int(state.train_state.episodes.min()):,} of {episodes:,}"
                if total is not None:
                    at = f"decision {int(state.train_state.decisions.min()):,} of {total:,}"
                raise session.stop(f"in '{stage}' at {at}")
            if late:
                break
        state = _together(devices, state)
        if not session.complete:
            session.save(state, curve=curve)
        if session.interrupted() and folder is not None:
            raise session.stop(f"in '{stage}' after the last episode")
    return _result(state, curve, seeds, folder, session.seconds)


def _checked_rewards(devices: AgentDevices, train_state: TrainState, settings: DQNConfig) -> bool:
    """Warn of rewards that are too large to learn from; False while no episode has ended."""
    totals = np.abs(np.asarray(devices.together(train_state.returns))[:, :, 0], dtype=np.float64)
    ended = np.isfinite(totals)
    if not ended.any():
        return False
    size = totals[ended].sum() / float(np.asarray(devices.together(train_state.decisions)).sum())
    warn(check_rewards(size, settings.reward_scale))
    return True


def _spread_batches(devices: AgentDevices, batches: Sequence[TrainingBatch]) -> tuple[TrainingBatch, ...]:
    found = []
    for number, batch in enumerate(batches):
        arrays, static = eqx.partition(batch, eqx.is_array)
        placed = eqx.combine(devices.spread_group(number, arrays), static)
        found.append(dataclasses.replace(placed, agents=devices.shares[number]))
    return tuple(found)


def _advance(
    devices: AgentDevices, settings: DQNConfig, batches: tuple[TrainingBatch, ...], count: int, train_state: TrainState
) -> TrainState:
    if devices.mesh is None:
        return run_steps((settings, batches, count), train_state)
    return run_steps_on((settings, batches, count, devices.mesh), train_state)


def _together(devices: AgentDevices, state: _State) -> _State:
    """The state as checkpoints hold it, whatever the number of devices."""
    return dataclasses.replace(state, train_state=devices.together(state.train_state))


def _ended(state: _State, decisions: int | None = None) -> bool:
    agents = state.train_state
    over = (agents.episodes >= agents.returns.shape[1]) | agents.diverged
    return bool((over if decisions is None else over | (agents.decisions >= decisions)).all())


def _with_snapshot(state: _State, networks: ReLUNetwork, index: int) -> _State:
    """With the networks of this moment among the snapshots."""
    kept = jax.tree.map(lambda every, now: every.at[:, index].set(now), state.snapshots, networks)
    return dataclasses.replace(state, snapshots=kept)


def _new_state(train_state: TrainState, snapshots: int = 0) -> _State:
    """State before the first decision. Arrays are copied because shared buffers cannot be donated to the compiled
    loop."""
    train_state = copies(train_state)
    low = jnp.full(train_state.decisions.shape, -jnp.inf)
    q = train_state.learner.q
    kept = jax.tree.map(lambda x: jnp.repeat(x[:, None], snapshots, axis=1), q) if snapshots else None
    return _State(train_state, copies(q), low, kept)


def _validated(state: _State, devices: AgentDevices, validate: Validator) -> tuple[_State, dict[str, Any]]:
    """Validation metrics, and the state with the best networks updated."""
    q = devices.together(state.train_state.learner.q)
    figures = {name: np.asarray(values, np.float64).tolist() for name, values in validate(q).items()}
    if "score" not in figures:
        return state, figures
    score = jnp.asarray(np.nan_to_num(figures["score"], nan=-np.inf), jnp.float32)
    better = score > state.best_score
    best = jax.vmap(choose)(better, q, state.best)
    found = dataclasses.replace(state, best=best, best_score=jnp.where(better, score, state.best_score))
    return found, figures


def _point(devices: AgentDevices, train_state: TrainState, figures: dict[str, Any], seconds: float) -> dict[str, Any]:
    counts = {
        name: np.asarray(devices.together(getattr(train_state, name))).tolist() for name in ("episodes", "decisions")
    }
    return {**counts, **figures, "seconds": round(seconds, 2)}


def _progress(
    stage: str,
    devices: AgentDevices,
    train_state: TrainState,
    figures: dict[str, Any],
    seconds: float,
    decisions: int | None = None,
) -> Progress:
    """In episodes, or in decisions if training ends after so many."""
    episodes = np.asarray(devices.together(train_state.episodes))
    totals = np.asarray(devices.together(train_state.returns)[:, :, 0])
    metrics: dict[str, Any] = {}
    if episodes.any():
        metrics["return"] = [
            float(row[max(0, n - 20) : n].mean()) if n else float("nan")
            for row, n in zip(totals, episodes, strict=True)
        ]
    metrics |= {VALIDATED.get(name, name): value for name, value in figures.items()}
    if decisions is not None:
        taken = int(np.asarray(devices.together(train_state.decisions)).min())
        return Progress(stage, taken, decisions, metrics, seconds)
    return Progress(stage, int(episodes.min()), totals.shape[1], metrics, seconds)


VALIDATED = {"real": "real_return", "score": "validation_return"}
"""Names of validation metrics in the callback."""


def _result(
    state: _State, curve: list[dict[str, Any]], seeds: Sequence[int], folder: Path | None, seconds: float
) -> TrainResult:
    train_state = state.train_state
    chosen = last = train_state.learner.q
    diverged = np.asarray(train_state.diverged)
    if diverged.all():
        i = int(np.asarray(train_state.decisions).argmin())
        kept = "" if folder is None else f" The checkpoint in {folder} holds the last good weights."
        raise KairodeError(
            f"the policy of seed {seeds[i]} diverged after {int(train_state.decisions[i]):,} decisions: a value "
            "or an observation was not finite. Try a smaller reward_scale or learning_rate; in imagination, "
            f"bound predictions to the range of the data (data=..).{kept}"
        )
    if curve and "score" in curve[-1]:  # the last network if no score was finite
        chosen = jax.vmap(choose)(jnp.isfinite(state.best_score), state.best, last)
    return TrainResult(
        q=chosen,
        last=last,
        curve=curve,
        returns=np.asarray(train_state.returns),
        decisions=np.asarray(train_state.decisions).tolist(),
        diverged=diverged.tolist(),
        seconds=seconds,
        snapshots=state.snapshots,
    )
