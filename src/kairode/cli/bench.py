"""`kairode bench`."""

import os
import subprocess
import sys
from pathlib import Path

from tyro.conf import Positional

from kairode.errors import KairodeError, unknown


def bench_command(name: Positional[str] = "envs", json: bool = False, save: Path | None = None) -> None:
    """Measure speed and compare it with other implementations in the same run (in a checkout of the repository).

    Example: kairode bench fit --save fit.json

    Args:
        name: what to measure: envs (decisions per second), fit (milliseconds per training iteration), fit_profile (its
            breakdown), policy (training decisions per second), schedule (choosing the next decision time), mpc
            (planning, and the whole control loop), simulators (error and time by step size), scaling (how time and
            memory grow with data, models and agents), tables (reading a million rows, and fitting short episodes
            beside long ones), wrapping (what `from_gymnasium` adds to an environment's own step) or waiting (the main
            jobs from a cold start, and the first line of every command).
        json: print only the figures, as JSON.
        save: write the record to this file.
    """
    folder = Path(__file__).parents[3] / "benchmarks"
    known = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    if not known:
        raise KairodeError("the benchmarks are part of the repository, not of the package: run this in a checkout.")
    if name not in known:
        raise unknown("benchmark", name, known)
    options = [*(["--json"] if json else []), *(["--save", str(save)] if save else [])]
    cold = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    sys.exit(subprocess.run([sys.executable, folder / f"{name}.py", *options], env=cold).returncode)
