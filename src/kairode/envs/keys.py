"""Random keys of compiled environments: JAX's default generator, in a form that XLA compiles to faster code on a CPU.

On a CPU, JAX compiles Threefry-2x32 to a loop of five groups of rounds. A step of a small environment draws about ten
blocks, and the loops take longer than its dynamics. The same rounds written one after the other, each word as its own
array, become one vectorised kernel, which is faster for many instances. The numbers are the same, bit for bit. Some
functions (`jax.random.poisson`) accept only JAX's own implementation, so an environment has these keys only if it says
so (`Environment.unrolled_keys`).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Key, UInt, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
"""Rotations and key parity of Threefry-2x32 (Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3)."""
FEW = 4
"""Keys that are split into so many or fewer are separate arrays: one that is not used is then not computed."""

Word = UInt32[Array, "*shape"]


def threefry(first: Any, second: Any, high: Any, low: Any) -> tuple[Word, Word]:
    """A block of Threefry-2x32 with 20 rounds: two words of a counter under the two words of a key."""
    keys = (first, second, first ^ second ^ np.uint32(PARITY))
    a, b = high + first, low + second
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            a = a + b
            b = ((b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation))) ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def blocks(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> tuple[Word, Word]:
    """The blocks of the counters 0, 1, 2 and so on, in this shape."""
    counters = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return threefry(key[0], key[1], jnp.zeros_like(counters), counters)


def seeded(seed: Any) -> UInt32[Array, "2"]:
    """Key data of a seed."""
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "*shape 2"]:
    """Key data of new keys, as in JAX: the block of each key's number."""
    size = math.prod(shape)
    if not 0 < size <= FEW:
        return jnp.stack(blocks(key, shape), axis=-1)
    # Concatenated along axes that are there, not stacked: under `vmap` a new axis would come first, and XLA does not
    # see through the transposition which words are used.
    return jnp.concatenate([fold_in(key, i).reshape(1, 2) for i in range(size)]).reshape(*shape, 2)


def random_bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]) -> UInt[Array, "*shape"]:
    """Random integers of 8, 16, 32 or 64 bits, as in JAX."""
    a, b = blocks(key, shape)
    if width == 64:
        return (a.astype(jnp.uint64) << np.uint64(32)) | b.astype(jnp.uint64)
    return (a ^ b).astype(f"uint{width}")


def fold_in(key: UInt32[Array, "2"], data: Any) -> UInt32[Array, "2"]:
    """Key data of the key for a number: the block of that number."""
    low = jnp.asarray(data, jnp.uint32).reshape(1)
    return jnp.concatenate(threefry(key[:1], key[1:], np.zeros(1, np.uint32), low))


THREEFRY = define_prng_impl(
    key_shape=(2,),
    seed=seeded,
    split=split,
    random_bits=random_bits,
    fold_in=fold_in,
    name="threefry2x32_unrolled",
    tag="fryu",
)


def key_of(data: UInt32[Array, "2"], unrolled: bool) -> Key[Array, ""]:
    """The key of these key data, in the form of this module if it is asked for and has the same numbers."""
    # On a GPU JAX has a kernel of its own; `split` and `random_bits` above are JAX's partitionable ones.
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if unrolled and jax.default_backend() == "cpu" and partitionable:
        return jax.random.wrap_key_data(data, impl=THREEFRY)
    return jax.random.wrap_key_data(data)
