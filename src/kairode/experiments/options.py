"""What the command line may change of a preset: every field, None where the preset's value stands.

Nothing is imported here: the command line shows its help without loading JAX.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class WeightOptions:
    """Weights of the terms of the objective."""

    kl: float | None = None
    """Of KL[q(z_0) || N(0, I)]."""
    kl_warmup: int | None = None
    """Iterations over which the KL's weight rises from 0."""
    timer: float | None = None
    """Of the interval timer, the paper's lambda."""
    energy: float | None = None
    """Of the flow's kinetic energy (Finlay et al. 2020)."""
    jacobian: float | None = None
    """Of the Jacobian of the field (Finlay et al. 2020)."""
    curvature: float | None = None
    """Of the second derivative of the flow (Kelly et al. 2020)."""


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """What differs from the settings that belong to the environment."""

    iterations: int | None = None
    """Updates of the weights."""
    batch: int | None = None
    """Episodes in a batch."""
    learning_rate: float | None = None
    """Adam's."""
    cooldown: float | None = None
    """Share of the iterations, at the end, over which the learning rate falls to 0."""
    weight_decay: float | None = None
    """L2, added to the gradient."""
    sampling_decay: float | None = None
    """Scheduled sampling: the truth is shown with probability max(0, 1 - decay k) at iteration k."""
    every: int | None = None
    """Iterations between two looks at the validation error."""
    patience: int | None = None
    """Early stopping: looks without a better validation error."""
    pieces: int | None = None
    """Cut training episodes into pieces of at most this many decisions."""
    solver: str | None = None
    """midpoint:2 (steps an interval; also heun, ralston, bosh3, rk4, tsit5), rk4:0.5t (steps of at most half a tick),
    dopri5 or dopri5:RTOL,ATOL,MAX_STEPS. For models with an ODE."""
    latent: int | None = None
    """Dimensions of the latent state."""
    encoder_hidden: int | None = None
    """Tanh units between encoder and z_0."""
    field_hidden: int | None = None
    """Tanh units in each hidden layer of the field."""
    timer: str | None = None
    """classes, continuous, none or auto."""
    timer_hidden: int | None = None
    """Tanh units of the interval timer."""
    episodes: int | None = None
    """Training episodes to collect."""
    valid: int | None = None
    """Validation episodes to collect."""
    test: int | None = None
    """Test episodes to collect."""
    weights: WeightOptions = dataclasses.field(default_factory=WeightOptions)
