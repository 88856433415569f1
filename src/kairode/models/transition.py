"""Transitions between latent states: z_i from z_{i-1}, observation, action and interval.

A transition is split in two. `inputs` is the contribution of observation, action and interval; under teacher forcing it
is known for the whole episode and computed at once. `move` is the recurrence itself. A new transition is a class here
and a line in `zoo.py`. Arrays are feature first, followed by any batch axes (`networks.py`).
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kairode.models.field import VectorField
from kairode.models.networks import GRU, Linear
from kairode.models.ode import Latent, Solver, Ticks

Inputs = Float[Array, "i *batch"]
"""Observation and action, concatenated."""
Drive = Float[Array, "d *batch"]
"""Contribution of the inputs."""


class Transition(eqx.Module):
    """P(z' | z, s, a, tau), deterministic given z."""

    @abc.abstractmethod
    def inputs(self, x: Inputs, tau: Ticks) -> Drive:
        """Contribution of observation, action and interval."""

    @abc.abstractmethod
    def move(self, z: Latent, drive: Drive, tau: Ticks) -> Latent:
        """Latent state after tau."""

    def path(self, z: Latent, x: Inputs, taus: Float[Array, "k *batch"]) -> Float[Array, "k z *batch"]:
        """Latent states at several times (ascending) after one decision."""
        return move_to_each(self, z, x, taus)


class FlowTransition(Transition):
    """A transition with an ODE in it."""

    field: eqx.AbstractVar[VectorField]
    solver: eqx.AbstractVar[Solver]

    @abc.abstractmethod
    def entry(self, z: Latent, drive: Drive) -> Latent:
        """Initial state of the flow of an interval."""


class Gated(Transition):
    """RNN: z' = GRU(z, [s a])."""

    cell: GRU

    @classmethod
    def new(cls, inputs: int, latent: int, *, key: Key[Array, ""]) -> "Gated":
        return cls(GRU.new(inputs, latent, key=key))

    def inputs(self, x: Inputs, tau: Ticks) -> Drive:
        return self.cell.input(x)

    def move(self, z: Latent, drive: Drive, tau: Ticks) -> Latent:
        """The interval is at most in the drive."""
        return self.cell.move(z, drive)


class GatedWithInterval(Gated):
    """Delta-t-RNN: z' = GRU(z, [s a tau])."""

    @classmethod
    def new(cls, inputs: int, latent: int, *, key: Key[Array, ""]) -> "GatedWithInterval":
        return cls(GRU.new(inputs + 1, latent, key=key))

    def inputs(self, x: Inputs, tau: Ticks) -> Drive:
        return self.cell.input(jnp.concatenate([x, tau[None]]))


class DecayGated(Transition):
    """Decay-RNN (Che et al. 2018): z~ = exp(-max(0, w tau + b)) z, then z' = GRU(z~, [s a])."""

    rate: Linear
    cell: GRU

    @classmethod
    def new(cls, inputs: int, latent: int, *, key: Key[Array, ""]) -> "DecayGated":
        """One rate for all latent dimensions, as in the published runs."""
        rate_key, cell_key = jax.random.split(key)
        return cls(Linear.new(1, 1, key=rate_key), GRU.new(inputs, latent, key=cell_key))

    def inputs(self, x: Inputs, tau: Ticks) -> Drive:
        return self.cell.input(x)

    def move(self, z: Latent, drive: Drive, tau: Ticks) -> Latent:
        return self.cell.move(jnp.exp(-jax.nn.relu(self.rate(tau[None]))) * z, drive)


class FlowGated(FlowTransition):
    """ODE-RNN, equation (6): z~ = ODESolve(f, z, tau), then z' = GRU(z~, [s a])."""

    field: VectorField
    cell: GRU
    solver: Solver

    @classmethod
    def new(cls, inputs: int, latent: int, hidden: int, solver: Solver, *, key: Key[Array, ""]) -> "FlowGated":
        """The field has two hidden layers."""
        field_key, cell_key = jax.random.split(key)
        field = VectorField.new(latent, hidden, hidden, latent, key=field_key)
        return cls(field=field, cell=GRU.new(inputs, latent, key=cell_key), solver=solver)

    def inputs(self, x: Inputs, tau: Ticks) -> Drive:
        return self.cell.input(x)

    def entry(self, z: Latent, drive: Drive) -> Latent:
        return z

    def move(self, z: Latent, drive: Drive, tau: Ticks) -> Latent:
        return self.cell.move(self.solver.solve(self.field, z, tau), drive)

    def path(self, z: Latent, x: Inputs, taus: Float[Array, "k *batch"]) -> Float[Array, "k z *batch"]:
        """One flow, with a gated update at each time."""
        drive = self.cell.input(x)
        return jax.vmap(lambda z: self.cell.move(z, drive))(self.solver.path(self.field, z, taus))


class LinearFlow(FlowTransition):
    """Latent-ODE, equation (7): z~ = W [z a s] + b, then z' = ODESolve(f, z~, tau)."""

    mix: Linear
    """The part of W that multiplies z, and b."""
    drive: Linear
    """The part of W that multiplies [s a]."""
    field: VectorField
    solver: Solver

    @classmethod
    def new(cls, inputs: int, latent: int, hidden: int, solver: Solver, *, key: Key[Array, ""]) -> "LinearFlow":
        """The field has two hidden layers; W is initialised as one layer of [z a s]."""
        mix_key, drive_key, field_key = jax.random.split(key, 3)
        bound = (inputs + latent) ** -0.5
        return cls(
            mix=Linear.new(latent, latent, key=mix_key, bound=bound),
            drive=Linear.new(inputs, latent, key=drive_key, bound=bound, bias=False),
            field=VectorField.new(latent, hidden, hidden, latent, key=field_key),
            solver=solver,
        )

    def inputs(self, x: Inputs, tau: Ticks) -> Drive:
        return self.drive(x)

    def entry(self, z: Latent, drive: Drive) -> Latent:
        return self.mix(z) + drive

    def move(self, z: Latent, drive: Drive, tau: Ticks) -> Latent:
        return self.solver.solve(self.field, self.entry(z, drive), tau)

    def path(self, z: Latent, x: Inputs, taus: Float[Array, "k *batch"]) -> Float[Array, "k z *batch"]:
        return self.solver.path(self.field, self.entry(z, self.drive(x)), taus)


def move_to_each(
    transition: Transition, z: Latent, x: Inputs, taus: Float[Array, "k *batch"]
) -> Float[Array, "k z *batch"]:
    """Latent state after each of several intervals, all from the same start."""
    return jax.vmap(lambda tau: transition.move(z, transition.inputs(x, tau), tau))(taus)
