"""Print the exact versions that pip resolves for the package with its extras: what requirements.lock holds.

Resolved for the Python that runs this, which is to be 3.11, the oldest we support. Newer Pythons take the same
versions, except for JAX: its newest release does not install on 3.11, and is the better one where it does.

`python tools/lock.py peers` prints what the extras `peers` and `minari` add to it: requirements-peers.lock.
"""

import json
import subprocess
import sys
from pathlib import Path

NEWER = {"jax": "0.11.2", "jaxlib": "0.11.2"}
HEADER = (
    "# Every version that `make run` and `make test` install. Made by `make lock`; the ranges are in pyproject.toml.\n"
)
PEERS_HEADER = (
    "# What `make peers` installs besides requirements.lock. Made by `make lock`; the ranges are in pyproject.toml.\n"
)


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit("error: make the lock with Python 3.11: make clean, then make lock PYTHON=python3.11")
    if sys.argv[1:] == ["peers"]:
        versions = resolved(".[peers,minari]", "--constraint", "requirements.lock")
        print(PEERS_HEADER + "\n".join(f"{name}=={versions[name]}" for name in sorted(versions.keys() - locked())))
        return
    versions, lines = resolved(".[mujoco,tensorboard,ray,dev]"), []
    for name, version in sorted(versions.items()):
        if name in NEWER:
            lines.append(f'{name}=={version}; python_version < "3.12"')
            lines.append(f'{name}=={NEWER[name]}; python_version >= "3.12"')
        else:
            lines.append(f"{name}=={version}")
    print(HEADER + "\n".join(lines))


def resolved(*requirements: str) -> dict[str, str]:
    """Name and version of everything that pip would install; without labels of local builds, such as +cpu."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    report = subprocess.run([*command, "--report", "-", *requirements], check=True, stdout=subprocess.PIPE, text=True)
    found = [item["metadata"] for item in json.loads(report.stdout)["install"]]
    return {one["name"].lower(): one["version"].split("+")[0] for one in found if one["name"] != "kairode"}


def locked() -> set[str]:
    """Names in requirements.lock; one package is `-` or `_` in the same place."""
    return {line.split("==")[0] for line in Path("requirements.lock").read_text().splitlines() if "==" in line}


if __name__ == "__main__":
    main()
