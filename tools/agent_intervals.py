"""Intervals chosen by a model (the paper's equation) beside an agent that chooses the interval itself (TaCoS).

    python tools/agent_intervals.py --list                                     # names of the parts
    python tools/agent_intervals.py --only hiv-chosen --seed 0 --out FOLDER    # one part, resumable
    python tools/agent_intervals.py --collect FOLDER                           # writes results/agent-intervals.json

Three systems: HIV; the pendulum, with intervals of 0.05 to 0.5 s; and its swing-up, from hanging until it is up or 4 s
are over, with intervals of up to 1.5 s. On each, `chosen` runs Dyna rounds and lets their models choose intervals for
the learned policy, at several prices of a decision (the swing-up: at most five decisions). `imagined` learns with
`IntervalActions` in the same models, so from the same real decisions; `real` learns with it on the system, from as many
real decisions, and `real-more` from ten times as many. On the pendulum `chosen` and `dqn` have five torques to choose
among, `sac` any; its models are fitted to the same episodes. Start `chosen` of a seed before its `imagined`.

Up: within 0.2 rad of the top and slower than 1 rad/s, at a finest time step of 0.05 s. `swung_up` is the fraction of
100 test episodes that get there within five decisions; they start within 0.1 rad of hanging, slower than 0.1 rad/s.
Returns are accrued and have no price subtracted.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import kairode
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.train_loop import train_agents
from kairode.agents.train_step import TrainingBatch
from kairode.algorithms.dyna import read_state, run_rounds
from kairode.algorithms.learn import learn_policy
from kairode.algorithms.mpc import MPCTraining
from kairode.algorithms.schedule import learn_schedule_policy, schedule_learn_config, split_ensemble
from kairode.config.agents import ActorCriticConfig, DQNConfig
from kairode.config.algorithms import DynaConfig, LearnConfig
from kairode.config.presets import mpc_preset, run_preset
from kairode.data.policy import Policy
from kairode.data.trajectory import Trajectory
from kairode.envs.accrual import AccruedRewards
from kairode.envs.core import Discrete, Environment, Spec, Task
from kairode.envs.interval_actions import IntervalActions
from kairode.envs.schedule import Own, Schedule, as_schedule
from kairode.files import save_json
from kairode.planning.model_env import make_model_env, obs_range
from kairode.result import rounded
from kairode.runs.load import ModelledSystem
from kairode.runs.pipeline import run_pipeline
from kairode.runs.record import commit, machine, make_record
from kairode.runs.schedule import load_chosen
from kairode.trees import alone

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "agent-intervals.json"
TEST_EPISODES = {"hiv": 20, "pendulum": 100, "swing": 100}
PRICES = {"hiv": (0.0, 1e7, 1e8, 3e8, 1e9), "pendulum": (0.0, 0.5, 2.0, 5.0, 20.0), "swing": (0.0,)}
INTERVALS = {
    "hiv": (1.0, 2.0, 3.0, 5.0, 7.0),
    "pendulum": (0.05, 0.1, 0.2, 0.3, 0.5),
    "swing": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5),
}
"""Of the product actions of `dqn`; `sac` has the range, `chosen` every multiple of the finest time step in it."""
EPSILON = 0.05
"""Fraction of random actions of DQN in the tests on HIV, as in those of `kairode run`; none on the pendulum."""
BOUND = 5
"""Decisions of the swing-up."""
REAL = {"hiv": 10_400, "pendulum": 1900, "swing": 1200}
"""Real decisions of `real`: about those of the Dyna rounds, whose number the parts `chosen` report."""
TORQUES = (-2.0, -1.0, 0.0, 1.0, 2.0)
UPRIGHT, SLOW, HANGING = 0.2, 1.0, 0.1
DYNA: dict[str, dict[str, Any]] = {
    "pendulum": {"initial_episodes": 20, "episodes_per_round": 5, "rounds": 6},
    "swing": {"initial_episodes": 100, "episodes_per_round": 20, "rounds": 5},
}
DECISIONS = {"pendulum": 10, "swing": 5}
"""In a chunk of an episode that models are fitted to, and in an imagined episode of the Dyna rounds."""
DQN = DQNConfig(hidden=(128, 128), reward_scale=0.02, double_q=True, target_period=50, cooldown=0.3)
SAC = ActorCriticConfig(
    kind="sac",
    hidden=(128, 128),
    actor_learning_rate=1e-3,
    critic_learning_rate=1e-3,
    polyak=5e-3,
    warmup=300,
    reward_scale=0.1,
)
IMAGINED = {"hiv": 2400, "pendulum": 2400, "swing": 6000}
"""Imagined episodes of `dqn`; of 25 decisions on HIV and 10 on the pendulum, whole ones of the swing-up."""
CHOSEN_EPISODES = 1600
"""Imagined episodes of the policy of chosen intervals, on the pendulum (HIV: those of `kairode run hiv`)."""
SAC_DECISIONS = 30_000
"""Imagined decisions of `sac`."""


class RodTask(Task):
    """The pendulum's task: torques given by index if `discrete`; it ends when the rod is up if `swings_up`."""

    spec: Spec = eqx.field(static=True)
    task: Task
    discrete: bool = eqx.field(static=True)
    swings_up: bool = eqx.field(static=True)

    def reward(self, obs: Any, action: Any, next_obs: Any, tau: Any) -> Any:
        return self.task.reward(obs, torque(action) if self.discrete else action, next_obs, tau)

    def terminal(self, obs: Any) -> Any:
        return is_up(obs) if self.swings_up else self.task.terminal(obs)


