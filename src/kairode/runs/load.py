"""Models, data and policy of a run with discrete actions, from its folder or from its stages."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from kairode.agents.policy_files import describe_policy
from kairode.algorithms.dyna import DynaState, read_state
from kairode.config.algorithms import DynaConfig, LearnConfig
from kairode.config.presets import dyna_of_run
from kairode.config.run import RunConfig
from kairode.data import Trajectory, read
from kairode.envs import make
from kairode.envs.core import Environment, Task
from kairode.envs.host import HostEnvironment
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.planning.learned_task import task_of_system
from kairode.runs.folder import RunFolder
from kairode.runs.mpc import is_mpc_run
from kairode.training import checkpoint
from kairode.training.model_files import load_models

DYNA = "rounds"
"""Folder of the Dyna rounds inside a run folder."""


@dataclasses.dataclass(frozen=True)
class ModelledSystem:
    """An environment with fitted models and their data."""

    folder: Path
    """The run folder."""
    env: Environment | HostEnvironment
    models: list[DynamicsModel]
    data: Trajectory
    seed: int = 0
    latent_policy: bool = False
    """True if the run's policies are conditioned on the latent state of the first model."""
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Environment of a policy: env, setting, fields, schedule."""
    learn: LearnConfig | None = None
    """How policies are learned, if not by the environment's preset: the paper's protocol."""
    dyna: tuple[DynaConfig, DynaState] | None = None
    """The Dyna rounds of the models, if any."""

    @functools.cached_property
    def imagined(self) -> Environment | Task:
        """What imagination uses of the system: all of it, or the task of a host environment, learned if need be."""
        return self.env if isinstance(self.env, Environment) else task_of_system(self.env, self.data, seed=self.seed)

    @property
    def policy_model(self) -> DynamicsModel | None:
        """The model that the policies are conditioned on."""
        return self.models[0] if self.latent_policy else None


def read_run(folder: Path) -> ModelledSystem:
    """Load the results of `kairode run` or `kairode dyna`."""
    if is_mpc_run(folder):
        raise KairodeError(
            f"{folder} is a run with continuous actions: decision times can be chosen only for discrete ones."
        )
    RunFolder(folder).check()
    about = describe_policy(folder)
    env = make(about["env"], setting=about["setting"], **about["fields"])
    common: dict[str, Any] = {
        "seed": int(RunFolder(folder).manifest.config.get("seed", 0)) if RunFolder(folder).exists else 0,
        "latent_policy": about["sees"] == "z",
        "about": {name: about[name] for name in ("env", "setting", "fields", "schedule")},
    }
    if (folder / "fit").is_dir():
        data = read(folder / "experience.parquet")
        run = RunFolder(folder, "run").config(RunConfig) if RunFolder(folder).exists else None
        learn = run.learn if run is not None and run.paper else None
        return ModelledSystem(folder, env, load_models(folder / "fit"), data, **common, learn=learn)
    inside = folder / DYNA
    if inside.is_dir() and not RunFolder(inside).exists:  # older versions used a nested run folder
        config = dyna_of_run(RunFolder(folder, "run").config(RunConfig))
        state = read_state(config, env, inside)
    else:
        config, state = load_dyna(inside if inside.is_dir() else folder)
    return ModelledSystem(folder, env, state.members, state.data, **common, dyna=(config, state))


def load_dyna(folder: Path) -> tuple[DynaConfig, DynaState]:
    """Config and last state of the Dyna rounds in a folder."""
    found = RunFolder(folder, "rounds")
    if not found.exists or not checkpoint.exists(folder):
        raise KairodeError(f"there are no Dyna rounds in {folder}: run `kairode dyna hiv --out {folder}`.")
    config = found.config(DynaConfig)
    return config, read_state(config, make(config.env, setting=config.setting, **config.env_fields), folder)
