"""What the benchmarks share: measuring, figures on the screen or as JSON, a record where one is wanted."""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kairode.files import save_json
from kairode.runs.record import make_record


def run(
    name: str,
    measure: Callable[[], dict[str, Any]],
    config: dict[str, Any],
    show: Callable[[dict[str, Any]], None],
    about: str | None,
) -> None:
    """Measure, print the figures, to four digits, and save the record if the command line says where."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, nothing else")
    parser.add_argument("--save", type=Path, help="write the record to this file")
    parser.add_argument("--without-peers", action="store_true", help="measure ours alone")
    options = parser.parse_args()
    global _peers
    _peers = not options.without_peers
    started = time.perf_counter()
    figures = rounded(measure())
    if options.save:
        seconds = time.perf_counter() - started
        save_json(options.save, make_record("bench", config, figures, command=f"kairode bench {name}", seconds=seconds))
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        show(figures)


_peers = True


def has_peer(package: str) -> bool:
    """Whether a package is installed and wanted."""
    return _peers and importlib.util.find_spec(package) is not None


def print_rows(
    headers: Iterable[str], rows: Iterable[Iterable[str]], title: str | None = None, width: int | None = None
) -> None:
    table = Table(*headers, title=title, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)


def seconds_a_call(call: Callable[[], Any], least: float, rounds: int = 3) -> float:
    """The best of several rounds of at least so many seconds, after one call to warm up."""
    call()
    best = float("inf")
    for _ in range(rounds):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < least or count == 0:
            call()
            count += 1
        best = min(best, (time.perf_counter() - start) / count)
    return best


def best_seconds(calls: dict[str, Callable[[], Any]], rounds: int = 5) -> dict[str, float]:
    """The best of several rounds for each; they take turns, so that a busy machine disturbs all alike."""
    for call in calls.values():
        call()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def rounded(figures: Any) -> Any:
    """Numbers to four digits, however deep they lie."""
    if isinstance(figures, dict):
        return {key: rounded(value) for key, value in figures.items()}
    return float(f"{figures:.4g}")


def torch_layer(weight: Any, bias: Any, device: str = "cpu") -> Any:
    """A linear layer of PyTorch with these weights."""
    import torch

    new = torch.nn.Linear(weight.shape[1], weight.shape[0], device=device)
    new.weight.data, new.bias.data = (torch.tensor(np.array(x), device=device) for x in (weight, bias))
    return new


def torch_net(weights: Iterable[Any], biases: Iterable[Any], between: Callable[[], Any], device: str = "cpu") -> Any:
    import torch

    parts: list[Any] = []
    for weight, bias in zip(weights, biases, strict=True):
        parts += [torch_layer(weight, bias, device), between()]
    return torch.nn.Sequential(*parts[:-1])


def torch_tanh_net(mlp: Any, device: str = "cpu") -> Any:
    """Of a network of Equinox."""
    import torch

    layers = mlp.layers
    return torch_net([one.weight for one in layers], [one.bias for one in layers], torch.nn.Tanh, device)
