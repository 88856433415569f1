"""Settings of the algorithms: fitting, learning in imagination, Dyna, MPC and the choice of decision times."""

import dataclasses
import re
from typing import Any, ClassVar

from kairode.config.agents import ActorCriticConfig, DQNConfig
from kairode.config.checks import at_least, not_negative, unit_interval
from kairode.config.models import CONSISTENCY, EARLIER, SOLVER, ModelConfig, check_model
from kairode.config.planning import PlanConfig
from kairode.config.tables import CSV, PARQUET, TableConfig, ending
from kairode.config.training import TrainingConfig
from kairode.errors import KairodeError

MODEL_FREE = "free"
"""In place of a model's name: no model, the actor acts alone."""
SEED_LIMIT = 2**30


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """A fit of one model with one or more seeds."""

    source: str
    """Name of an environment, or a file: CSV or Parquet."""
    model: str = "latent-ode"
    """Name of the dynamics model."""
    seeds: int = 1
    """Number of models, fitted together."""
    seed: int = 0
    """Seed of the first model."""
    data_seed: int = 0
    """Seed of the collected data, or of the split of a file; all models share the data."""
    episodes: int = 1000
    """Training episodes, collected with random actions."""
    validation_episodes: int = 100
    """Episodes that decide which iteration's model is kept; of a file, a tenth."""
    test_episodes: int = 1000
    """Episodes that the fitted models are tested on; of a file, a tenth."""
    standardize: bool = False
    """Standardise observations by mean and standard deviation of the training data."""
    robust_scale: bool = False
    """Standardise them by median and interquartile range instead, and treat values beyond ten standard deviations as
    missing: for data with outliers."""
    sizes: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    setting: str = "ours"
    """Setting of the environment: ours, or paper for the runs behind the paper's numbers."""
    env_fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the environment that differ from its setting."""
    table: TableConfig | None = None
    """What the columns of a file mean; None for an environment, and for a file whose columns have the default names."""
    digest: str | None = None
    """SHA-256 of the file or data."""

    def __post_init__(self) -> None:
        check_model(self.model)
        at_least(self, 1, "seeds", "episodes", "validation_episodes", "test_episodes")
        for name in ("seed", "data_seed"):
            value = getattr(self, name)
            if not (isinstance(value, int) and 0 <= value < SEED_LIMIT):
                raise KairodeError(f"{name} must be an integer between 0 and 2^30, got {value}.")

    @property
    def is_file(self) -> bool:
        """True if the source is a file rather than an environment."""
        return is_file(self.source)


def is_file(source: str) -> bool:
    """True for a file of data rather than the name of an environment."""
    return ending(source) in (*CSV, *PARQUET) or ("/" in source and not is_import(source))


def is_import(name: str) -> bool:
    """True for the name of a system of the user's own: gym:ID or MODULE:NAME."""
    return ending(name) not in (*CSV, *PARQUET) and re.match(r"[A-Za-z_]\w[\w.]*:(?![\\/])", name) is not None


@dataclasses.dataclass(frozen=True)
class LearnConfig:
    """How a policy with discrete actions is learned, in imagination or on the real system."""

    episodes: int = 300
    """Training episodes."""
    rollout_length: int | None = None
    """Imagined episodes start anywhere along the real ones of the data and are truncated after this many decisions, and
    the replay buffer also holds the real transitions. None imagines whole episodes from the start states."""
    obs_margin: float | None = 0.5
    """Imagined observations are clipped to the range of the data, extended on both sides by this multiple of it; None
    does not clip."""
    sample_intervals: bool = True
    """Draw imagined intervals from the distribution that the models' timers predict, rather than take the most
    likely."""
    validate_every: int = 4000
    """Decisions between two validations."""
    standardize: bool = False
    """Q-networks learn from observations in units of their standard deviation in the data (in imagination)."""
    dqn: DQNConfig = dataclasses.field(default_factory=DQNConfig)

    def __post_init__(self) -> None:
        at_least(self, 1, "episodes", "rollout_length", "validate_every")
        if self.obs_margin is not None:
            not_negative(self, "obs_margin")


