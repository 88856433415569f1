"""The dynamics model: initial state x transition x decoder x timer. The six models are compositions, in `zoo.py`."""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from kairode.data.normalize import ROBUST_LIMIT, robust_statistics
from kairode.envs.core import Action, Discrete, Obs, Spec, Tau
from kairode.models.correction import Correction
from kairode.models.initial import Initial
from kairode.models.networks import Linear
from kairode.models.ode import Latent
from kairode.models.timer import Timer
from kairode.models.transition import Transition

Measured = Bool[Array, " obs"] | None
"""Mask of the variables that were measured; None if all were."""


class Scale(eqx.Module):
    """Mean and standard deviation that standardise observations; 0 and 1 leave them unchanged."""

    mean: tuple[float, ...] = eqx.field(static=True)
    std: tuple[float, ...] = eqx.field(static=True)
    limit: float | None = eqx.field(static=True, default=None)
    """Largest absolute value after standardising; beyond it, values are clipped, and fitting treats them as missing."""

    @classmethod
    def none(cls, size: int) -> "Scale":
        return cls((0.0,) * size, (1.0,) * size)

    @classmethod
    def of(cls, observations: Float[np.ndarray, "n d"]) -> "Scale":
        """Statistics of these observations; constant variables are left unchanged."""
        if np.isnan(observations).any():
            known = np.ma.masked_invalid(observations.astype(np.float64))
            return cls._of(np.asarray(known.mean(0)), np.asarray(known.std(0)))
        return cls._of(observations.mean(0, dtype=np.float64), observations.std(0, dtype=np.float64))

    @classmethod
    def of_blocks(cls, blocks: Callable[[], Iterable[Float[np.ndarray, "n d"]]]) -> "Scale":
        """The same statistics of observations that come in blocks: each call goes through all of them.

        Sums continue from block to block in the order of NumPy's, so that the numbers are the same (with a single
        variable, whose sum NumPy takes pairwise, to rounding).
        """

        def average(blocks: Iterable[np.ndarray]) -> np.ndarray:
            count, sums = np.zeros(0), np.zeros((0, 0))
            for block in blocks:
                before = sums if len(sums) else np.zeros((0, block.shape[1]))
                known = ~np.isnan(block)
                values = np.where(known, block, 0.0).astype(np.float64)
                sums = np.concatenate([before, values]).sum(0, keepdims=True)
                count = known.sum(0) + (count if len(count) else 0)
            return sums[0] / np.maximum(count, 1)

        mean = average(blocks())
        return cls._of(mean, np.sqrt(average((block - mean) ** 2 for block in blocks())))

    @classmethod
    def robust(cls, observations: Float[np.ndarray, "n d"]) -> "Scale":
        """Median and interquartile range (`robust_statistics`); values beyond `ROBUST_LIMIT` are clipped."""
        found = cls._of(*robust_statistics(observations))
        return cls(found.mean, found.std, ROBUST_LIMIT)

    @classmethod
    def _of(cls, mean: np.ndarray, std: np.ndarray) -> "Scale":
        return cls(tuple(mean.tolist()), tuple(np.where(std > 1e-9 * np.abs(mean) + 1e-12, std, 1.0).tolist()))

    def apply(self, x: Any) -> Any:
        found = x - np.array(self.mean, x.dtype)
        found /= np.array(self.std, x.dtype)
        return found if self.limit is None else found.clip(-self.limit, self.limit)

    def usable(self, standardised: Any, xp: Any = np) -> Any:
        """Mask of the standardised values that models are fitted to: neither missing nor clipped."""
        known = ~xp.isnan(standardised)
        return known if self.limit is None else known & (xp.abs(standardised) < self.limit)

    def undo(self, x: Any) -> Any:
        return x * np.array(self.std, x.dtype) + np.array(self.mean, x.dtype)


class DynamicsModel(eqx.Module):
    """P(z', tau | z, a, s) = P(z' | z, a, s, tau) P(tau | z, a, s), for one example.

    Observations, actions and intervals are in the environment's units; inside, observations are standardised by
    `scale` and time is counted in the environment's ticks.
    """

    initial: Initial
    transition: Transition
    decoder: Linear
    timer: Timer
    scale: Scale
    spec: Spec = eqx.field(static=True)
    correction: Correction | None = None
    """Added to the observations of `step` and `path` (imagination and planning); fitting knows nothing of it."""
    masked: bool = eqx.field(static=True, default=False)
    """Whether the mask of the measured variables is an input; so for models fitted to data with missing values."""

    def start(self, *, key: Key[Array, ""]) -> Latent:
        return self.initial.prior(key=key)

    def step(self, z: Latent, obs: Obs, action: Action, tau: Tau, observed: Measured = None) -> tuple[Latent, Obs]:
        """Latent state and observation after the action was held for tau.

        `observed` marks the variables that were measured; give the others their predictions. None if all were.
        """
        x, ticks = self.inputs(obs, action, observed), tau / self.spec.tick
        z = self.transition.move(z, self.transition.inputs(x, ticks), ticks)
        return z, self._corrected(self.decode(z), action, tau)

    def path(
        self, z: Latent, obs: Obs, action: Action, taus: Float[Array, " k"], observed: Measured = None
    ) -> tuple[Float[Array, "k z"], Float[Array, "k obs"]]:
        """Latent states and observations at several times (ascending) while the action is held."""
        zs = self.transition.path(z, self.inputs(obs, action, observed), taus / self.spec.tick)
        return zs, jax.vmap(self._corrected, in_axes=(0, None, 0))(jax.vmap(self.decode)(zs), action, taus)

    def interval(
        self, z: Latent, obs: Obs, action: Action, observed: Measured = None, *, key: Key[Array, ""] | None = None
    ) -> Tau:
        """The most likely interval; with a key, a sampled one."""
        features = jnp.concatenate([self.inputs(obs, action, observed), z])
        return self.timer.interval(features, key=key) * self.spec.tick

    def decode(self, z: Latent) -> Obs:
        """o(z): the observation of a latent state."""
        return self.scale.undo(self.decoder(z))

    def _corrected(self, obs: Obs, action: Action, tau: Tau) -> Obs:
        return obs if self.correction is None else obs + self.correction.at(action, tau)

    def inputs(self, obs: Obs, action: Action, observed: Measured = None) -> Float[Array, " i"]:
        """[s a], standardised, with encoded actions; [s m a] if the mask m of the measured variables is an input."""
        parts = [self.scale.apply(obs), encode_action(self.spec, action)]
        if self.masked:
            mask = self.scale.usable(parts[0], jnp) if observed is None else observed
            parts.insert(1, mask.astype(parts[0].dtype))
        return jnp.concatenate(parts)


def encode_action(spec: Spec, action: Any) -> Float[Array, "*batch act"]:
    """One-hot for discrete actions; continuous ones unchanged."""
    return jax.nn.one_hot(action, spec.actions.n) if isinstance(spec.actions, Discrete) else action
