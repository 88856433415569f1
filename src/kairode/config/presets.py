"""The settings of every experiment, as data. The paper's are from its table of hyperparameters and protocol."""

import dataclasses
from typing import Any

from kairode.config.options import FitOptions
from kairode.models.zoo import ModelConfig
from kairode.training.losses import LossWeights
from kairode.training.step import TrainingConfig


@dataclasses.dataclass(frozen=True)
class FitPreset:
    """How models of one environment are fitted."""

    sizes: ModelConfig
    settings: TrainingConfig
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The environment's fields that fitting sets."""
    episodes: int = 1000
    """Training episodes from a uniformly random policy."""
    valid: int = 100
    """Validation episodes."""
    test: int = 1000
    """Test episodes."""
    standardise: bool = False
    """Whether observations are standardised by the training data's mean and standard deviation."""


SOLVER = "midpoint:2"
"""What we recommend (`docs/architecture.md` says why)."""

_known_intervals = dataclasses.replace(LossWeights(), timer=0.0)

FITS: dict[str, FitPreset] = {
    "gridworld": FitPreset(
        ModelConfig(latent=2, encoder_hidden=5, field_hidden=5, timer="none", solver=SOLVER),
        TrainingConfig(learning_rate=1e-3, weights=_known_intervals),
    ),
    "acrobot": FitPreset(
        ModelConfig(latent=10, encoder_hidden=20, field_hidden=20, timer="none", solver=SOLVER),
        TrainingConfig(learning_rate=5e-4, sampling_decay=1e-4, weights=_known_intervals),
    ),
    "hiv": FitPreset(
        ModelConfig(latent=10, encoder_hidden=20, field_hidden=20, timer="classes", solver=SOLVER),
        TrainingConfig(learning_rate=1e-3),
        {"max_decisions": 50},
    ),
}
FITS["hiv-partial"] = FITS["hiv"]
for _robot, _latent in (("swimmer", 128), ("hopper", 128), ("half-cheetah", 400)):
    FITS[_robot] = FitPreset(
        ModelConfig(latent=_latent, encoder_hidden=20, field_hidden=_latent, timer="classes", solver=SOLVER),
        TrainingConfig(learning_rate=1e-3, batch=128, pieces=10, patience=15, every=16),
        episodes=20,
        valid=3,
        test=3,
        standardise=True,
    )
OTHER = FitPreset(
    ModelConfig(latent=16, encoder_hidden=20, field_hidden=32, solver=SOLVER), TrainingConfig(), standardise=True
)
"""For experience from a file."""


def preset(env: str) -> FitPreset:
    """That of an environment, or the one for anything else."""
    return FITS.get(env, OTHER)


def changed(preset: FitPreset, options: FitOptions) -> FitPreset:
    """The preset with what the options change."""
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name != "weights" and getattr(options, field.name) is not None
    }
    terms = {name: value for name, value in dataclasses.asdict(options.weights).items() if value is not None}

    def of(part: Any) -> dict[str, Any]:
        names = {field.name for field in dataclasses.fields(part)}
        return {name: value for name, value in given.items() if name in names}

    weights = dataclasses.replace(preset.settings.weights, **terms)
    return dataclasses.replace(
        preset,
        sizes=dataclasses.replace(preset.sizes, **of(preset.sizes)),
        settings=dataclasses.replace(preset.settings, **of(preset.settings), weights=weights),
        **of(preset),
    )
