"""Checkpoints: arrays in a safetensors file, metadata in a JSON file beside it, never pickle.

The arrays are written first, under a name that contains their digest; then the JSON file that refers to them, and has
a digest of its own, is replaced atomically. A kill at any time leaves either the old pair or the new one. One process
writes to a folder at a time; others may read.
"""

import contextlib
import hashlib
import math
import re
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from kairode._lock import locked
from kairode.errors import KairodeError
from kairode.files import (
    JSON_DIGEST,
    atomic_write,
    check_target,
    has_digest,
    inside,
    load_json,
    read_bytes,
    save_json,
    with_digest,
)

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
FORMAT = 2
"""Since 2 the JSON file has a digest of its own."""
MOST_HEADER = 100_000_000
"""Bytes of the largest header that the safetensors format allows."""
READS = 100
"""Attempts to read a checkpoint that another process replaces meanwhile."""


def exists(folder: str | Path, name: str = NAME) -> bool:
    """Whether a folder holds a checkpoint of this name."""
    return (Path(folder) / f"{name}.json").exists()


def save(folder: str | Path, tree: Any, name: str = NAME, **about: Any) -> None:
    """Save all arrays of a tree, with JSON metadata; raises `FolderBusy` if another process writes to the folder."""
    folder = Path(folder)
    arrays = {path: np.asarray(x) for path, x in _leaves(tree)}
    content = safetensors.numpy.save(arrays)
    digest = hashlib.sha256(content).hexdigest()
    file = f"{name}-{digest[:12]}.safetensors"
    described = {path: [str(x.dtype), list(x.shape)] for path, x in arrays.items()}
    with locked(folder, reentrant=True):
        check_target(folder / f"{name}.json")
        with atomic_write(folder / file) as part:
            part.write_bytes(content)
        save_json(
            folder / f"{name}.json",
            with_digest({"format": FORMAT, "file": file, "sha256": digest, "arrays": described, **about}),
        )
        _remove_arrays(folder, name, keep=file)  # of the last checkpoint or a killed process


def remove(folder: str | Path, name: str = NAME) -> None:
    """Remove a checkpoint, if there is one, and no other file."""
    folder = Path(folder)
    if exists(folder, name):
        with locked(folder, reentrant=True):
            (folder / f"{name}.json").unlink(missing_ok=True)
            _remove_arrays(folder, name)


def _remove_arrays(folder: Path, name: str, keep: str | None = None) -> None:
    ours = re.compile(rf"{re.escape(name)}-[0-9a-f]{{12}}\.safetensors")  # not a user's models-backup.safetensors
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != keep and ours.fullmatch(old.name):
            with contextlib.suppress(OSError):
                old.unlink()


def describe(folder: str | Path, name: str = NAME) -> dict[str, Any]:
    """The metadata in the JSON file."""
    path = Path(folder) / f"{name}.json"
    if not path.exists():
        raise KairodeError(f"{path} does not exist: give a folder written by `kairode fit`.")
    about = load_json(path, _advice(folder))
    if not (isinstance(about, dict) and _well_formed(about)):
        raise KairodeError(f"{path} is damaged: {_advice(folder)}")
    version = about.get("format", 0)
    if version > FORMAT:
        raise KairodeError(f"{path} was written by a newer version of kairode: update kairode.")
    if (version >= 2 or JSON_DIGEST in about) and not has_digest(about):
        raise KairodeError(f"{path} was changed after it was written (its digest differs): {_advice(folder)}")
    return about


def _well_formed(about: dict[str, Any]) -> bool:
    """Whether a description has the entries that loading needs, of the right types."""
    return (
        all(isinstance(about.get(name), str) for name in ("file", "sha256"))
        and isinstance(about.get("format", 0), int)
        and isinstance(about.get("arrays"), dict)
        and all(_is_array(entry) for entry in about["arrays"].values())
    )


def _is_array(entry: Any) -> bool:
    """Whether an entry is the type and shape of an array."""
    return (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and isinstance(entry[1], list)
        and all(isinstance(size, int) and size >= 0 for size in entry[1])
    )


