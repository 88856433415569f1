"""Settings of fitting a dynamics model."""

import dataclasses
from typing import Any, ClassVar

from kairode.config.checks import at_least, not_negative, positive, unit_interval
from kairode.config.models import CONSISTENCY, EARLIER


@dataclasses.dataclass(frozen=True)
class LossWeights:
    """Weights of the terms of the objective; the state error has weight 1."""

    kl: float = 1.0
    """KL[q(z_0) || N(0, I)], mean over dimensions and batch."""
    kl_warmup: int = 0
    """Iterations over which the weight of the KL rises from 0."""
    timer: float = 0.01
    """Interval timer: lambda of equation (8)."""
    energy: float = 0.0
    """Kinetic energy |dz/ds|^2 of the flow (Finlay et al. 2020). This and the next two are taken at the start of every
    interval's flow, as means over the latent dimensions."""
    jacobian: float = 0.0
    """Squared Frobenius norm of the vector field's Jacobian, estimated with one random vector (Finlay et al. 2020)."""
    curvature: float = 0.0
    """|d^2 z/ds^2|^2 of the flow (Kelly et al. 2020, second order)."""
    consistency: float = CONSISTENCY
    """Squared difference of the latent state after an interval between the solver's steps and twice as many, mean over
    the latent dimensions, at one decision in sixteen. It makes what a fixed-step solver learns a flow; adaptive solvers
    and models without an ODE do without it."""

    absent: ClassVar[dict[str, Any]] = {"consistency": EARLIER["consistency"]}
    """Fields that older configs do not have, with the value that they stood for."""

    def __post_init__(self) -> None:
        not_negative(self, *(field.name for field in dataclasses.fields(self)))

    @property
    def regularised(self) -> bool:
        """True if the vector field's energy, Jacobian or curvature is penalised."""
        return self.energy > 0 or self.jacobian > 0 or self.curvature > 0


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a dynamics model is trained."""

    iterations: int = 12_000
    """Updates of the weights."""
    batch_size: int = 32
    """Episodes (or chunks of episodes) per batch."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    cooldown: float = 0.0
    """Fraction of the iterations, at the end, over which the learning rate falls linearly to 0."""
    weight_decay: float = 1e-3
    """L2 penalty, added to the gradient."""
    sampling_decay: float = 0.0
    """Scheduled sampling: at iteration k the model sees the true observation with probability max(0, 1 - decay k); 0
    always shows it."""
    weights: LossWeights = dataclasses.field(default_factory=LossWeights)
    validate_every: int = 250
    """Iterations between two evaluations on the validation episodes."""
    patience: int | None = None
    """Early stopping: validations without improvement before a seed stops; its best weights are kept."""
    chunk_length: int | None = None
    """Split training episodes into chunks of at most this many decisions; None trains on whole episodes, or on chunks
    of 500 where they are longer than 2,000."""
    max_skipped: int = 10
    """Consecutive batches with a non-finite loss or gradient after which training stops."""

    def __post_init__(self) -> None:
        at_least(self, 1, "iterations", "batch_size", "validate_every", "max_skipped", "patience", "chunk_length")
        not_negative(self, "weight_decay", "sampling_decay")
        unit_interval(self, "cooldown")
        positive(self, "learning_rate")
