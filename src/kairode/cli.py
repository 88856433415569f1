"""The command. Each subcommand is a function; what it needs is imported when it runs."""

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from tyro.conf import Positional, arg

from kairode.errors import KairodeError

Quiet = Annotated[bool, arg(aliases=["-q"])]


def envs(name: Positional[str | None] = None) -> None:
    """Show the environments; with a name, one of them and all its fields.

    Example: kairode envs hiv

    Args:
        name: name of an environment.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from kairode._gymnasium import IDS
    from kairode.envs import Discrete, make
    from kairode.envs.zoo import describe

    console = Console()
    if name is None:
        table = Table("name", "sees", "actions", "interval", "Gymnasium id", box=SIMPLE_HEAD, pad_edge=False)
        for gym_id, known in IDS.items():
            spec = make(known).task.spec
            actions = f"{spec.actions.n} {'named' if isinstance(spec.actions, Discrete) else 'controls'}"
            interval = f"{spec.intervals.low:g} to {spec.intervals.high:g} {spec.time_unit}s"
            table.add_row(known, f"{len(spec.observations)}", actions, interval, gym_id)
        console.print(table)
        console.print("One with its fields: kairode envs NAME. In Python: kairode.make(NAME).", highlight=False)
        return
    sentence, fields = describe(name)
    spec = make(name).task.spec
    ends = [f"after {spec.horizon:g} {spec.time_unit}s"] if spec.horizon < float("inf") else []
    ends += [f"after {spec.max_decisions} decisions"] if spec.max_decisions else []
    console.print(f"[bold]{name}[/bold]: {sentence}", highlight=False)
    about = Table(box=None, show_header=False, pad_edge=False)
    about.add_row("observed", ", ".join(f"{v.name} ({v.unit})" for v in spec.observations))
    about.add_row("actions", ", ".join(spec.actions.names))
    about.add_row("truncated", ", ".join(ends))
    about.add_row("discount", f"{spec.discount:g} per {f'{spec.tick:g} ' * (spec.tick != 1)}{spec.time_unit}")
    console.print(about, highlight=False)
    table = Table("field", "default", "meaning", box=SIMPLE_HEAD, pad_edge=False)
    for field, default, meaning in fields:
        table.add_row(field, str(default), meaning)
    console.print(table)


def collect(
    env: Positional[str],
    out: Path,
    episodes: int = 1000,
    seed: int = 0,
    schedule: float | None = None,
    setting: str = "ours",
    set: tuple[str, ...] = (),
    quiet: Quiet = False,
) -> None:
    """Collect experience under a random policy and write it to a Parquet file.

    Example: kairode collect hiv --episodes 100 --out visits.parquet --set max_decisions=50

    Args:
        env: name of the environment (see `kairode envs`).
        out: the file to write; whole or not at all.
        episodes: how many episodes.
        seed: fixes everything random.
        schedule: a fixed interval in place of the environment's own schedule.
        setting: ours, or paper for the fields of the runs behind the paper's numbers.
        set: fields of the environment, such as noise=0.05 horizon=500.
        quiet: no progress bar, no closing sentence.
    """
    import kairode

    environment = kairode.make(env, setting=setting, **_fields(set))
    with _progress(f"collecting {env}", episodes, quiet) as advance:
        trajectory = kairode.collect(environment, episodes=episodes, seed=seed, schedule=schedule, progress=advance)
    kairode.write(out, trajectory)
    if not quiet:
        print(f"{episodes:,} episodes, {trajectory.decisions:,} decisions of '{env}' are in {out}.")


def run(
    env: Positional[str] = "hiv",
    episodes: int = 1000,
    seed: int = 0,
    out: Path | None = None,
    set: tuple[str, ...] = (),
    quiet: Quiet = False,
) -> None:
    """Do the main job, as far as it goes today: collect experience under a random policy and draw one course.

    Example: kairode run hiv

    Args:
        env: name of the environment (see `kairode envs`).
        episodes: how many episodes to collect.
        seed: fixes everything random.
        out: folder of the run; runs/ENV-seedS by default.
        set: fields of the environment, such as horizon=500.
        quiet: no progress bar, no closing sentences.
    """
    import kairode
    from kairode.experiments.gather import Gather, gather
    from kairode.report.course import draw_course

    fields = _fields(set)
    environment = kairode.make(env, **fields)
    folder = out or Path("runs") / f"{env}-seed{seed}"
    with _progress(f"collecting {env}", episodes, quiet) as advance:
        trajectory, made = gather(Gather(env, episodes, seed, fields), folder, advance)
    spec, figures = trajectory.spec, made["figures"]
    picture = folder / "course.svg"
    title = f"{env}: one episode under random actions, {int(trajectory.length[0])} decisions"
    draw_course(environment, trajectory[0], picture, title)
    if quiet:
        return
    print(
        f"Collected {figures['episodes']:,} episodes of '{env}' with {figures['decisions']:,} decisions in "
        f"{made['seconds']:.1f} s, {figures['interval_min']:g} to {figures['interval_max']:g} {spec.time_unit}s apart "
        f"({figures['interval_mean']:.2g} on average)."
    )
    print(
        f"Random actions return {figures['return_mean']:.4g} an episode "
        f"(discounted {figures['discounted_return_mean']:.4g}, std {figures['discounted_return_std']:.2g}): "
        "what a learned policy will have to beat."
    )
    print(f"Experience: {folder / 'experience.parquet'}. One course, with its decision times: {picture}.")


def bench(name: Positional[str] = "envs", json: bool = False, save: Path | None = None) -> None:
    """Measure speed beside other implementations, side by side in one run (in a checkout of the repository).

    Args:
        name: what to measure: envs.
        json: print figures as JSON, nothing else.
        save: write the record to this file.
    """
    folder = Path(__file__).parents[2] / "benchmarks"
    known = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    if not known:
        raise KairodeError("the benchmarks are part of the repository, not of the package: run this in a checkout.")
    if name not in known:
        from kairode.errors import unknown

        raise unknown("benchmark", name, known)
    options = [*(["--json"] if json else []), *(["--save", str(save)] if save else [])]
    cold = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    sys.exit(subprocess.run([sys.executable, folder / f"{name}.py", *options], env=cold).returncode)


COMMANDS: dict[str, Callable[..., None]] = {"run": run, "envs": envs, "collect": collect, "bench": bench}


def main() -> None:
    """Run a subcommand; bad input ends in one sentence and code 2."""
    _compile_once()
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="kairode", description="Model-based reinforcement learning in continuous time."
        )
    except KairodeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted: nothing half-written is left behind.", file=sys.stderr)
        sys.exit(130)


def _fields(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Fields given as name=value, the value in JSON (a plain word is a word)."""
    fields = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise KairodeError(f"--set takes name=value, got '{pair}'.")
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(value)
        fields[name] = _tuples(value)
    return fields


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@contextlib.contextmanager
def _progress(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar with the count, the rate and the time left; none without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def _compile_once() -> None:
    """Keep what JAX compiled in the user's cache folder, apart for each kind of processor."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with contextlib.suppress(OSError):
        flags = platform.machine()
        if (info := Path("/proc/cpuinfo")).exists():
            flags += next((line for line in info.read_text().splitlines() if line.startswith("flags")), "")
        kind = hashlib.sha256(flags.encode()).hexdigest()[:12]
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "kairode" / f"jax-{kind}"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
        # XLA takes two hints to its own compiler for processor features and reports them as missing at every load.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
