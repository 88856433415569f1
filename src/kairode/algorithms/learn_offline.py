"""`kairode.learn_offline`: a policy from records alone, careful where they are silent.

Several recipes are tried. Which of their policies is returned is decided by off-policy estimates from episodes that
they were not learned from, never by a simulator.
"""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from kairode.agents.behavior import BehaviorFit, fit_behavior
from kairode.agents.dqn import ReplayTransition
from kairode.agents.encoder import IdentityEncoder, StandardizedEncoder
from kairode.agents.fitted_q import least_value
from kairode.agents.network import ReLUNetwork, mean_network
from kairode.agents.offline_q import OfflineSettings, train_offline_q
from kairode.agents.q_policy import QPolicy
from kairode.agents.support import ActionSupport
from kairode.agents.train_loop import train_agents
from kairode.agents.train_step import TrainingBatch, init_train_state, transitions_from_data, with_transitions
from kairode.algorithms.evaluate_offline import SELECTION, OfflineEvaluation, check_records, evaluate_offline
from kairode.algorithms.fit import digest
from kairode.algorithms.learn_offline_controls import learn_controls
from kairode.algorithms.task import learn_task, with_rewards_of
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.agents import DQNConfig
from kairode.config.keywords import field_names, with_options
from kairode.config.offline import RECIPES, OfflineConfig, Recipe
from kairode.data.checks import warn
from kairode.data.describe import spec_identity
from kairode.data.normalize import mean_and_std
from kairode.data.trajectory import Trajectory, carried_forward, constant_variables
from kairode.envs.core import Discrete, Spec, Task
from kairode.envs.schedule import Own
from kairode.errors import KairodeError, KairodeWarning
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import check_same
from kairode.planning.model_env import decision_observations, make_model_env, obs_range
from kairode.planning.pessimism import PessimisticEnv, data_disagreement
from kairode.text import listed
from kairode.training.session import ADDED
from kairode.trees import is_finite, one, stack

STARTS = 4096
"""Initial observations of imagined episodes; constant, so that programs compile once."""
MOST_RECORDS, REPLAY_BYTES = 75_000, 2**30
"""Transitions of the records in the replay buffers of imagination, and the size of all buffers, at most."""
LEAST_HELD_OUT = 3


class Candidate(NamedTuple):
    """A policy, and what held-out episodes say of it."""

    name: str
    """Of the recipe; with continuous actions, also the time of its training: `cloning 1/2`."""
    policy: Any
    estimates: OfflineEvaluation | None
    """None for a single candidate: there is nothing to choose."""


@dataclasses.dataclass(frozen=True)
class OfflineResult:
    """The candidates, the best first."""

    candidates: tuple[Candidate, ...]

    @property
    def policy(self) -> Any:
        """The chosen one."""
        return self.candidates[0].policy


def learn_offline(
    models: DynamicsModel | Sequence[DynamicsModel] | None,
    data: Trajectory,
    *,
    choose: Trajectory | None = None,
    task: Task | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    callback: Callback = no_callback,
    **options: Any,
) -> Any:
    """Learn a policy from records: `kairode.learn_offline(models, data)`.

    In the imagination of an ensemble, with a penalty on its disagreement, an end where it is too large, or only the
    actions that the records support; and from the records alone (Q-learning, BCQ, CQL), all with discount gamma^tau.
    Continuous actions: actors with behaviour cloning (TD3+BC), with and without models.
    What is best for these records is chosen by off-policy estimates from held-out episodes (`rank_candidates`).

    Args:
        models: fitted to these data, by `kairode.fit(.., seeds=5)`; None learns from the records alone.
        data: records, from `kairode.load_table`, `kairode.read` or `kairode.collect`.
        choose: other episodes, which the candidates are compared on; by default a fifth of `data` (`held_out`), which
            no policy is then learned from, while the models may have been fitted to it.
        task: reward and termination; by default `kairode.learn_task(data, models)`.
        seed: random seed.
        folder: keep a checkpoint there, and resume from it.
        callback: called with a `kairode.callbacks.Progress` meanwhile.
        options: fields of `OfflineConfig` (recipes, decisions, rollout_length, ..).

    Returns:
        The chosen policy, without exploration.
    """
    if choose is not None and "held_out" in options:
        raise KairodeError("held_out is the part of data to choose by, and choose=.. replaces it: pass one of them.")
    config = with_options(
        OfflineConfig(),
        options,
        where="kairode.learn_offline",
        own=field_names(OfflineConfig, but=("dqn",)),
        parts=("dqn",),
    )
    place = None if folder is None else Path(folder)
    found = choose_offline(models, data, config, choose=choose, task=task, seed=seed, folder=place, callback=callback)
    return found.policy


