"""What an agent for controls makes of an observation: places relative to the last decision, all in running units."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from kairode.data.normalize import RunningStatistics, denormalize, empty_statistics, normalize, update_statistics
from kairode.envs.core import Spec


class ObsNormalizer(eqx.Module):
    """What is seen of an observation, and the running statistics it is normalised by. Variables on the last axis."""

    statistics: RunningStatistics
    places: tuple[int, ...] = eqx.field(static=True)
    """Variables of which changes are seen: what they moved by since the last decision."""

    @classmethod
    def new(cls, spec: Spec, changes: bool = True) -> "ObsNormalizer":
        """Before anything was seen; with `changes`, variables that are relative are seen by their changes."""
        places = tuple(i for i, variable in enumerate(spec.observations) if variable.relative and changes)
        return cls(empty_statistics(len(spec.observations)), places)

    def seen(self, obs: Any, before: Any, first: Any) -> Any:
        """The observation with changes (0 at an episode's first) in their places. NumPy or JAX arrays."""
        if not self.places:
            return obs
        kind: Any = np if isinstance(obs, np.ndarray) else jnp
        change = kind.where(kind.asarray(first)[..., None], kind.zeros_like(obs), obs - before)
        return kind.where(self._mask(obs), change, obs)

    def origin(self, seen_obs: Any) -> Any:
        """What was seen, with zeros in the places of changes: a reward of x' - x then takes the next one's for x'."""
        return jnp.where(self._mask(seen_obs), 0.0, seen_obs) if self.places else seen_obs

    def features(self, seen_obs: Any) -> Any:
        """Zero mean, unit standard deviation."""
        return normalize(self.statistics, seen_obs)

    def unnormalised(self, features: Any) -> Any:
        """The inverse of `features`."""
        return denormalize(self.statistics, features)

    def with_more(self, seen_obs: Any, mask: Any = None) -> "ObsNormalizer":
        """After some more was seen, [n, variables]."""
        return ObsNormalizer(update_statistics(self.statistics, seen_obs, mask), self.places)

    def _mask(self, like: Any) -> Any:
        return np.broadcast_to(np.isin(np.arange(like.shape[-1]), self.places), like.shape)
