"""What the attacks share: the registry, the amount of work, and commands in processes of their own."""

import dataclasses
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

Effort = Literal["quick", "slow", "full"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an attack found."""

    figure: str
    """The measured figure, as it is printed in the table."""
    held: bool
    """Whether the goal is reached."""
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    """For the record: counts, and the first failures."""


@dataclasses.dataclass(frozen=True)
class Attack:
    """An attack: what is done, and what must hold."""

    name: str
    what: str
    goal: str
    run: Callable[[Path, Effort], Outcome]
    efforts: tuple[Effort, ...]


ATTACKS: dict[str, Attack] = {}
"""All attacks by name, in the order of the table."""


def attack(
    what: str, goal: str, efforts: tuple[Effort, ...] = ("quick", "slow", "full")
) -> Callable[[Callable[[Path, Effort], Outcome]], Callable[[Path, Effort], Outcome]]:
    """Register a function of an empty folder and the effort as an attack, under its own name."""

    def register(function: Callable[[Path, Effort], Outcome]) -> Callable[[Path, Effort], Outcome]:
        name = function.__name__.replace("_", "-")
        ATTACKS[name] = Attack(name, what, goal, function, efforts)
        return function

    return register


def kairode(
    *words: str, timeout: float = 600.0, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "kairode", *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(env),
        **options,
    )


def start(*words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([sys.executable, "-m", "kairode", *words], env=environment(env), **pipes)


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a command: on the CPU, saving often so that kills hit every place."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "KAIRODE_SAVE_SECONDS": "0.5", **(more or {})}


def amount(effort: Effort, quick: int, slow: int, full: int) -> int:
    """How many trials an effort takes."""
    return {"quick": quick, "slow": slow, "full": full}[effort]


def count(failures: Sequence[Any], tried: int, what: str) -> Outcome:
    """The outcome of trials of which none may fail."""
    return Outcome(f"{len(failures)} of {tried:,} {what}", not failures, {"tried": tried, "failures": [*failures][:5]})


@functools.cache
def started() -> float:
    """When this process began its campaign."""
    return time.monotonic()
