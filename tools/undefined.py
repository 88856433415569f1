"""Names that are used and defined nowhere: `make lint` runs this.

ruff's F821 and mypy's name-defined are switched off, because jaxtyping's shapes are strings that look like names. Here
F821 is asked for all the same, and what lies inside a string is left out.
"""

import io
import json
import subprocess
import sys
import tokenize
from pathlib import Path

FOLDERS = ("src", "tests", "benchmarks", "tools")


def undefined() -> list[str]:
    options = ["--select", "F821", "--ignore-noqa", "--config", "lint.ignore=[]", "--output-format", "json"]
    ruff = subprocess.run(["ruff", "check", *FOLDERS, *options], capture_output=True, text=True)
    found = []
    for entry in json.loads(ruff.stdout):
        path, at = Path(entry["filename"]), (entry["location"]["row"], entry["location"]["column"] - 1)
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if not any(token.type == tokenize.STRING and token.start <= at < token.end for token in tokens):
            found.append(f"{path.relative_to(Path.cwd())}:{at[0]}: {entry['message']}")
    return found


if __name__ == "__main__":
    names = undefined()
    print("\n".join(names) or "No undefined names.")
    sys.exit(bool(names))
