"""How many examples run best side by side: as many threads as cores, `vmap` as wide as the machine likes it."""

import os
from collections.abc import Callable
from typing import Any

import jax


def max_batch() -> int:
    """The most lanes of one simulation loop.

    On the CPU a loop of many small steps is fastest while each step stays on one core: beyond 128 lanes XLA splits
    every step over threads, and handing out the parts costs several times what they compute (measured: a step of
    the HIV simulator takes 18 ns a lane at 128 lanes, 70 ns at 256).
    """
    return 128 if jax.default_backend() == "cpu" else 8192


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def batched_vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    """`vmap` over the leading axis of all arguments, in blocks of `most_lanes` one after the other."""

    def batched(*args: Any) -> Any:
        size = jax.tree.leaves(args)[0].shape[0]
        if size <= max_batch():
            return jax.vmap(function)(*args)
        return jax.lax.map(lambda one: function(*one), args, batch_size=max_batch())

    return batched
