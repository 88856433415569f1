"""`kairode.learn`: a policy, in the imagination of fitted models or on the real system."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from kairode.agents.dqn import DQNConfig
from kairode.agents.encoder import IdentityEncoder, LatentEncoder, ObsEncoder
from kairode.agents.evaluate import episode_keys, mean_return, score_many
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_loop import TrainProgress, TrainResult, Validator, train_agents
from kairode.agents.train_step import TrainingBatch, init_train_state, transitions_from_data, with_transitions
from kairode.algorithms.fit import digest
from kairode.data import Trajectory
from kairode.envs import make
from kairode.envs.accrual import AccruedRewards
from kairode.envs.consistency import check_course
from kairode.envs.core import Discrete, Environment, Spec, Task
from kairode.envs.schedule import Fixed, Own, Schedule, as_schedule
from kairode.errors import KairodeError, unknown
from kairode.models.dynamics import DynamicsModel
from kairode.models.timer import NoTimer
from kairode.paper.studies import sample_start_observations
from kairode.planning.interpolate import interpolated
from kairode.planning.model_env import ModelEnv, make_model_env, obs_range
from kairode.planning.optimize_schedule import accrual_setup
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.seeds import Purpose, derive
from kairode.trees import alone


@dataclasses.dataclass(frozen=True)
class LearnConfig:
    """How policies of one environment are learned."""

    dqn: DQNConfig
    imagined: int
    """Episodes in imagination."""
    real: int
    """Episodes on the real system, where there is no model."""
    margin: float | None = 0.5
    """Imagined observations stay within the range of the experience, widened by so many times itself."""
    branch: int | None = None
    """With experience at hand, imagined episodes start anywhere along it and last so many decisions; the replay then
    holds the experience too. None for whole episodes from the system's start."""
    every: int = 4000
    """Decisions between two looks."""


POLICIES: dict[str, LearnConfig] = {
    "gridworld": LearnConfig(DQNConfig(reward_scale=0.1, double=True), imagined=400, real=400, every=2000),
    "acrobot": LearnConfig(DQNConfig(reward_scale=0.1, double=True), imagined=200, real=300),
    "hiv": LearnConfig(DQNConfig(reward_scale=1e-6, double=True, target_every=40), imagined=2400, real=300, branch=25),
    "hiv-partial": LearnConfig(DQNConfig(reward_scale=1e-6, double=True), imagined=300, real=300),
}
OTHER = LearnConfig(DQNConfig(double=True), imagined=300, real=300)
"""For anything else: rewards should be of the size of one."""


def policy_preset(env: str) -> LearnConfig:
    """That of an environment, or the one for anything else."""
    return POLICIES.get(env, OTHER)


@dataclasses.dataclass(frozen=True)
class LearnResult:
    """A policy, and how it was come by."""

    policy: QPolicy
    training: TrainResult


def learn(
    models: DynamicsModel | Sequence[DynamicsModel] | None,
    env: Environment | Task | str,
    *,
    data: Trajectory | None = None,
    schedule: Schedule | float | Sequence[Any] | str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    latent: bool = False,
    accrue: bool = False,
    sample_intervals: bool = True,
    folder: str | Path | None = None,
    callback: Callable[[TrainProgress], None] = lambda report: None,
    **options: Any,
) -> QPolicy:
    """Learn a policy in the imagination of fitted models: `kairode.learn(model, env)`.

    Several models make one world: each imagined episode happens in one of them. From three models on, the last is kept
    out of it and judges the policy instead; the best-judged one is returned. `kairode.learn(None, env)` practises on
    the real system, without a model.

    Args:
        models: one fitted model, several of one kind, or None.
        env: the real system, of which only the task and the start states are used (unless there is no model); or a
            task, with `data` for the start states.
        data: the experience of the models: imagined observations then stay near it, and a task starts where it did.
        schedule: learn for this schedule rather than the system's own; as for `kairode.collect`.
        episodes: of practice; None for what belongs to the environment.
        seed: fixes everything random.
        latent: let the policy see the model's latent state too: for systems that are observed in part.
        accrue: count the reward on every finest step (each day of HIV), not at the next decision alone; a schedule of
            `kairode.best_intervals` always does.
        sample_intervals: draw imagined intervals from the distribution that the models' timers predict; False takes the
            most likely interval, as in the paper.
        folder: keep a checkpoint there, and go on from it.
        tell: called with a `PracticeReport` as practice goes on.
        options: fields of `DQNSettings` (reward_scale, learning_rate, ..) or of `PolicyPreset` that differ from the
            environment's own.
    """
    found = learn_with_curve(
        models,
        env,
        data=data,
        schedule=schedule,
        episodes=episodes,
        seed=seed,
        latent=latent,
        accrue=accrue,
        sample_intervals=sample_intervals,
        folder=folder,
        callback=callback,
        **options,
    )
    return found.policy


