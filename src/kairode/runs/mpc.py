"""`kairode run` with continuous actions: MPC, a test, a record; and loading such runs."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from kairode.agents.evaluate import evaluate
from kairode.algorithms.mpc import MUTABLE_FIELDS, MPCTraining, check_mpc, curve
from kairode.algorithms.mpc_loop import MPCLoop
from kairode.callbacks import Callback, Progress, no_callback
from kairode.config.algorithms import MPCConfig
from kairode.config.commands import command_of
from kairode.data.policy import Constant, Policy
from kairode.envs import HostEnvironment, make
from kairode.errors import KairodeError
from kairode.planning.mpc import LearnedDynamics, Planner
from kairode.result import Result, objective_of
from kairode.runs.folder import RunFolder
from kairode.runs.record import make_record
from kairode.seeds import Purpose, derive, derive_many
from kairode.training import checkpoint
from kairode.trees import one, stack

KIND = "control"
POLICIES = "policies"
OLD_POLICIES = "pilots"
"""Its name in older versions."""


def run_mpc(config: MPCConfig, path: Path, callback: Callback = no_callback) -> dict[str, Any]:
    """Train with MPC (or the actor alone), test every seed; writes policies and record, resumes if interrupted."""
    env = make_env(config)
    config = check_mpc(config, env.task.spec)
    if isinstance(env, HostEnvironment):
        env.open().close()  # says what is not installed before anything is written
    with RunFolder.open(path, KIND, config, command_of(config, path), mutable=MUTABLE_FIELDS) as folder:
        if folder.finished:
            return folder.record or {}
        with MPCTraining(config, env, path, callback) as training:
            training.run()
            policies = training.policies()
            checkpoint.save(path, eqx.filter(stack(policies), eqx.is_array), POLICIES, seeds=len(policies))
            with folder.stage("evaluation"):
                figures = _figures(config, env, training, policies, callback)
        seconds = training.session.seconds + folder.total_seconds
        return folder.finish(make_record(KIND, config, figures, command=command_of(config), seconds=seconds))


def make_env(config: MPCConfig) -> Any:
    """The config's environment, with its setting and fields."""
    return make(config.env, setting=config.setting, **config.env_fields)


def _figures(
    config: MPCConfig, env: Any, training: MPCTraining, policies: list[Policy], callback: Callback
) -> dict[str, Any]:
    callback(Progress(f"evaluating on {config.test_episodes} episodes"))

    def tested(policies: list[Any]) -> list[dict[str, Any]]:
        return [evaluate(env, policy, episodes=config.test_episodes).figures() for policy in policies]

    return {
        "tests": tested(policies),
        "actors": tested([policy.without_planning() for policy in policies if isinstance(policy, Planner)]),
        # A simulator in Python may take seconds for an episode.
        "random": evaluate(env, None, episodes=config.test_episodes if _slow(env) else 100).figures(),
        "constant": {name: tested([Constant(action)])[0] for name, action in constant_controls(env).items()},
        "curve": curve(config, training.episodes),
        "fits": training.fits,
        "skipped": np.asarray(training.loop.learner.skipped).tolist(),
        "stage_seconds": {name: round(seconds, 1) for name, seconds in training.loop.stage_seconds.items()},
    }


def _slow(env: Any) -> bool:
    return isinstance(env, HostEnvironment) and not env.releases_gil


def constant_controls(env: Any) -> dict[str, np.ndarray]:
    """Simple policies to compare with: every control at its lowest, middle or highest value."""
    low, high = (np.asarray(end, np.float32) for end in (env.task.spec.actions.low, env.task.spec.actions.high))
    return {"lowest controls": low, "middle controls": (low + high) / 2, "highest controls": high}


def is_mpc_run(folder: str | Path) -> bool:
    """True if a folder holds a run with continuous actions, finished or not."""
    found = RunFolder(folder)
    return found.exists and {"agent", "plan", "decisions"} <= set(found.manifest.config)


def read_config(folder: str | Path) -> MPCConfig:
    """The config of a run folder; refuses folders of other kinds of runs."""
    if not is_mpc_run(folder):
        raise KairodeError(f"{folder} is not a run with continuous actions, such as `kairode run hopper`.")
    return RunFolder(folder, KIND).config(MPCConfig)


def load_policies(folder: str | Path) -> list[Policy]:
    """The policies of a finished run, one per seed."""
    config = read_config(folder)
    name = OLD_POLICIES if checkpoint.exists(folder, OLD_POLICIES) else POLICIES
    if not checkpoint.exists(folder, name):
        raise KairodeError(f"the run in {folder} is not finished: run its command again to resume.")
    loop = MPCLoop(make_env(config), config, derive_many(config.seed, Purpose.AGENT, config.seeds), 1)
    loop.close()
    arrays, rest = eqx.partition(stack(loop.policies()), eqx.is_array)
    found = checkpoint.load(folder, arrays, name)
    return [eqx.combine(one(found, i), rest) for i in range(config.seeds)]


def best_seed(record: dict[str, Any] | None) -> int:
    """Index of the seed with the highest test return; the first if nothing was tested yet."""
    return 0 if record is None else int(np.argmax([objective_of(test) for test in record["figures"]["tests"]]))


def evaluate_mpc_run(
    folder: Path, *, schedule: Any = None, episodes: int = 100, accrue: bool | None = None, seed: int = 0
) -> tuple[dict[str, Any], Result]:
    """Evaluate the policy of the run's best seed, on other episodes than those that selected it.

    With a fixed interval, the planner also predicts with that interval.
    """
    RunFolder(folder, KIND).check()
    config, policies = read_config(folder), load_policies(folder)
    best = best_seed(RunFolder(folder, KIND).record)
    policy, fixed = policies[best], isinstance(schedule, int | float)
    if fixed and isinstance(policy, Planner) and isinstance(policy.dynamics, LearnedDynamics):
        policy = dataclasses.replace(policy, dynamics=dataclasses.replace(policy.dynamics, held=float(schedule)))
    env = make_env(config)
    other = derive(seed, Purpose.MPC_RETEST)
    found = evaluate(env, policy, episodes=episodes, schedule=schedule, accrue=accrue, seed=other)
    which = "" if config.seeds == 1 else f", seed {config.seed + best} (the best of {config.seeds})"
    return {"env": f"{config.env}{which}", "schedule": schedule, "time_unit": env.task.spec.time_unit}, found
