"""`kairode.load_policy`: load the policy of a run folder."""

from pathlib import Path
from typing import Any

from kairode.agents.policy_files import describe_policy, read_policy
from kairode.models.dynamics import DynamicsModel
from kairode.runs.folder import RunFolder
from kairode.runs.mpc import KIND, best_seed, is_mpc_run, load_policies
from kairode.training.model_files import load_models


def load_policy(folder: str | Path, model: DynamicsModel | None = None, *, seed_index: int | None = None) -> Any:
    """Load the policy of a run: `kairode.load_policy("runs/hiv-latent-ode-seed0")`.

    Args:
        folder: written by `kairode run`, `kairode dyna` or `kairode.save_policy`.
        model: the model of a latent policy; by default the first one of the run.
        seed_index: which seed of a run with continuous actions; by default the one with the best test.
    """
    RunFolder(folder).check()
    if not is_mpc_run(folder):
        about = describe_policy(folder)
        if about["sees"] == "z" and model is None and (Path(folder) / "fit").is_dir():
            model = load_models(Path(folder) / "fit")[0]
        return read_policy(folder, model)
    if seed_index is None:
        seed_index = best_seed(RunFolder(folder, KIND).record)
    return load_policies(folder)[seed_index]
