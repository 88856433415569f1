"""Stacking of pytrees along a new first axis, selection, copies; nested values as bytes."""

from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from kairode.errors import KairodeError

T = TypeVar("T")


def on_host(*arrays: Any) -> bool:
    """True if NumPy can do the work: values in the host's memory. JAX would compile a program for every new shape."""
    return all(
        isinstance(x, jax.Array)
        and not isinstance(x, jax.core.Tracer)
        and not jnp.issubdtype(x.dtype, jax.dtypes.extended)
        and x.is_fully_addressable
        and len(x.devices()) == 1
        and next(iter(x.devices())).platform == "cpu"
        for x in arrays
    )


def _copied(x: np.ndarray | np.generic) -> jax.Array:
    """A copy, since JAX may keep a view of what it is given, and the original may be donated."""
    return jax.device_put(np.array(x))


def stack(trees: Sequence[T]) -> T:
    """Stack trees that differ only in their arrays; anything else must be equal and is taken from the first."""
    parts = [eqx.partition(tree, eqx.is_array) for tree in trees]

    def together(*x: Any) -> Any:
        return jax.device_put(np.stack([np.asarray(y) for y in x])) if on_host(*x) else jnp.stack(x)

    return eqx.combine(jax.tree.map(together, *(arrays for arrays, _ in parts)), parts[0][1])


def one(tree: T, index: Any) -> T:
    """One of the stacked trees (or several, if the index is a slice or an array)."""

    def part(x: Any) -> Any:
        if not eqx.is_array(x):
            return x
        if on_host(x) and not isinstance(index, jax.core.Tracer):
            return _copied(np.asarray(x)[np.asarray(index) if on_host(index) else index])
        return x[index]

    return jax.tree.map(part, tree)


def copies(tree: T) -> T:
    """The tree with a copy of every array."""
    return jax.tree.map(lambda x: _copied(np.asarray(x)) if on_host(x) else jnp.copy(x), tree)


def alone(tree: T) -> T:
    """A stack of one tree."""

    def only(x: Any) -> Any:
        if not eqx.is_array(x):
            return x
        return _copied(np.asarray(x)[None]) if on_host(x) else x[None]

    return jax.tree.map(only, tree)


def choose(condition: Any, yes: T, no: T) -> T:
    """Select one of two trees by a traced scalar."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def is_finite(tree: Any) -> bool:
    """Whether all numbers of a tree are finite."""
    return all(bool(np.isfinite(np.asarray(x)).all()) for x in jax.tree.leaves(tree))


def pack(value: Any) -> bytes:
    """Arrays, numbers, strings and None in dictionaries, lists and tuples of any depth as bytes: MessagePack after its
    length."""
    content = msgspec.msgpack.encode(_plain(value))
    return len(content).to_bytes(8, "little") + content


def unpack(content: bytes) -> Any:
    """Inverse of `pack`; bytes after the end are ignored."""
    return _original(msgspec.msgpack.decode(content[8 : 8 + int.from_bytes(content[:8], "little")]))


def _plain(value: Any) -> Any:
    """As types of MessagePack: what is none of them is a dictionary of one entry, its kind."""
    if value is None or (isinstance(value, bool | float | str) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        if array.dtype.kind not in "biufcSU":
            raise KairodeError(f"an array of {array.dtype} cannot be saved: arrays must hold numbers or text.")
        kind = "scalar" if isinstance(value, np.generic) else "array"
        return {kind: [array.dtype.str, list(array.shape), array.tobytes()]}
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else {"int": str(value)}
    if isinstance(value, bytes):
        return {"bytes": value}
    if isinstance(value, dict):
        return {"dict": [[_plain(name), _plain(part)] for name, part in value.items()]}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if type(value) is tuple:
        return {"tuple": [_plain(part) for part in value]}
    raise KairodeError(
        f"a state that holds a {type(value).__name__} cannot be saved: use arrays, numbers, strings and None in "
        "dictionaries, lists and tuples."
    )


def _original(value: Any) -> Any:
    """Inverse of `_plain`."""
    if isinstance(value, list):
        return [_original(part) for part in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind in ("array", "scalar"):
        array = np.frombuffer(content[2], np.dtype(content[0])).reshape(content[1]).copy()
        return array if kind == "array" else array[()]
    if kind == "int":
        return int(content)
    if kind == "dict":
        return {_original(name): _original(part) for name, part in content}
    return tuple(_original(part) for part in content) if kind == "tuple" else content
