"""The paper's figure of three robots: one run and one record per model."""

from kairode.config.algorithms import MODEL_FREE, MPCConfig
from kairode.config.models import PAPER_MODELS
from kairode.config.presets import mpc_preset
from kairode.envs.locomotion import ROBOTS

SEEDS = 3

STUDIES: dict[str, MPCConfig] = {
    f"{env}-{model}": mpc_preset(env, model, seeds=SEEDS) for env in ROBOTS for model in (*PAPER_MODELS, MODEL_FREE)
}
"""Every model on every robot: the paper's planner, agents and sizes; docs/results.md lists the differences."""