def learn_with_curve(
    models: DynamicsModel | Sequence[DynamicsModel] | None,
    env: Environment | Task | str,
    *,
    data: Trajectory | None = None,
    schedule: Schedule | float | Sequence[Any] | str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    latent: bool = False,
    accrue: bool = False,
    sample_intervals: bool = True,
    folder: str | Path | None = None,
    callback: Callable[[TrainProgress], None] = lambda report: None,
    watch: Environment | None = None,
    **options: Any,
) -> LearnResult:
    """As `learn`; also the curve of practice, with looks at the system `watch` (nothing is chosen by those)."""
    env = make(env) if isinstance(env, str) else env
    task = _checked_task(env, data)
    if accrue and isinstance(env, Environment):
        check_course(env)
    chosen, settings = _chosen(task.spec.name, options)
    timing = as_schedule(schedule, task.spec)
    members = [models] if isinstance(models, DynamicsModel) else list(models or ())
    branching = bool(members) and data is not None and chosen.branch is not None and not latent
    if chosen.branch is not None and not branching and "target_every" not in options:
        # Episodes are whole, so fewer lie between two renewals.
        settings = dataclasses.replace(settings, target_every=DQNConfig().target_every)
    place, validation_env, encoder = _where(
        None if models is None else members, env, chosen, data, branching, latent, sample_intervals
    )
    given = timing if isinstance(timing, OptimizedSchedule) else schedule
    if accrue or isinstance(timing, OptimizedSchedule):
        accrue = True
        place, timing, encoder = accrual_setup(place, timing, encoder, settings.reward_scale)
        validation_env = (
            None if validation_env is None else AccruedRewards.of(validation_env, timing.longest(task.spec))
        )
        watch = None if watch is None else AccruedRewards.of(watch, timing.longest(task.spec))
    batch = TrainingBatch(alone(place), alone(timing), alone(encoder), 1)
    count = (chosen.real if models is None else imagined_episodes(chosen, branching)) if episodes is None else episodes
    if not (isinstance(count, int) and count >= 1):
        raise KairodeError(f"episodes must be a whole number of at least 1, got {count}.")
    initial_state = init_train_state([batch], settings, count, [seed])
    if branching and data is not None and isinstance(timing, Own | Fixed):
        seen = interpolated(members[0], task, data) if accrue else data
        real = transitions_from_data(
            settings, seen, task.spec, float(timing.tau) if isinstance(timing, Fixed) else None
        )
        initial_state = with_transitions(initial_state, real) if len(real.action) else initial_state
    training = train_agents(
        [batch],
        settings,
        count,
        [seed],
        initial_state=initial_state,
        about=identity(chosen, given, members, data, accrue, sample_intervals),
        validate=_look(batch, task.spec, settings, validation_env, watch, timing),
        every=chosen.every,
        folder=None if folder is None else Path(folder),
        callback=callback,
    )
    [policy] = training.policies([batch], settings.epsilon_last, settings.reward_scale)
    accrues = accrue or (isinstance(timing, Fixed) and float(timing.tau) == task.spec.finest)
    return LearnResult(dataclasses.replace(policy, spec=task.spec, accrues=accrues), training)


def _checked_task(env: Any, data: Any) -> Task:
    """The task to learn, if it is one that can be learned."""
    if not isinstance(env, Environment | Task):
        raise KairodeError(
            f"{env!r} is neither an environment nor a task: give kairode.make('hiv') or its task. For records of a "
            "system that cannot be run, write a Task: docs/add-an-environment.md."
        )
    if data is not None and not isinstance(data, Trajectory):
        raise KairodeError(f"data must be experience, from kairode.collect or kairode.read, got {data!r}.")
    task = env if isinstance(env, Task) else env.task
    if not isinstance(task.spec.actions, Discrete):
        raise KairodeError(f"policies are learned for named actions so far; those of '{task.spec.name}' are controls.")
    return task