class Rod(Environment):
    """The pendulum with a `RodTask`; hanging at the start if it is to swing up."""

    task: RodTask
    env: Environment

    def reset(self, *, key: Any) -> Any:
        if not self.task.swings_up:
            return self.env.reset(key=key)
        return jnp.array([jnp.pi, 0.0]) + jax.random.uniform(key, (2,), minval=-HANGING, maxval=HANGING)

    def observe(self, state: Any) -> Any:
        return self.env.observe(state)

    def interval(self, state: Any, action: Any, *, key: Any) -> Any:
        return self.env.interval(state, self._torque(action), key=key)

    def transition(self, state: Any, action: Any, tau: Any, *, key: Any) -> Any:
        return self.env.transition(state, self._torque(action), tau, key=key)

    def _torque(self, action: Any) -> Any:
        return torque(action) if self.task.discrete else action


def rod(env: Environment, discrete: bool, swings_up: bool = False) -> Rod:
    spec = env.task.spec
    if discrete:
        spec = dataclasses.replace(spec, actions=Discrete(tuple(f"{torque:g}" for torque in TORQUES)))
    return Rod(RodTask(spec, env.task, discrete, swings_up), env)


def torque(action: Any) -> Any:
    return jnp.asarray(TORQUES)[action][None]


def system(name: str, discrete: bool = True) -> Environment:
    if name == "hiv":
        return kairode.make("hiv")
    if name == "pendulum":
        return rod(kairode.make("pendulum", intervals=(0.05, 0.5)), discrete)
    return rod(kairode.make("pendulum", intervals=(0.05, 1.5), horizon=4.0), discrete, swings_up=True)


def choices(name: str, env: Environment, price: float) -> IntervalActions:
    """The baseline's environment; on the swing-up with a bound in place of a price."""
    intervals = INTERVALS[name]
    given = intervals if isinstance(env.task.spec.actions, Discrete) else (0.05, intervals[-1])
    return IntervalActions(env, given, price, BOUND if name == "swing" else None)


def evaluated(name: str, env: Environment, policy: Any, schedule: Schedule | None = None) -> dict[str, Any]:
    """Accrued return without the price, and decisions; of the swing-up also whether it succeeds."""
    if name != "hiv" and hasattr(policy, "epsilon"):
        policy = dataclasses.replace(policy, epsilon=0.0)
    episodes = TEST_EPISODES[name]
    found = kairode.evaluate(env, policy, episodes=episodes, schedule=schedule, accrue=True)
    figures: dict[str, Any] = {"return": found.score, "objective": found.objective, "decisions": found.decisions}
    if name == "swing":
        figures["swung_up"] = swung_up(env, policy, schedule, episodes)
    return figures


def swung_up(env: Environment, policy: Policy, schedule: Schedule | None, episodes: int) -> float:
    """Fraction of the episodes that end with the rod up; an interval ends as soon as it is."""
    place = env
    if not isinstance(env, IntervalActions):
        place = AccruedRewards.of(env, as_schedule(schedule, env.task.spec).longest(env.task.spec))
    found = kairode.collect(place, policy, episodes=episodes, seed=1, schedule=schedule)
    last = jnp.asarray(np.asarray(found.observation)[np.arange(episodes), np.asarray(found.length)])
    return float(is_up(last).mean())


def is_up(obs: Any) -> Any:
    return (jnp.abs(jnp.arctan2(obs[..., 1], obs[..., 0])) < UPRIGHT) & (jnp.abs(obs[..., 2]) < SLOW)


def dyna_config(name: str, seed: int) -> DynaConfig:
    return DynaConfig(
        env="pendulum",
        ensemble_size=3,
        fit_iterations=2000,
        chunk_length=DECISIONS[name],
        rollout_length=DECISIONS[name],
        imagined_episodes=600,
        dqn=dataclasses.replace(DQN, target_period=100, cooldown=0.0),
        seed=seed,
        **DYNA[name],
    )


