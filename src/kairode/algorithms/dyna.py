"""Rounds: collect with the current policy, refit, go on learning; every real episode is counted.

The iterative form that the paper's appendix mentions, with what makes it work: an ensemble, imagination that branches
off from what really happened and stays near it (Janner et al. 2019), and real transitions beside imagined ones in the
replay (Sutton's Dyna).
"""

import dataclasses
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode._xla import make_room
from kairode.agents.dqn import DQNConfig, init_learner, store_transitions
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.evaluate import Evaluation, evaluate
from kairode.agents.network import ReLUNetwork
from kairode.agents.policy_files import save_policy
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_loop import train_agents
from kairode.agents.train_step import TrainingBatch, TrainState, init_train_state, transitions_from_data
from kairode.algorithms.fit import FitConfig, new_models, same_config
from kairode.algorithms.learn import policy_preset
from kairode.config.presets import preset
from kairode.data import Trajectory, collect, read, write
from kairode.data.trajectory import join
from kairode.envs import make
from kairode.envs.core import Discrete, Environment
from kairode.envs.schedule import Own
from kairode.errors import KairodeError, Stopped
from kairode.files import check_target, save_json
from kairode.models.zoo import check_model
from kairode.paper.studies import sample_start_observations
from kairode.planning.model_env import make_model_env, obs_range
from kairode.runs.record import OLDER, completed, record
from kairode.runs.watch import Watch
from kairode.seeds import Purpose, derive, derive_many
from kairode.training import checkpoint
from kairode.training.loop import FitProgress, interrupts, train
from kairode.training.model_files import as_saved
from kairode.trees import alone, one, stack

IMAGINATION = "learning in imagination"
"""The stage in which a policy is learned in the models."""


@dataclasses.dataclass(frozen=True)
class DynaConfig:
    """How real and imagined episodes take turns."""

    env: str = "hiv"
    """Name of the environment."""
    model: str = "latent-ode"
    """Name of the dynamics model."""
    first: int = 20
    """Real episodes under random actions, before the first round."""
    each: int = 5
    """Real episodes under the policy, in each round."""
    rounds: int = 12
    fits: int = 4
    """Models in the ensemble."""
    latent: int = 16
    """Dimensions of the models' latent state: experience under a good policy spans more than random one."""
    field_hidden: int = 48
    """Tanh units in each hidden layer of their field."""
    iterations: int = 3000
    """Of the first fit; half as many in later rounds, which go on from the models of the last."""
    pieces: int = 20
    """Decisions in a piece of an episode that models are fitted to."""
    branch: int = 10
    """Decisions of an imagined episode."""
    imagined: int = 1500
    """Imagined episodes in each round."""
    margin: float = 0.2
    """Imagined observations stay within the range of the experience, widened by so many times itself."""
    sample_intervals: bool = dataclasses.field(default=True, metadata={OLDER: False})
    """Whether imagined intervals are drawn from the distribution that the models' timers predict; otherwise the most
    likely one is taken."""
    explore: float = 0.1
    """Share of random actions in real episodes."""
    dqn: DQNConfig = dataclasses.field(
        default_factory=lambda: DQNConfig(reward_scale=1e-6, double=True, target_every=100)
    )
    seed: int = 0
    """Fixes everything random."""
    setting: str = "ours"
    """Of the environment: ours or paper."""
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the environment that differ from its setting."""

    def __post_init__(self) -> None:
        check_model(self.model)
        least = {"first": 10, "rounds": 0, "seed": 0, "iterations": 2}
        counts = (
            "first",
            "each",
            "rounds",
            "fits",
            "latent",
            "field_hidden",
            "iterations",
            "pieces",
            "branch",
            "imagined",
        )
        for name in (*counts, "seed"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= least.get(name, 1)):
                raise KairodeError(f"{name} must be a whole number of at least {least.get(name, 1)}, got {value}.")
        if not 0 <= self.explore <= 1:
            raise KairodeError(f"explore must be a share from 0 to 1, got {self.explore}.")
        if not self.margin >= 0:
            raise KairodeError(f"margin must not be negative, got {self.margin}.")

    def make(self) -> Environment:
        """The environment."""
        return make(self.env, setting=self.setting, **self.fields)


def dyna_dqn(env: str) -> DQNConfig:
    """How policies learn in rounds: as belongs to the environment, with a target network for many short episodes."""
    return dataclasses.replace(policy_preset(env).dqn, target_every=100)


@dataclasses.dataclass(frozen=True)
class DynaRound:
    """What one round came to."""

    number: int
    real_episodes: int
    """Seen so far, by models and policy."""
    real_decisions: int
    model_error: float
    """Of validation, mean over the ensemble."""
    collected: float
    """Mean return of the real episodes of this round."""
    tested: Evaluation
    """The policy after it, on episodes that nothing learns from."""

    def figures(self) -> dict[str, Any]:
        """For a record."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "tested"}
        return {**own, **self.tested.figures()}


class DynaState(NamedTuple):
    """Where the rounds stand."""

    number: int
    """Of the round that ended last."""
    data: Trajectory
    models: Any
    """The ensemble, stacked."""
    network: ReLUNetwork

    @property
    def members(self) -> list[Any]:
        """The models of the ensemble."""
        return [one(self.models, i) for i in range(self.models.decoder.weight.shape[0])]


