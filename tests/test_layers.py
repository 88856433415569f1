"""A module imports only from its own layer and those before it in the way data flows (docs/architecture.md)."""

import ast
from pathlib import Path

import kairode

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
    "_process",
    "_version",
    "_xla",
    "callbacks",
    "errors",
    "files",
    "result",
    "seeds",
    "stats",
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
    """They import nothing that computes: of training, agents and planning only the progress that they display."""
    computes = ("kairode.training", "kairode.agents", "kairode.planning")
    for path in sorted((ROOT / "report").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(computes):
                assert {alias.name for alias in node.names} <= {"TrainProgress", "FitProgress"}, path


def test_no_words_of_one_environment_in_generic_code() -> None:
    """What describes a system comes from its task; settings made for an environment, and old records, may name it."""
    own = ("config", "envs/hiv.py", "runs/migrate.py")
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT).as_posix()
        assert inside.startswith(own) or "patient" not in path.read_text(), path


def test_every_layer_exists_and_no_other() -> None:
    present = {layer_of(path) for path in ROOT.rglob("*.py")} - GROUND - {"__init__"}
    assert present == set(LAYERS)
