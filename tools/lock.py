"""Print the exact versions that pip resolves for the package with its extras: what requirements.lock holds.

Resolved for the Python that runs this, which is to be 3.11, the oldest we support. Newer Pythons take the same
versions, except for JAX: its newest release does not install on 3.11, and is the better one where it does.
"""

import json
import subprocess
import sys

NEWER = {"jax": "0.11.2", "jaxlib": "0.11.2"}
HEADER = (
    "# Every version that `make run` and `make test` install. Made by `make lock`; the ranges are in pyproject.toml.\n"
)


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit("error: make the lock with Python 3.11: make clean, then make lock PYTHON=python3.11")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--report", "-", ".[mujoco,tensorboard,ray,dev]"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    versions = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in report["install"]}
    versions.pop("kairode")
    lines = []
    for name, version in sorted(versions.items()):
        if name in NEWER:
            lines.append(f'{name}=={version}; python_version < "3.12"')
            lines.append(f'{name}=={NEWER[name]}; python_version >= "3.12"')
        else:
            lines.append(f"{name}=={version}")
    print(HEADER + "\n".join(lines))


if __name__ == "__main__":
    main()
