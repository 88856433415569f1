"""Records: config, seed, commit, machine, versions and figures of a run as JSON."""

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from kairode._version import __version__
from kairode.errors import MALFORMED, KairodeError
from kairode.files import load_json
from kairode.runs.migrate import FORMAT, migrate_record

PACKAGES = ("jax", "jaxlib", "equinox", "diffrax", "optax", "gymnasium", "mujoco", "numpy", "scipy")


def make_record(kind: str, config: Any, figures: dict[str, Any], *, command: str, seconds: float) -> dict[str, Any]:
    """Create a record: everything needed to reproduce the figures."""
    settings: dict[str, Any] = dict(config) if isinstance(config, dict) else dataclasses.asdict(config)
    return {
        "format": FORMAT,
        "kind": kind,
        "command": command,
        "config": settings,
        "seed": settings.get("seed"),
        "figures": figures,
        "seconds": round(seconds, 2),
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
    }


def read_record(path: str | Path) -> dict[str, Any]:
    """Read a record of any version, in today's format."""
    found = load_json(path, "run the command of its folder again.")
    if not isinstance(found, dict):
        raise KairodeError(f"{path} is not a record: a JSON object is expected.")
    try:
        return migrate_record(found)
    except MALFORMED as error:
        raise KairodeError(f"{path} is damaged, it is not a record: run the command of its folder again.") from error


def commit() -> str | None:
    """The commit of the code, with a plus if files differ from it; None outside its repository."""
    here = Path(__file__)

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=here.parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # installed inside another repository
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ":/src", ":/benchmarks") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """Processor, cores, device and system, for a record."""

    import jax

    device = jax.devices()[0]
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "device": device.device_kind if device.platform != "cpu" else "cpu",
        "system": f"{platform.system()} {platform.machine()}",
    }


def processor() -> str:
    """Model name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def versions() -> dict[str, str]:
    """Versions of Python, this package and its numerical dependencies."""
    found = {"python": platform.python_version(), "kairode": __version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
