"""A module imports only from its own layer and those before it in the way data flows (docs/architecture.md)."""

import ast
import subprocess
import sys
from pathlib import Path

import kairode
from kairode.config.models import MODEL_NAMES
from kairode.models.zoo import MODELS

ROOT = Path(kairode.__file__).parent
LAYERS = [
    "config",
    "envs",
    "data",
    "models",
    "training",
    "agents",
    "planning",
    "algorithms",
    "runs",
    "paper",
    "report",
    "cli",
    "__main__",
]
GROUND = {
    "_gymnasium",
    "_lock",
    "_memory",
    "_process",
    "_signals",
    "_version",
    "_xla",
    "callbacks",
    "devices",
    "errors",
    "files",
    "loggers",
    "result",
    "seeds",
    "stats",
    "text",
    "trees",
}
"""What every layer may import: it imports nothing of ours but itself."""


def imported(path: Path) -> set[str]:
    """The layers a module imports, at its top or inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        assert "kairode" not in names or layer_of(path) in ("cli", "__main__"), (
            f"{path}: import the module it comes from"
        )
        found |= {name.split(".")[1] for name in names if name.startswith("kairode.")}
    return found


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_follow_the_layers() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        layer = layer_of(path)
        if layer == "__init__":
            continue
        allowed = GROUND | set(LAYERS[: LAYERS.index(layer) + 1] if layer in LAYERS else [])
        wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in imported(path) - allowed]
    assert not wrong


def test_reports_draw_what_is_recorded() -> None:
    """They import nothing that trains, plans or runs a procedure."""
    for path in sorted((ROOT / "report").glob("*.py")):
        assert not imported(path) & {"training", "agents", "planning", "algorithms"}, path


def test_algorithms_know_no_run_folder_and_no_paper() -> None:
    """Nor do the layers below them: what `kairode.learn` needs imports neither."""
    program = "import sys, kairode; kairode.learn; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "kairode.algorithms.learn" in loaded
    assert not [name for name in loaded if name.startswith(("kairode.runs", "kairode.paper", "kairode.report"))]


def test_no_package_has_more_than_twenty_modules() -> None:
    for package in LAYERS:
        assert len(list((ROOT / package).glob("*.py"))) <= 21, f"{package}: twenty and its __init__"


def test_names_of_models_are_those_of_the_zoo() -> None:
    """The command line knows them without JAX."""
    assert tuple(MODELS) == MODEL_NAMES


def test_no_words_of_one_environment_in_generic_code() -> None:
    """What describes a system comes from its task; settings made for an environment, and old records, may name it."""
    own = ("config", "envs/hiv.py", "runs/migrate.py")
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT).as_posix()
        assert inside.startswith(own) or "patient" not in path.read_text(), path


def test_every_layer_exists_and_no_other() -> None:
    present = {layer_of(path) for path in ROOT.rglob("*.py")} - GROUND - {"__init__"}
    assert present == set(LAYERS)
