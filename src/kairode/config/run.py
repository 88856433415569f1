"""Settings of `kairode run` on a system with discrete actions; every field is an option of the command."""

import dataclasses
from typing import Any, ClassVar

from kairode.config.algorithms import MODEL_FREE, LearnConfig
from kairode.config.checks import at_least, not_negative, unit_interval
from kairode.config.models import CONSISTENCY, EARLIER, SOLVER, check_model
from kairode.config.planning import TOLERANCE
from kairode.errors import KairodeError


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The main job on a system with discrete actions."""

    env: str = "hiv"
    """Name of the environment."""
    model: str = "latent-ode"
    """Name of the dynamics model."""
    episodes: int = 1000
    """Real episodes with random actions."""
    rounds: int = 0
    """Dyna rounds: the policy collects more episodes, the models are refitted, the policy is trained
    further."""
    episodes_per_round: int = 5
    """Real episodes with the current policy, in each Dyna round."""
    initial_decisions: int = 0
    """With Dyna rounds, decisions that these episodes must at least have together: more are collected until they do."""
    decisions_per_round: int = 0
    """Decisions that the episodes of a Dyna round must at least have together."""
    fit_iterations: int = 12_000
    """Iterations of fitting (half as many in later Dyna rounds)."""
    ensemble_size: int = 3
    """Models. Without Dyna rounds, from three on, the last one validates the policy learned in the others."""
    solver: str = SOLVER
    """ODE solver of the models, as for `kairode fit`."""
    consistency: float = CONSISTENCY
    """Weight of the consistency term of the models' fits (`LossWeights`)."""
    model_free_episodes: int | None = None
    """Real training episodes of the model-free policy; by default as many as the main policy has seen, 0 for none."""
    schedule_episodes: int = 300
    """Training episodes in imagination for the policy at chosen decision times; 0 chooses no decision times."""
    schedule_refits: int = 0
    """How often real episodes are collected at the chosen times and the models refitted (after Dyna rounds only)."""
    prices: tuple[float, ...] = (0.0,)
    """Price of a decision, in the unit of the reward: a schedule for each."""
    candidates: tuple[float, ...] = ()
    """Intervals to choose among, ascending; by default all of the environment's own."""
    tolerance: float = TOLERANCE
    """Fraction of the rewards that may be given up for fewer decisions; 0 for the best interval."""
    latent_policy: bool = False
    """Condition the policy on the latent state of the first model, too."""
    schedule: float | None = None
    """Learn and test with this fixed interval rather than the environment's own schedule."""
    learn: LearnConfig = dataclasses.field(default_factory=LearnConfig)
    """Learning in imagination (in each Dyna round)."""
    seed: int = 0
    """Seed of everything random."""
    setting: str = "ours"
    """Setting of the environment: ours, or paper for the runs behind the paper's numbers."""
    env_fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the environment that differ from its setting."""
    paper: bool = False
    """The paper's protocol: 1000 random episodes, one model, raw rewards, no bounds in imagination, most likely
    intervals (hours)."""

    absent: ClassVar[dict[str, Any]] = EARLIER
    """Fields that older configs do not have, with the value that they stood for."""

    def __post_init__(self) -> None:
        if self.model == MODEL_FREE:
            raise KairodeError(
                f"--model {MODEL_FREE} is for continuous actions; here --model-free-episodes trains a policy without a "
                "model."
            )
        check_model(self.model)
        not_negative(self, "consistency")
        at_least(self, 1, "episodes", "episodes_per_round", "fit_iterations", "ensemble_size")
        at_least(
            self,
            0,
            "initial_decisions",
            "decisions_per_round",
            "rounds",
            "model_free_episodes",
            "schedule_episodes",
            "schedule_refits",
            "seed",
        )
        unit_interval(self, "tolerance")
        if self.schedule_refits and not self.rounds:
            raise KairodeError("--schedule-refits continues from Dyna rounds: add --rounds 5.")
        if self.schedule_refits and not self.schedule_episodes:
            raise KairodeError(
                "--schedule-refits needs chosen decision times, and --schedule-episodes 0 chooses none: leave one out."
            )
        if not self.rounds:
            return
        for name in ("latent_policy", "schedule", "paper"):
            if getattr(self, name) not in (None, False):
                raise KairodeError(f"--{name.replace('_', '-')} works without Dyna rounds only: add --rounds 0.")
        at_least(self, 10, "episodes")
