"""The command. Each subcommand is a function that imports what it needs when it runs: nothing here may import JAX."""

import contextlib
import functools
import io
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tyro

from kairode._memory import OUT_OF_MEMORY, out_of_memory
from kairode._process import prepare_process
from kairode._signals import CODE, INTERRUPTED
from kairode._version import __version__
from kairode.cli.advise import advise_command
from kairode.cli.bench import bench_command
from kairode.cli.common import REGISTRY, STRICT_VARIABLE, is_strict
from kairode.cli.data import collect_command, envs_command
from kairode.cli.dyna import dyna_command
from kairode.cli.evaluate import evaluate_command
from kairode.cli.fit import fit_command
from kairode.cli.inspect import inspect_command
from kairode.cli.learn import learn_command
from kairode.cli.report import report_command
from kairode.cli.reproduce import reproduce_command
from kairode.cli.run import run_command
from kairode.cli.schedule import schedule_command
from kairode.cli.study import study_command
from kairode.errors import KairodeError, KairodeWarning, Stopped, unknown
from kairode.text import visible, visible_lines

COMMANDS: dict[str, Callable[..., Any]] = {
    "run": run_command,
    "envs": envs_command,
    "collect": collect_command,
    "fit": fit_command,
    "dyna": dyna_command,
    "inspect": inspect_command,
    "learn": learn_command,
    "evaluate": evaluate_command,
    "schedule": schedule_command,
    "advise": advise_command,
    "reproduce": reproduce_command,
    "report": report_command,
    "study": study_command,
    "bench": bench_command,
}
DEPENDENT = {"run": "[ENV|TABLE]", "fit": "ENV|TABLE", "dyna": "[ENV]", "learn": "TABLE"}
"""Commands whose options depend on their first word: given the words, they return a function of the options."""


STRICT = "--strict"
ABOUT = "Model-based reinforcement learning in continuous time."


def overview() -> str:
    """Every command with the first sentence of its help."""
    lines = [ABOUT, "", "usage: kairode COMMAND [OPTIONS]", ""]
    for name, command in COMMANDS.items():
        first = (command.__doc__ or "").split("\n")[0]
        lines += textwrap.wrap(
            first, shutil.get_terminal_size().columns - 1, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13
        )
    lines += [
        "",
        "Start with `kairode run hiv`. `kairode COMMAND --help` shows options and examples. Every command takes",
        "--strict, which turns its warnings into errors.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run a subcommand; bad input ends in one sentence and code 2."""
    prepare_process()
    words = [word for word in sys.argv[1:] if word != STRICT]
    if words[:1] == ["--version"]:
        print(f"kairode {__version__}")
        return
    if words in ([], ["-h"], ["--help"], ["help"]):
        print(overview())
        return
    try:
        with collected_warnings(strict=STRICT in sys.argv[1:] or is_strict()):
            parse_command(words)()
    except Stopped as stopped:
        print(visible_lines(stopped), file=sys.stderr)
        sys.exit(CODE)
    except (KairodeError, KairodeWarning) as error:
        print(f"error: {visible_lines(error)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        why = visible_lines(f"{error.strerror or error}{where}")
        print(f"error: {why}: choose another place, or free some space.", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not out_of_memory(error):
            raise
        print(f"error: {OUT_OF_MEMORY}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        sys.exit(CODE)


@contextlib.contextmanager
def collected_warnings(strict: bool) -> Iterator[None]:
    """Print the warnings of Kairode together when the command ends; `strict` makes the first an error."""
    said: dict[str, None] = {}
    with warnings.catch_warnings(), contextlib.ExitStack() as after:
        if strict:
            warnings.simplefilter("error", KairodeWarning)
            if not is_strict():  # for the processes that `kairode reproduce` starts
                os.environ[STRICT_VARIABLE] = "1"
                after.callback(os.environ.pop, STRICT_VARIABLE)
        else:
            warnings.simplefilter("always", KairodeWarning)
        before = warnings.showwarning

        def keep(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, KairodeWarning):
                said[str(message)] = None
            else:
                before(message, category, *place, **more)

        warnings.showwarning = keep
        try:
            yield
        finally:
            if said:
                sys.stdout.flush()
                lines = "".join(f"\n- {visible(text)}" for text in said)
                them = "Warnings ({} makes them errors):" if len(said) > 1 else "Warning ({} makes it an error):"
                print(f"{them.format(STRICT)}{lines}", file=sys.stderr)


def parse_command(words: list[str]) -> Callable[[], None]:
    """The command with its options, not called yet; help, and errors of the options, are printed here."""
    name, *rest = words
    if name in ("-h", "--help", "help") and rest:  # `kairode help run`
        name, rest = rest[0], ["--help"]
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    if "" in rest or any(re.fullmatch(r"--[\w-]+=", word) for word in rest):
        raise KairodeError("an option has an empty value: leave the option out, or give a value.")
    command, prog = COMMANDS[name], f"kairode {name}"
    if name in DEPENDENT:
        if rest and not rest[0].startswith("-"):
            prog = f"{prog} {rest[0]}"
        elif {"-h", "--help"} & set(rest):
            prog = f"{prog} {DEPENDENT[name]}"
        command, rest = command(rest)

    @functools.wraps(command)
    def later(*args: Any, **options: Any) -> Callable[[], None]:
        return functools.partial(command, *args, **options)

    shown, wrong = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(wrong):
            return tyro.cli(later, prog=prog, args=rest, config=(tyro.conf.FlagCreatePairsOff,), registry=REGISTRY)
    finally:
        print(plain_help(shown.getvalue()), end="")
        print(plain_help(wrong.getvalue()), end="", file=sys.stderr)


def plain_help(text: str) -> str:
    """Without what says nothing, spaces in place of every None so that frames stay whole; paragraphs in the width."""
    width = shutil.get_terminal_size().columns - 1
    text = "\n".join(
        textwrap.fill(line, width) if len(line) > width and line[:1].isalnum() else line for line in text.split("\n")
    )
    text = re.sub(r"\{None\}\|(\S+)", lambda found: found[1] + " " * len("{None}|"), text)
    return re.sub(r"\(default:(\s+(?:│\n│\s+)?)(None)?\)", lambda found: re.sub(r"[^\s│]", " ", found[0]), text)
