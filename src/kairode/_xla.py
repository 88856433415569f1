"""Keep XLA from computing wrong sums on the CPU, and from crashing a long process.

Wrong sums: in JAX 0.10 a dot product fused with the sum that follows it gives wrong numbers beyond 32,768 rows
(jax-ml/jax issue 39103; 0.10.1, too, has it in a narrower form). The fault is in the library that XLA hands such
fusions to, so hand it none of them; dot products alone stay with it. JAX 0.11 computes right and is left alone. It must
be said before JAX starts its CPU backend.

Crashes: on the CPU every compiled program takes entries of the process's memory map, and keeps them as long as JAX
remembers it. Linux allows 65,530; the program that finds no room ends the process without a word.

`tests/test_jax.py` holds both.
"""

import gc
import importlib.metadata
import os
import sys
import warnings
from pathlib import Path

FLAG = "--xla_cpu_experimental_ynn_fusion_type"
MOST_MAPS = 20_000
"""Of Linux's 65,530 for a process: what compiled programs may take before they are cleared."""
_allowed = False


def avoid_wrong_sums() -> None:
    """Set the flag where the installed JAX needs it, unless the user has set it already."""
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


def allow_clearing() -> None:
    """Let `make_room` clear JAX's caches in this process: for commands and tests, which own theirs."""
    global _allowed
    _allowed = True


def make_room(most: int = MOST_MAPS) -> None:
    """Clear all compiled programs where the memory map is filling; those still needed are compiled again.

    Does nothing unless `allow_clearing` was called: JAX's caches belong to the whole process, not to a library.
    """
    if _allowed and memory_maps() > most:
        import jax

        jax.clear_caches()
        gc.collect()


def memory_maps() -> int:
    """Entries of this process's memory map; 0 where the system does not tell."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0
