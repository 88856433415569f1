"""The command. Each subcommand is a function; what it needs is imported when it runs."""

import ast
import contextlib
import hashlib
import math
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

from kairode._version import __version__
from kairode.errors import KairodeError, Stopped
from kairode.experiments.options import FitOptions

Environment = Annotated[Positional[str], arg(metavar="ENV")]
Quiet = Annotated[bool, arg(aliases=["-q"])]


def envs(name: Positional[str | None] = None) -> None:
    """Show the environments; with a name, one of them and all its fields.

    Example: kairode envs hiv

    Args:
        name: name of an environment.
    """
    from kairode.report.environments import list_environments, show_environment

    if name is None:
        list_environments()
    else:
        show_environment(name)


def collect(
    env: Environment,
    out: Path,
    episodes: int = 1000,
    seed: int = 0,
    schedule: tuple[float, ...] = (),
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
        schedule: a fixed interval, in the environment's unit of time, in place of its own schedule; several are
            taken in order.
        setting: ours, or paper for the fields of the runs behind the paper's numbers.
        set: fields of the environment as Python writes them, such as noise=0.05 intervals=[1,3] substep=inf.
        quiet: no progress bar, no closing sentence.
    """
    import kairode
    from kairode.data.files import check_target

    environment = kairode.make(env, setting=setting, **_fields(set))
    check_target(out)
    with _progress(f"collecting {env}", episodes, quiet) as advance:
        trajectory = kairode.collect(
            environment, episodes=episodes, seed=seed, schedule=schedule or None, progress=advance
        )
    kairode.write(out, trajectory)
    if not quiet:
        print(f"{episodes:,} episodes, {trajectory.decisions:,} decisions of '{env}' are in {out}.")


def run(
    env: Environment = "hiv",
    model: str = "latent-ode",
    episodes: int = 1000,
    iterations: int = 12_000,
    fits: int = 3,
    imagined: int | None = None,
    model_free: int | None = None,
    latent: bool = False,
    schedule: float | None = None,
    seed: int = 0,
    out: Path | None = None,
    setting: str = "ours",
    set: tuple[str, ...] = (),
    quiet: Quiet = False,
) -> None:
    """Do the main job: collect, fit models, learn a policy in imagination, test it on the real system.

    The test stands beside random actions and a model-free policy. Stopped at any moment, the same command goes on from
    the last checkpoint. For a system with controls in place of named actions, experience is collected, no more.

    Example: kairode run hiv

    Example: kairode run hiv-partial --latent

    Args:
        env: name of the environment (see `kairode envs`).
        model: rnn, dt-rnn, decay-rnn, latent-rnn, ode-rnn, latent-ode or variational-ode-rnn.
        episodes: real episodes under random actions, which the models are fitted to.
        iterations: of fitting.
        fits: how many models; from three on, the last judges what the policy learns in the others.
        imagined: episodes of practice in imagination; by default what belongs to the environment.
        model_free: episodes of practice of the model-free policy on the real system; 0 for none.
        latent: let the policy see the latent state of the first model too.
        schedule: learn and test on this fixed interval rather than the environment's own schedule.
        seed: fixes everything random.
        out: folder of the run; runs/ENV-MODEL-seedS by default.
        setting: of the environment: ours, or paper for the fields of the runs behind the paper's numbers.
        set: fields of the environment, such as horizon=500.
        quiet: no progress bar, no closing sentences.
    """
    import kairode
    from kairode.envs.core import Discrete
    from kairode.models.zoo import check_model

    fields = _fields(set)
    environment = kairode.make(env, setting=setting, **fields)
    check_model(model)
    if not isinstance(environment.task.spec.actions, Discrete):
        _only_collect(env, environment, episodes, seed, out, fields, quiet)
        return
    from kairode.experiments.pipeline import Run, Watch, defaults
    from kairode.experiments.pipeline import run as run_pipeline
    from kairode.report.course import draw_course
    from kairode.report.policies import draw_run, print_run, watching_practice
    from kairode.report.watch import bars_with_figures, watching

    usual = defaults(env, latent)
    config = Run(
        env=env,
        model=model,
        episodes=episodes,
        iterations=iterations,
        fits=fits,
        imagined=usual["imagined"] if imagined is None else imagined,
        model_free=usual["model_free"] if model_free is None else model_free,
        latent=latent,
        schedule=schedule,
        seed=seed,
        setting=setting,
        fields=fields,
    )
    kind = f"{'-sees-z' * latent}{f'-every{schedule:g}' if schedule else ''}{'-paper' * (setting == 'paper')}"
    folder = out or Path("runs") / f"{env}-{model}{kind}-seed{seed}"
    with (
        bars_with_figures(quiet) as bars,
        watching_practice(quiet, bars) as practice,
        watching(f"fitting {fits} {model}", None, quiet, bars) as (fitting, collecting),
    ):
        data, made = run_pipeline(config, folder, Watch(fitting, collecting, practice))
    draw_course(environment, data[0], folder / "course.svg", f"{env}: one episode under random actions")
    draw_run(made, data.spec, folder / "learning.svg")
    if not quiet:
        print_run(made, environment.task.spec)
        print(f"Policy, models, experience and record: {folder}. Learning curves: {folder / 'learning.svg'}.")
        intervals = data.spec.intervals
        middle = intervals.low + intervals.step * round((intervals.high - intervals.low) / (2 * intervals.step or 1))
        print(f"On another schedule: kairode evaluate {folder} --schedule {middle:g}")


def _only_collect(
    env: str, environment: Any, episodes: int, seed: int, out: Path | None, fields: dict[str, Any], quiet: bool
) -> None:
    """What there is for systems with controls: experience and a picture of it."""
    from kairode.experiments.gather import Gather, gather
    from kairode.report.course import draw_course

    folder = out or Path("runs") / f"{env}-seed{seed}"
    with _progress(f"collecting {env}", episodes, quiet) as advance:
        trajectory, made = gather(Gather(env, episodes, seed, fields), folder, advance)
    picture, figures = folder / "course.svg", made["figures"]
    title = f"{env}: one episode under random actions, {int(trajectory.length[0])} decisions"
    draw_course(environment, trajectory[0], picture, title)
    if not quiet:
        print(
            f"Collected {figures['episodes']:,} episode{'s' * (episodes > 1)} of '{env}' with "
            f"{figures['decisions']:,} decisions in {made['seconds']:.1f} s; random actions return "
            f"{figures['return_mean']:.4g} an episode. Policies for controls are not there yet."
        )
        print(f"Experience: {folder / 'experience.parquet'}. One course, with its decision times: {picture}.")


def rounds(
    env: Environment = "hiv",
    first: int = 20,
    each: int = 5,
    rounds: int = 12,
    seed: int = 0,
    out: Path | None = None,
    quiet: Quiet = False,
) -> None:
    """Take turns: collect with the current policy, refit the models, learn on in imagination.

    Every real episode is counted. A round takes a minute or two on two cores.

    Example: kairode rounds hiv

    Args:
        env: name of the environment (see `kairode envs`).
        first: real episodes under random actions, before the first round.
        each: real episodes under the policy, in each round.
        rounds: how many, after a first fit to the random episodes (round 0). More of them go on from where fewer ended.
        seed: fixes everything random.
        out: folder of the run; runs/rounds-ENV-seedS by default.
        quiet: no lines, no closing sentence.
    """
    import dataclasses

    from kairode.experiments.learning import policy_preset
    from kairode.experiments.rounds import Round, Rounds, run_rounds

    def tell(found: Round) -> None:
        if not quiet:
            print(
                f"round {found.number}: {found.real_episodes} real episodes; model error {found.model_error:.3g}; "
                f"{found.tested}",
                flush=True,
            )

    settings = dataclasses.replace(policy_preset(env).dqn, target_every=100)
    config = Rounds(env=env, first=first, each=each, rounds=rounds, seed=seed, dqn=settings)
    folder = out or Path("runs") / f"rounds-{env}-seed{seed}"
    if not quiet:
        print(f"{rounds} rounds in {folder}; each collects, refits and learns on, for a minute or two.", flush=True)
    made = run_rounds(config, folder, tell)
    if not quiet:
        test = made["figures"]["test"]
        print(
            f"After {made['figures']['rounds'][-1]['real_episodes']} real episodes the policy returns "
            f"{test['return']:.4g} ({test['return_low']:.4g} to {test['return_high']:.4g}, 95 %). Policy and record: "
            f"{folder}."
        )


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    schedule: tuple[str, ...] = (),
    episodes: int = 100,
    accrue: bool = False,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Test the policy of a run on the real system, on its schedule or any other.

    A reward is counted at every decision; with --accrue on every finest step up to the same horizon (each day of HIV),
    so that schedules can be compared.

    Example: kairode evaluate runs/hiv-latent-ode-seed0 --schedule 5

    Args:
        run: folder that `kairode run` or `kairode rounds` wrote.
        schedule: a fixed interval in place of the schedule it was learned for; several are taken in order. `chosen`
            tests the policy that `kairode schedule RUN` left, at the times that it chooses without a price, every
            finest step counted.
        episodes: how many.
        seed: fixes everything random.
        json: print figures as JSON, nothing else.
    """
    from kairode.experiments.pipeline import evaluate_run

    timing: Any = "chosen" if schedule == ("chosen",) else tuple(map(_number, schedule))
    timing = timing[0] if len(timing) == 1 else (timing or None)
    about, found = evaluate_run(run, schedule=timing, episodes=episodes, accrue=accrue or None, seed=seed)
    if json:
        import json as text

        print(text.dumps(found.figures(), indent=1))
        return
    given = about["schedule"]
    if given == "chosen":
        print(f"{about['env']}, at the times that were chosen, every {found.time_unit} counted: {found}.")
        return
    taus = given if isinstance(given, tuple | list) else [given]
    when = "its own schedule" if given is None else f"a decision every {', '.join(f'{tau:g}' for tau in taus)}"
    print(f"{about['env']}, {when}{'' if given is None else f' {found.time_unit}s'}: {found}.")


def schedule(
    run: Annotated[Positional[Path], arg(metavar="RUN|ENV")],
    price: tuple[float, ...] = (),
    budget: tuple[int, ...] = (),
    candidates: tuple[float, ...] = (),
    continuous: bool = False,
    quantile: float | None = None,
    oracle: bool = False,
    imagined: int | None = None,
    episodes: int = 20,
    seed: int = 0,
    json: bool = False,
    quiet: Quiet = False,
) -> None:
    """Let the models of a run choose when to look again: fewer visits at the same health.

    The first time (and for other candidates) a policy is learned in the models' imagination under the schedule that it
    chooses itself, with rewards on every finest step (each day of HIV); this takes some minutes. Then its intervals are
    chosen for the price or the budget given and tested on the real system, beside every fixed interval and the
    environment's own schedule.

    Example: kairode schedule runs/rounds-hiv-seed0 --price 0 1e6 1e7

    Example: kairode schedule runs/rounds-hiv-seed0 --budget 100

    Example: kairode schedule acrobot

    Args:
        run: folder that `kairode run` or `kairode rounds` wrote; or the name of an environment, whose models are then
            fitted first (as `kairode run ENV --model-free 0` does).
        price: of a visit, in the unit of the reward; several for a curve. 0 by default.
        budget: visits in an episode; several for a curve.
        candidates: intervals to choose among, ascending; with --continuous the least and the most.
        continuous: choose among all intervals between the least and the most.
        quantile: wait only as long as this quantile of the models finds good; their mean by default.
        oracle: let the true dynamics choose in place of the models.
        imagined: episodes of practice in imagination; by default what belongs to the environment.
        episodes: of the test.
        seed: of the test's episodes.
        json: print figures as JSON, nothing else.
        quiet: no progress bar, no table.
    """
    from kairode.envs.core import Discrete
    from kairode.envs.zoo import ENVIRONMENTS, make
    from kairode.experiments.scheduling import Wish, run_schedule
    from kairode.report.course import draw_course
    from kairode.report.policies import watching_practice
    from kairode.report.visits import draw_schedule, print_schedule

    wish = Wish(
        prices=tuple(dict.fromkeys(price)) or (() if budget else (0.0,)),
        budgets=tuple(dict.fromkeys(budget)),
        taus=candidates,
        continuous=continuous,
        quantile=quantile,
        oracle=oracle,
        imagined=imagined,
        episodes=episodes,
        seed=seed,
    )
    still = quiet or json
    if not run.exists() and str(run) in ENVIRONMENTS:
        name, run = str(run), Path("runs") / f"{run}-latent-ode-seed0"
        if not isinstance(make(name).task.spec.actions, Discrete):
            raise KairodeError(
                f"intervals are chosen by the values of named actions so far; those of '{name}' are controls."
            )
        if not (run / "record.json").exists():  # begun or not: the main job goes on where it was
            _main_job(env=name, model_free=0, out=run, quiet=still)
    if not run.exists():
        raise KairodeError(
            f"there is no folder {run}, and no environment of that name: give a folder of `kairode run` or `kairode "
            f"rounds`, or one of {', '.join(ENVIRONMENTS)}."
        )
    with watching_practice(still) as tell:
        made, source, found = run_schedule(
            run,
            wish,
            tell=lambda report: tell("learning when to look again", report),
            said=lambda text: print(text, flush=True) if text and not still else None,
        )
    spec = source.env.task.spec
    folder = run / "schedule"
    draw_schedule(made, spec, folder / "schedule.svg")
    title = f"One episode of '{spec.name}' at chosen times ({list(made['figures']['intervals'])[-1]})"
    draw_course(source.env, found[0], folder / "patient.svg", title, source.models[0])
    if json:
        _print_json(made["figures"])
    elif not quiet:
        print_schedule(made, spec)
        print(f"Return against visits: {folder / 'schedule.svg'}. One episode: {folder / 'patient.svg'}.")


def fit(
    source: Annotated[Positional[str], arg(metavar="ENV|FILE.parquet")],
    options: Annotated[FitOptions, arg(name="")],
    model: str = "latent-ode",
    seeds: int = 1,
    seed: int = 0,
    data_seed: int = 0,
    out: Path | None = None,
    setting: str = "ours",
    set: tuple[str, ...] = (),
    tensorboard: bool = False,
    quiet: Quiet = False,
) -> None:
    """Fit a dynamics model to experience and judge it on episodes it has not seen.

    The experience is collected from an environment under a random policy, or read from a Parquet file (of which a
    tenth is kept for validation and a tenth for the test). Stopped at any moment, the same command goes on from the
    last checkpoint. Options that are not given take the values that belong to the environment; config.json of the run
    has them all.

    Example: kairode fit hiv --model latent-ode --seeds 5

    Example: kairode fit visits.parquet --iterations 3000

    Args:
        source: name of an environment (see `kairode envs`), or a file of experience.
        options: what differs from the settings that belong to the environment.
        model: rnn, dt-rnn, decay-rnn, latent-rnn, ode-rnn, latent-ode or variational-ode-rnn.
        seeds: how many models to fit, together.
        seed: the first of their seeds.
        data_seed: fixes the experience, or how a file is split.
        out: folder of the run; runs/fit-SOURCE-MODEL-.. by default.
        setting: of the environment: ours, or paper for the fields of the runs behind the paper's numbers.
        set: fields of the environment, such as max_decisions=50.
        tensorboard: also write what TensorBoard shows (needs the extra tensorboard).
        quiet: no progress bar, no table.
    """
    from kairode.experiments.fitting import is_file, plan, run_fit
    from kairode.experiments.presets import changed, preset
    from kairode.report.fits import draw_predictions, print_fit
    from kairode.report.watch import watching

    if is_file(source) and not (options.episodes is options.valid is options.test is None):
        raise KairodeError(f"--episodes, --valid and --test say what to collect, and {source} is a file.")
    config = plan(
        source,
        model,
        changed(preset(source), options),
        seeds=seeds,
        seed=seed,
        data_seed=data_seed,
        setting=setting,
        fields=_fields(set),
    )
    folder = out or Path("runs") / f"fit-{Path(source).stem}-{model}-seed{seed}{f'-{seeds}' if seeds > 1 else ''}"
    with watching(f"{model} on {Path(source).stem}", folder if tensorboard else None, quiet) as (tell, collected):
        fitted, data, made = run_fit(config, folder, tell=tell, collected=collected)
    picture = folder / "predictions.svg"
    draw_predictions(config, fitted.models[0], data.test, picture)
    if not quiet:
        print_fit(made, data.test.spec)
        print(f"Models, curves and record: {folder}. Predicted and true courses: {picture}.")


def reproduce(
    what: Positional[str] = "table1",
    rows: tuple[str, ...] = (),
    models: tuple[str, ...] = (),
    studies: tuple[str, ...] = (),
    seeds: int = 5,
    results: Path = Path("results"),
    runs: Path = Path("runs"),
    out: Path | None = None,
    workers: int | None = None,
    run: bool = False,
    again: bool = False,
    json: bool = False,
    quiet: Quiet = False,
) -> None:
    """Print a table of the paper, ours beside the published numbers, or draw a figure.

    What table1 has no record of is run first. The tables of returns say what they have no record of; `--run` runs it,
    which takes hours on a CPU.

    Example: kairode reproduce table2a

    Example: kairode reproduce figure-curves --out curves.svg

    Args:
        what: table1 (state prediction errors), table2a, table2b, table3, table4 (returns), figure-values,
            figure-curves, figure-pomdp, figure-rounds or figure-schedule (return against visits).
        rows: rows of table1: gridworld, acrobot, hiv, hiv-whole by default; also gridworld-still (no noise),
            acrobot-fine (integrated finely), hiv-partial, and gridworld-cooled, acrobot-cooled, hiv-cooled,
            hiv-whole-cooled (fitted with a cooldown).
        models: of table1, only these; the paper's six by default.
        studies: of the tables of returns and of figure-schedule, only run these (named as their records).
        seeds: of table1, how many of each.
        results: folder of the records.
        runs: folder of the runs that make missing ones.
        out: file of a figure.
        workers: how many fits side by side; one for each core by default.
        run: run what a table of returns has no record of.
        again: run everything anew, whatever records there are.
        json: print figures as JSON, nothing else.
        quiet: no progress bar.
    """
    from kairode.errors import unknown
    from kairode.experiments import returns
    from kairode.report.policies import FIGURES

    if not results.is_dir() and not (run or again or what == "table1"):
        raise KairodeError(f"there is no folder {results} with records: give --results, in a clone it is results/.")
    if what == VISITS:
        _visits(studies, results / "visits", runs, out, run, again, quiet)
    elif what in FIGURES:
        path = out or Path(f"{what}.svg")
        FIGURES[what](results / "policies", path)
        print(f"Drawn from the records in {results / 'policies'}: {path}.")
    elif what in returns.TABLES:
        _returns(what, studies, results / "policies", runs, workers, run, again, json, quiet)
    elif what == "table1":
        _table1(rows, models, seeds, results / "table1", runs / "table1", workers, again, json, quiet)
    else:
        raise unknown("table or figure", what, ("table1", *returns.TABLES, *FIGURES, VISITS))


VISITS = "figure-schedule"


def _visits(
    studies: tuple[str, ...],
    results: Path,
    runs: Path,
    out: Path | None,
    run: bool,
    again: bool,
    quiet: bool,
) -> None:
    from kairode.experiments import visits
    from kairode.report.policies import watching_practice
    from kairode.report.visits import draw_visits, print_visits

    with watching_practice(quiet) as tell:
        missing = visits.reproduce(results=results, runs=runs, run=run, again=again, only=studies, tell=tell)
    path = out or Path(f"{VISITS}.svg")
    draw_visits(results, path)
    if not quiet:
        print_visits(results, missing)
    print(f"Drawn from the records in {results}: {path}.")


def _table1(
    rows: tuple[str, ...],
    models: tuple[str, ...],
    seeds: int,
    results: Path,
    runs: Path,
    workers: int | None,
    again: bool,
    json: bool,
    quiet: bool,
) -> None:
    from kairode.errors import unknown
    from kairode.experiments import table1
    from kairode.models.zoo import PAPER_MODELS, check_model
    from kairode.report.tables import print_table1

    for row in rows:
        if row not in table1.ROWS:
            raise unknown("row", row, table1.ROWS, where="of table1")
    with _counted("fits", quiet) as tell:
        found = table1.reproduce(
            rows or table1.USUAL,
            tuple(map(check_model, models)) or PAPER_MODELS,
            seeds,
            runs=runs,
            results=results,
            workers=workers,
            again=again,
            tell=tell,
        )
    if json:
        _print_json(found)
    else:
        print_table1(found, results)


def _returns(
    what: str,
    studies: tuple[str, ...],
    results: Path,
    runs: Path,
    workers: int | None,
    run: bool,
    again: bool,
    json: bool,
    quiet: bool,
) -> None:
    from kairode.experiments import returns
    from kairode.report.policies import print_returns, watching_practice

    with watching_practice(quiet) as tell:
        found, missing = returns.reproduce(
            what, results=results, runs=runs, run=run, again=again, only=studies, workers=workers, tell=tell
        )
    if json:
        _print_json(found)
    else:
        print_returns(what, found, missing, results)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise KairodeError(f"a schedule is given as intervals, such as 5, or as 'chosen', got '{word}'.") from error


def _print_json(found: Any) -> None:
    import json

    print(json.dumps(found, indent=1))


def bench(name: Positional[str] = "envs", json: bool = False, save: Path | None = None) -> None:
    """Measure speed beside other implementations, side by side in one run (in a checkout of the repository).

    Args:
        name: what to measure: envs (decisions a second), fit (milliseconds per training iteration), fit_profile (where
            those go), policy (decisions a second of learning), schedule (choosing the next visit) or simulators (error
            and time by step size).
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


_main_job = run
WORDS = {"inf": math.inf, "Infinity": math.inf, "null": None, "true": True, "false": False}
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "envs": envs,
    "collect": collect,
    "fit": fit,
    "rounds": rounds,
    "evaluate": evaluate,
    "schedule": schedule,
    "reproduce": reproduce,
    "bench": bench,
}


def main() -> None:
    """Run a subcommand; bad input ends in one sentence and code 2."""
    _compile_once()
    if sys.argv[1:] == ["--version"]:
        print(f"kairode {__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="kairode", description="Model-based reinforcement learning in continuous time."
        )
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)
    except KairodeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted: nothing half-written is left behind.", file=sys.stderr)
        sys.exit(130)


def _fields(pairs: tuple[str, ...]) -> dict[str, Any]:
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


@contextlib.contextmanager
def _progress(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar with the count, the rate and the time left; none without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def _counted(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for work whose amount is known once it begins."""
    with contextlib.ExitStack() as stack:
        bars: list[Callable[[int], None]] = []

        def tell(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(_progress(what, total, quiet)))
            if done:
                bars[0](1)

        yield tell


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
