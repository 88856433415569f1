"""Model-based reinforcement learning in continuous time.

Kairode learns how a system evolves from data at irregular times, and uses the learned model to decide what to do and
when to decide next. Importing it registers the environments with Gymnasium; JAX is loaded when
it is first needed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kairode._gymnasium import register as _register
from kairode._version import __version__
from kairode._xla import avoid_wrong_sums as _avoid_wrong_sums
from kairode.errors import KairodeError, KairodeWarning

if TYPE_CHECKING:
    from kairode.agents.evaluate import evaluate
    from kairode.agents.policy_files import save_policy
    from kairode.algorithms.advise import Advisor
    from kairode.algorithms.dyna import train_dyna
    from kairode.algorithms.evaluate_offline import evaluate_offline
    from kairode.algorithms.fit import fit
    from kairode.algorithms.learn import learn
    from kairode.algorithms.mpc import train_mpc
    from kairode.algorithms.task import learn_task
    from kairode.data import Policy, Trajectory, collect, read, write
    from kairode.data.minari import from_minari, to_minari
    from kairode.data.stream import EpisodeStream, stream
    from kairode.data.tables.load import load_table
    from kairode.devices import use_devices
    from kairode.envs import Environment, Fixed, Given, HostEnvironment, Own, Schedule, Task, make
    from kairode.envs.gym import from_gymnasium
    from kairode.envs.interval_actions import IntervalActions
    from kairode.models import DynamicsModel, predict
    from kairode.planning.model_env import ModelEnv, make_model_env
    from kairode.planning.optimize_schedule import optimize_schedule, schedule_for_learning
    from kairode.runs.advise import load_advisor
    from kairode.runs.policies import load_policy
    from kairode.training.calibration import evaluate_ensemble
    from kairode.training.evaluate_between import evaluate_between
    from kairode.training.evaluate_model import evaluate_model
    from kairode.training.model_files import load_models

_HOMES = {
    "kairode.envs.gym": ("from_gymnasium",),
    "kairode.envs": ("Environment", "Fixed", "Given", "HostEnvironment", "Own", "Schedule", "Task", "make"),
    "kairode.envs.interval_actions": ("IntervalActions",),
    "kairode.data": ("Policy", "Trajectory", "collect", "read", "write"),
    "kairode.data.tables.load": ("load_table",),
    "kairode.data.minari": ("from_minari", "to_minari"),
    "kairode.data.stream": ("EpisodeStream", "stream"),
    "kairode.devices": ("use_devices",),
    "kairode.models": ("DynamicsModel", "predict"),
    "kairode.training.calibration": ("evaluate_ensemble",),
    "kairode.training.evaluate_between": ("evaluate_between",),
    "kairode.training.evaluate_model": ("evaluate_model",),
    "kairode.training.model_files": ("load_models",),
    "kairode.agents.evaluate": ("evaluate",),
    "kairode.agents.policy_files": ("save_policy",),
    "kairode.planning.optimize_schedule": ("optimize_schedule", "schedule_for_learning"),
    "kairode.planning.model_env": ("ModelEnv", "make_model_env"),
    "kairode.algorithms.mpc": ("train_mpc",),
    "kairode.algorithms.fit": ("fit",),
    "kairode.algorithms.learn": ("learn",),
    "kairode.algorithms.task": ("learn_task",),
    "kairode.algorithms.evaluate_offline": ("evaluate_offline",),
    "kairode.algorithms.learn_offline": ("learn_offline",),
    "kairode.algorithms.advise": ("Advisor",),
    "kairode.runs.advise": ("load_advisor",),
    "kairode.runs.policies": ("load_policy",),
    "kairode.algorithms.dyna": ("train_dyna",),
}

__all__ = [
    "Advisor",
    "DynamicsModel",
    "Environment",
    "EpisodeStream",
    "Fixed",
    "Given",
    "HostEnvironment",
    "IntervalActions",
    "KairodeError",
    "KairodeWarning",
    "ModelEnv",
    "Own",
    "Policy",
    "Schedule",
    "Task",
    "Trajectory",
    "__version__",
    "collect",
    "evaluate",
    "evaluate_between",
    "evaluate_ensemble",
    "evaluate_model",
    "evaluate_offline",
    "fit",
    "from_gymnasium",
    "from_minari",
    "learn",
    "learn_offline",
    "learn_task",
    "load_advisor",
    "load_models",
    "load_policy",
    "load_table",
    "make",
    "make_model_env",
    "optimize_schedule",
    "predict",
    "read",
    "save_policy",
    "schedule_for_learning",
    "stream",
    "to_minari",
    "train_dyna",
    "train_mpc",
    "use_devices",
    "write",
]

_avoid_wrong_sums()
_register()


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'kairode' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
