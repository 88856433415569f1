"""Episodes as padded arrays; one type for one episode and for many."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kairode.envs.core import Spec, decimal


class Trajectory(eqx.Module):
    """An episode of `length` decisions, padded to T; many episodes have one more leading axis.

    At decision k the agent observes observation[k] and takes action[k]; after interval[k] it receives reward[k] and
    observes observation[k + 1]. In the padding, intervals and rewards are 0 and the last observation is repeated.
    """

    spec: Spec = eqx.field(static=True)
    observation: Float[Array | np.ndarray, "*batch moments obs"]
    action: Int[Array | np.ndarray, "*batch T"] | Float[Array | np.ndarray, "*batch T act"]
    interval: Float[Array | np.ndarray, "*batch T"]
    reward: Float[Array | np.ndarray, "*batch T"]
    length: Int[Array | np.ndarray, "*batch"]
    terminated: Bool[Array | np.ndarray, "*batch"]
    """True if the process terminated."""
    truncated: Bool[Array | np.ndarray, "*batch"]
    """True if the horizon or the cap on decisions was reached."""

    @property
    def mask(self) -> Any:
        """Mask of the decisions that are not padding."""
        return np.arange(self.interval.shape[-1]) < self.length[..., None]

    @property
    def time(self) -> Any:
        """Time of each observation, from 0, in the environment's unit (float64)."""
        passed = np.cumsum(decimal(np.asarray(self.interval)), axis=-1)
        return np.concatenate([np.zeros((*passed.shape[:-1], 1)), passed], axis=-1)

    @property
    def decisions(self) -> int:
        return int(np.sum(self.length))

    @property
    def undiscounted(self) -> Any:
        return np.asarray(self.reward, np.float64).sum(-1)

    @property
    def discounted(self) -> Any:
        """Discounted return of each episode: rewards times gamma^t, with t the time of their decision in ticks."""
        ticks = self.time[..., :-1] / self.spec.tick
        return (np.asarray(self.reward, np.float64) * self.spec.discount**ticks).sum(-1)

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, index: Any) -> "Trajectory":
        # a scalar of NumPy is no array
        return jax.tree.map(lambda x: np.asarray(x[index]) if isinstance(x, np.ndarray) else x[index], self)


def stand_still(observation: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Replace the padding of observations by each episode's last one."""
    index = np.minimum(np.arange(observation.shape[1]), length[:, None])
    return np.take_along_axis(observation, index[..., None], axis=1)


def constant_variables(data: Trajectory) -> Bool[np.ndarray, " obs"] | None:
    """Mask of the variables with at most one value in every episode; None if there are none."""
    measured, mask = np.asarray(data.observation), np.asarray(data.mask)
    real = np.concatenate([np.ones_like(mask[:, :1]), mask], axis=1)[..., None]
    lost = np.isnan(measured) | ~real
    least, most = np.where(lost, np.inf, measured).min(1), np.where(lost, -np.inf, measured).max(1)
    found = (most <= least).all(0) & ((~lost).sum(1) > 1).any(0)
    return found if found.any() else None


def carried_forward(data: Trajectory) -> Trajectory:
    """Missing observations replaced by the last value of the episode, before the first one by the value that is usual
    at first measurements (`usual_values`).

    For what needs a value of every variable: the features of a policy, initial states, rewards. Models do not.
    """
    lost = np.isnan(data.observation)
    if not lost.any():
        return data
    seen = np.asarray(data.observation)
    moments = np.arange(seen.shape[-2])[:, None]
    place = np.maximum.accumulate(np.where(lost, -1, moments), axis=-2)
    filled = np.take_along_axis(seen, np.maximum(place, 0), axis=-2)
    usual = usual_values(data).astype(seen.dtype)
    return dataclasses.replace(data, observation=np.where(place >= 0, filled, usual))


def usual_values(data: Trajectory) -> Float[np.ndarray, " obs"]:
    """The median over episodes of the first measurement of each variable, 0 of one that was never measured; of a column
    of categories, the most frequent one."""
    seen = np.asarray(data.observation, np.float64)
    real = np.arange(seen.shape[-2]) <= np.asarray(data.length)[..., None]  # padding repeats an episode's end
    known = ~np.isnan(seen) & real[..., None]
    first = np.take_along_axis(seen, known.argmax(-2)[..., None, :], axis=-2)[..., 0, :]
    rows = np.where(known.any(-2), first, np.nan).reshape(-1, seen.shape[-1])
    columns = [column[~np.isnan(column)] for column in rows.T]
    found = np.array([np.median(values) if values.size else 0.0 for values in columns])
    places = {variable.name: i for i, variable in enumerate(data.spec.observations)}
    for name, categories in data.spec.categories:
        group = [places[f"{name}={one}"] for one in categories if f"{name}={one}" in places]
        shares = [columns[i].mean() if columns[i].size else 0.0 for i in group]
        if len(group) == 1:  # two categories are one variable
            found[group] = shares[0] > 0.5
        elif group:
            found[group] = np.arange(len(group)) == int(np.argmax(shares))
    return found


def join(parts: Sequence[Trajectory]) -> Trajectory:
    """Concatenate trajectories of one system, padded to the longest."""
    longest = max(part.interval.shape[1] for part in parts)

    def padded(part: Trajectory, name: str) -> np.ndarray:
        array = np.asarray(getattr(part, name))
        if array.ndim == 1:
            return array
        wide = [(0, 0), (0, longest - part.interval.shape[1]), *([(0, 0)] * (array.ndim - 2))]
        return np.pad(array, wide, mode="edge" if name == "observation" else "constant")

    names = [field.name for field in dataclasses.fields(Trajectory) if field.name != "spec"]
    arrays = {name: np.concatenate([padded(part, name) for part in parts]) for name in names}
    return Trajectory(spec=parts[0].spec, **arrays)
