"""Several pytrees as one, with an axis in front of every array, and back; one pytree or another."""

from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

T = TypeVar("T")


def stack(trees: Sequence[T]) -> T:
    """Trees that differ in their arrays alone, as one. Anything else they hold must be the same: the first one's."""
    parts = [eqx.partition(tree, eqx.is_array) for tree in trees]
    return eqx.combine(jax.tree.map(lambda *x: jnp.stack(x), *(arrays for arrays, _ in parts)), parts[0][1])


def one(tree: T, index: Any) -> T:
    """One of the trees that were stacked (or several, where the index is a slice)."""
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, tree)


def alone(tree: T) -> T:
    """A stack of one."""
    return jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, tree)


def choose(condition: Any, yes: T, no: T) -> T:
    """One tree or the other, by a scalar that compiled code computes."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
