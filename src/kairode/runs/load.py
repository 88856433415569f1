"""What a run left: models, experience, environment; for whoever goes on from there."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from kairode.agents.policy_files import describe_policy
from kairode.algorithms.dyna import load_dyna
from kairode.data import Trajectory, read
from kairode.envs import make
from kairode.envs.core import Environment
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.runs.mpc import is_mpc_run
from kairode.training.model_files import load_models


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """What a run's folder holds."""

    folder: Path
    name: str
    """Of its environment."""
    env: Environment
    about: dict[str, Any]
    """What its policy says of itself."""
    models: list[DynamicsModel]
    data: Trajectory

    @property
    def latent(self) -> bool:
        """Whether its policies see the latent state of the first model."""
        return bool(self.about["sees"] == "z")

    @property
    def seed(self) -> int:
        """Of the run."""
        path = self.folder / "config.json"
        return int(json.loads(path.read_text()).get("seed", 0)) if path.exists() else 0


def read_run(folder: Path) -> LoadedRun:
    """The models and experience of a run, from `kairode run` or `kairode rounds`."""
    if is_mpc_run(folder):
        raise KairodeError(f"{folder} is a run with controls: intervals are chosen for named actions so far.")
    about = describe_policy(folder)
    env = make(about["env"], setting=about["setting"], **about["fields"])
    if (folder / "fit").is_dir():
        models, data = load_models(folder / "fit"), read(folder / "experience.parquet")
        return LoadedRun(folder, about["env"], env, about, models, data)
    state = load_dyna(rounds_of(folder))
    return LoadedRun(folder, about["env"], env, about, state.members, state.data)


def rounds_of(folder: Path) -> Path:
    """Where a run keeps its rounds: a folder of its own, or all of it."""
    return folder / "rounds" if (folder / "rounds").is_dir() else folder
