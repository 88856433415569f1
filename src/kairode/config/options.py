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


@dataclasses.dataclass(frozen=True)
class NamedOptions:
    """For named actions (gridworld, acrobot, hiv, hiv-partial); what is not given belongs to the environment."""

    episodes: int | None = None
    """Real episodes under random actions: 20 of HIV, which then takes turns, otherwise 1000."""
    rounds: int | None = None
    """How often the policy then collects more, the models are refitted and it learns on: 5 on HIV, otherwise 0. (For
    controls: rounds of a plan; from two on it draws around the best of the last one, CEM; 1.)"""
    each: int | None = None
    """Real episodes in each round: 5."""
    iterations: int | None = None
    """Of fitting: 3000 on HIV (half as many in later rounds), otherwise 12000."""
    fits: int | None = None
    """How many models: 4 on HIV, otherwise 3, of which the last judges what the policy learns in the others."""
    imagined: int | None = None
    """Episodes of practice in imagination, in each round."""
    model_free: int | None = None
    """Real episodes of practice of the model-free policy: as many as the other has seen; 0 for none."""
    visits: int | None = None
    """Imagined episodes of practice at visit times that the policy chooses; 0 for no such visits."""
    revisits: int | None = None
    """How often a few real episodes are collected at the visits that the models choose, and the models refitted: 1
    after rounds, otherwise 0."""
    price: tuple[float, ...] = ()
    """Of a visit, in the unit of the reward; several for a curve."""
    candidates: tuple[float, ...] = ()
    """Intervals to choose among, ascending: 1 to 7 days on HIV, otherwise all of the environment's own."""
    tolerance: float | None = None
    """Share of the rewards that may be lost in exchange for fewer visits: 0 on HIV (the best interval, however
    small its lead), otherwise 0.02."""
    latent: bool = False
    """Let the policy see the latent state of the first model too."""
    schedule: float | None = None
    """Learn and test on this fixed interval rather than the environment's own schedule."""


@dataclasses.dataclass(frozen=True)
class ControlOptions:
    """For controls (pendulum, swimmer, hopper, half-cheetah)."""

    decisions: int | None = None
    """Real decisions of each seed, of which the first 15000 are random (pendulum: 1000): 100000 (free: 400000,
    pendulum: 10000). More of them go on from where fewer ended."""
    seeds: int | None = None
    """How many side by side: 1."""
    agent: str | None = None
    """ddpg, td3 or sac: ddpg."""
    sequences: int | None = None
    """How many a plan tries: 1000 (pendulum: 200)."""
    noise: float | None = None
    """How far a plan's actions lie from the actor's, as a standard deviation: 0.1 (pendulum: 0.3)."""
    solver: str | None = None
    """Of a model with an ODE, as in `kairode fit`."""
    places: bool = False
    """Let agent and model see where the root is, as the paper does, not how far it moved."""
    test: int | None = None
    """Episodes of the last test, of each seed: 10."""
