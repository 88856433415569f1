"""Settings of dynamics models, and the names of those that exist."""

import dataclasses
import sys
from typing import Any

from kairode.config.checks import at_least
from kairode.errors import unknown

PAPER_MODELS = ("rnn", "dt-rnn", "decay-rnn", "latent-rnn", "ode-rnn", "latent-ode")
"""In the order of the paper's tables."""
MODEL_NAMES = (*PAPER_MODELS, "variational-ode-rnn")
"""The keys of `kairode.models.zoo.MODELS`."""
SOLVER = "rk4:3"
"""The default: the cheapest we found with which Latent-ODEs of HIV, acrobot, gridworld and the pendulum are flows (with
the consistency term of `LossWeights`), so that states between decisions mean something (docs/architecture.md)."""
CONSISTENCY = 3.0
"""The default weight of the consistency term (`LossWeights`)."""
MIDPOINT = "midpoint:2"
"""The default of earlier versions, which is no flow; the published results of the robots were made with it."""
EARLIER: dict[str, Any] = {"solver": MIDPOINT, "consistency": 0.0}
"""What a config stands for that lacks these fields, since an earlier version wrote it."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Size of a dynamics model and the solver of its flow."""

    latent_size: int = 10
    """Dimensions of the latent state."""
    encoder_hidden: int = 20
    """Tanh units between the encoder and the mean and variance of z_0."""
    field_hidden: int = 20
    """Tanh units in each of the two hidden layers of the ODE's vector field."""
    timer: str = "auto"
    """Interval timer: classes, continuous or none; auto takes classes for evenly spaced intervals (up to 64), otherwise
    continuous."""
    timer_hidden: int = 20
    """Tanh units of the interval timer."""
    solver: str = SOLVER
    """ODE solver: rk4:3 (steps per interval; also midpoint, heun, ralston, bosh3, tsit5), rk4:0.5t (steps of at most
    half a tick), dopri5 or dopri5:RTOL,ATOL,MAX_STEPS."""

    def __post_init__(self) -> None:
        at_least(self, 1, "latent_size", "encoder_hidden", "field_hidden", "timer_hidden")


def check_model(name: str) -> str:
    """The name, if there is such a model: one of ours, or one that was added to `kairode.models.zoo.MODELS`."""
    zoo = sys.modules.get("kairode.models.zoo")  # not imported here: it needs JAX
    known = MODEL_NAMES if zoo is None else tuple(zoo.MODELS)
    if name not in known:
        raise unknown("model", name, known)
    return name
