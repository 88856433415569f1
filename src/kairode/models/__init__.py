"""Latent dynamics models, composed of initial state, transition, decoder and timer."""

from kairode.config.models import ModelConfig
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.ode import Adaptive, FixedSteps, Solver
from kairode.models.predict import predict, predict_with_states
from kairode.models.zoo import MODELS, build

__all__ = [
    "MODELS",
    "Adaptive",
    "DynamicsModel",
    "FixedSteps",
    "ModelConfig",
    "Scale",
    "Solver",
    "build",
    "predict",
    "predict_with_states",
]
