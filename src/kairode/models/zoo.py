"""Models by name. A new one is a class in `transition.py` (or a module of its own) and a line here."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Key

from kairode.config.models import ModelConfig, check_model
from kairode.envs.core import Spec
from kairode.errors import KairodeError, unknown
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.initial import Initial, Variational, Zeros
from kairode.models.networks import MLP, Linear
from kairode.models.ode import Solver, parse_solver
from kairode.models.timer import ClassTimer, ContinuousTimer, NoTimer, Timer
from kairode.models.transition import DecayGated, FlowGated, Gated, GatedWithInterval, LinearFlow, Transition

NewInitial = Callable[[int, ModelConfig, Key[Array, ""]], Initial]
NewTransition = Callable[[int, ModelConfig, Solver, Key[Array, ""]], Transition]


def _zeros(inputs: int, sizes: ModelConfig, key: Key[Array, ""]) -> Initial:
    return Zeros(sizes.latent_size)


def _variational(inputs: int, sizes: ModelConfig, key: Key[Array, ""]) -> Initial:
    return Variational.new(inputs, sizes.latent_size, sizes.encoder_hidden, key=key)


def _recurrent(kind: type[Any]) -> NewTransition:
    return lambda inputs, sizes, solver, key: kind.new(inputs, sizes.latent_size, key=key)


def _flow(kind: type[Any]) -> NewTransition:
    return lambda inputs, sizes, solver, key: kind.new(inputs, sizes.latent_size, sizes.field_hidden, solver, key=key)


MODELS: dict[str, tuple[NewInitial, NewTransition]] = {
    "rnn": (_zeros, _recurrent(Gated)),
    "dt-rnn": (_zeros, _recurrent(GatedWithInterval)),
    "decay-rnn": (_zeros, _recurrent(DecayGated)),
    "latent-rnn": (_variational, _recurrent(Gated)),
    "ode-rnn": (_zeros, _flow(FlowGated)),
    "latent-ode": (_variational, _flow(LinearFlow)),
    "variational-ode-rnn": (_variational, _flow(FlowGated)),
}
"""Initial state and transition of each model; decoder and timer are common to all."""


def build(
    name: str,
    spec: Spec,
    sizes: ModelConfig | None = None,
    scale: Scale | None = None,
    masked: bool = False,
    *,
    key: Key[Array, ""],
) -> DynamicsModel:
    """Create a model with random weights for a task; `masked` for data with missing values."""
    new_initial, new_transition = MODELS[check_model(name)]
    sizes, observed = sizes or ModelConfig(), len(spec.observations)
    inputs, latent = observed * (2 if masked else 1) + spec.actions.n, sizes.latent_size
    solver = parse_solver(sizes.solver, spec.intervals.high / spec.tick)
    initial_key, transition_key, decoder_key, timer_key = jax.random.split(key, 4)
    return DynamicsModel(
        initial=new_initial(inputs, sizes, initial_key),
        transition=new_transition(inputs, sizes, solver, transition_key),
        decoder=Linear.new(latent, observed, key=decoder_key),
        timer=_timer(spec, sizes, inputs + latent, timer_key),
        scale=scale or Scale.none(observed),
        spec=spec,
        masked=masked,
    )


MOST_CLASSES = 64


def _timer(spec: Spec, sizes: ModelConfig, features: int, key: Key[Array, ""]) -> Timer:
    classes, tick = spec.intervals.classes, spec.tick
    kind = sizes.timer
    if kind == "auto":
        kind = "classes" if classes is not None and classes <= MOST_CLASSES else "continuous"
    if kind == "none":
        return NoTimer()
    if kind == "continuous":
        low, high = spec.intervals.low / tick, spec.intervals.high / tick
        net = MLP.new(features, sizes.timer_hidden, 1, key=key)
        spread = MLP.new(features, sizes.timer_hidden, 1, key=jax.random.fold_in(key, 1)) if low < high else None
        return ContinuousTimer(net, low, high, spread)
    if kind == "classes":
        if classes is None:
            raise KairodeError(f"the intervals of '{spec.name}' are continuous: use timer='continuous'.")
        net = MLP.new(features, sizes.timer_hidden, classes, key=key)
        return ClassTimer(net, spec.intervals.low / tick, spec.intervals.step / tick)
    raise unknown("timer", kind, ("auto", "classes", "continuous", "none"))
