"""Return against visits: policies for fixed intervals, the environment's own schedule, and chosen intervals.

The paper's figure of optimised interval times. All policies are learned and evaluated with accrued rewards on the real
system; they differ in how the next decision time is chosen.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kairode.agents.encoder import IdentityEncoder
from kairode.agents.evaluate import Scores, objective_scores, score_accrued, to_result
from kairode.agents.network import ReLUNetwork
from kairode.agents.policy_files import read_policy, save_policy
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_loop import TrainResult, train_agents
from kairode.agents.train_step import TrainingBatch, TrainState, init_train_state
from kairode.algorithms.fit import digest, load_data
from kairode.callbacks import Callback, no_callback
from kairode.config.agents import DQNConfig
from kairode.data import Trajectory
from kairode.envs import make
from kairode.envs.core import Environment
from kairode.envs.schedule import FixedOrOwn
from kairode.errors import KairodeError
from kairode.paper.table1 import cell_config
from kairode.planning.optimize_schedule import accrual_setup, optimize_schedule, schedule_for_learning, trial_env
from kairode.planning.optimized_schedule import OptimizedSchedule
from kairode.planning.penalties import sweep_penalties
from kairode.result import rounded
from kairode.runs.dyna import dyna_folder
from kairode.runs.load import load_dyna
from kairode.seeds import Purpose, derive, derive_many
from kairode.training.model_files import load_models
from kairode.trees import stack

SETTINGS = dict.fromkeys(("hiv", "hiv-partial"), DQNConfig(reward_scale=1e-7, double_q=True, cooldown=0.3))
"""DQN settings for accrued rewards."""
RANDOM = {"hiv": "hiv-whole-cooled"}
"""The row of table 1 whose models are fitted to random actions."""
TRAINING = "training"
"""Subfolder of the checkpoint."""


@dataclasses.dataclass(frozen=True)
class ScheduleStudy:
    """Policies trained together."""

    env: str
    chooser: str
    """What chooses intervals: `fixed`, the true dynamics (`truth`), or models fitted to data of Dyna rounds
    (`rounds`) or of random actions (`random`)."""
    episodes: int
    """Training episodes on the real system; 0 reuses the policies learned without a price in the study without
    `once-` in its name."""
    intervals: tuple[float, ...] = ()
    """Fixed intervals; 0 is the environment's own schedule."""
    prices: tuple[float, ...] = ()
    """Prices per visit of chosen intervals: one policy is learned for each (unless nothing is learned)."""
    candidates: tuple[float, ...] = ()
    """Candidate intervals; those of the environment by default."""
    budgets: tuple[int, ...] = ()
    """Visits per episode, if nothing is learned."""
    dqn: DQNConfig = dataclasses.field(default_factory=DQNConfig)
    start: str = ""
    """Study whose policies, learned without a price, are the initial ones; otherwise random weights."""
    seeds: int = 5
    validate_every: int = 20_000
    """Decisions between validations, which only record the curve."""
    test_episodes: int = 100

    @property
    def labels(self) -> list[str]:
        """Names of its policies, without the seed."""
        if self.chooser == "fixed":
            return [f"{tau:g}" if tau else "own" for tau in self.intervals]
        return [*(f"price {price:g}" for price in self.prices), *(f"budget {budget}" for budget in self.budgets)]


PRICES = (0.0, 1e5, 1e6, 1e7, 3e7, 1e8)
"""Prices per visit on HIV: a healthy day earns 3.5e8."""


