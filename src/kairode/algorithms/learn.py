"""`kairode.learn`: a policy with discrete actions, learned in fitted models or on the real system."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from kairode.agents.encoder import IdentityEncoder, LatentEncoder, ObsEncoder, StandardizedEncoder
from kairode.agents.evaluate import evaluate, mean_return, score_many
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_host import train_agents_on_host
from kairode.agents.train_loop import STAGE, TrainResult, Validator, train_agents
from kairode.agents.train_step import (
    TrainingBatch,
    TrainState,
    init_train_state,
    obs_scale,
    standardized,
    transitions_from_data,
    with_reward_scale,
    with_transitions,
)
from kairode.algorithms.fit import digest
from kairode.callbacks import Callback, no_callback
from kairode.config.agents import DQNConfig
from kairode.config.algorithms import LearnConfig
from kairode.config.keywords import field_names, with_options
from kairode.config.presets import learn_preset
from kairode.data import Trajectory
from kairode.data.describe import spec_identity
from kairode.data.rollout import episode_keys
from kairode.envs import make
from kairode.envs.accrual import AccruedRewards
from kairode.envs.consistency import check_course
from kairode.envs.core import Discrete, Environment, Spec, Task
from kairode.envs.host import HostEnvironment
from kairode.envs.interval_actions import IntervalActions
from kairode.envs.schedule import Fixed, Own, Schedule, as_schedule
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.planning.interpolate import interpolated
from kairode.planning.learned_task import task_of_system
from kairode.planning.model_env import make_model_env, obs_range, sample_start_observations
from kairode.planning.optimize_schedule import accrual_setup
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.planning.table_task import warn_of_accrual
from kairode.seeds import Purpose, derive
from kairode.training.session import ADDED
from kairode.trees import alone, one

Models = DynamicsModel | Sequence[DynamicsModel] | None
System = Environment | HostEnvironment | Task
AnySchedule = Schedule | float | Sequence[Any] | str | None


@dataclasses.dataclass(frozen=True)
class LearnResult:
    """A learned policy and its training."""

    policy: QPolicy
    training: TrainResult


def learn(
    models: Models,
    env: System | str,
    *,
    data: Trajectory | None = None,
    schedule: AnySchedule = None,
    episodes: int | None = None,
    seed: int = 0,
    latent_policy: bool = False,
    accrue: bool = False,
    validation_model: DynamicsModel | None = None,
    folder: str | Path | None = None,
    callback: Callback = no_callback,
    **options: Any,
) -> QPolicy:
    """Learn a policy in imagination: `kairode.learn(model, env)`.

    Several models form an ensemble, and each imagined episode follows one of its members. `kairode.learn(None, env)`
    learns on the real system, without a model.

    Args:
        models: one fitted model, several of one kind, or None.
        env: the real system, of which only the task and the initial states are used (unless there is no model); or a
            task, with `data` for the initial states.
        data: training data of the models. Imagined observations are bounded to its range, a task's episodes start from
            its initial states, and some presets start short imagined episodes along it (`rollout_length`).
        schedule: learn for this schedule rather than the system's own; as for `kairode.collect`.
        episodes: training episodes; by default those of the environment's preset.
        seed: random seed.
        latent_policy: condition the policy on the latent state of the first model, for partially observed systems.
        accrue: count the reward on every finest time step, not only at decisions; always so for an optimized schedule.
        validation_model: a model that is not among `models`: return the policy with the highest return in it during
            training, rather than the last one.
        folder: keep a checkpoint there, and resume from it.
        callback: called with a `kairode.callbacks.Progress` during training.
        options: fields of `LearnConfig` (rollout_length, obs_margin, sample_intervals, validate_every) and of
            `DQNConfig` (reward_scale, learning_rate, ..) that differ from the environment's preset.
    """
    env = make(env) if isinstance(env, str) else env
    task = _check_task(env, data)
    rollouts = models is not None and data is not None and not latent_policy
    preset = learn_preset(task.spec.name, rollouts=rollouts, model_free=models is None)
    if episodes is not None:
        options["episodes"] = episodes
    own = field_names(LearnConfig, but=("dqn",))
    config = with_options(preset, options, where="kairode.learn", own=own, parts=("dqn",))
    found = learn_policy(
        models,
        env,
        config,
        data=data,
        schedule=schedule,
        seed=seed,
        latent_policy=latent_policy,
        accrue=accrue,
        validation_model=validation_model,
        folder=None if folder is None else Path(folder),
        callback=callback,
    )
    return found.policy


def learn_policy(
    models: Models,
    env: System,
    config: LearnConfig,
    *,
    data: Trajectory | None = None,
    schedule: AnySchedule = None,
    seed: int = 0,
    latent_policy: bool = False,
    accrue: bool = False,
    validation_model: DynamicsModel | None = None,
    monitor: Environment | HostEnvironment | None = None,
    folder: Path | None = None,
    callback: Callback = no_callback,
    stage: str = STAGE,
    decisions: int | None = None,
) -> LearnResult:
    """Like `learn`, with all settings in a config; the curve also has returns on the system `monitor`. With
    `decisions`, training ends after so many, however many episodes they were."""
    task = _check_task(env, data)
    if isinstance(env, HostEnvironment):
        if models is None:
            if latent_policy:
                raise KairodeError("latent_policy needs a model.")
            return _learn_on_host(env, config, schedule, seed, accrue, monitor, folder, callback, stage, decisions)
        if data is None:
            raise KairodeError(
                f"imagination in place of '{task.spec.name}' begins where its data do: pass data=.., such as "
                "kairode.collect(env, episodes=100)."
            )
        # The learned reward is a function of the data and the seed, which identify the training.
        known = digest(env.task)
        env = task = task_of_system(env, data, seed=seed)
    else:
        known = digest(env)
    if isinstance(env, IntervalActions):
        _check_interval_actions(env, config, timed=accrue or schedule is not None, latent_policy=latent_policy)
    accrue = accrue or isinstance(schedule, OptimizedSchedule)
    if accrue and isinstance(env, Environment):
        check_course(env)
    settings, timing = with_reward_scale(config.dqn, data), as_schedule(schedule, task.spec)
    members = [models] if isinstance(models, DynamicsModel) else list(models or ())
    place, encoder = _training_env(None if models is None else members, env, config, data, latent_policy)
    validation_envs: dict[str, Any] = {}
    if validation_model is not None:
        validation_envs["score"] = _in_models(validation_model, env, **_model_env_options(env, config, data))
    if monitor is not None:
        validation_envs["real"] = monitor
    if accrue:
        warn_of_accrual(task)
        place, timing, encoder = accrual_setup(place, timing, encoder, settings.reward_scale)
        longest = timing.longest(task.spec)
        validation_envs = {
            name: other if isinstance(other, HostEnvironment) else AccruedRewards.of(other, longest)
            for name, other in validation_envs.items()
        }
    scale: tuple[np.ndarray, np.ndarray] | None = None
    if config.standardize and data is not None and not latent_policy and not isinstance(timing, OptimizedSchedule):
        scale = obs_scale(data)
        encoder = StandardizedEncoder(*(jnp.asarray(x, jnp.float32) for x in scale))
    batch = TrainingBatch(alone(place), alone(timing), alone(encoder), 1)
    initial_state = init_train_state([batch], settings, config.episodes, [seed])
    same_actions = not isinstance(env, IntervalActions)
    if members and data is not None and config.rollout_length is not None and same_actions:
        seen = interpolated(members[0], task, data) if accrue and isinstance(timing, Own | Fixed) else data
        initial_state = _with_real(initial_state, settings, seen, task.spec, timing, scale)
    training = train_agents(
        [batch],
        settings,
        config.episodes,
        [seed],
        initial_state=initial_state,
        identity={
            "config": dataclasses.asdict(config),
            "schedule": _schedule_identity(schedule, timing),
            "accrue": accrue,
            "models": digest(*members),
            "data": None if data is None else digest(data),
            ADDED: {
                "system": spec_identity(task.spec),
                "env": known,
                "validation_model": None if validation_model is None else digest(validation_model),
                "latent_policy": latent_policy,
            },
        },
        validate=_validator(encoder, task.spec, settings, validation_envs, timing, accrue) if validation_envs else None,
        validate_every=config.validate_every,
        folder=folder,
        callback=callback,
        stage=stage,
        decisions=decisions,
    )
    [policy] = training.policies([batch], settings.epsilon_at_test, settings.reward_scale)
    if scale is not None:
        policy = dataclasses.replace(policy, q=policy.q.on_inputs(*scale), encoder=IdentityEncoder())
    accrues = accrue or (isinstance(timing, Fixed) and float(timing.tau) == task.spec.finest)
    return LearnResult(dataclasses.replace(policy, spec=task.spec, accrues=accrues), training)


def _with_real(
    state: TrainState,
    settings: DQNConfig,
    data: Trajectory,
    spec: Spec,
    timing: Schedule,
    scale: tuple[np.ndarray, np.ndarray] | None,
) -> TrainState:
    """With the real transitions in the replay buffer: of a fixed schedule, those of its interval."""
    if not isinstance(timing, Own | Fixed):
        return state
    real = transitions_from_data(settings, data, spec, float(timing.tau) if isinstance(timing, Fixed) else None)
    if scale is not None:
        real = standardized(real, scale)
    return with_transitions(state, real) if len(real.action) else state


def _learn_on_host(
    env: HostEnvironment,
    config: LearnConfig,
    schedule: AnySchedule,
    seed: int,
    accrue: bool,
    monitor: Environment | HostEnvironment | None,
    folder: Path | None,
    callback: Callback,
    stage: str,
    decisions: int | None,
) -> LearnResult:
    """Learn on the real system, simulations on the host."""
    spec, settings = env.task.spec, with_reward_scale(config.dqn, None)
    timing = as_schedule(schedule, spec)
    if isinstance(timing, OptimizedSchedule):
        raise KairodeError(
            f"'{spec.name}' runs on the host, where a policy is learned on its own schedule or a fixed one: learn it "
            "in models for a schedule that is chosen (kairode.learn(models, env, data=.., schedule=..))."
        )
    validate = None
    if monitor is not None:
        validate = _validator(IdentityEncoder(), spec, settings, {"real": monitor}, timing, accrue)
    training = train_agents_on_host(
        env,
        timing,
        settings,
        config.episodes,
        [seed],
        accrued=accrue,
        validate=validate,
        validate_every=config.validate_every,
        folder=folder,
        callback=callback,
        stage=stage,
        identity={"config": dataclasses.asdict(config), "schedule": str(schedule), "accrue": accrue}
        | {"system": spec_identity(spec)},
        decisions=decisions,
    )
    accrues = accrue or (isinstance(timing, Fixed) and float(timing.tau) == spec.finest)
    q = one(training.q, 0)
    policy = QPolicy(q, IdentityEncoder(), spec, settings.epsilon_at_test, settings.reward_scale, accrues)
    return LearnResult(policy, training)


def _schedule_identity(schedule: AnySchedule, timing: Schedule) -> str:
    """What tells a schedule from another; an optimized one holds arrays, which are not part of its text."""
    if not isinstance(timing, OptimizedSchedule):
        return str(schedule)
    return digest(timing) + str(eqx.filter(timing, eqx.is_array, inverse=True))


def _check_task(env: Any, data: Any) -> Task:
    if not isinstance(env, Environment | HostEnvironment | Task):
        raise KairodeError(
            f"{env!r} is neither an environment nor a task: pass e.g. kairode.make('hiv') or its task. For data "
            "of a system that cannot be simulated, write a Task: docs/add-an-environment.md."
        )
    if data is not None and not isinstance(data, Trajectory):
        raise KairodeError(f"data must be a trajectory, from kairode.collect or kairode.read, got {data!r}.")
    task = env if isinstance(env, Task) else env.task
    if not isinstance(task.spec.actions, Discrete):
        raise KairodeError(
            f"kairode.learn needs discrete actions; those of '{task.spec.name}' are continuous: use kairode.train_mpc."
        )
    return task


def _training_env(
    members: list[DynamicsModel] | None,
    env: Environment | Task,
    config: LearnConfig,
    data: Trajectory | None,
    latent_policy: bool,
) -> tuple[Environment, ObsEncoder]:
    if members is not None:
        options = _model_env_options(env, config, data)
        if config.rollout_length is not None:
            if data is None:
                raise KairodeError("rollout_length starts imagined episodes along real ones: pass data=...")
            starts = sample_start_observations(data)
            options |= {"starts": starts, "branch": config.rollout_length, "resample_member": True}
        model_env = _in_models(members, env, **options)
        if not latent_policy:
            return model_env, IdentityEncoder()
        return model_env, LatentEncoder(dataclasses.replace(members[0], spec=model_env.models.spec))
    if latent_policy:
        raise KairodeError("latent_policy needs a model.")
    if isinstance(env, Environment):
        return env, IdentityEncoder()
    raise KairodeError("without a model, a policy is learned on the real system: pass the environment, not its task.")


def _in_models(models: Any, env: Environment | Task, **options: Any) -> Any:
    """The model environment; where the agent chooses intervals, these choices around that of the inner system."""
    if isinstance(env, IntervalActions):
        return env.around(make_model_env(models, env.env, **options))
    return make_model_env(models, env, **options)


def _check_interval_actions(env: IntervalActions, config: LearnConfig, *, timed: bool, latent_policy: bool) -> None:
    """Refuse what does not go with an agent that chooses intervals."""
    if timed:
        raise KairodeError(
            "IntervalActions chooses intervals and accrues rewards itself: leave out schedule and accrue."
        )
    if latent_policy:
        raise KairodeError("latent_policy needs the system's own actions, not those of IntervalActions: leave it out.")
    if env.max_decisions is not None and config.rollout_length is not None:
        raise KairodeError(
            "with a bound on the decisions, episodes are imagined from their start: pass rollout_length=None."
        )


def _model_env_options(env: Environment | Task, config: LearnConfig, data: Trajectory | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "starts": data if isinstance(env, Task) else None,
        "sample_intervals": config.sample_intervals,
    }
    if data is not None and config.obs_margin is not None:
        options["obs_bounds"] = jnp.asarray(obs_range(data, config.obs_margin))
    return options


REAL_EPISODES = 10
"""Episodes of a validation on a simulation, which takes longer than a compiled one."""


def _validator(
    encoder: ObsEncoder, spec: Spec, settings: DQNConfig, envs: dict[str, Any], timing: Schedule, accrue: bool = False
) -> Validator:
    """Mean returns over whole episodes of each environment, by its name in the curve."""
    limit = spec.longest(timing.shortest(spec))
    keys = episode_keys(derive(0, Purpose.VALIDATION), 20)
    schedule = alone(timing)

    def validate(q: ReLUNetwork) -> dict[str, np.ndarray]:
        policies = QPolicy(q, alone(encoder), spec, settings.epsilon_at_test)
        found = {}
        for name, env in envs.items():
            if isinstance(env, HostEnvironment):
                policy, place = one(policies, 0), timing.with_q(one(q, 0))
                tested = evaluate(
                    env, policy, episodes=REAL_EPISODES, schedule=place, accrue=accrue, seed=VALIDATION_SEED
                )
                found[name] = np.array([tested.score])
            else:
                scores = score_many(alone(env), policies, schedule.with_q(q), keys, limit, 1)
                found[name] = mean_return(env.task, scores)
        return found

    return validate


VALIDATION_SEED = 99
"""Argument of `evaluate` for a validation on a simulation, whose episodes are not those of tests."""
