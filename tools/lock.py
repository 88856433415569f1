"""Print the exact versions that pip resolves for the package with its extras: what requirements.lock holds."""

import json
import subprocess
import sys

HEADER = """\
# Every version `make run` and `make test` install. Made by `make lock`; the ranges are in pyproject.toml.
# Resolved for Python 3.11, the oldest we support; newer Pythons take the same versions.
"""


def main() -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--report", "-", ".[mujoco,dev]"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    versions = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in report["install"]}
    versions.pop("kairode")
    print(HEADER + "\n".join(f"{name}=={version}" for name, version in sorted(versions.items())))


if __name__ == "__main__":
    main()