def places(name: str, folder: Path, seed: int) -> tuple[Path, Path]:
    """Folders of the Dyna rounds of the pendulum, and of the models of torques as numbers."""
    return folder / f"{name}-rounds-{seed}", folder / f"{name}-torques-{seed}"


def with_torques(name: str, data: Trajectory) -> Trajectory:
    """The same episodes with torques as numbers."""
    torques = np.asarray(TORQUES, np.float32)[np.asarray(data.action)][..., None]
    spec = system(name, discrete=False).task.spec
    return dataclasses.replace(data, spec=spec, action=np.where(data.mask[..., None], torques, 0.0))


def learning(name: str, episodes: int) -> LearnConfig:
    whole = name == "swing"
    return LearnConfig(episodes=episodes, rollout_length=None if whole else DECISIONS[name], obs_margin=0.2, dqn=DQN)


def chosen_on_hiv(folder: Path, seed: int) -> dict[str, Any]:
    """`kairode run hiv`: Dyna rounds, a policy, and the intervals that its models choose."""
    config = run_preset("hiv", seed=seed, prices=PRICES["hiv"], model_free_episodes=0)
    record = run_pipeline(config, folder / f"hiv-run-{seed}")
    decisions = load_chosen(folder / f"hiv-run-{seed}")[0].data.decisions
    rows = record["figures"]["visits"]["rows"]
    kept = {
        label: {"return": row["discounted_accrued_return"], "decisions": row["decisions"]}
        for label, row in rows.items()
    }
    return {"real_decisions": decisions, "rows": kept}


def chosen_on_pendulum(name: str, folder: Path, seed: int) -> dict[str, Any]:
    """Intervals chosen for a policy learned on the system's own schedule, and for one learned with them."""
    env, (rounds, torques) = system(name), places(name, folder, seed)
    found = run_rounds(dyna_config(name, seed), env, folder=rounds)
    numbers = with_torques(name, found.data)
    kairode.fit("latent-ode", numbers, seeds=3, iterations=4000, chunk_length=DECISIONS[name], folder=torques)
    bounded = name == "swing"
    candidates = tuple(round(0.05 * k, 2) for k in range(1, round(INTERVALS[name][-1] / 0.05) + 1))
    rows = {}
    for kind, calibrated in (("own", True), ("with", False)):
        learned = learn_schedule_policy(
            found.models,
            env,
            learning(name, CHOSEN_EPISODES),
            candidates=candidates,
            data=found.data,
            calibrated=calibrated,
            seed=seed,
        )
        limits: list[dict[str, Any]] = [{"price": price} for price in PRICES[name]]
        for limit in [{"budget": BOUND}] if bounded else limits:
            schedule = kairode.optimize_schedule(
                found.models, learned.policy, env, candidates=candidates, data=found.data, tolerance=0.0, **limit
            )
            (what,) = limit.items()
            rows[f"{kind}, {what[0]} {what[1]:g}"] = evaluated(name, env, learned.policy, schedule)
    return {"real_decisions": found.data.decisions, "rows": rows}


def modelled(name: str, folder: Path, seed: int, numbers: bool = False) -> tuple[list[Any], Trajectory]:
    """Models of the part `chosen`, with their data; of torques as `numbers` for actors. Only read, so that several
    processes may do so at once."""
    if not (folder / f"{name}-chosen-seed{seed}.json").exists():
        raise SystemExit(f"{folder} has no models of seed {seed} yet: run --only {name}-chosen --seed {seed} first.")
    if name == "hiv":
        system_of_run: ModelledSystem = load_chosen(folder / f"hiv-run-{seed}")[0]
        return system_of_run.models, system_of_run.data
    rounds, torques = places(name, folder, seed)
    state = read_state(dyna_config(name, seed), system(name), rounds)
    return (kairode.load_models(torques), with_torques(name, state.data)) if numbers else (state.members, state.data)


def imagined_dqn(name: str, price: float, folder: Path, seed: int) -> dict[str, Any]:
    models, data = modelled(name, folder, seed)
    place = choices(name, system(name), price)
    config = schedule_learn_config("hiv", IMAGINED["hiv"], False) if name == "hiv" else learning(name, IMAGINED[name])
    members, validation_model = split_ensemble(models)
    learned = learn_policy(members, place, config, data=data, validation_model=validation_model, seed=seed)
    return {"real_decisions": data.decisions, **evaluated(name, place, learned.policy)}


