"""Checkpoints: arrays in a safetensors file, metadata in a JSON file beside it, never pickle.

The arrays are written first, under a name that contains their digest; then the JSON file that refers to them is
replaced atomically. A kill at any time leaves either the old pair or the new one.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from kairode.errors import KairodeError
from kairode.files import atomic_write

T = TypeVar("T")
NAME = "checkpoint"


SEGMENTS = {
    "ahead": "dynamics",
    "doubt": "disagreement",
    "fleet": "vector_env",
    "lane": "episode",
    "mind": "learner",
    "optimiser": "optimizer",
    "practice": "train_state",
    "progress": "fit_state",
    "shown": "seen_obs",
    "sight": "normalizer",
}
"""Renamed parts of array names in checkpoints without a format number."""
FORMAT = 1


def exists(folder: str | Path, name: str = NAME) -> bool:
    """Whether a folder holds a checkpoint of this name."""
    return (Path(folder) / f"{name}.json").exists()


def save(folder: str | Path, tree: Any, name: str = NAME, **about: Any) -> None:
    """Save all arrays of a tree, with JSON metadata."""
    folder = Path(folder)
    arrays = {path: np.asarray(x) for path, x in _leaves(tree)}
    content = safetensors.numpy.save(arrays)
    digest = hashlib.sha256(content).hexdigest()
    file = f"{name}-{digest[:12]}.safetensors"
    with atomic_write(folder / file) as part:
        part.write_bytes(content)
    described = {path: [str(x.dtype), list(x.shape)] for path, x in arrays.items()}
    with atomic_write(folder / f"{name}.json") as part:
        part.write_text(
            json.dumps({"format": FORMAT, "file": file, "sha256": digest, "arrays": described, **about}, indent=1)
            + "\n"
        )
    for old in (
        *folder.glob(f"{name}-*.safetensors"),
        *folder.glob(f".{name}*.part"),
    ):  # of the last checkpoint or a killed process
        if old.name != file:
            with contextlib.suppress(OSError):
                old.unlink()


def describe(folder: str | Path, name: str = NAME) -> dict[str, Any]:
    """The metadata in the JSON file."""
    path = Path(folder) / f"{name}.json"
    try:
        about = json.loads(path.read_text())
        about["file"], about["sha256"], about["arrays"]
    except FileNotFoundError as error:
        raise KairodeError(f"{path} does not exist: give a folder written by `kairode fit`.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise KairodeError(f"{path} is damaged: {_advice(folder)}") from error
    return about


def load(folder: str | Path, like: T, name: str = NAME) -> T:
    """Load arrays into a tree of the same structure and shapes as `like`."""
    folder = Path(folder)
    about = describe(folder, name)
    path = folder / about["file"]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KairodeError(f"{path} is missing: {_advice(folder)}") from error
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise KairodeError(f"{path} is damaged (its digest differs from the one in {name}.json): {_advice(folder)}")
    try:
        arrays = safetensors.numpy.load(content)
    except safetensors.SafetensorError as error:
        raise KairodeError(f"{path} is damaged ({error}): {_advice(folder)}") from error
    if "format" not in about:
        arrays = {_today(path): array for path, array in arrays.items()}
    _compare(folder / f"{name}.json", arrays, dict(_leaves(like)))
    leaves, structure = jax.tree.flatten(like)
    paths = [path for path, _ in _leaves(like)]
    assert len(paths) == len(leaves)
    return jax.tree.unflatten(structure, [_unrounded(arrays[path]) for path in paths])


def holds(folder: str | Path, part: str, name: str = NAME) -> bool:
    """Whether an array name of the checkpoint contains `part`, such as `timer.spread`."""
    return any(f".{part}." in f".{path}" for path in describe(folder, name)["arrays"])


def _today(path: str) -> str:
    """Today's name of an array in an older checkpoint."""
    return ".".join(SEGMENTS.get(part, part) for part in path.split("."))


def _unrounded(array: np.ndarray) -> Any:
    """Convert to JAX, except 64-bit arrays, which JAX would round."""
    return array if array.dtype.itemsize == 8 else jnp.asarray(array)


def _compare(path: Path, found: dict[str, np.ndarray], expected: dict[str, Any]) -> None:
    for name, array in expected.items():
        if name not in found:
            raise KairodeError(f"{path} belongs to another model: it has no '{name}'.")
        if found[name].shape != np.shape(array):
            raise KairodeError(
                f"{path} belongs to another model or other data: its '{name}' has shape {found[name].shape}, expected "
                f"{np.shape(array)}."
            )
    for name in found:
        if name not in expected:
            raise KairodeError(f"{path} belongs to another model: '{name}' is unknown to this one.")


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path, simple=True, separator="."), x) for path, x in jax.tree.leaves_with_path(tree)]


def _advice(folder: str | Path) -> str:
    return f"remove {folder} and fit again."
