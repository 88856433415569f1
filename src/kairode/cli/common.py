"""What the subcommands share."""

import ast
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from kairode.errors import KairodeError

Environment = Annotated[Positional[str], arg(metavar="ENV")]
Quiet = Annotated[bool, arg(aliases=["-q"])]
WORDS = {"inf": math.inf, "Infinity": math.inf, "null": None, "true": True, "false": False}


def fields_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Fields given as name=value, the value as Python writes it (a plain word is a word)."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise KairodeError(f"--set takes name=value, got '{pair}'.")
        try:
            fields[name] = WORDS[value] if value in WORDS else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            fields[name] = value
    return fields


def number(word: str) -> float:
    """An interval, as the command line has it."""
    try:
        return float(word)
    except ValueError as error:
        raise KairodeError(f"a schedule is given as intervals, such as 5, or as 'chosen', got '{word}'.") from error


def print_json(found: Any) -> None:
    """Figures and nothing else."""
    import json

    print(json.dumps(found, indent=1))


@contextlib.contextmanager
def progress(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar with the count, the rate and the time left; none without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    words = TextColumn("{task.description}")
    columns = (SpinnerColumn(finished_text=" "), words, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def counted(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for work whose amount is known once it begins."""
    with contextlib.ExitStack() as stack:
        bars: list[Callable[[int], None]] = []

        def callback(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(progress(what, total, quiet)))
            if done:
                bars[0](1)

        yield callback