def load_dyna(folder: Path) -> DynaState:
    """What the rounds of a folder came to: experience, models, action values."""
    if not (folder / "config.json").exists() or not checkpoint.exists(folder):
        raise KairodeError(f"there are no rounds in {folder}: make them with `kairode rounds hiv --out {folder}`.")
    config = read_config(folder)
    return read_dyna_state(config, config.make(), folder)


def read_config(folder: Path) -> DynaConfig:
    """The config of the rounds in a folder."""
    about = completed(json.loads((folder / "config.json").read_text()), DynaConfig())
    dqn = about.pop("dqn")
    return DynaConfig(**about, dqn=DQNConfig(**{**dqn, "hidden": tuple(dqn["hidden"])}))


def read_dyna_state(config: DynaConfig, env: Environment, folder: Path) -> DynaState:
    """Where the rounds of a folder stand, of this config on this system."""
    about = checkpoint.describe(folder)
    data = read(folder / "experience.parquet")[: about["episodes"]]
    if len(data) < about["episodes"]:
        raise KairodeError(
            f"{folder} is damaged: it holds {len(data)} of {about['episodes']} real episodes. Remove it."
        )
    # Scaled as they were when the first round began.
    models = as_saved(folder, _new_models(config, data[: config.first]))
    spec = env.task.spec
    network = ReLUNetwork.new(len(spec.observations), *config.dqn.hidden, spec.actions.n, key=jax.random.key(0))
    arrays, rest = eqx.partition(models, eqx.is_array)
    network, arrays = checkpoint.load(folder, (network, arrays))
    return DynaState(about["number"], data, eqx.combine(arrays, rest), network)


def save_dyna_state(folder: Path, state: DynaState, **about: Any) -> None:
    """Write where the rounds stand; last the checkpoint, which says how many of the episodes count."""
    write(folder / "experience.parquet", state.data)
    arrays = (state.network, eqx.filter(state.models, eqx.is_array))
    checkpoint.save(folder, arrays, number=state.number, episodes=len(state.data), **about)


def run_dyna(
    config: DynaConfig,
    folder: Path,
    callback: Callable[[DynaRound], None] = lambda found: None,
    watch: Watch | None = None,
    command: str | None = None,
    env: Environment | None = None,
) -> dict[str, Any]:
    """Take turns in a folder of its own, or go on after the last round that ended there.

    The command is the one that makes them again, where that is not `kairode rounds`; the system is given where it is
    none that a name makes.
    """
    watch = watch or Watch()
    env = config.make() if env is None else env
    if not isinstance(env.task.spec.actions, Discrete):
        raise KairodeError(f"policies are learned for named actions so far; those of '{config.env}' are controls.")
    check_target(folder / "config.json")
    same_config(config, folder, free=("rounds",))  # more rounds go on from where fewer ended
    save_json(folder / "config.json", dataclasses.asdict(config))
    started = time.perf_counter()
    state, seen, earlier = _resumed(config, env, folder)
    command = command or _command(config, folder)

    def write_down(**figures: Any) -> dict[str, Any]:
        spent = earlier + time.perf_counter() - started
        made = record("rounds", config, {"rounds": seen, **figures}, command=command, seconds=spent)
        save_json(folder / "record.json", made)
        return made

    first = 0 if state is None else state.number + 1
    with interrupts() as asked:
        for number in range(first, config.rounds + 1):
            try:
                state, found = dyna_round(config, env, state, number, watch)
            except Stopped:
                raise Stopped(f"interrupted in round {number}; the same command begins it again: {command}") from None
            seen.append(found.figures())
            save_policy(folder, dyna_policy(config, env, state), {"setting": config.setting, "fields": config.fields})
            write_down()
            # Last, so that what is written of a round that a kill cut short is written again.
            save_dyna_state(folder, state)
            callback(found)
            make_room()
            if asked():
                raise Stopped(f"interrupted after round {number}; the same command goes on from there: {command}")
    assert state is not None
    watch.stage("evaluating on 100 episodes")
    return write_down(test=evaluate(env, dyna_policy(config, env, state), episodes=100).figures())


def _command(config: DynaConfig, folder: Path) -> str:
    """The command that makes the rounds again."""
    words = ["kairode", "rounds", config.env]
    for name in ("seed", "first", "each", "rounds"):
        words += [f"--{name}", str(getattr(config, name))]
    if config.setting != "ours":
        words += ["--setting", config.setting]
    if not config.sample_intervals:
        words.append("--no-sample-intervals")
    if config.fields:
        words += ["--set", *(f"{name}={json.dumps(value)}" for name, value in config.fields.items())]
    return shlex.join([*words, "--out", str(folder)])


def dyna_policy(config: DynaConfig, env: Environment, state: DynaState) -> QPolicy:
    """The policy where the rounds stand."""
    return QPolicy(state.network, IdentityEncoder(), env.task.spec, config.dqn.epsilon_last, config.dqn.reward_scale)


