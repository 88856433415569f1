"""The loop around the compiled practice: looks, the best policy so far, checkpoints, interrupts, divergence."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.agents.dqn import DQNConfig
from kairode.agents.encoder import inner_encoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_step import TrainingBatch, TrainState, agents_finished, init_train_state, run_steps
from kairode.errors import KairodeError, Stopped
from kairode.training import checkpoint
from kairode.training.loop import interrupts
from kairode.trees import one

CHUNK = 500
"""Decisions in one compiled call."""
SAVE_SECONDS = 30.0
"""Time between two checkpoints: a replay is large."""

Validator = Callable[[ReLUNetwork], dict[str, Any]]
"""Figures of the agents' networks, a value for each agent; the one called `score` says which policy is best."""


@dataclasses.dataclass(frozen=True)
class TrainProgress:
    """What the loop tells whoever watches it, after every compiled call."""

    episodes: list[int]
    """Finished by each agent."""
    wanted: int
    decisions: int
    """Of the agent that has taken most."""
    returns: list[float]
    """Each agent's mean over its latest episodes (plain sums of rewards)."""
    figures: dict[str, list[float]] | None
    """What a look found, when there was one."""
    seconds: float


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What came out of practice."""

    q: ReLUNetwork
    """Each agent's last network; the best one by its score where there were scores."""
    last: ReLUNetwork
    curve: list[dict[str, Any]]
    """Each look: episodes and decisions of every agent, and the figures."""
    returns: np.ndarray
    """[agents, episodes, 2] of practice: plain and discounted."""
    decisions: list[int]
    diverged: list[bool]
    seconds: float

    def policies(self, batches: Sequence[TrainingBatch], epsilon: float = 0.05, scale: float = 1.0) -> list[QPolicy]:
        """One for each agent; `scale` is that of the rewards in practice."""
        found: list[QPolicy] = []
        for batch in batches:
            for i in range(batch.agents):
                encoder = inner_encoder(one(batch.encoder, i))
                q = one(self.q, len(found))
                found.append(QPolicy(q, encoder, batch.env.task.spec, epsilon, scale))
        return found


class _State(eqx.Module):
    """What a checkpoint holds."""

    train_state: TrainState
    best: ReLUNetwork
    best_score: Any


def train_agents(
    batches: Sequence[TrainingBatch],
    settings: DQNConfig,
    episodes: int,
    seeds: Sequence[int],
    *,
    validate: Validator | None = None,
    every: int = 5000,
    chunk: int = CHUNK,
    folder: Path | None = None,
    callback: Callable[[TrainProgress], None] = lambda report: None,
    initial_state: TrainState | None = None,
    about: dict[str, Any] | None = None,
    until: float = float("inf"),
) -> TrainResult:
    """Let agents practise their episodes; with a folder, go on from its checkpoint and keep one there.

    Args:
        rooms: where they practise.
        settings: how they learn.
        episodes: how many each.
        seeds: one for each agent.
        look: called now and then with the networks; its figures make the curve.
        every: decisions between two looks (and one at the end).
        chunk: decisions in one compiled call.
        folder: of the checkpoints.
        tell: called after every compiled call.
        begun: agents to start with, in place of new ones.
        about: what else tells this practice from another (models, schedules): a checkpoint of another is refused.
        until: seconds after which practice ends with what it has come to, where time is short.
    """
    batches = tuple(batches)
    what = {"seeds": list(seeds), "settings": dataclasses.asdict(settings), "episodes": episodes, "about": about}
    run = json.loads(json.dumps(what))
    state = _new_state(init_train_state(batches, settings, episodes, seeds) if initial_state is None else initial_state)
    session = _Session(*_resumed(state, run, folder), run, folder)
    with interrupts() as asked:
        while not session.ended:
            taken = session.decisions
            some = min(chunk, every - taken % every)
            session.go_on(settings, batches, some)
            figures = None
            if validate is not None and ((taken + some) % every == 0 or session.ended):
                figures = session.validate(validate)
            callback(_report(session.state.train_state, figures, session.seconds))
            stop, late = asked(), session.lasted > until
            if stop or session.due:
                session.keep()
            if stop and not session.ended:
                raise Stopped(
                    "interrupted." if folder is None else f"interrupted after {taken + some:,} decisions, saved."
                )
            if late:
                break
        session.keep()
        if asked() and folder is not None:
            raise Stopped("interrupted after the last decision, saved.")
    return _result(session.state, session.curve, seeds, folder, session.seconds)