def _studies() -> dict[str, ScheduleStudy]:
    found: dict[str, ScheduleStudy] = {}
    for by in ("truth", "rounds", "random"):
        prices = PRICES if by != "random" else PRICES[:1]
        found[f"hiv-{by}"] = ScheduleStudy("hiv", by, 600, prices=prices, dqn=SETTINGS["hiv"])
    # Grouped by interval: agents with long intervals would wait for those with short ones.
    parts = {"2-3": ((2.0, 3.0), 500), "4-7": ((0.0, 4.0, 5.0, 6.0, 7.0), 1000)}
    parts["8-14"] = (tuple(float(day) for day in range(8, 15)), 1500)
    for part, (taus, episodes) in parts.items():
        found[f"hiv-fixed-{part}"] = ScheduleStudy("hiv", "fixed", episodes, intervals=taus, dqn=SETTINGS["hiv"])
    # At intervals of one and two days hardly any agent learns from scratch: daily random actions never amount to a
    # month of treatment. These agents start from policies learned under chosen intervals, and their target network is
    # updated after as many decisions (not episodes) as the others'. So do those with as many visits as chosen
    # intervals lead to.
    warm: dict[tuple[float, ...], tuple[int, int]] = {(1.0,): (2, 60), (2.0,): (4, 100), (3.0,): (6, 100)}
    warm[(6.0, 7.0, 8.0)] = (10, 150)
    for taus, (target_every, episodes) in warm.items():
        dqn = dataclasses.replace(SETTINGS["hiv"], target_period=target_every)
        part = "-".join(f"{tau:g}" for tau in dict.fromkeys((taus[0], taus[-1])))
        found[f"hiv-fixed-{part}"] = ScheduleStudy("hiv", "fixed", episodes, intervals=taus, dqn=dqn, start="hiv-truth")
    # Predictions are more reliable over shorter horizons.
    week = tuple(float(day) for day in range(1, 8))
    found["hiv-week-rounds"] = ScheduleStudy(
        "hiv", "rounds", 150, prices=(0.0,), candidates=week, dqn=SETTINGS["hiv"], start="hiv-rounds"
    )
    options: dict[str, Any] = {"prices": (0.0, 1e7, 1e8, 1e9, 1e10), "budgets": (75, 90, 110, 150, 250)}
    for by in ("truth", "rounds"):
        found[f"hiv-once-{by}"] = ScheduleStudy("hiv", by, 0, dqn=SETTINGS["hiv"], **options)
    return found


STUDIES = _studies()


