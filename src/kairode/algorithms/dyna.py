"""Dyna: collect with the current policy, refit the models, learn in imagination, again; every real episode is counted.

The iterative form that the paper's appendix mentions, with what makes it work: an ensemble, imagined episodes that
start along real ones and stay near them (Janner et al. 2019), and real transitions beside imagined ones in the replay
buffer (Sutton 1991).
"""

import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode._xla import free_programs, jit_once
from kairode.agents.dqn import init_learner, store_transitions
from kairode.agents.encoder import IdentityEncoder, ObsEncoder, StandardizedEncoder
from kairode.agents.evaluate import evaluate
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_loop import train_agents
from kairode.agents.train_step import (
    TrainingBatch,
    TrainState,
    init_train_state,
    obs_scale,
    standardized,
    transitions_from_data,
    with_reward_scale,
)
from kairode.algorithms.fit import new_models
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.agents import DQNConfig
from kairode.config.algorithms import DynaConfig
from kairode.config.keywords import field_names, with_options
from kairode.config.presets import dyna_preset, fit_preset
from kairode.data import Trajectory, collect, read, write
from kairode.data.describe import spec_identity
from kairode.data.trajectory import join
from kairode.envs import make
from kairode.envs.core import Discrete, Environment
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import Own
from kairode.envs.zoo import own_fields
from kairode.errors import KairodeError, Stopped
from kairode.files import load_json
from kairode.models.dynamics import DynamicsModel
from kairode.planning.learned_task import task_of_system
from kairode.planning.model_env import make_model_env, obs_range, sample_start_observations
from kairode.seeds import Purpose, derive, derive_many
from kairode.training import checkpoint
from kairode.training.evaluate_model import IntervalCheck, compare_intervals
from kairode.training.loop import train
from kairode.training.model_files import as_saved
from kairode.training.session import Session
from kairode.trees import alone, one, stack

STAGE = "learning in imagination"
DATA = "experience.parquet"
MUTABLE_FIELDS = ("rounds",)
"""Fields that a resumed run may change: more rounds continue where fewer ended."""


class DynaState(NamedTuple):
    """State after a round."""

    number: int
    """Number of the last finished round."""
    data: Trajectory
    models: Any
    """The ensemble, stacked."""
    network: ReLUNetwork

    @property
    def members(self) -> list[DynamicsModel]:
        return [one(self.models, i) for i in range(self.models.decoder.weight.shape[0])]


class DynaResult(NamedTuple):
    """Result of Dyna rounds."""

    policy: QPolicy
    models: list[DynamicsModel]
    """The ensemble, fitted to all data."""
    data: Trajectory
    """All real episodes, in the order in which they were collected."""
    rounds: list[dict[str, Any]]
    """Figures of each round, starting with the initial fit."""
    state: DynaState
    intervals: IntervalCheck | None
    """Intervals sampled from the first model's timer compared with the data's; None without a timer."""
    seconds: float
    """Including earlier processes."""


def train_dyna(
    env: Environment | HostEnvironment | str,
    *,
    rounds: int = 5,
    seed: int = 0,
    folder: str | Path | None = None,
    callback: Callback = no_callback,
    **options: Any,
) -> DynaResult:
    """Learn a policy by Dyna rounds: `kairode.train_dyna(kairode.make("hiv")).policy`.

    Args:
        env: a system with discrete actions: an environment, its name, or your own.
        rounds: number of rounds after the initial fit to episodes with random actions.
        seed: random seed.
        folder: keep checkpoints there, and resume from them; more rounds continue where fewer ended.
        callback: called with a `kairode.callbacks.Progress`; its message summarises each round.
        options: other fields of `kairode.config.algorithms.DynaConfig`: initial_episodes, episodes_per_round, model,
            ensemble_size, fit_iterations, imagined_episodes, ..; `dqn` takes a dictionary of fields of `DQNConfig`.
    """
    env = make(env) if isinstance(env, str) else env
    if not isinstance(env, Environment | HostEnvironment):
        raise KairodeError(f"env must be an environment, such as kairode.make('hiv'), got {type(env).__name__}.")
    if folder == "":
        raise KairodeError("folder must not be empty.")
    preset = dyna_preset(env.task.spec.name, rounds=rounds, seed=seed, env_fields=own_fields(env))
    for episodes, decisions in (
        ("initial_episodes", "initial_decisions"),
        ("episodes_per_round", "decisions_per_round"),
    ):
        if episodes in options:  # a number of episodes that is given is meant
            options = {decisions: 0, **options}
    own = field_names(DynaConfig, but=("env", "seed", "setting", "env_fields"))
    config = with_options(preset, options, where="kairode.train_dyna", own=own)
    return run_rounds(config, env, folder=None if folder is None else Path(folder), callback=callback)


