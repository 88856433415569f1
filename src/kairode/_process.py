"""Process settings of the command `kairode`, made before JAX is imported, which reads most of them only once.

A library leaves these to the process that imports it, so `import kairode` sets none of them.
"""

import contextlib
import hashlib
import io
import logging
import os
import platform
import sys
import warnings
from pathlib import Path

from kairode._xla import allow_clearing

LEAST_SECONDS = "0"
"""Minimum compile time of cached programs: 0, because the many small ones add up."""


def prepare_process() -> None:
    """Cache compiled programs on disk, silence messages, and let long commands free compiled programs."""
    keep_compiled_programs()
    silence()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that the terminal's encoding lacks
    allow_clearing()


def keep_compiled_programs() -> None:
    """Point JAX to a cache folder, one per kind of processor; a user's own settings take precedence."""
    with contextlib.suppress(OSError, RuntimeError):  # without a home there is no cache, and the work goes on
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder()))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", LEAST_SECONDS)


def cache_folder() -> Path:
    """Folder of the compiled programs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "kairode" / f"jax-{hashlib.sha256(processor_features().encode()).hexdigest()[:12]}"


def processor_features() -> str:
    """Features that distinguish processors: a program compiled for one may crash on another."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.machine()
    with open(info) as lines:
        return platform.machine() + next((line.rstrip("\n") for line in lines if line.startswith("flags")), "")


def silence() -> None:
    """Turn off messages of JAX, XLA and matplotlib that a user cannot act on."""
    warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")  # one that cannot be written to
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # XLA takes two hints to its own compiler for processor features and reports them as missing at every load.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # what JAX sets for itself and its children
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