def choose_offline(
    models: DynamicsModel | Sequence[DynamicsModel] | None,
    data: Trajectory,
    config: OfflineConfig,
    *,
    choose: Trajectory | None = None,
    task: Task | None = None,
    seed: int = 0,
    folder: Path | None = None,
    callback: Callback = no_callback,
) -> OfflineResult:
    """Like `learn_offline`, with the candidates and their estimates.

    They are chosen by the episodes `choose`; by default by a part of the data, which they are then not learned from.
    """
    check_records(data, least=1)
    if choose is not None:
        check_records(choose, "choose")
        check_same(data.spec, choose.spec, "data")
    members = [models] if isinstance(models, DynamicsModel) else list(models or ())
    check_recipes(config, data.spec)
    if not members and isinstance(data.spec.actions, Discrete) and all(RECIPES[name].model for name in config.recipes):
        raise KairodeError("these recipes learn in imagination and need models: pass some, or choose other recipes.")
    if choose is None:
        held_out = _held_out(data, config.held_out)
        data, choose = data[~held_out], data[held_out]
    callback(Progress("fitting rewards and the behaviour policy"))
    task = task or learn_task(data, members or None, seed=seed)
    data, rest = (with_rewards_of(task, part) for part in (data, choose))
    train, learned = discounted(data, task)
    if isinstance(train.spec.actions, Discrete):
        behavior = fit_behavior(train, seed=seed, history=False)
        problem = _Problem(train, rest, learned, members, behavior, config, seed)
        found: list[tuple[str, Any]] = [*_in_models(problem, folder, callback), *_from_records(problem, callback)]
    else:
        found = learn_controls(members or None, train, task=learned, seed=seed, callback=callback, folder=folder)
    if not found:
        raise KairodeError("no policy is left: every recipe diverged. Check the rewards and observations for outliers.")
    if len(found) == 1:
        return OfflineResult((Candidate(*found[0], None),))
    estimated = []
    others = fit_behavior(rest, others=data, seed=seed) if isinstance(rest.spec.actions, Discrete) else None
    for i, (name, policy) in enumerate(found):
        callback(Progress("estimating the policies from held-out episodes", i, len(found)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KairodeWarning)
            estimates = evaluate_offline(
                policy, rest, members or None, task=task, train=data, behavior=others, seed=seed, effort=SELECTION
            )
        estimated.append(Candidate(name, policy, estimates))
    callback(Progress("estimating the policies from held-out episodes", len(found), len(found)))
    return OfflineResult(rank_candidates(estimated))


def check_recipes(config: OfflineConfig, spec: Spec) -> None:
    """Raise for settings that continuous actions do not have."""
    if isinstance(spec.actions, Discrete):
        return
    plain = dataclasses.replace(OfflineConfig(), held_out=config.held_out)
    given = [
        field.name for field in dataclasses.fields(plain) if getattr(config, field.name) != getattr(plain, field.name)
    ]
    if given:
        raise KairodeError(
            f"{listed(given)}: settings for named actions, and these actions are continuous: leave them out."
        )


def rank_candidates(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The best first: the records decide as far as they can, then the models.

    A candidate is behind if the intervals of its estimates from the records (fitted Q, doubly robust) end below the
    lowest of those of another candidate begins. Among the others, which the records cannot tell apart, the best has the
    highest lower end of the return in the models; without models, the highest lower end from the records.
    """
    low, high = np.array([_from_records_alone(one) for one in candidates]).T
    models = np.array([_in_models_at_least(one) for one in candidates])
    level = np.where(np.isfinite(models), models, -np.inf) if np.isfinite(models).any() else low
    behind = high < low.max()
    order = np.lexsort((-low, -level, behind))
    return tuple(candidates[i] for i in order)


def _from_records_alone(candidate: Candidate) -> tuple[float, float]:
    """The lowest lower and the highest upper end of estimates from the records; -inf without any."""
    assert candidate.estimates is not None
    found = [one for name, one in candidate.estimates.estimates.items() if name in ("fitted_q", "doubly_robust")]
    known = [one for one in found if np.isfinite([one.low, one.high]).all()]
    return min((one.low for one in known), default=-np.inf), max((one.high for one in known), default=-np.inf)


def _in_models_at_least(candidate: Candidate) -> float:
    assert candidate.estimates is not None
    found = candidate.estimates.estimates.get("model")
    return np.nan if found is None else found.low


def _held_out(data: Trajectory, fraction: float) -> np.ndarray:
    """Mask of the episodes that policies are chosen by."""
    found = evenly_spaced(len(data), fraction)
    if found.sum() > len(data) - 2:
        raise KairodeError(
            f"{len(data)} episodes are too few to learn a policy and to choose it by others: {LEAST_HELD_OUT + 2} at "
            "least are needed, some hundreds are usual."
        )
    return found


def evenly_spaced(episodes: int, fraction: float) -> np.ndarray:
    """Mask of this fraction of the episodes, evenly spaced in their order, three at least."""
    count = min(episodes, max(LEAST_HELD_OUT, round(fraction * episodes)))
    mask = np.zeros(episodes, bool)
    mask[np.linspace(0, episodes - 1, count).round().astype(int)] = True
    return mask


def discounted(data: Trajectory, task: Task) -> tuple[Trajectory, Task]:
    """With a discount below 1 where values would otherwise grow without bound: episodes that only the end of the
    records ends."""
    spec = task.spec
    if spec.discount < 1 or np.mean(data.terminated) > 0.5:
        return data, task
    gamma = 1 - 1 / max(float(np.median(data.time[:, -1])) / spec.tick, 2.0)
    cut = np.mean(~np.asarray(data.terminated))
    warn(
        [
            f"the discount is 1 and {cut:.0%} of the episodes were cut off, so values have no bound: the policy is "
            f"learned with a discount of {_digits(gamma ** (1 / spec.tick))} per {spec.time_unit}, whose horizon is "
            "the median episode. Load the table with discount=.. to choose it"
        ]
    )
    data = dataclasses.replace(data, spec=dataclasses.replace(data.spec, discount=gamma))
    found: Any = dataclasses.replace(task, spec=dataclasses.replace(spec, discount=gamma))
    return data, found


def _digits(discount: float) -> str:
    """With three digits of its distance to 1."""
    return f"{discount:.{3 - math.floor(math.log10(1 - discount))}g}"


class _Problem(NamedTuple):
    """What all recipes are given."""

    data: Trajectory
    others: Trajectory
    """Episodes that are not learned from, which show how much models usually disagree."""
    task: Task
    members: list[DynamicsModel]
    behavior: BehaviorFit
    """Given the observation alone."""
    config: OfflineConfig
    seed: int

    @property
    def settings(self) -> DQNConfig:
        """With a scale of the rewards for which returns are about 1."""
        size = float(np.abs(self.data.discounted).mean()) or 1.0
        dqn = self.config.dqn
        return dataclasses.replace(dqn, reward_scale=dqn.reward_scale / size)

    @property
    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the observations, with which networks are trained."""
        return mean_and_std(decision_observations(self.data))

    def standardized(self, rows: ReplayTransition) -> ReplayTransition:
        mean, std = self.scale
        seen, following = ((np.asarray(x, np.float64) - mean) / std for x in (rows.features, rows.next_features))
        return rows._replace(features=jnp.asarray(seen, jnp.float32), next_features=jnp.asarray(following, jnp.float32))

    def support(self, threshold: float) -> ActionSupport:
        return ActionSupport(self.behavior.policy, jnp.asarray(threshold, jnp.float32))

    def policy(self, networks: Sequence[ReLUNetwork], recipe: Recipe) -> QPolicy:
        """Of the mean values of networks that were trained on standardised observations.

        Policies from different times of a training differ much where the data show little of what they do, and
        estimates hardly tell which is best; their mean is seldom among the worst.
        """
        support = self.support(recipe.support) if recipe.support else None
        q = mean_network([one.on_inputs(*self.scale) for one in networks])
        return QPolicy(q, IdentityEncoder(), self.task.spec, 0.0, self.settings.reward_scale, support=support)

    def recipes(self, model: bool) -> dict[str, Recipe]:
        return {name: RECIPES[name] for name in self.config.recipes if RECIPES[name].model == model}


def _in_models(problem: _Problem, folder: Path | None, callback: Callback) -> list[tuple[str, QPolicy]]:
    """Policies learned in imagination, side by side."""
    recipes, config, settings = problem.recipes(model=True), problem.config, problem.settings
    if not (recipes and problem.members):
        return []
    envs = _environments(problem, [*recipes.values()])
    encoder = StandardizedEncoder(*(jnp.asarray([x] * len(envs), jnp.float32) for x in problem.scale))
    batch = TrainingBatch(stack(envs), Own(), encoder, len(envs))
    every = max(1, config.decisions // config.stops)
    seeds = [problem.seed] * len(envs)
    settings, records = _replay(problem, len(envs))
    training = train_agents(
        [batch],
        settings,
        config.decisions,
        seeds,
        identity={
            "config": dataclasses.asdict(config),
            "models": digest(*problem.members),
            "data": digest(problem.data, problem.others),
            ADDED: {"system": spec_identity(problem.task.spec), "task": digest(problem.task)},
        },
        validate_every=every,
        decisions=every * config.stops,
        initial_state=with_transitions(init_train_state([batch], settings, config.decisions, seeds), records),
        snapshots=True,
        folder=folder,
        callback=callback,
        stage="learning in imagination",
    )
    assert training.snapshots is not None
    return [
        (name, problem.policy([one(one(training.snapshots, i), k) for k in range(config.stops)], recipe))
        for i, (name, recipe) in enumerate(recipes.items())
        if not training.diverged[i]
    ]


def _replay(problem: _Problem, agents: int) -> tuple[DQNConfig, ReplayTransition]:
    """Settings with a replay buffer for the transitions of the records and all imagined ones, and the former.

    What the records show is then learned from them, and they remain where imagination ends. A buffer that would be too
    large has half of each, and forgets the oldest.
    """
    data, decisions = problem.data, problem.config.decisions
    row = 4 * (2 * len(data.spec.observations) + 3)
    most = max(problem.settings.replay_capacity, REPLAY_BYTES // (row * agents))
    capacity = min(min(data.decisions, MOST_RECORDS) + decisions, most)
    settings = dataclasses.replace(problem.settings, replay_capacity=max(capacity, problem.settings.batch_size))
    room = dataclasses.replace(
        settings, replay_capacity=2 * min(MOST_RECORDS, max(capacity - decisions, capacity // 2))
    )
    return settings, problem.standardized(transitions_from_data(room, data, problem.task.spec))


def _environments(problem: _Problem, recipes: Sequence[Recipe]) -> list[PessimisticEnv]:
    """One for each recipe; they differ in numbers alone."""
    data, config = problem.data, problem.config
    rng = np.random.default_rng([problem.seed, 4])
    firsts, along = np.asarray(carried_forward(data).observation)[:, 0], decision_observations(data)
    starts = np.concatenate([rows[rng.choice(len(rows), STARTS // 2)] for rows in (firsts, along)])
    constant = constant_variables(data)
    inner = make_model_env(
        problem.members,
        problem.task,
        starts=starts,
        branch=config.rollout_length,
        resample_member=True,
        constant=None if constant is None else jnp.asarray(constant),
    )
    usual = float(np.quantile(data_disagreement(problem.members, problem.others, constant), 0.99))
    reward_std = float(np.asarray(data.reward)[data.mask].std())
    floor = least_value(data)

    def env(recipe: Recipe) -> PessimisticEnv:
        limit = np.inf if recipe.limit is None or not usual else recipe.limit * usual
        penalty, end, least = (jnp.asarray(x, jnp.float32) for x in (recipe.penalty * reward_std, limit, floor))
        bounded = dataclasses.replace(inner, obs_bounds=jnp.asarray(obs_range(data, recipe.margin)))
        return PessimisticEnv(inner.task, bounded, penalty, end, least, problem.support(recipe.support))

    return [env(recipe) for recipe in recipes]


def _from_records(problem: _Problem, callback: Callback) -> list[tuple[str, QPolicy]]:
    """Policies learned from the records alone."""
    recipes, config, settings = problem.recipes(model=False), problem.config, problem.settings
    if not recipes:
        return []
    every = [*recipes.values()]
    numbers = OfflineSettings(*(jnp.asarray([getattr(r, x) for r in every], jnp.float32) for x in ("support", "cql")))
    every_row = dataclasses.replace(settings, replay_capacity=2 * problem.data.decisions + settings.batch_size)
    rows = problem.standardized(transitions_from_data(every_row, problem.data, problem.task.spec))
    networks = train_offline_q(
        rows,
        problem.behavior.policy.on_standardized(*problem.scale),
        numbers,
        hidden=settings.hidden,
        iterations=config.updates,
        snapshots=config.stops,
        seed=problem.seed,
        callback=callback,
    )
    each = {name: [one(one(networks, k), i) for k in range(config.stops)] for i, name in enumerate(recipes)}
    return [(name, problem.policy(kept, recipes[name])) for name, kept in each.items() if is_finite(kept)]