def run_rounds(
    config: DynaConfig,
    env: Environment | HostEnvironment,
    *,
    folder: Path | None = None,
    callback: Callback = no_callback,
) -> DynaResult:
    """Run all rounds of a config. With a folder, checkpoints are kept there and resumed after the last finished
    round."""
    if not isinstance(env.task.spec.actions, Discrete):
        raise KairodeError(
            f"Dyna rounds need discrete actions; those of '{env.task.spec.name}' are continuous: use kairode.train_mpc."
        )
    fields = {name: value for name, value in dataclasses.asdict(config).items() if name not in MUTABLE_FIELDS}
    with Session(folder, {"config": fields, "system": spec_identity(env.task.spec)}) as session:
        state, figures = _earlier(config, env, folder, session)
        for number in range(0 if state is None else state.number + 1, config.rounds + 1):
            try:
                state, found, sentence = dyna_round(config, env, state, number, callback)
            except Stopped:
                raise Stopped(f"interrupted in round {number}, which will be repeated.") from None
            figures.append(found)
            if folder is not None:
                write(folder / DATA, state.data)  # before the checkpoint, which records the number of episodes
            arrays = (state.network, eqx.filter(state.models, eqx.is_array))
            session.save(arrays, number=number, episodes=len(state.data), rounds=figures)
            callback(Progress("dyna", number, config.rounds, message=sentence))
            free_programs()
            if session.interrupted() and number < config.rounds:
                raise session.stop(f"after round {number}")
    assert state is not None
    dqn = settled(config, state.data)
    policy = QPolicy(state.network, IdentityEncoder(), env.task.spec, dqn.epsilon_at_test, dqn.reward_scale)
    intervals = compare_intervals(state.members[0], state.data)
    return DynaResult(policy, state.members, state.data, figures, state, intervals, session.seconds)


def _earlier(
    config: DynaConfig, env: Environment | HostEnvironment, folder: Path | None, session: Session
) -> tuple[DynaState | None, list[dict[str, Any]]]:
    """The last finished round of this run and the figures of all, if there are any."""
    if folder is None or not session.resumable:
        return None, []
    session.restore_about()
    state = read_state(config, env, folder)
    figures = session.earlier.get("rounds")
    if figures is None:  # an older checkpoint has them in the record beside it
        figures = load_json(folder / "record.json")["figures"]["rounds"]
    return state, list(figures)[: state.number + 1]


def read_state(config: DynaConfig, env: Environment | HostEnvironment, folder: Path) -> DynaState:
    """Load the state in a folder, for this config and system."""
    about = checkpoint.describe(folder)
    data = read(folder / DATA)[: about["episodes"]]
    if len(data) < about["episodes"]:
        raise KairodeError(
            f"{folder} is damaged: it holds {len(data)} of {about['episodes']} real episodes. Remove it."
        )
    # The scale is that of the initial data.
    models = as_saved(folder, _new_models(config, data[: config.initial_episodes]))
    spec = env.task.spec
    network = ReLUNetwork.new(len(spec.observations), *config.dqn.hidden, spec.actions.n, key=jax.random.key(0))
    arrays, rest = eqx.partition(models, eqx.is_array)
    network, arrays = checkpoint.load(folder, (network, arrays))
    return DynaState(about["number"], data, eqx.combine(arrays, rest), network)


def dyna_round(
    config: DynaConfig, env: Environment | HostEnvironment, before: DynaState | None, number: int, callback: Callback
) -> tuple[DynaState, dict[str, Any], str]:
    """Collect (with random actions in round 0), refit, learn, evaluate; also the round's figures, and a sentence."""
    spec, seed = env.task.spec, derive(config.seed, Purpose.DYNA_EPISODES, number)
    if before is None:
        sizes = config.initial_episodes, config.initial_decisions
        new = data = collect_enough(env, None, *sizes, seed, callback)
    else:
        policy = QPolicy(before.network, IdentityEncoder(), spec, config.exploration)
        new = collect_enough(env, policy, config.episodes_per_round, config.decisions_per_round, seed, callback)
        data = join([before.data, new])
    models, error = refit_ensemble(config, data, None if before is None else before.models, number, callback)
    dqn = settled(config, data)
    scale = _obs_scale(config, data)
    train_state, batch = _agent(
        config, dqn, env, data, scale, models, None if before is None else before.network, number
    )
    episodes = config.imagined_episodes
    training = train_agents([batch], dqn, episodes, [0], initial_state=train_state, callback=callback, stage=STAGE)
    network = one(training.last, 0).on_inputs(*scale) if config.standardize else one(training.last, 0)
    policy = QPolicy(network, IdentityEncoder(), spec, dqn.epsilon_at_test)
    callback(Progress("evaluating on 20 episodes"))
    evaluation = evaluate(env, policy, episodes=20, seed=seed)
    returns = new.discounted if spec.discounted_objective else new.undiscounted
    figures = {
        "number": number,
        "real_episodes": len(data),
        "real_decisions": data.decisions,
        "model_error": error,
        "collected": float(returns.mean()),
        **evaluation.figures(),
    }
    sentence = f"Round {number}: {len(data)} real episodes, model error {error:.3g}, {evaluation}."
    return DynaState(number, data, models, network), figures, sentence