@dataclasses.dataclass(frozen=True)
class DynaConfig:
    """Dyna rounds: collect with the policy, refit the models, learn in imagination, again."""

    env: str = "hiv"
    """Name of the environment."""
    model: str = "latent-ode"
    """Name of the dynamics model."""
    initial_episodes: int = 20
    """Real episodes with random actions, before the first round."""
    initial_decisions: int = 0
    """Decisions that the initial episodes must at least have together: more episodes are collected until they do."""
    episodes_per_round: int = 5
    """Real episodes with the current policy, in each round."""
    decisions_per_round: int = 0
    """Decisions that the episodes of a round must at least have together."""
    rounds: int = 12
    """Rounds after the first fit (round 0)."""
    ensemble_size: int = 4
    """Models in the ensemble."""
    latent_size: int = 16
    """Dimensions of the models' latent state: data of a good policy span more than data of random actions."""
    field_hidden: int = 48
    """Tanh units in each hidden layer of the models' vector field."""
    solver: str = SOLVER
    """ODE solver of the models, as for `kairode fit`."""
    consistency: float = CONSISTENCY
    """Weight of the consistency term of the models' fits (`LossWeights`)."""
    fit_iterations: int = 3000
    """Iterations of the first fit; later rounds continue from the last models with half as many."""
    chunk_length: int = 20
    """Decisions in a chunk of an episode that models are fitted to."""
    rollout_length: int = 10
    """Decisions of an imagined episode."""
    imagined_episodes: int = 1500
    """Imagined episodes in each round."""
    obs_margin: float = 0.2
    """Imagined observations are clipped to the range of the data, extended on both sides by this multiple of it."""
    sample_intervals: bool = True
    """Draw imagined intervals from the distribution that the models' timers predict, rather than take the most
    likely."""
    exploration: float = 0.1
    """Fraction of random actions in real episodes."""
    standardize: bool = False
    """Q-networks learn from observations in units of their standard deviation in the data."""
    dqn: DQNConfig = dataclasses.field(
        default_factory=lambda: DQNConfig(reward_scale=1e-6, double_q=True, target_period=100)
    )
    seed: int = 0
    """Seed of everything random."""
    setting: str = "ours"
    """Setting of the environment: ours, or paper for the runs behind the paper's numbers."""
    env_fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the environment that differ from its setting."""

    absent: ClassVar[dict[str, Any]] = EARLIER
    """Fields that older configs do not have, with the value that they stood for."""

    def __post_init__(self) -> None:
        check_model(self.model)
        not_negative(self, "consistency")
        at_least(self, 10, "initial_episodes")
        at_least(self, 2, "fit_iterations")
        at_least(self, 0, "rounds", "seed", "initial_decisions", "decisions_per_round")
        at_least(self, 1, "episodes_per_round", "ensemble_size", "latent_size", "field_hidden", "chunk_length")
        at_least(self, 1, "rollout_length", "imagined_episodes")
        unit_interval(self, "exploration")
        not_negative(self, "obs_margin")


@dataclasses.dataclass(frozen=True)
class MPCConfig:
    """Control by planning in a model that is refitted as data grow, with an actor-critic (the paper's algorithm 3)."""

    env: str = "hopper"
    """Name of the environment."""
    model: str = "latent-ode"
    """Name of the dynamics model to plan with; free follows the actor without a model."""
    decisions: int = 100_000
    """Real decisions of each seed, random ones included; more of them continue a run that had fewer."""
    seeds: int = 1
    """Number of seeds, run side by side."""
    seed: int = 0
    """The first seed."""
    refit_every: int = 5000
    """Decisions between two fits of the model."""
    agent: ActorCriticConfig = dataclasses.field(default_factory=ActorCriticConfig)
    plan: PlanConfig = dataclasses.field(default_factory=PlanConfig)
    sizes: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    max_fit_iterations: int = 1000
    """Iterations of one fit, unless early stopping ends it before."""
    relative_obs: bool = True
    """Agent and model see the change of relative variables (the robots' x) since the last decision, not their value;
    the paper's see the value."""
    test_episodes: int = 10
    """Test episodes of each seed."""
    setting: str = "ours"
    """Setting of the environment: ours, or paper for the runs behind the paper's numbers."""
    env_fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the environment that differ from its setting."""

    def __post_init__(self) -> None:
        at_least(self, 1, "decisions", "seeds", "refit_every", "max_fit_iterations", "test_episodes")
        at_least(self, 0, "seed")
        if self.model != MODEL_FREE:
            check_model(self.model)
        if self.decisions <= self.agent.warmup:
            raise KairodeError(
                f"decisions must exceed the {self.agent.warmup:,} random ones that come first, got {self.decisions:,}."
            )


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """How the models of a run choose decision times."""

    prices: tuple[float, ...] = (0.0,)
    """Price of a decision, in the unit of the reward: a schedule for each."""
    budgets: tuple[int, ...] = ()
    """Decisions in an episode: a schedule for each."""
    candidates: tuple[float, ...] = ()
    """Intervals to choose among, ascending; those of the environment by default. With --continuous, the shortest and
    the longest."""
    continuous: bool = False
    """Choose among all intervals between the shortest and the longest."""
    quantile: float | None = None
    """Wait only as long as this quantile of the models advises; by default their mean decides."""
    tolerance: float | None = None
    """Fraction of the rewards that may be given up for fewer decisions (0: the best interval); by default the run's."""
    oracle: bool = False
    """Let the true dynamics choose in place of the models."""
    imagined_episodes: int | None = None
    """Episodes of learning in imagination; by default the run's, or the environment's."""
    refits: int | None = None
    """How often real episodes are collected at the chosen times and the models refitted (after Dyna rounds only)."""
    test_episodes: int = 20
    """Test episodes on the real system."""
    test_seed: int = 0
    """Seed of the test episodes."""
    seed: int | None = None
    """Seed of learning the policy; by default the run's."""

    def __post_init__(self) -> None:
        at_least(self, 0, "test_seed", "refits", "seed")
        at_least(self, 1, "test_episodes", "imagined_episodes")
        if self.tolerance is not None:
            unit_interval(self, "tolerance")
        if self.oracle and self.refits:
            raise KairodeError("refits improve the models, and with oracle they choose nothing: leave one of them out.")
        if not (self.prices or self.budgets):
            raise KairodeError("give at least one price (0 for none) or budget.")