def imagined_sac(name: str, price: float, folder: Path, seed: int) -> dict[str, Any]:
    """Models of torques as numbers, fitted to the same episodes."""
    (models, given), env = modelled(name, folder, seed, numbers=True), system(name, discrete=False)
    place = choices(name, env, price)
    bounds = jnp.asarray(obs_range(given, 0.2))
    inside = place.around(make_model_env(models, env, obs_bounds=bounds, resample_member=True))
    return {"real_decisions": given.decisions, **evaluated(name, place, sac(inside, SAC_DECISIONS, seed))}


def sac(place: Environment, decisions: int, seed: int) -> Policy:
    config = mpc_preset("pendulum", "free", SAC, decisions=decisions, seed=seed)
    with MPCTraining(config, place, None) as training:
        training.run()
        return training.policies()[0]


def real_sac(name: str, price: float, times: int, folder: Path, seed: int) -> dict[str, Any]:
    place = choices(name, system(name, discrete=False), price)
    decisions = times * REAL[name]
    return {"real_decisions": decisions, **evaluated(name, place, sac(place, decisions, seed))}


def real_dqn(name: str, price: float, times: int, folder: Path, seed: int) -> dict[str, Any]:
    place, decisions = choices(name, system(name), price), times * REAL[name]
    settings = schedule_learn_config("hiv", None, False).dqn if name == "hiv" else DQN
    settings = dataclasses.replace(settings, cooldown=0.0, target_decisions=250)
    batch = TrainingBatch(alone(place), Own(), IdentityEncoder(), 1)
    found = train_agents([batch], settings, decisions, [seed], decisions=decisions, validate_every=decisions)
    (policy,) = found.policies([batch], EPSILON, settings.reward_scale)
    return {"real_decisions": decisions, **evaluated(name, place, policy)}


def parts() -> dict[str, Callable[[Path, int], dict[str, Any]]]:
    found: dict[str, Callable[[Path, int], dict[str, Any]]] = {"hiv-chosen": chosen_on_hiv}
    for name, prices in PRICES.items():
        if name != "hiv":
            found[f"{name}-chosen"] = partial(chosen_on_pendulum, name)
        kinds = {"dqn": (imagined_dqn, real_dqn), **({} if name == "hiv" else {"sac": (imagined_sac, real_sac)})}
        for price in prices:
            for kind, (imagined, real) in kinds.items():
                found[f"{name}-{kind}-imagined-{price:g}"] = partial(imagined, name, price)
                found[f"{name}-{kind}-real-{price:g}"] = partial(real, name, price, 1)
                found[f"{name}-{kind}-real-more-{price:g}"] = partial(real, name, price, 10)
    return found


def make_part(name: str, folder: Path, seed: int) -> None:
    path = folder / f"{name}-seed{seed}.json"
    if path.exists():
        return
    began, used = time.perf_counter(), time.process_time()
    figures = parts()[name](folder, seed)
    spent = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - used}
    save_json(path, rounded({"part": name, "seed": seed, **figures, **spent, "commit": commit(), "machine": machine()}))
    print(path.name, json.dumps(rounded({**figures, **spent}, 4)), flush=True)


def collect_parts(folder: Path) -> None:
    figures: dict[str, Any] = {}
    for name in parts():
        found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-seed*.json"))]
        if found:
            figures[name] = {"seeds": found}
            print(name, len(found))
    if not figures:
        raise SystemExit(f"{folder} holds no parts yet: make them with --only NAME.")
    config = {
        "prices": PRICES,
        "intervals": INTERVALS,
        "bound": BOUND,
        "real": REAL,
        "torques": TORQUES,
        "dyna": DYNA,
        "dqn": dataclasses.asdict(DQN),
        "sac": dataclasses.asdict(SAC),
        "imagined": IMAGINED,
        "chosen_episodes": CHOSEN_EPISODES,
        "sac_decisions": SAC_DECISIONS,
        "test_episodes": TEST_EPISODES,
        "swung_up": {"angle": UPRIGHT, "velocity": SLOW, "start": HANGING},
    }
    seconds = sum(seed["seconds"] for one in figures.values() for seed in one["seeds"])
    command = "python tools/agent_intervals.py --collect FOLDER"
    save_json(RECORD, make_record("agent-intervals", config, rounded(figures), command=command, seconds=seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the names of the parts")
    parser.add_argument("--only", metavar="NAME", choices=tuple(parts()), help="the part to make")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where parts are kept")
    parser.add_argument("--collect", type=Path, metavar="FOLDER", help="join the parts into the record")
    given = parser.parse_args()
    if given.list:
        print("\n".join(parts()))
    elif given.collect is not None:
        collect_parts(given.collect)
    elif given.only is None or given.out is None:
        parser.error("give --only NAME and --out FOLDER, or --collect FOLDER.")
    else:
        given.out.mkdir(parents=True, exist_ok=True)
        make_part(given.only, given.out, given.seed)


if __name__ == "__main__":
    main()
