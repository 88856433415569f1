"""Observation normalisation with running statistics; positions can be replaced by their changes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kairode.data.normalize import RunningStatistics
from kairode.envs.core import Spec


class ObsNormalizer(eqx.Module):
    """Maps observations to normalised features. Variables are on the last axis."""

    statistics: RunningStatistics
    places: tuple[int, ...] = eqx.field(static=True)
    """Indices of the variables that are replaced by their change since the last decision."""

    @classmethod
    def new(cls, spec: Spec, changes: bool = True) -> "ObsNormalizer":
        """With `changes`, the task's relative variables are replaced by their changes."""
        places = tuple(i for i, variable in enumerate(spec.observations) if variable.relative and changes)
        return cls(RunningStatistics.empty(len(spec.observations)), places)

    @classmethod
    def fixed(cls, spec: Spec, mean: Any, std: Any) -> "ObsNormalizer":
        """With given statistics, and every variable as it is."""
        numbers = (jnp.asarray(x, jnp.float32) for x in (1.0, mean, std**2))
        found = cls.new(spec, changes=False)
        return eqx.tree_at(lambda n: jax.tree.leaves(n.statistics), found, [*numbers])

    def seen(self, obs: Any, before: Any, first: Any) -> Any:
        """Replace relative variables by their change since `before` (0 at the first decision). NumPy or JAX arrays."""
        if not self.places:
            return obs
        kind: Any = np if isinstance(obs, np.ndarray) else jnp
        change = kind.where(kind.asarray(first)[..., None], kind.zeros_like(obs), obs - before)
        return kind.where(self._mask(obs), change, obs)

    def origin(self, seen_obs: Any) -> Any:
        """Zero the relative variables: a reward of x' - x is then computed from the next observation's change alone."""
        return jnp.where(self._mask(seen_obs), 0.0, seen_obs) if self.places else seen_obs

    def features(self, seen_obs: Any) -> Any:
        return self.statistics.normalize(seen_obs)

    def unnormalized(self, features: Any) -> Any:
        """Inverse of `features`."""
        return self.statistics.denormalize(features)

    def with_more(self, seen_obs: Any) -> "ObsNormalizer":
        """Update the running statistics with observations [n, variables]."""
        return ObsNormalizer(self.statistics.with_more(seen_obs), self.places)

    def _mask(self, like: Any) -> Any:
        return np.broadcast_to(np.isin(np.arange(like.shape[-1]), self.places), like.shape)
