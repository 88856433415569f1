"""Saved references, `advisor.json`: what advice compares a state with."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from kairode.errors import MALFORMED, KairodeError
from kairode.planning.reference import Reference
from kairode.training import checkpoint

NAME = "advisor"
_TEXTS = ("variables", "actions")


def save_reference(folder: str | Path, reference: Reference, **about: Any) -> None:
    """Save a reference; `about` is further JSON beside it."""
    arrays = {name: np.asarray(x) for name, x in vars(reference).items() if name not in _TEXTS}
    texts = {name: list(getattr(reference, name)) for name in _TEXTS}
    checkpoint.save(folder, arrays, NAME, **texts, **about)


def describe_reference(folder: str | Path) -> dict[str, Any]:
    """What was saved beside a reference."""
    return checkpoint.describe(folder, NAME)


def load_reference(folder: str | Path) -> Reference:
    """Load a reference that `save_reference` saved."""
    about, path = checkpoint.describe(folder, NAME), Path(folder) / f"{NAME}.json"
    names = [field.name for field in dataclasses.fields(Reference) if field.name not in _TEXTS]
    try:
        texts = {name: tuple(map(str, about[name])) for name in _TEXTS}
        like = {name: np.empty(about["arrays"][name][1], about["arrays"][name][0]) for name in names}
        _check_shapes({name: x.shape for name, x in like.items()}, len(texts["variables"]))
    except (*MALFORMED, MemoryError) as error:
        raise KairodeError(f"{path} is damaged: it does not describe the data of an advisor ({error}).") from error
    found = {name: np.asarray(x) for name, x in checkpoint.load(folder, like, NAME).items()}
    if checkpoint.describe(folder, NAME)["sha256"] != about["sha256"]:  # another process has replaced it meanwhile
        return load_reference(folder)
    parts: dict[str, Any] = {**texts, **found}
    return Reference(**parts)


def _check_shapes(shapes: dict[str, tuple[int, ...]], variables: int) -> None:
    """Raise `ValueError` if arrays do not fit together."""
    rows = shapes["rows"][0]
    each = ("mean", "std", "low", "high", "median", "static")
    fits = shapes["rows"] == (rows, variables) and rows > 0 and shapes["taken"][:1] == (rows,)
    fits &= all(shapes[name] == (variables,) for name in each) and shapes["starts"][1:] == (variables,)
    if not (fits and shapes["intervals"] == (4,) and shapes["distance"] == shapes["disagreement"] == ()):
        raise ValueError("its arrays do not fit together")
