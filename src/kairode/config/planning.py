"""Settings of planning."""

import dataclasses

from kairode.config.checks import at_least, not_negative
from kairode.errors import KairodeError

TOLERANCE = 0.02
"""Of the choice of intervals: fraction of the rewards that may be given up for fewer decisions."""


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """How MPC plans. The defaults are the paper's."""

    candidates: int = 1000
    """Action sequences per iteration, K."""
    horizon: int = 10
    """Decisions per sequence, H."""
    noise: float = 0.1
    """Standard deviation of the noise added to the actor's actions."""
    elites: int = 50
    """The action is the mean of the first actions of this many best sequences."""
    iterations: int = 1
    """From two on, the next sequences are drawn around the elites, with their standard deviation (the cross-entropy
    method)."""
    min_noise: float = 0.02
    """Lower bound of that standard deviation."""

    def __post_init__(self) -> None:
        at_least(self, 1, "candidates", "horizon", "elites", "iterations")
        if self.elites > self.candidates:
            raise KairodeError(f"elites ({self.elites}) must not exceed candidates ({self.candidates}).")
        not_negative(self, "noise", "min_noise")
