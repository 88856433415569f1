"""Checkpoints: arrays in a safetensors file, what they are in a JSON file beside it, never pickle.

The arrays are written first, under a name of their own; then the JSON file that names them and holds their digest
takes the place of the old one, whole or not at all. A kill at any moment leaves the old pair or the new one.
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
    "fleet": "vector_env",
    "lane": "episode",
    "mind": "learner",
    "optimiser": "optimizer",
    "practice": "train_state",
    "progress": "fit_state",
    "shown": "seen_obs",
    "sight": "normalizer",
}
"""Parts of array names that were called otherwise in checkpoints without a format."""
FORMAT = 1


def exists(folder: str | Path, name: str = NAME) -> bool:
    """Whether there is one to load."""
    return (Path(folder) / f"{name}.json").exists()


def save(folder: str | Path, tree: Any, name: str = NAME, **about: Any) -> None:
    """Write all arrays of a tree, and what is said about them."""
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
    for old in (*folder.glob(f"{name}-*.safetensors"), *folder.glob(f".{name}*.part")):  # the last one's, a kill's
        if old.name != file:
            with contextlib.suppress(OSError):
                old.unlink()


def describe(folder: str | Path, name: str = NAME) -> dict[str, Any]:
    """What the JSON file says."""
    path = Path(folder) / f"{name}.json"
    try:
        about = json.loads(path.read_text())
        about["file"], about["sha256"], about["arrays"]
    except FileNotFoundError as error:
        raise KairodeError(f"there is no {path}: give the folder of a run that `kairode fit` wrote.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise KairodeError(f"{path} is damaged: {_advice(folder)}") from error
    return about


def load(folder: str | Path, like: T, name: str = NAME) -> T:
    """The tree that was saved, its arrays in the places of those of `like`, which must have the same shapes."""
    folder = Path(folder)
    about = describe(folder, name)
    path = folder / about["file"]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KairodeError(f"{path} is missing: {_advice(folder)}") from error
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise KairodeError(f"{path} is damaged (its digest is not the one in {name}.json): {_advice(folder)}")
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
    """Whether some array that was saved lies below this part of a path, such as `timer.spread`."""
    return any(f".{part}." in f".{path}" for path in describe(folder, name)["arrays"])


def _today(path: str) -> str:
    """The name of an array of an earlier checkpoint as it is called today."""
    return ".".join(SEGMENTS.get(part, part) for part in path.split("."))


def _unrounded(array: np.ndarray) -> Any:
    """A JAX array; one of 64 bits stays NumPy's, for JAX would round it."""
    return array if array.dtype.itemsize == 8 else jnp.asarray(array)


def _compare(path: Path, found: dict[str, np.ndarray], wanted: dict[str, Any]) -> None:
    """Refuse a checkpoint of something else."""
    for name, array in wanted.items():
        if name not in found:
            raise KairodeError(f"{path} is the checkpoint of another model: it has no '{name}'.")
        if found[name].shape != np.shape(array):
            raise KairodeError(
                f"{path} is the checkpoint of another model or of other data: its '{name}' has the shape "
                f"{found[name].shape}, this model's {np.shape(array)}."
            )
    for name in found:
        if name not in wanted:
            raise KairodeError(f"{path} is the checkpoint of another model: this one has no '{name}'.")


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    """Every array with the path to it."""
    return [(jax.tree_util.keystr(path, simple=True, separator="."), x) for path, x in jax.tree.leaves_with_path(tree)]


def _advice(folder: str | Path) -> str:
    return f"remove {folder} and fit again."