def load(folder: str | Path, like: T, name: str = NAME) -> T:
    """Load arrays into a tree of the same structure and shapes as `like`."""
    folder = Path(folder)
    about, content = _read(folder, name)
    path = folder / about["file"]
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise KairodeError(f"{path} is damaged (its digest differs from the one in {name}.json): {_advice(folder)}")
    try:
        arrays = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise KairodeError(f"{path} is damaged ({error}): {_advice(folder)}") from error
    if "format" not in about:
        arrays = {_today(path): array for path, array in arrays.items()}
    _compare(folder / f"{name}.json", {path: array.shape for path, array in arrays.items()}, like)
    leaves, structure = jax.tree.flatten(like)
    paths = [path for path, _ in _leaves(like)]
    assert len(paths) == len(leaves)
    return jax.tree.unflatten(structure, [_unrounded(arrays[path]) for path in paths])


def _read(folder: Path, name: str) -> tuple[dict[str, Any], bytes]:
    """The description, and the content of the file that it names: again, if another process replaced both meanwhile."""
    about = describe(folder, name)
    for _ in range(READS):
        path = inside(folder, about["file"])
        # A file that its description does not account for is not read into memory.
        header = min(MOST_HEADER, 1024 + 1024 * len(about["arrays"]) + 4 * sum(map(len, about["arrays"])))
        try:
            return about, read_bytes(path, 8 + header + sum(map(_bytes, about["arrays"].values())))
        except FileNotFoundError as error:
            before, about = about, describe(folder, name)
            if about["file"] == before["file"] and not path.exists():
                raise KairodeError(f"{path} is missing: {_advice(folder)}") from error
        except KairodeError as error:
            raise KairodeError(f"{str(error).rstrip('.')}: {_advice(folder)}") from error
    raise KairodeError(f"{folder} is being written by another process: wait for it.")


def _bytes(entry: list[Any]) -> int:
    """Bytes of an array, from its description."""
    try:
        return int(np.dtype(entry[0]).itemsize) * math.prod(entry[1])
    except (TypeError, ValueError):  # of JAX alone, such as bfloat16, or no type at all
        return 8 * math.prod(entry[1])


def compare_description(folder: str | Path, like: Any, name: str = NAME) -> None:
    """Raise if the arrays that a description lists are not those of `like`, whose leaves need only have shapes."""
    about = describe(folder, name)
    old = "format" not in about
    found = {(_today(path) if old else path): tuple(entry[1]) for path, entry in about["arrays"].items()}
    _compare(Path(folder) / f"{name}.json", found, like)


def holds(folder: str | Path, part: str, name: str = NAME) -> bool:
    """Whether an array name of the checkpoint contains `part`, such as `timer.spread`."""
    return any(f".{part}." in f".{path}" for path in describe(folder, name)["arrays"])


def _today(path: str) -> str:
    """Today's name of an array in an older checkpoint."""
    return ".".join(SEGMENTS.get(part, part) for part in path.split("."))


def _unrounded(array: np.ndarray) -> Any:
    """Convert to JAX, except 64-bit arrays, which JAX would round."""
    return array if array.dtype.itemsize == 8 else jnp.asarray(array)


def _compare(path: Path, found: dict[str, tuple[int, ...]], like: Any) -> None:
    expected = {name: np.shape(array) for name, array in _leaves(like)}
    for name, shape in expected.items():
        if name not in found:
            raise KairodeError(f"{path} belongs to another model: it has no '{name}'.")
        if found[name] != shape:
            raise KairodeError(
                f"{path} belongs to another model or other data: its '{name}' has shape {found[name]}, expected "
                f"{shape}."
            )
    for name in found:
        if name not in expected:
            raise KairodeError(f"{path} belongs to another model: '{name}' is unknown to this one.")


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path, simple=True, separator="."), x) for path, x in jax.tree.leaves_with_path(tree)]


def _advice(folder: str | Path) -> str:
    return f"run its command again to restore it, or remove {folder}."
