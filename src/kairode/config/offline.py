"""Settings of learning from records alone."""

import dataclasses

from kairode.config.agents import DQNConfig
from kairode.config.checks import at_least, not_negative, unit_interval
from kairode.config.models import check_model
from kairode.config.tables import TableConfig
from kairode.errors import KairodeError, unknown


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One way to be careful where the data are silent."""

    model: bool = True
    """Learn in the imagination of the models; otherwise from the records alone."""
    penalty: float = 0.0
    """Reward that a unit of the models' disagreement costs, in standard deviations of the data's rewards (MOPO)."""
    limit: float | None = None
    """An imagined episode ends where the disagreement exceeds this multiple of what 99 % of the data have (MOReL)."""
    margin: float = 1.0
    """Imagined observations are clipped to the range of the data, extended on both sides by this multiple of it: a
    policy that is better than what was done leads beyond what the data show."""
    support: float = 0.0
    """Actions whose probability under the behaviour policy is below this fraction of the likeliest one's are excluded
    (BCQ)."""
    cql: float = 0.0
    """Weight of CQL's penalty; without models."""


RECIPES: dict[str, Recipe] = {
    "ensemble": Recipe(),
    "disagreement-penalty": Recipe(penalty=10.0, limit=7.0),
    "disagreement-limit": Recipe(penalty=1.0, limit=3.0),
    "action-support": Recipe(penalty=1.0, limit=3.0, support=0.02),
    "q-learning": Recipe(model=False),
    "bcq": Recipe(model=False, support=0.3),
    "cql": Recipe(model=False, cql=1.0),
}
"""Those that are tried, by name."""


ESTIMATORS = {
    "fitted_q": "fitted Q evaluation",
    "importance": "importance sampling",
    "doubly_robust": "the doubly robust estimator",
    "model": "simulation in the models",
}
"""Off-policy estimators in words."""


@dataclasses.dataclass(frozen=True)
class OfflineConfig:
    """How a policy is learned from records alone, and chosen."""

    recipes: tuple[str, ...] = tuple(RECIPES)
    """Recipes to try; what is best for the records is chosen by off-policy estimates: ensemble, disagreement-penalty,
    disagreement-limit, action-support (in imagination), q-learning, bcq, cql (from the records alone)."""
    decisions: int = 90_000
    """Imagined decisions of every recipe."""
    updates: int = 20_000
    """Updates of the recipes without models."""
    stops: int = 3
    """Times of the training, evenly spaced, at which a recipe's Q-network is kept; its policy has their mean values."""
    rollout_length: int = 50
    """Decisions of an imagined episode; half of them begin at starts of real episodes, half along these."""
    held_out: float = 0.2
    """Fraction of the episodes that policies are not learned from, but chosen by."""
    dqn: DQNConfig = dataclasses.field(
        default_factory=lambda: DQNConfig(hidden=(128, 128), double_q=True, target_decisions=500, epsilon_decay=1000.0)
    )
    """Of the recipes with models. Rewards are scaled so that returns of the data are about `reward_scale`."""

    def __post_init__(self) -> None:
        at_least(self, 1, "decisions", "updates", "stops", "rollout_length")
        unit_interval(self, "held_out")
        if not self.recipes:
            raise KairodeError("recipes must name at least one.")
        for name in self.recipes:
            if name not in RECIPES:
                raise unknown("recipe", name, RECIPES)


@dataclasses.dataclass(frozen=True)
class OfflineRunConfig:
    """From a table to a policy: `kairode learn TABLE` and `kairode run TABLE`."""

    source: str
    """The table: a CSV or Parquet file."""
    model: str = "latent-ode"
    """Name of the dynamics model."""
    ensemble_size: int = 5
    """Models in the ensemble; their disagreement shows where the data are silent."""
    fit_iterations: int = 4000
    """Iterations of fitting."""
    chunk_length: int = 50
    """Decisions in a chunk of an episode that models are fitted to."""
    robust_scale: bool = False
    """Standardise observations by median and interquartile range, for data with outliers (as for `kairode fit`)."""
    test_fraction: float = 0.2
    """Fraction of the episodes that nothing is learned from or chosen by: the estimates are of these."""
    price: float | None = None
    """Price of a decision, in the unit of the reward: also learn when to decide next. None keeps to the intervals of
    the records."""
    budget: int | None = None
    """Decisions in an episode, at most: also learn when to decide next."""
    seed: int = 0
    """Seed of everything random."""
    offline: OfflineConfig = dataclasses.field(default_factory=OfflineConfig)
    """How the policy is learned and chosen."""
    table: TableConfig | None = dataclasses.field(default_factory=TableConfig)
    """What the columns mean; None for a file that Kairode wrote."""
    digest: str | None = None
    """SHA-256 of the file."""

    def __post_init__(self) -> None:
        check_model(self.model)
        at_least(self, 2, "fit_iterations")
        at_least(self, 1, "ensemble_size", "chunk_length", "budget")
        if self.price is not None:
            not_negative(self, "price")
        at_least(self, 0, "seed")
        if not 0 < self.test_fraction < 1 - self.offline.held_out:
            raise KairodeError(
                f"test_fraction must lie between 0 and {1 - self.offline.held_out:g}, so that episodes are left to "
                f"learn from, got {self.test_fraction}."
            )
