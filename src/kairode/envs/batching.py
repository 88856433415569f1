"""Batch sizes of simulations: the one that is fastest on this machine."""

import os
from collections.abc import Callable
from typing import Any

import jax


def max_batch() -> int:
    """Largest batch of one simulation loop.

    On the CPU a loop of many small steps is fastest while each step stays on one core: beyond a batch of 128 XLA
    splits every step over threads, which costs several times the computation itself (measured: a step of the HIV
    simulator takes 18 ns per example in a batch of 128, 70 ns in one of 256).
    """
    return 128 if jax.default_backend() == "cpu" else 8192


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def batched_vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    """`vmap` over the first axis of all arguments, in consecutive batches of `max_batch`."""

    def batched(*args: Any) -> Any:
        size = jax.tree.leaves(args)[0].shape[0]
        if size <= max_batch():
            return jax.vmap(function)(*args)
        return jax.lax.map(lambda one: function(*one), args, batch_size=max_batch())

    return batched
