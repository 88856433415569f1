"""Initial latent states."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from kairode.models.networks import GRU, MLP
from kairode.models.ode import Latent


class Gaussian(eqx.Module):
    """A diagonal normal distribution."""

    mean: Latent
    log_variance: Latent

    def draw(self, noise: Latent) -> Latent:
        """Reparameterised: mean + std * noise (Kingma and Welling 2014)."""
        return self.mean + jnp.exp(0.5 * self.log_variance) * noise


def kl_to_standard_normal(q: Gaussian) -> Latent:
    """KL[q || N(0, I)] of each dimension."""
    return 0.5 * (jnp.exp(q.log_variance) + q.mean**2 - 1.0 - q.log_variance)


class Initial(eqx.Module):
    """The distribution of z_0."""

    size: eqx.AbstractVar[int]

    @abc.abstractmethod
    def prior(self, *, key: Key[Array, ""]) -> Latent:
        """z_0 without observations: in imagination and at test time."""


class Zeros(Initial):
    """z_0 = 0, for the recurrent models."""

    size: int = eqx.field(static=True)

    def prior(self, *, key: Key[Array, ""]) -> Latent:
        return jnp.zeros(self.size)


class Variational(Initial):
    """z_0 ~ N(0, I); during training a GRU reads (s, a) forwards and gives q(z_0 | episode)."""

    encoder: GRU
    head: MLP
    """Maps the encoder's final state to mean and log variance."""
    size: int = eqx.field(static=True)

    @classmethod
    def new(cls, inputs: int, size: int, hidden: int, *, key: Key[Array, ""]) -> "Variational":
        """`hidden` is the number of tanh units before mean and log variance."""
        gru_key, head_key = jax.random.split(key)
        return cls(
            encoder=GRU.new(inputs, size, key=gru_key), head=MLP.new(size, hidden, 2 * size, key=head_key), size=size
        )

    def prior(self, *, key: Key[Array, ""]) -> Latent:
        return jax.random.normal(key, (self.size,))

    def gates(self, inputs: Float[Array, "i *batch"]) -> Float[Array, "g *batch"]:
        """Input gates of the encoder for one observation and action."""
        return self.encoder.input(inputs)

    def read(self, h: Latent, gates: Float[Array, "g *batch"], real: Bool[Array, "*batch"]) -> Latent:
        """Next state of the encoder; padding leaves it unchanged."""
        return jnp.where(real[None], self.encoder.move(h, gates), h)

    def posterior(self, h: Latent) -> Gaussian:
        """q(z_0 | s_0, a_0, .., s_{L-1}, a_{L-1}), from the encoder's final state."""
        mean, log_variance = jnp.split(self.head(h), 2)
        return Gaussian(mean, log_variance)