def _resumed(
    config: DynaConfig, env: Environment, folder: Path
) -> tuple[DynaState | None, list[dict[str, Any]], float]:
    """What a folder holds of earlier rounds: where they stand, their figures, the time they took."""
    if not checkpoint.exists(folder):
        return None, [], 0.0
    state = read_dyna_state(config, env, folder)
    made = json.loads((folder / "record.json").read_text())
    return state, made["figures"]["rounds"][: state.number + 1], float(made["seconds"])


def dyna_round(
    config: DynaConfig, env: Environment, before: DynaState | None, number: int, watch: Watch
) -> tuple[DynaState, DynaRound]:
    """Collect (at random before the first round), refit, learn on, and look how good the policy is."""
    spec = env.task.spec
    watch.stage("collecting", None)
    if before is None:
        new = data = collect(env, episodes=config.first, seed=derive(config.seed, Purpose.DYNA_EPISODES))
    else:
        policy = QPolicy(before.network, IdentityEncoder(), spec, config.explore)
        new = collect(env, policy, episodes=config.each, seed=derive(config.seed, Purpose.DYNA_EPISODES, number))
        data = join([before.data, new])
    watch.stage("fitting", config.iterations if before is None else config.iterations // 2)
    models, error = refit_ensemble(config, data, None if before is None else before.models, number, watch.fitting)
    train_state, batch = _room(config, env, data, models, None if before is None else before.network, number)
    watch.stage(IMAGINATION, config.imagined)
    done = train_agents(
        [batch],
        config.dqn,
        config.imagined,
        [0],
        initial_state=train_state,
        callback=lambda told: watch.practice(IMAGINATION, told),
    )
    network = jax.tree.map(lambda x: x[0], done.last)
    policy = QPolicy(network, IdentityEncoder(), spec, config.dqn.epsilon_last)
    watch.stage("evaluating on 20 episodes")
    tested = evaluate(env, policy, episodes=20, seed=derive(config.seed, Purpose.DYNA_EPISODES, number))
    found = DynaRound(number, len(data), data.decisions, error, float(_returns(env, new).mean()), tested)
    return DynaState(number, data, models, network), found


def _returns(env: Environment, data: Trajectory) -> np.ndarray:
    return data.discounted if env.task.spec.judged_discounted else data.undiscounted


def refit_ensemble(
    config: DynaConfig,
    data: Trajectory,
    models: Any,
    number: int,
    callback: Callable[[FitProgress], None] = lambda report: None,
) -> tuple[Any, float]:
    """The ensemble fitted to all experience so far, from where it was."""
    usual = preset(config.env)
    later = models is not None
    iterations = config.iterations // 2 if later else config.iterations
    settings = dataclasses.replace(
        usual.settings, iterations=iterations, pieces=config.pieces, cooldown=0.5, every=iterations
    )
    seeds = derive_many(config.seed, Purpose.DYNA_MODEL, config.fits, first=config.fits * number)
    if not later:
        models = _new_models(config, data)
    held = np.arange(len(data)) % 10 == 9
    fitted = train(models, settings, data[~held], data[held], seeds=seeds, callback=callback)
    return stack(fitted.models), float(np.mean(fitted.validation))


def _new_models(config: DynaConfig, data: Trajectory) -> Any:
    """Random weights for the ensemble, stacked."""
    usual = preset(config.env)
    sizes = dataclasses.replace(usual.sizes, latent=config.latent, field_hidden=config.field_hidden)
    seed = derive(config.seed, Purpose.DYNA_MODEL)
    fit = FitConfig(config.env, config.model, dataclasses.replace(usual, sizes=sizes), config.fits, seed)
    return new_models(fit, data)


def _room(
    config: DynaConfig, env: Environment, data: Trajectory, models: Any, network: ReLUNetwork | None, number: int
) -> tuple[TrainState, TrainingBatch]:
    """An imagined world around the experience, and an agent in it that remembers the real transitions."""
    model_env = make_model_env(
        [one(models, i) for i in range(config.fits)],
        env,
        starts=sample_start_observations(data, derive(config.seed, Purpose.DYNA_STARTS, number)),
        branch=config.branch,
        obs_bounds=jnp.asarray(obs_range(data, config.margin)),
        resample_member=True,
        sample_intervals=config.sample_intervals,
    )
    batch = TrainingBatch(alone(model_env), Own(), IdentityEncoder(), 1)
    train_state = init_train_state(
        [batch], config.dqn, config.imagined, [derive(config.seed, Purpose.DYNA_AGENT, number)]
    )
    spec = env.task.spec
    key = jax.random.key(derive(config.seed, Purpose.DYNA_NETWORK))
    learner = init_learner(len(spec.observations), spec.actions.n, config.dqn, key=key)
    if network is not None:
        learner = dataclasses.replace(learner, q=network, target=network)
    learner = store_transitions(learner, transitions_from_data(config.dqn, data, env.task.spec))
    # Exploration starts over only in the first round.
    explored = jnp.full(1, round(config.dqn.epsilon_decay * 10) if number else 0, jnp.int32)
    return dataclasses.replace(train_state, learner=alone(learner), decisions=explored), batch