def _where(
    members: list[DynamicsModel] | None,
    env: Environment | Task,
    chosen: LearnConfig,
    data: Trajectory | None,
    branching: bool,
    latent: bool,
    sample_intervals: bool,
) -> tuple[Environment, Environment | None, ObsEncoder]:
    """Where to practise (the imagination of models, or the real system), who judges there, and what is seen."""
    if members is not None:
        model_env, validation_env = _worlds(members, env, chosen, data, branching, sample_intervals)
        seen = (
            LatentEncoder(dataclasses.replace(members[0], spec=model_env.models.spec)) if latent else IdentityEncoder()
        )
        return model_env, validation_env, seen
    if latent:
        raise KairodeError("a latent policy needs a model: there is none.")
    if isinstance(env, Environment):
        return env, None, IdentityEncoder()
    raise KairodeError("without a model, practice needs the real system: give the environment, not its task.")


def identity(
    chosen: LearnConfig,
    schedule: Any,
    members: list[DynamicsModel],
    data: Trajectory | None,
    accrue: bool,
    sample_intervals: bool,
) -> dict[str, Any]:
    """What tells one practice from another: a checkpoint of another one is not gone on with.

    Checkpoints of older versions took the most likely interval and say nothing of it.
    """
    drawn = sample_intervals and any(not isinstance(model.timer, NoTimer) for model in members)
    return {
        "preset": dataclasses.asdict(chosen),
        "schedule": schedule_words(schedule),
        **({"accrue": True} if accrue else {}),
        **({"sample_intervals": True} if drawn else {}),
        "models": digest(*members),
        "data": None if data is None else digest(data),
    }


def schedule_words(schedule: Any) -> str:
    """What tells one schedule from another."""
    if not isinstance(schedule, OptimizedSchedule):
        return str(schedule)
    return digest(schedule) + str(eqx.filter(schedule, eqx.is_array, inverse=True))


def _worlds(
    members: list[DynamicsModel],
    env: Environment | Task,
    chosen: LearnConfig,
    data: Trajectory | None,
    branching: bool,
    sample_intervals: bool,
) -> tuple[ModelEnv, ModelEnv | None]:
    """Where to practise, and the world of the judge, if there is a model to spare."""
    options: dict[str, Any] = {
        "starts": data if isinstance(env, Task) else None,
        "sample_intervals": sample_intervals,
    }
    if data is not None and chosen.margin is not None:
        options["obs_bounds"] = jnp.asarray(obs_range(data, chosen.margin))
    validation_env = make_model_env(members[-1], env, **options) if len(members) > 2 else None
    if branching and data is not None:
        options |= {"starts": sample_start_observations(data), "branch": chosen.branch, "resample_member": True}
    return make_model_env(members[:-1] if validation_env is not None else members, env, **options), validation_env


def imagined_episodes(chosen: LearnConfig, branching: bool) -> int:
    """How many to imagine: whole ones have many times the decisions of a branch."""
    return chosen.imagined if branching or chosen.branch is None else chosen.real


def _chosen(env: str, options: dict[str, Any]) -> tuple[LearnConfig, DQNConfig]:
    """The preset and settings with what the options change."""
    preset = policy_preset(env)
    learner = {field.name for field in dataclasses.fields(DQNConfig)}
    own = {field.name for field in dataclasses.fields(LearnConfig)} - {"dqn", "imagined", "real"}
    named = {"data", "schedule", "episodes", "seed", "latent", "accrue", "sample_intervals", "folder", "tell"}
    for name in options:
        if name not in learner | own:
            raise unknown("option", name, sorted(learner | own | named), where="of kairode.learn")
    settings = dataclasses.replace(preset.dqn, **{k: v for k, v in options.items() if k in learner})
    return dataclasses.replace(preset, **{k: v for k, v in options.items() if k in own}), settings


def _look(
    batch: TrainingBatch,
    spec: Spec,
    settings: DQNConfig,
    validation_env: Environment | None,
    watch: Environment | None,
    timing: Schedule,
) -> Validator | None:
    """Returns over whole episodes, on the system that is watched and in the world of the judge."""
    places = {"score": validation_env, "real": watch}
    if all(place is None for place in places.values()):
        return None
    limit = spec.longest(timing.shortest(spec))
    keys = episode_keys(derive(0, Purpose.VALIDATION), 20)

    def validate(q: ReLUNetwork) -> dict[str, np.ndarray]:
        policies = QPolicy(q, batch.encoder, spec, settings.epsilon_last)
        return {
            name: mean_return(place.task, score_many(alone(place), policies, batch.schedule.with_q(q), keys, limit, 1))
            for name, place in places.items()
            if place is not None
        }

    return validate
