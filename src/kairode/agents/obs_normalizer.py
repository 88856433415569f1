"""What an agent for controls makes of an observation: places relative to the last decision, all in running units."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from kairode.data.normalize import Statistics, denormalise, normalise, nothing_seen, update
from kairode.envs.core import Spec


class Sight(eqx.Module):
    """What is seen of an observation, and the running statistics it is normalised by. Variables on the last axis."""

    statistics: Statistics
    places: tuple[int, ...] = eqx.field(static=True)
    """Variables of which changes are seen: what they moved by since the last decision."""

    @classmethod
    def new(cls, spec: Spec, changes: bool = True) -> "Sight":
        """Before anything was seen; with `changes`, variables that are relative are seen by their changes."""
        places = tuple(i for i, variable in enumerate(spec.observations) if variable.relative and changes)
        return cls(nothing_seen(len(spec.observations)), places)

    def seen(self, obs: Any, before: Any, first: Any) -> Any:
        """The observation with changes (0 at an episode's first) in their places. NumPy or JAX arrays."""
        if not self.places:
            return obs
        kind: Any = np if isinstance(obs, np.ndarray) else jnp
        change = kind.where(kind.asarray(first)[..., None], kind.zeros_like(obs), obs - before)
        return kind.where(self._mask(obs), change, obs)

    def origin(self, shown: Any) -> Any:
        """What was seen, with zeros in the places of changes: a reward of x' - x then takes the next one's for x'."""
        return jnp.where(self._mask(shown), 0.0, shown) if self.places else shown

    def features(self, shown: Any) -> Any:
        """Zero mean, unit standard deviation."""
        return normalise(self.statistics, shown)

    def unnormalised(self, features: Any) -> Any:
        """The inverse of `features`."""
        return denormalise(self.statistics, features)

    def with_more(self, shown: Any, mask: Any = None) -> "Sight":
        """After some more was seen, [n, variables]."""
        return Sight(update(self.statistics, shown, mask), self.places)

    def _mask(self, like: Any) -> Any:
        return np.broadcast_to(np.isin(np.arange(like.shape[-1]), self.places), like.shape)
