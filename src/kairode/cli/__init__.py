"""The command. Each subcommand is a function; what it needs is imported when it runs."""

import contextlib
import hashlib
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import tyro

from kairode._version import __version__
from kairode.cli.data import collect, envs
from kairode.cli.fits import fit
from kairode.cli.pages import report
from kairode.cli.policies import evaluate, rounds, schedule
from kairode.cli.runs import run
from kairode.cli.speed import bench
from kairode.cli.study import study
from kairode.cli.tables import reproduce
from kairode.errors import KairodeError, Stopped

COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "envs": envs,
    "collect": collect,
    "fit": fit,
    "rounds": rounds,
    "evaluate": evaluate,
    "schedule": schedule,
    "reproduce": reproduce,
    "report": report,
    "study": study,
    "bench": bench,
}


def main() -> None:
    """Run a subcommand; bad input ends in one sentence and code 2."""
    _compile_once()
    if sys.argv[1:] == ["--version"]:
        print(f"kairode {__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="kairode", description="Model-based reinforcement learning in continuous time."
        )
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)
    except KairodeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted: nothing half-written is left behind.", file=sys.stderr)
        sys.exit(130)


def _compile_once() -> None:
    """Keep what JAX compiled in the user's cache folder, apart for each kind of processor."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with contextlib.suppress(OSError):
        flags = platform.machine()
        if (info := Path("/proc/cpuinfo")).exists():
            flags += next((line for line in info.read_text().splitlines() if line.startswith("flags")), "")
        kind = hashlib.sha256(flags.encode()).hexdigest()[:12]
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "kairode" / f"jax-{kind}"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
        # XLA takes two hints to its own compiler for processor features and reports them as missing at every load.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
