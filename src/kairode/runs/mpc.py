"""What a run with controls left: its config, its policies, tests of them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import equinox as eqx

from kairode.agents.actor_critic import ActorCriticConfig
from kairode.agents.evaluate import Evaluation, evaluate
from kairode.algorithms.mpc import NAME, best_seed
from kairode.algorithms.mpc_loop import MPCLoop
from kairode.config.mpc import MPCConfig
from kairode.data.policy import Policy
from kairode.envs import make
from kairode.errors import KairodeError
from kairode.models.zoo import ModelConfig
from kairode.planning.mpc import LearnedDynamics, PlanConfig, Planner
from kairode.seeds import Purpose, derive, derive_many
from kairode.training import checkpoint
from kairode.training.losses import LossWeights
from kairode.training.step import TrainingConfig
from kairode.trees import one, stack


def is_mpc_run(folder: str | Path) -> bool:
    """Whether a folder holds a run with controls, ended or not."""
    try:
        about = json.loads((Path(folder) / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and {"agent", "plan", "decisions"} <= set(about)


def read_config(folder: str | Path) -> MPCConfig:
    """The config of a run's folder."""
    path = Path(folder) / "config.json"
    try:
        given = json.loads(path.read_text())
        agent, fit = dict(given["agent"]), dict(given["fit"])
        agent["hidden"] = tuple(agent["hidden"])
        fit["weights"] = LossWeights(**fit["weights"])
        parts = {
            "agent": ActorCriticConfig(**agent),
            "plan": PlanConfig(**given["plan"]),
            "sizes": ModelConfig(**given["sizes"]),
            "fit": TrainingConfig(**fit),
        }
        return MPCConfig(**{**given, **parts})
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise KairodeError(f"{path} is not of a run with controls: give a folder of `kairode run hopper`.") from error


def load_policies(folder: str | Path) -> list[Policy]:
    """The policies of a run that ended, one for each seed."""
    config = read_config(folder)
    if not checkpoint.exists(folder, NAME):
        raise KairodeError(f"the run in {folder} has not ended: give its command again, which goes on from there.")
    env = make(config.env, setting=config.setting, **config.fields)
    loop = MPCLoop(env, config.config, derive_many(config.seed, Purpose.AGENT, config.seeds), 1)
    loop.close()
    arrays, rest = eqx.partition(stack(loop.policies()), eqx.is_array)
    found = checkpoint.load(folder, arrays, NAME)
    return [eqx.combine(one(found, i), rest) for i in range(config.seeds)]


def evaluate_mpc_run(
    folder: Path, *, schedule: Any = None, episodes: int = 100, accrue: bool | None = None, seed: int = 0
) -> tuple[dict[str, Any], Evaluation]:
    """Test the policy of the run's best seed, on other episodes than it was found best on.

    On a fixed interval a planner imagines its actions held as long.
    """
    config, policies = read_config(folder), load_policies(folder)
    path = Path(folder) / "record.json"
    best = best_seed(json.loads(path.read_text())) if path.exists() else 0
    policy = policies[best]
    if (
        isinstance(policy, Planner)
        and isinstance(policy.dynamics, LearnedDynamics)
        and isinstance(schedule, int | float)
    ):
        policy = dataclasses.replace(policy, dynamics=dataclasses.replace(policy.dynamics, held=float(schedule)))
    env = make(config.env, setting=config.setting, **config.fields)
    seed = derive(seed, Purpose.MPC_RETEST)
    found = evaluate(env, policy, episodes=episodes, schedule=schedule, accrue=accrue, seed=seed)
    which = "" if config.seeds == 1 else f", seed {config.seed + best} (the best of {config.seeds})"
    return {"env": f"{config.env}{which}", "schedule": schedule}, found
