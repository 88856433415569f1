"""Several devices: fits and the training of many agents are divided by JAX's sharding.

A fit divides its seeds and, where there are more devices than that uses, the episodes of each batch. Training divides
the agents. Results and checkpoints have the same layout whatever the number of devices.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kairode.errors import KairodeError

T = TypeVar("T")
SEEDS, BATCH, AGENTS = "seeds", "batch", "agents"
"""Axes of the meshes."""
_count: contextvars.ContextVar[int] = contextvars.ContextVar("devices", default=1)


@contextlib.contextmanager
def use_devices(count: int) -> Iterator[None]:
    """Within the block, spread fits and the training of agents over this many devices: `with use_devices(4): ..`."""
    if not (isinstance(count, int) and count >= 1):
        raise KairodeError(f"the number of devices must be an integer of at least 1, got {count}.")
    there = jax.devices()
    if count > len(there):
        kind = there[0].platform
        virtual = f"; for virtual CPU devices, set XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        raise KairodeError(
            f"{count} devices are asked for, and JAX has {len(there)} ({kind}): use fewer"
            f"{virtual if kind == 'cpu' else ''}."
        )
    token = _count.set(count)
    try:
        yield
    finally:
        _count.reset(token)


class FitDevices(NamedTuple):
    """Where the arrays of a fit lie; without a mesh, on one device."""

    mesh: Mesh | None

    @classmethod
    def of(cls, seeds: int, batch: int) -> "FitDevices":
        """Seeds are divided as far as the number of devices allows, batches by the rest of it."""
        count = _count.get()
        if count == 1:
            return cls(None)
        by_seed = math.gcd(seeds, count)
        if batch % (count // by_seed):
            raise KairodeError(
                f"{seeds} seed{'s' * (seeds != 1)} and batches of {batch} cannot be divided over {count} devices: use "
                f"a multiple of {count} seeds, or a batch size that is a multiple of {count // by_seed}."
            )
        shape = (by_seed, count // by_seed)
        return cls(Mesh(np.array(jax.devices()[:count]).reshape(shape), (SEEDS, BATCH)))

    def by_seed(self, tree: T) -> T:
        """Place arrays whose first axis is the seeds."""
        return _put(tree, self.mesh, SEEDS)

    def everywhere(self, tree: T) -> T:
        """Place a copy on every device."""
        return _put(tree, self.mesh)

    def batches(self, numbers: T) -> T:
        """Place episode indices, [iterations, seeds, batch]."""
        return _put(numbers, self.mesh, None, SEEDS, BATCH)

    def together(self, tree: T) -> T:
        """Place everything on the first device."""
        return tree if self.mesh is None else jax.device_put(tree, jax.devices()[0])


class AgentDevices(NamedTuple):
    """The order of agents when every device has an equal share of each group of agents; without a mesh, one device.

    Groups that cannot be divided are filled up with copies of their last agent.
    """

    mesh: Mesh | None
    shares: tuple[int, ...]
    """Agents of each group on one device."""
    order: np.ndarray
    """Number of the agent at each place."""
    places: np.ndarray
    """A place of each agent."""

    @classmethod
    def of(cls, groups: Sequence[int]) -> "AgentDevices":
        """Divide groups of agents of these sizes."""
        count = min(_count.get(), max(groups))
        shares = [-(-size // count) for size in groups]
        starts = np.cumsum([0, *groups[:-1]])
        order = np.concatenate(
            [
                start + np.minimum(np.arange(device * share, (device + 1) * share), size - 1)
                for device in range(count)
                for start, share, size in zip(starts, shares, groups, strict=True)
            ]
        )
        places = np.unique(order, return_index=True)[1]
        mesh = Mesh(np.array(jax.devices()[:count]), (AGENTS,)) if count > 1 else None
        return cls(mesh, tuple(shares), order, places)

    def spread(self, tree: T) -> T:
        """Place arrays whose first axis is all agents, in their own order."""
        return tree if self.mesh is None else _put(jax.tree.map(lambda x: x[self.order], tree), self.mesh, AGENTS)

    def spread_group(self, number: int, tree: T) -> T:
        """Place arrays whose first axis is the agents of one group."""
        if self.mesh is None:
            return tree
        per_device = self.order.reshape(-1, sum(self.shares))
        first = sum(self.shares[:number])
        chosen = per_device[:, first : first + self.shares[number]].ravel()
        return _put(jax.tree.map(lambda x: x[chosen - chosen[0]], tree), self.mesh, AGENTS)

    def together(self, tree: T) -> T:
        """All agents in their own order, on the first device."""
        if self.mesh is None:
            return tree
        return jax.tree.map(lambda x: x[self.places], jax.device_put(tree, jax.devices()[0]))


def _put(tree: T, mesh: Mesh | None, *axes: Any) -> T:
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*axes)))
