"""The paper's figure of the three robots: its runs, one record each."""

from kairode.algorithms.mpc_agent import FREE
from kairode.config.mpc import MPCConfig, usual
from kairode.envs.locomotion import ROBOTS
from kairode.models.zoo import PAPER_MODELS

SEEDS = 3

STUDIES: dict[str, MPCConfig] = {
    f"{env}-{model}": usual(env, model, seeds=SEEDS) for env in ROBOTS for model in (*PAPER_MODELS, FREE)
}
"""Every model on every robot: the paper's planner, agents and sizes; docs/results.md says what differs."""
