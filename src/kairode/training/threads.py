"""The seeds of a fit on several cores of a CPU.

The products of these models are small, and XLA computes small ones on one core. Seeds are independent of each other,
so they are divided over threads, each of which runs its own compiled program.
"""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from kairode._xla import for_threads
from kairode.config.training import TrainingConfig
from kairode.envs.batching import cores
from kairode.models.predict import Episodes
from kairode.training.losses import Terms
from kairode.training.step import Cooling, FitState, run_iterations
from kairode.trees import on_host

MOST = 3
"""Seeds of a group: per seed, a program for two or three takes least time."""


def seed_groups(seeds: int) -> list[slice]:
    """Consecutive seeds in an even number of groups, whatever the number of cores: programs for other numbers of seeds
    round differently, and weights should not depend on the machine's cores."""
    count = 1 if seeds == 1 else 2 * math.ceil(seeds / (2 * MOST))
    edges = [seeds * i // count for i in range(count + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(edges)]


def run_on_cores(
    fit_state: FitState,
    data: Episodes,
    batches: Int[Array, "k seeds batch"],
    static: Any,
    settings: TrainingConfig,
    own: bool = False,
    cooling: Cooling | None = None,
) -> tuple[FitState, Terms]:
    """`run_iterations`, on a CPU with the seeds in groups, as many at a time as there are cores."""
    there = jnp.asarray(fit_state.iteration)
    groups = seed_groups(len(there)) if on_host(there) else []
    if len(groups) < 2:
        return run_iterations(fit_state, data, batches, static, settings, own, cooling)

    @for_threads
    def run(group: slice) -> tuple[FitState, Terms]:
        # Views, without a compiled program for each shape.
        mine, chosen = (jax.tree.map(lambda x: np.asarray(x)[group], tree) for tree in (fit_state, data))
        part = np.asarray(batches)[:, group]
        with jax.default_device(next(iter(there.devices()))):
            return run_iterations(mine, chosen if own else data, part, static, settings, own, cooling)

    with ThreadPoolExecutor(min(len(groups), cores()), "seeds") as pool:
        parts = jax.block_until_ready(list(pool.map(run, groups)))
    return jax.tree.map(lambda *x: jax.device_put(np.concatenate([np.asarray(y) for y in x])), *parts)