def run_schedule_study(
    study: ScheduleStudy, runs: Path, folder: Path, *, callback: Callback = no_callback, time_limit: float = math.inf
) -> dict[str, Any]:
    """Train, test and save the policies; returns the figures of a record."""
    env = make(study.env)
    if not study.episodes:
        return run_once(study, env, runs, folder)
    dqn, batch = study.dqn, build_batch(study, env, runs)
    seeds = derive_many(0, Purpose.AGENT, study.seeds) * len(study.labels)

    def score(q: ReLUNetwork, purpose: Purpose, episodes: int) -> Scores:
        policies = QPolicy(q, batch.encoder, batch.env.task.spec, dqn.final_epsilon, dqn.reward_scale)
        return score_accrued(env, policies, batch.schedule, derive(0, purpose), episodes, batch.agents)

    def validate(q: ReLUNetwork) -> dict[str, Any]:
        found = score(q, Purpose.VALIDATION, 10)
        return {"real": objective_scores(env.task.spec, found).mean(-1), "visits": found.decisions.mean(-1)}

    initial_state = None
    if study.start:
        policies = load_free_policies(folder.parent / study.start, study.seeds) * len(study.labels)
        initial_state = start_from_policies(init_train_state([batch], dqn, study.episodes, seeds), policies, dqn)
    if (folder / "practice").exists():  # the name in older versions
        (folder / "practice").rename(folder / TRAINING)
    done = train_agents(
        [batch],
        dqn,
        study.episodes,
        seeds,
        initial_state=initial_state,
        validate=validate,
        validate_every=study.validate_every,
        folder=folder / TRAINING,
        identity={**dataclasses.asdict(study), "numbers": digest([batch], initial_state)},
        callback=callback,
        time_limit=time_limit,
    )
    for i, policy in enumerate(done.policies([batch], dqn.final_epsilon, dqn.reward_scale)):
        place = folder / study.labels[i // study.seeds] / str(i % study.seeds)
        save_policy(place, dataclasses.replace(policy, accrues=True))
    curve = {name: [rounded(point[name], 4) for point in done.curve] for name in ("episodes", "real", "visits")}
    return {
        "points": schedule_points(study, env, score(done.q, Purpose.TEST, study.test_episodes), done),
        "training_seconds": round(done.seconds, 1),
        "curve": curve,
    }


def load_free_policies(folder: Path, seeds: int) -> list[QPolicy]:
    """The policies of another study that were learned without a price."""
    places = [folder / "price 0" / str(seed) for seed in range(seeds)]
    if not all((place / "policy.json").exists() for place in places):
        raise KairodeError(
            f"the policies of '{folder.name}' are not in {folder}: run `kairode reproduce figure-schedule "
            f"--studies {folder.name} --again`."
        )
    return [dataclasses.replace(read_policy(place), accrues=True) for place in places]


def start_from_policies(train_state: TrainState, policies: Sequence[QPolicy], dqn: DQNConfig) -> TrainState:
    """Start agents from the values of these policies, with exploration already reduced."""
    q = stack([policy.q for policy in policies])
    learner = dataclasses.replace(train_state.learner, q=q, target=q)
    explored = jnp.full_like(train_state.decisions, round(10 * dqn.epsilon_decay))
    return dataclasses.replace(train_state, learner=learner, decisions=explored)


def run_once(study: ScheduleStudy, env: Environment, runs: Path, folder: Path) -> dict[str, Any]:
    """Prices and budgets for policies learned once, without a price; returns the figures of a record."""
    policies = load_free_policies(folder.parent / f"{study.env}-{study.chooser}", study.seeds)
    each: list[list[OptimizedSchedule]] = []
    for seed, policy in enumerate(policies):
        models, data = lookahead_models(study.chooser, env, seed, runs)
        choose = partial(optimize_schedule, models, policy, env, data=data, tolerance=0)
        free = choose()
        tried = sweep_penalties(free, policy, trial_env(models, env, data))
        limit = jnp.asarray(env.task.spec.longest(free.shortest(env.task.spec)), jnp.int32)  # no effective limit
        mine = [dataclasses.replace(choose(price=price, tried=tried), budget=limit) for price in study.prices]
        each.append([*mine, *(choose(budget=budget) for budget in study.budgets)])
    schedules = [mine[k] for k in range(len(study.labels)) for mine in each]
    many = stack(policies * len(study.labels))
    seed = derive(0, Purpose.TEST)
    found = score_accrued(env, many, stack(schedules), seed, study.test_episodes, len(schedules))
    decision_penalty = np.array([float(schedule.decision_penalty) for schedule in schedules]).reshape(-1, study.seeds)
    points = schedule_points(study, env, found)
    for label, prices in zip(study.labels, decision_penalty, strict=True):
        points[label]["decision_penalty"] = rounded(prices)
    return {"points": points}


def build_batch(study: ScheduleStudy, env: Environment, runs: Path) -> TrainingBatch:
    """All agents of a study as one batch: by interval or price, then seed."""
    agents = len(study.labels) * study.seeds
    if study.chooser == "fixed":
        spec = env.task.spec
        least = min(tau or spec.intervals.low for tau in study.intervals)
        timed = FixedOrOwn(jnp.repeat(jnp.array(study.intervals, jnp.float32), study.seeds), least)
        return TrainingBatch(*accrual_setup(env, timed, IdentityEncoder(), study.dqn.reward_scale), agents)
    parts = []
    for price in study.prices:
        for seed in range(study.seeds):
            models, data = lookahead_models(study.chooser, env, seed, runs)
            schedule = schedule_for_learning(models, env, price=price, candidates=study.candidates or None, data=data)
            parts.append(accrual_setup(env, schedule, IdentityEncoder(), study.dqn.reward_scale))
    places, schedules, perceptions = zip(*parts, strict=True)
    return TrainingBatch(stack(places), stack(schedules), stack(perceptions), agents)


def lookahead_models(by: str, env: Environment, seed: int, runs: Path) -> tuple[Any, Trajectory | None]:
    """The models (or the environment) that choose intervals, and their data."""
    if by == "truth":
        return env, None
    if by == "rounds":
        _, state = load_dyna(dyna_folder(runs, env.task.spec.name, seed))
        return state.members, state.data
    row = RANDOM[env.task.spec.name]
    models = load_models(runs / "table1" / f"{row}-latent-ode-{seed}")
    return models, load_data(cell_config(row, "latent-ode", 0)).train


def schedule_points(
    study: ScheduleStudy, env: Environment, found: Scores, done: TrainResult | None = None
) -> dict[str, Any]:
    """Results for each interval or price over its seeds, with training statistics."""
    points: dict[str, Any] = {}
    for k, label in enumerate(study.labels):
        these = slice(k * study.seeds, (k + 1) * study.seeds)
        mine = jax.tree.map(lambda x, these=these: x[these], found)
        points[label] = rounded(to_result(env.task.spec, mine, accrued=True).figures())
        if done is not None:
            episodes = np.isfinite(done.returns[these, :, 0]).sum(-1)
            points[label]["training_episodes"] = episodes.tolist()
            if (episodes < study.episodes).any():  # time limit reached
                points[label]["planned_episodes"] = study.episodes
            points[label] |= {"training_decisions": done.decisions[these], "diverged": done.diverged[these]}
    return points
