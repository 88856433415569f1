"""What every benchmark ends with: figures on the screen or as JSON, and a record where one is wanted."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kairode.files import save_json
from kairode.runs.record import make_record


def finish(
    name: str,
    figures: dict[str, Any],
    config: dict[str, Any],
    started: float,
    show: Callable[[dict[str, Any]], None],
    about: str | None,
) -> None:
    """Print the figures, to four digits, and save the record if the command line says where."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, nothing else")
    parser.add_argument("--save", type=Path, help="write the record to this file")
    options = parser.parse_args()
    figures = rounded(figures)
    if options.save:
        seconds = time.perf_counter() - started
        save_json(options.save, make_record("bench", config, figures, command=f"kairode bench {name}", seconds=seconds))
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        show(figures)


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
