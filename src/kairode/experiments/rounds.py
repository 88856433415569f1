"""Rounds: collect with the current policy, refit, go on learning; every real episode is counted.

The iterative form that the paper's appendix mentions, with what makes it work: an ensemble, imagination that branches
off from what really happened and stays near it (Janner et al. 2019), and real transitions beside imagined ones in the
replay (Sutton's Dyna).
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.agents.dqn import DQNSettings, new_learner, remember
from kairode.agents.evaluate import Evaluation, evaluate
from kairode.agents.learn import practise
from kairode.agents.network import QNetwork
from kairode.agents.perception import Plain
from kairode.agents.policy import SoftGreedy
from kairode.agents.practice import Practice, Room, enter, real_transitions
from kairode.agents.store import save_policy
from kairode.data import Trajectory, collect
from kairode.data.files import check_target
from kairode.data.trajectory import join
from kairode.envs import make
from kairode.envs.core import Environment
from kairode.envs.schedule import Own
from kairode.experiments.fitting import Fit, new_models, same_config
from kairode.experiments.presets import preset
from kairode.experiments.record import record, save
from kairode.experiments.studies import some_moments
from kairode.planning.world import imagine, seen_range
from kairode.training.loop import train


@dataclasses.dataclass(frozen=True)
class Rounds:
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
    explore: float = 0.1
    """Share of random actions in real episodes."""
    dqn: DQNSettings = dataclasses.field(
        default_factory=lambda: DQNSettings(reward_scale=1e-6, double=True, target_every=100)
    )
    seed: int = 0
    """Fixes everything random."""


@dataclasses.dataclass(frozen=True)
class Round:
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


def run_rounds(config: Rounds, folder: Path, tell: Callable[[Round], None] = lambda found: None) -> dict[str, Any]:
    """Take turns in a folder of its own: the policy, and a record that grows with every round."""
    env = make(config.env)
    check_target(folder / "config.json")
    same_config(config, folder)
    save(folder / "config.json", dataclasses.asdict(config))
    started = time.perf_counter()
    seen: list[dict[str, Any]] = []
    command = f"kairode rounds {config.env} --seed {config.seed} --first {config.first} --each {config.each}"
    command += f" --rounds {config.rounds}"

    def note(found: Round) -> None:
        seen.append(found.figures())
        made = record("rounds", config, {"rounds": seen}, command=command, seconds=time.perf_counter() - started)
        save(folder / "record.json", made)
        tell(found)

    policy, _ = rounds(config, env, tell=note)
    save_policy(folder, policy, env=config.env, setting="ours", fields={})
    test = evaluate(env, policy, episodes=100).figures()
    made = record(
        "rounds", config, {"rounds": seen, "test": test}, command=command, seconds=time.perf_counter() - started
    )
    save(folder / "record.json", made)
    return made


def rounds(
    config: Rounds, env: Environment, *, tell: Callable[[Round], None] = lambda found: None
) -> tuple[SoftGreedy, list[Round]]:
    """Take turns; the last policy, and what every round came to."""
    spec = env.task.spec
    data = collect(env, episodes=config.first, seed=_seed(config, 0))
    collected = float(_returns(env, data).mean())
    models: Any = None
    network: QNetwork | None = None
    found: list[Round] = []
    for number in range(config.rounds + 1):
        if network is not None:
            policy = SoftGreedy(network, Plain(), spec, config.explore)
            more = collect(env, policy, episodes=config.each, seed=_seed(config, number))
            collected = float(_returns(env, more).mean())
            data = join([data, more])
        models, error = refit(config, data, models, number)
        practice, room = _room(config, env, data, models, network, number)
        done = practise([room], config.dqn, config.imagined, [0], begun=practice)
        network = jax.tree.map(lambda x: x[0], done.last)
        policy = SoftGreedy(network, Plain(), spec, config.dqn.epsilon_last)
        tested = evaluate(env, policy, episodes=20, seed=_seed(config, number))
        found.append(Round(number, len(data), data.decisions, error, collected, tested))
        tell(found[-1])
    return policy, found


def _seed(config: Rounds, number: int) -> int:
    return 10_000 * (config.seed + 1) + number


def _returns(env: Environment, data: Trajectory) -> np.ndarray:
    return data.discounted if env.task.spec.judged_discounted else data.undiscounted


def refit(config: Rounds, data: Trajectory, models: Any, number: int) -> tuple[Any, float]:
    """The ensemble fitted to all experience so far, from where it was."""
    usual = preset(config.env)
    later = models is not None
    iterations = config.iterations // 2 if later else config.iterations
    settings = dataclasses.replace(
        usual.settings, iterations=iterations, pieces=config.pieces, cooldown=0.5, every=iterations
    )
    seeds = list(range(config.fits * number, config.fits * (number + 1)))
    if not later:
        sizes = dataclasses.replace(usual.sizes, latent=config.latent, field_hidden=config.field_hidden)
        chosen = dataclasses.replace(usual, sizes=sizes, settings=settings)
        fit = Fit(config.env, config.model, chosen, seeds=config.fits)
        models = new_models(dataclasses.replace(fit, seed=config.seed), data)
    held = np.arange(len(data)) % 10 == 9
    fitted = train(models, settings, data[~held], data[held], seeds=seeds)
    stacked = [eqx.filter(model, eqx.is_array) for model in fitted.models]
    static = eqx.filter(fitted.models[0], eqx.is_array, inverse=True)
    return eqx.combine(jax.tree.map(lambda *x: jnp.stack(x), *stacked), static), float(np.mean(fitted.validation))


def _room(
    config: Rounds, env: Environment, data: Trajectory, models: Any, network: QNetwork | None, number: int
) -> tuple[Practice, Room]:
    """An imagined world around the experience, and an agent in it that remembers the real transitions."""
    members = [jax.tree.map(lambda x, i=i: x[i] if eqx.is_array(x) else x, models) for i in range(config.fits)]
    world = imagine(
        members,
        env,
        starts=some_moments(data, number),
        branch=config.branch,
        within=jnp.asarray(seen_range(data, config.margin)),
        switching=True,
    )
    room = Room(_one_agent(world), Own(), Plain(), 1)
    practice = enter([room], config.dqn, config.imagined, [1000 * config.seed + number])
    spec = env.task.spec
    learner = new_learner(len(spec.observations), spec.actions.n, config.dqn, key=jax.random.key(config.seed))
    if network is not None:
        learner = dataclasses.replace(learner, q=network, target=network)
    learner = remember(learner, real_transitions(config.dqn, data))
    explored = jnp.full(1, round(config.dqn.epsilon_decay * 10) if number else 0, jnp.int32)
    return dataclasses.replace(practice, learner=_one_agent(learner), decisions=explored), room


def _one_agent(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, tree)
