"""Workarounds for XLA on the CPU: wrong sums, and crashes of long processes.

Wrong sums: in JAX 0.10 a dot product fused with the sum that follows it is wrong beyond 32,768 rows (jax-ml/jax issue
39103; 0.10.1 has it in a narrower form). The fault is in a library that XLA uses for such fusions, so these fusions are
disabled; plain dot products are not affected. JAX 0.11 is correct and left unchanged. The flag must be set before JAX
starts its CPU backend.

Crashes: on the CPU every compiled program takes entries of the process's memory map, and keeps them as long as JAX
caches it. Linux allows 65,530 entries; beyond that the process is killed without a message.

`tests/test_jax.py` tests both.
"""

import contextlib
import functools
import gc
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
FLAG = "--xla_cpu_experimental_ynn_fusion_type"
RUN_ONCE = {"xla_backend_optimization_level": 1}
"""Compiler options of programs that initialise something and run once: with XLA's default, random numbers take seconds
to compile, with this tenths of them; the numbers are the same."""
MOST_MAPS = 20_000
"""Of Linux's 65,530 per process: how many compiled programs may take before they are cleared."""
_allowed = False


def avoid_wrong_sums() -> None:
    """Set the flag if the installed JAX needs it, unless the user has set it."""
    flags = os.environ.get("XLA_FLAGS", "")
    if FLAG in flags or not importlib.metadata.version("jaxlib").startswith("0.10."):
        return
    os.environ["XLA_FLAGS"] = f"{flags} {FLAG}=-reduce".strip()
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        warnings.warn(
            "JAX 0.10 was used before kairode was imported, and can now compute wrong sums over more than 32,768 rows "
            f"on the CPU. Import kairode first, or set XLA_FLAGS={FLAG}=-reduce, or install JAX 0.11.",
            RuntimeWarning,
            stacklevel=3,
        )


def jit_once(function: F) -> F:
    """Compile a function that runs once or a few times, such as one that initialises weights (`RUN_ONCE`)."""
    import equinox as eqx

    compile: Any = eqx.filter_jit
    return compile(function, compiler_options=RUN_ONCE)


def for_threads(function: F) -> F:
    """The function for other threads, with the settings of JAX that context managers have made in this one."""
    import jax

    contexts: dict[str, Any] = {
        "jax_enable_x64": jax.enable_x64,
        "jax_default_device": jax.default_device,
        "jax_default_matmul_precision": jax.default_matmul_precision,
        "jax_debug_nans": jax.debug_nans,
    }
    values = {name: getattr(jax.config, name) for name in contexts}

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for name, context in contexts.items():
                stack.enter_context(context(values[name]))
            return function(*args)

    return cast(F, call)


def allow_clearing() -> None:
    """Let `free_programs` clear JAX's caches in this process: only for commands and tests, which own theirs."""
    global _allowed
    _allowed = True


def free_programs(most: int = MOST_MAPS) -> None:
    """Clear all compiled programs when the memory map is filling up; those still needed are compiled again.

    Does nothing unless `allow_clearing` was called: JAX's caches belong to the whole process, not to a library.
    """
    if _allowed and memory_maps() > most:
        import jax

        jax.clear_caches()
        gc.collect()


def memory_maps() -> int:
    """Entries of this process's memory map; 0 if unknown."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0