@dataclasses.dataclass
class _Session:
    """A practice under way: where it stands, its curve, its time, its checkpoints."""

    state: _State
    curve: list[dict[str, Any]]
    earlier: float
    """Seconds that were spent before this process."""
    run: dict[str, Any]
    folder: Path | None
    started: float = dataclasses.field(default_factory=time.perf_counter)
    saved: float = dataclasses.field(default_factory=time.perf_counter)
    pause: float = SAVE_SECONDS

    @property
    def lasted(self) -> float:
        """Seconds of this process."""
        return time.perf_counter() - self.started

    @property
    def seconds(self) -> float:
        """Of this process and those before."""
        return self.earlier + self.lasted

    @property
    def decisions(self) -> int:
        """Of the agent that has taken most."""
        return int(self.state.train_state.decisions.max())

    @property
    def ended(self) -> bool:
        """Whether all agents have done with it."""
        return bool(agents_finished(self.state.train_state).all())

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.perf_counter() - self.saved > self.pause

    def go_on(self, settings: DQNConfig, batches: tuple[TrainingBatch, ...], count: int) -> None:
        """Some decisions of all agents, in one compiled call."""
        train_state = run_steps((settings, batches, count), self.state.train_state)
        self.state = eqx.tree_at(lambda s: s.train_state, self.state, train_state)

    def validate(self, validate: Validator) -> dict[str, Any]:
        """A point of the curve; its figures."""
        self.state, figures = _looked(self.state, validate)
        self.curve.append(_point(self.state.train_state, figures, self.seconds))
        return figures

    def keep(self) -> None:
        """Write a checkpoint."""
        if self.folder is None:
            return
        before = time.perf_counter()
        checkpoint.save(self.folder, self.state, run=self.run, curve=self.curve, seconds=round(self.seconds, 2))
        self.saved = time.perf_counter()
        self.pause = max(SAVE_SECONDS, 20 * (self.saved - before))  # many replays take long to write


def _new_state(train_state: TrainState) -> _State:
    """Before the first decision. Copies, as buffers that two arrays share cannot both be given to the compiled loop."""
    train_state = jax.tree.map(jnp.copy, train_state)
    low = jnp.full(train_state.decisions.shape, -jnp.inf)
    return _State(train_state, jax.tree.map(jnp.copy, train_state.learner.q), low)


def _resumed(state: _State, run: dict[str, Any], folder: Path | None) -> tuple[_State, list[dict[str, Any]], float]:
    """The state, curve and seconds of a folder's checkpoint, if there is one; it must be of the same run."""
    if folder is None or not checkpoint.exists(folder):
        return state, [], 0.0
    saved = checkpoint.describe(folder)
    usual = json.loads(json.dumps(dataclasses.asdict(DQNConfig())))
    before = saved.get("run") or {}
    before = {**before, "settings": {**usual, **before.get("settings", {})}}  # an older one knows fewer settings
    if before != run:
        raise KairodeError(
            f"{folder} holds the checkpoint of another practice (other models, schedule, seeds, settings or episodes): "
            "remove it, or choose another folder."
        )
    return checkpoint.load(folder, state), saved["curve"], float(saved["seconds"])


def _looked(state: _State, validate: Validator) -> tuple[_State, dict[str, Any]]:
    """The figures of a look, and the networks that are the best so far."""
    figures = {
        name: np.asarray(values, np.float64).tolist() for name, values in validate(state.train_state.learner.q).items()
    }
    if "score" not in figures:
        return state, figures
    score = jnp.asarray(np.nan_to_num(figures["score"], nan=-np.inf), jnp.float32)
    better = score > state.best_score
    q = state.train_state.learner.q

    def chosen(new: Any, old: Any) -> Any:
        return jnp.where(better.reshape(-1, *([1] * (new.ndim - 1))), new, old)

    best = jax.tree.map(chosen, q, state.best)
    return _State(state.train_state, best, jnp.where(better, score, state.best_score)), figures


def _point(train_state: TrainState, figures: dict[str, Any], seconds: float) -> dict[str, Any]:
    counts = {name: np.asarray(getattr(train_state, name)).tolist() for name in ("episodes", "decisions")}
    return {**counts, **figures, "seconds": round(seconds, 2)}


def _report(train_state: TrainState, figures: dict[str, Any] | None, seconds: float) -> TrainProgress:
    episodes = np.asarray(train_state.episodes)
    totals = np.asarray(train_state.returns[:, :, 0])
    latest = [
        float(row[max(0, n - 20) : n].mean()) if n else float("nan") for row, n in zip(totals, episodes, strict=True)
    ]
    most = int(train_state.decisions.max())
    return TrainProgress(episodes.tolist(), totals.shape[1], most, latest, figures, seconds)


def _result(
    state: _State, curve: list[dict[str, Any]], seeds: Sequence[int], folder: Path | None, seconds: float
) -> TrainResult:
    train_state = state.train_state
    last = train_state.learner.q
    judged = bool(curve) and "score" in curve[-1]
    diverged = np.asarray(train_state.diverged)
    if diverged.all():
        i = int(np.asarray(train_state.decisions).argmin())
        kept = "" if folder is None else f" The checkpoint in {folder} holds the last good weights."
        raise KairodeError(
            f"the policy of seed {seeds[i]} diverged after {int(train_state.decisions[i]):,} decisions: a value or an "
            "observation was not finite. Try a smaller reward_scale or learning_rate; in imagination, keep predictions "
            f"near the experience (data=..).{kept}"
        )
    chosen = last
    if judged:  # where no score was ever a number, the last
        known = jnp.isfinite(state.best_score)
        chosen = jax.vmap(lambda yes, a, b: jax.tree.map(lambda x, y: jnp.where(yes, x, y), a, b))(
            known, state.best, last
        )
    return TrainResult(
        q=chosen,
        last=last,
        curve=curve,
        returns=np.asarray(train_state.returns),
        decisions=np.asarray(train_state.decisions).tolist(),
        diverged=diverged.tolist(),
        seconds=seconds,
    )
