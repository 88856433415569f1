"""Stacking of pytrees along a new first axis, and selection."""

from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

T = TypeVar("T")


def stack(trees: Sequence[T]) -> T:
    """Stack trees that differ only in their arrays; anything else must be equal and is taken from the first."""
    parts = [eqx.partition(tree, eqx.is_array) for tree in trees]
    return eqx.combine(jax.tree.map(lambda *x: jnp.stack(x), *(arrays for arrays, _ in parts)), parts[0][1])


def one(tree: T, index: Any) -> T:
    """One of the stacked trees (or several, if the index is a slice)."""
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, tree)


def alone(tree: T) -> T:
    """A stack of one tree."""
    return jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, tree)


def choose(condition: Any, yes: T, no: T) -> T:
    """Select one of two trees by a traced scalar."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