def refit_ensemble(
    config: DynaConfig, data: Trajectory, models: Any, number: int, callback: Callback = no_callback
) -> tuple[Any, float]:
    """Fit the ensemble to all data so far, starting from the last round's models; also its validation error."""
    iterations = config.fit_iterations if models is None else config.fit_iterations // 2
    usual = fit_preset(config.env).training
    settings = dataclasses.replace(
        usual,
        weights=dataclasses.replace(usual.weights, consistency=config.consistency),
        iterations=iterations,
        chunk_length=config.chunk_length,
        cooldown=0.5,
        validate_every=iterations,
    )
    size = config.ensemble_size
    seeds = derive_many(config.seed, Purpose.DYNA_MODEL, size, first=size * number)
    if models is None:
        models = _new_models(config, data[: config.initial_episodes])
    validation = np.arange(len(data)) % 10 == 9
    fitted = train(models, settings, data[~validation], data[validation], seeds=seeds, callback=callback)
    return stack(fitted.models), float(np.mean(fitted.validation))


def _new_models(config: DynaConfig, data: Trajectory) -> Any:
    seed = derive(config.seed, Purpose.DYNA_MODEL)
    fit = fit_preset(config.env, model=config.model, seeds=config.ensemble_size, seed=seed)
    sizes = dataclasses.replace(
        fit.sizes, latent_size=config.latent_size, field_hidden=config.field_hidden, solver=config.solver
    )
    return new_models(dataclasses.replace(fit, sizes=sizes), data)


def settled(config: DynaConfig, data: Trajectory) -> DQNConfig:
    """Settings of the agent, with the scale of the rewards if the data are to give it."""
    return with_reward_scale(config.dqn, data[: config.initial_episodes])


def collect_enough(
    env: Environment | HostEnvironment,
    policy: QPolicy | None,
    episodes: int,
    decisions: int,
    seed: int,
    callback: Callback = no_callback,
    schedule: Any = None,
) -> Trajectory:
    """So many episodes, and more until they have so many decisions."""
    found = collect(env, policy, episodes=episodes, seed=seed, schedule=schedule, callback=callback)
    while found.decisions < decisions:
        missing = decisions - found.decisions
        # At most as many again: a lucky policy's episodes are far longer than those of its first, short ones.
        count = min(math.ceil(missing * len(found) / found.decisions), len(found))
        # An episode depends on the seed and its number alone: those of another stream are new.
        other = int(np.random.SeedSequence([seed, len(found)]).generate_state(1)[0])
        found = join([found, collect(env, policy, episodes=count, seed=other, schedule=schedule, callback=callback)])
    return found


def _obs_scale(config: DynaConfig, data: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the observations; 0 and 1 where the networks see them as they are."""
    size = len(data.spec.observations)
    return obs_scale(data) if config.standardize else (np.zeros(size), np.ones(size))


def _agent(
    config: DynaConfig,
    dqn: DQNConfig,
    env: Environment | HostEnvironment,
    data: Trajectory,
    scale: tuple[np.ndarray, np.ndarray],
    models: Any,
    network: ReLUNetwork | None,
    number: int,
) -> tuple[TrainState, TrainingBatch]:
    """A model environment along the data, and an agent whose replay buffer contains the real transitions."""
    model_env = make_model_env(
        [one(models, i) for i in range(config.ensemble_size)],
        task_of_system(env, data, seed=config.seed),
        starts=sample_start_observations(data, derive(config.seed, Purpose.DYNA_STARTS, number)),
        branch=config.rollout_length,
        obs_bounds=jnp.asarray(obs_range(data, config.obs_margin)),
        resample_member=True,
        sample_intervals=config.sample_intervals,
    )
    mean, std = (jnp.asarray(x, jnp.float32) for x in scale)
    encoder: ObsEncoder = StandardizedEncoder(mean, std) if config.standardize else IdentityEncoder()
    batch = TrainingBatch(alone(model_env), Own(), alone(encoder), 1)
    agent_seed = derive(config.seed, Purpose.DYNA_AGENT, number)
    train_state = init_train_state([batch], dqn, config.imagined_episodes, [agent_seed])
    spec = env.task.spec
    key = jax.random.key(derive(config.seed, Purpose.DYNA_NETWORK))
    learner = _new_learner(len(spec.observations), spec.actions.n, dqn, key=key)
    if network is not None:
        if config.standardize:  # the same function of standardised observations
            network = network.on_inputs(-scale[0] / scale[1], 1 / scale[1])
        learner = dataclasses.replace(learner, q=network, target=network)
    real = transitions_from_data(dqn, data, spec)
    if config.standardize:
        real = standardized(real, scale)
    learner = store_transitions(learner, real)
    # Exploration restarts only in the first round.
    explored = jnp.full(1, round(dqn.epsilon_decay * 10) if number else 0, jnp.int32)
    return dataclasses.replace(train_state, learner=alone(learner), decisions=explored), batch


_new_learner = jit_once(init_learner)
