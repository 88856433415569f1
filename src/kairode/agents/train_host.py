"""Training agents on a host environment: simulations are stepped on the host, one compiled call learns and acts.

The same learner, random numbers and bookkeeping as `train_loop`, whose environments are compiled.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from kairode.agents.dqn import ReplayTransition, init_learner
from kairode.agents.network import ReLUNetwork
from kairode.agents.train_loop import SAVE_SECONDS, STAGE, TrainResult, Validator
from kairode.agents.train_step import (
    EpisodeState,
    StepResult,
    TrainState,
    decision_random,
    select_action,
    update_agent,
)
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.agents import DQNConfig
from kairode.data.checks import check_rewards, warn
from kairode.data.host_rollout import HostRollout
from kairode.envs.core import Discrete, Moment, Spec
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import Schedule
from kairode.envs.vector import Step
from kairode.envs.vector_host import HostVectorEnv
from kairode.errors import KairodeError
from kairode.seeds import Purpose, derive
from kairode.training.session import Session
from kairode.trees import choose, copies

REPORT_EVERY = 100
"""Decisions between two reports of progress."""


class HostStep(NamedTuple):
    """What the host reports of one decision, [agents, ..]."""

    action: Any
    next_obs: Any
    start_obs: Any
    """The first observation of the next episode where this one ended; otherwise `next_obs`."""
    reward: Any
    total: Any
    """The reward without discount within the interval."""
    time: Any
    """Time of the decision."""
    tau: Any
    terminated: Any
    truncated: Any


class _Checkpoint(eqx.Module):
    """Contents of a checkpoint."""

    train_state: TrainState
    best: ReLUNetwork
    best_score: Any
    rollout: Any
    vector_env: Any


def train_agents_on_host(
    env: HostEnvironment,
    schedule: Schedule,
    settings: DQNConfig,
    episodes: int,
    seeds: Sequence[int],
    *,
    accrued: bool = False,
    validate: Validator | None = None,
    validate_every: int = 5000,
    folder: Path | None = None,
    callback: Callback = no_callback,
    stage: str = STAGE,
    identity: dict[str, Any] | None = None,
    decisions: int | None = None,
) -> TrainResult:
    """Train one agent per seed on simulations of its own; `train_agents` says what the arguments are.

    Interrupted in the middle of an episode, it goes on from there if the simulations can be saved, otherwise from the
    start of that episode.
    """
    spec = env.task.spec
    if not isinstance(spec.actions, Discrete):
        raise KairodeError(f"DQN needs discrete actions; those of '{spec.name}' are continuous.")
    what = {"seeds": list(seeds), "settings": dataclasses.asdict(settings), "episodes": episodes, "about": identity}
    count = len(seeds)
    vector_env = HostVectorEnv(env, count, schedule, accrued=accrued)
    rollout = HostRollout(vector_env)
    try:
        with Session(folder, what, save_seconds=SAVE_SECONDS) as session:
            _begin(rollout, seeds, np.ones(count, bool))
            state = _initial_state(settings, episodes, spec, seeds, rollout.obs)
            best, best_score = copies(state.learner.q), jnp.full(count, -jnp.inf)
            curve: list[dict[str, Any]] = []
            if session.resumable:
                saved = _Checkpoint(state, best, best_score, rollout.snapshot(), vector_env.snapshot())
                session.restore_about()
                saved = session.restore(session.with_saved_shapes(saved, "vector_env.physics"))
                state, best, best_score = saved.train_state, saved.best, saved.best_score
                curve = session.earlier.get("curve", [])
                kept, going = jax.tree.map(np.asarray, (saved.rollout, saved.vector_env))
                rollout.restore(kept)
                if vector_env.restore(going) is None:
                    state = _begin_again(rollout, vector_env, state, seeds)
                    message = f"The simulator of '{spec.name}' cannot be continued: its last episode begins again."
                    callback(Progress(stage, message=message))
            session.complete = session.resumable and _ended(state, decisions)
            actions = np.asarray(_act(settings, state))
            callback(_progress(stage, state, curve, session.here, decisions))
            checked, since = False, int(state.decisions.max())
            while not _ended(state, decisions):
                seen, step = _step(rollout, seeds, actions)
                state, chosen = _learn_and_act((settings, spec), state, seen)
                taken = since = since + 1
                if validate is not None and (taken % validate_every == 0 or _ended(state, decisions)):
                    figures = {name: np.asarray(x, float).tolist() for name, x in validate(state.learner.q).items()}
                    best, best_score = _better(state, figures, best, best_score)
                    curve.append(_point(state, figures, session.seconds))
                if taken % REPORT_EVERY == 0 or bool(step.ended.any()):
                    callback(_progress(stage, state, curve, session.here, decisions))
                    checked = checked or _checked_rewards(state, settings)
                actions = np.asarray(chosen)
                stop = session.interrupted()
                if session.due():
                    parts = (state, best, best_score, rollout.snapshot(), vector_env.snapshot())
                    session.save(_Checkpoint(*parts), curve=curve)
                if stop and not _ended(state, decisions):
                    raise session.stop(f"in '{stage}' at episode {int(state.episodes.min()):,} of {episodes:,}")
            if not session.complete:
                parts = (state, best, best_score, rollout.snapshot(), vector_env.snapshot())
                session.save(_Checkpoint(*parts), curve=curve)
    finally:
        vector_env.close()
    return _result(state, best, best_score, curve, seeds, session.seconds)


def _begin(rollout: HostRollout, seeds: Sequence[int], which: np.ndarray) -> None:
    """Start episodes where marked; their random numbers depend only on seed and episode."""
    instances = np.flatnonzero(which)
    rollout.start(
        instances, [derive(seeds[i], Purpose.HOST_EPISODE, int(rollout.episode[i])) for i in instances.tolist()]
    )


def _begin_again(
    rollout: HostRollout, vector_env: HostVectorEnv, state: TrainState, seeds: Sequence[int]
) -> TrainState:
    """Start the episode that was going again, in every simulation."""
    rollout.episode -= 1
    _begin(rollout, seeds, np.ones(len(seeds), bool))
    return copies(dataclasses.replace(state, episode=_new_episode(jnp.asarray(rollout.obs, jnp.float32))))


def _new_episode(obs: Array) -> EpisodeState:
    zero = jnp.zeros(obs.shape[:-1])
    return EpisodeState(Moment((), obs, zero, zero, zero.astype(jnp.int32)), (), obs, zero, zero)


def _initial_state(settings: DQNConfig, episodes: int, spec: Spec, seeds: Sequence[int], obs: np.ndarray) -> TrainState:
    assert isinstance(spec.actions, Discrete)
    count, actions = len(seeds), spec.actions.n
    keys = jax.vmap(jax.random.split)(jnp.stack([jax.random.key(seed) for seed in seeds]))
    new = eqx.filter_jit(jax.vmap(lambda key: init_learner(obs.shape[1], actions, settings, key=key)))
    return copies(
        TrainState(
            key=jax.random.key_data(keys[:, 1]),
            episode=_new_episode(jnp.asarray(obs, jnp.float32)),
            learner=new(keys[:, 0]),
            decisions=jnp.zeros(count, jnp.int32),
            episodes=jnp.zeros(count, jnp.int32),
            returns=jnp.full((count, episodes, 2), jnp.nan),
            diverged=jnp.zeros(count, bool),
        )
    )


def _step(rollout: HostRollout, seeds: Sequence[int], actions: np.ndarray) -> tuple[HostStep, Step]:
    """One decision of every agent; episodes that ended are followed by the next."""
    before = rollout.vector_env.time.copy()  # type: ignore[attr-defined]
    step = rollout.step(actions)
    if step.ended.any():
        _begin(rollout, seeds, step.ended)
    total = step.reward if step.total is None else step.total
    seen = HostStep(
        action=np.asarray(actions, np.int32),
        next_obs=step.obs,
        start_obs=rollout.obs,
        reward=step.reward,
        total=np.asarray(total, np.float32),
        time=before.astype(np.float32),
        tau=step.tau.astype(np.float32),
        terminated=step.terminated,
        truncated=step.truncated,
    )
    return seen, step


@eqx.filter_jit
def _act(settings: DQNConfig, state: TrainState) -> Int[Array, " agents"]:
    def one(state: TrainState) -> Any:
        return select_action(settings, state, decision_random(settings, state, state.decisions).action)

    return jax.vmap(one)(state)


@eqx.filter_jit(donate="all-except-first")
def _learn_and_act(
    fixed: tuple[DQNConfig, Spec], state: TrainState, seen: HostStep
) -> tuple[TrainState, Int[Array, " agents"]]:
    settings, spec = fixed

    def one(state: TrainState, seen: HostStep) -> Any:
        uniform = decision_random(settings, state, state.decisions).uniform
        state = update_agent(settings, state, _outcome(settings, spec, state, seen), uniform)
        return state, select_action(settings, state, decision_random(settings, state, state.decisions).action)

    return jax.vmap(one)(state, seen)


def _outcome(settings: DQNConfig, spec: Spec, state: TrainState, seen: HostStep) -> StepResult:
    """The transition of one agent, and its next episode where this one ended; as `env_step` of compiled systems."""
    gamma = spec.discount ** (seen.tau / spec.tick)
    transition = ReplayTransition(
        state.episode.features,
        seen.action,
        settings.reward_scale * seen.reward,
        jnp.where(seen.terminated, 0.0, gamma),
        seen.next_obs,
    )
    total = state.episode.total + seen.total
    discounted = state.episode.discounted + seen.reward * spec.discount ** (seen.time / spec.tick)
    ended = seen.terminated | seen.truncated
    going = dataclasses.replace(_new_episode(seen.next_obs), total=total, discounted=discounted)
    episode = choose(ended, _new_episode(seen.start_obs), going)
    return StepResult(transition, episode, ended, jnp.stack([total, discounted]))


def _ended(state: TrainState, decisions: int | None) -> bool:
    over = np.asarray(state.episodes >= state.returns.shape[1]) | np.asarray(state.diverged)
    return bool((over if decisions is None else over | np.asarray(state.decisions >= decisions)).all())


def _better(state: TrainState, figures: dict[str, Any], best: ReLUNetwork, best_score: Any) -> tuple[ReLUNetwork, Any]:
    """The best networks so far, by the metric `score`."""
    if "score" not in figures:
        return best, best_score
    score = jnp.asarray(np.nan_to_num(figures["score"], nan=-np.inf), jnp.float32)
    best = jax.vmap(partial(choose))(score > best_score, state.learner.q, best)
    return copies(best), jnp.maximum(score, best_score)


def _point(state: TrainState, figures: dict[str, Any], seconds: float) -> dict[str, Any]:
    counts = {name: np.asarray(getattr(state, name)).tolist() for name in ("episodes", "decisions")}
    return {**counts, **figures, "seconds": round(seconds, 2)}


def _latest_returns(state: TrainState) -> list[float]:
    rows = np.asarray(state.returns)[:, :, 0]
    each = zip(rows, np.asarray(state.episodes), strict=True)
    return [float(row[max(0, n - 20) : n].mean()) if n else float("nan") for row, n in each]


def _progress(
    stage: str, state: TrainState, curve: list[dict[str, Any]], seconds: float, decisions: int | None
) -> Progress:
    metrics: dict[str, Any] = {"return": _latest_returns(state)} if bool((state.episodes > 0).any()) else {}
    if curve and "real" in curve[-1]:
        metrics["real_return"] = curve[-1]["real"]
    if decisions is not None:
        return Progress(stage, int(state.decisions.min()), decisions, metrics, seconds)
    return Progress(stage, int(state.episodes.min()), state.returns.shape[1], metrics, seconds)


def _checked_rewards(state: TrainState, settings: DQNConfig) -> bool:
    """Warn of rewards that are too large to learn from; False while no episode has ended."""
    totals = np.abs(np.asarray(state.returns, np.float64)[:, :, 0])
    if not np.isfinite(totals).any():
        return False
    warn(check_rewards(float(np.nansum(totals) / np.asarray(state.decisions).sum()), settings.reward_scale))
    return True


def _result(
    state: TrainState, best: ReLUNetwork, best_score: Any, curve: list[dict[str, Any]], seeds: Any, seconds: float
) -> TrainResult:
    diverged = np.asarray(state.diverged)
    if diverged.all():
        raise KairodeError(
            f"the policy of seed {seeds[0]} diverged after {int(state.decisions[0]):,} decisions: a value was not "
            "finite. Try a smaller reward_scale or learning_rate."
        )
    last = state.learner.q
    chosen = jax.vmap(choose)(jnp.isfinite(best_score), best, last) if curve and "score" in curve[-1] else last
    return TrainResult(
        q=chosen,
        last=last,
        curve=curve,
        returns=np.asarray(state.returns),
        decisions=np.asarray(state.decisions).tolist(),
        diverged=diverged.tolist(),
        seconds=seconds,
    )
