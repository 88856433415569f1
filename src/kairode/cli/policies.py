"""`kairode rounds`, `evaluate` and `schedule`: what else there is to do with a policy."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from kairode.cli.common import Environment, Quiet, fields_of, number, print_json
from kairode.cli.run import run as main_job
from kairode.config.options import ControlOptions, NamedOptions
from kairode.errors import KairodeError


def rounds(
    env: Environment = "hiv",
    first: int = 20,
    each: int = 5,
    rounds: int = 12,
    sample_intervals: bool = True,
    seed: int = 0,
    out: Path | None = None,
    setting: str = "ours",
    set: tuple[str, ...] = (),
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
        sample_intervals: draw imagined intervals from the distribution that the models' timers predict, rather than
            take the most likely one.
        seed: fixes everything random.
        out: folder of the run; runs/rounds-ENV-seedS by default.
        setting: of the environment: ours, or paper for the fields of the runs behind the paper's numbers.
        set: fields of the environment, such as horizon=500.
        quiet: no lines, no closing sentence.
    """
    from kairode.algorithms.dyna import DynaConfig, dyna_dqn, run_dyna
    from kairode.report.events import run_watch
    from kairode.report.progress import display

    config = DynaConfig(
        env=env,
        first=first,
        each=each,
        rounds=rounds,
        sample_intervals=sample_intervals,
        seed=seed,
        dqn=dyna_dqn(env),
        setting=setting,
        fields=fields_of(set),
    )
    folder = out or Path("runs") / f"rounds-{env}-seed{seed}"
    if not quiet:
        print(f"{rounds} rounds in {folder}; each collects, refits and learns on, for a minute or two.", flush=True)
    with display(quiet) as show:
        watch = run_watch(show)
        made = run_dyna(
            config,
            folder,
            lambda found: watch.said(
                f"round {found.number}: {found.real_episodes} real episodes; model error {found.model_error:.3g}; "
                f"{found.tested}"
            ),
            watch,
        )
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
        run: folder that `kairode run` or `kairode rounds` wrote; of a run with controls and several seeds the best is
            tested.
        schedule: a fixed interval in place of the schedule it was learned for; several are taken in order. `chosen`
            tests the policy that `kairode schedule RUN` left, at the times that it chooses without a price, every
            finest step counted.
        episodes: how many.
        accrue: count the reward on every finest step, not at decisions alone.
        seed: fixes everything random.
        json: print figures as JSON, nothing else.
    """
    from kairode.runs.evaluate import evaluate_run

    timing: Any = "chosen" if schedule == ("chosen",) else tuple(map(number, schedule))
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
    tolerance: float | None = None,
    oracle: bool = False,
    imagined: int | None = None,
    revisits: int | None = None,
    episodes: int = 20,
    seed: int = 0,
    learning_seed: int | None = None,
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
            fitted first (as `kairode run ENV --model-free 0 --visits 0` does).
        price: of a visit, in the unit of the reward; several for a curve. 0 by default.
        budget: visits in an episode; several for a curve.
        candidates: intervals to choose among, ascending (candidates, --imagined and --revisits that are not given are
            those of the run's own visits, if it has chosen some); with --continuous the least and the most.
        continuous: choose among all intervals between the least and the most.
        quantile: wait only as long as this quantile of the models finds good; their mean by default.
        tolerance: share of the rewards that may be lost in exchange for fewer visits; by default that of
            the run (0 on HIV, otherwise 0.02). 0 chooses the best interval, however small its lead.
        oracle: let the true dynamics choose in place of the models.
        imagined: episodes of practice in imagination; by default what belongs to the environment.
        revisits: how often a few real episodes are collected at the visits that the models choose, and the models
            refitted (after rounds alone).
        episodes: of the test.
        seed: of the test's episodes.
        learning_seed: of learning the policy; by default the seed of the run.
        json: print figures as JSON, nothing else.
        quiet: no progress bar, no table.
    """
    from kairode.report.course import draw_course
    from kairode.report.events import run_watch
    from kairode.report.progress import display
    from kairode.report.schedule import draw_schedule, print_schedule
    from kairode.runs.course import course
    from kairode.runs.schedule import PRACTICE, ScheduleConfig, run_schedule

    config = ScheduleConfig(
        prices=tuple(dict.fromkeys(price)) or (() if budget else (0.0,)),
        budgets=tuple(dict.fromkeys(budget)),
        taus=candidates,
        continuous=continuous,
        quantile=quantile,
        tolerance=tolerance,
        oracle=oracle,
        imagined=imagined,
        revisits=revisits,
        episodes=episodes,
        seed=seed,
        learning_seed=learning_seed,
    )
    still = quiet or json
    run = _folder_of(run, config, still)
    folder = run / "schedule"
    with display(still) as show:
        watch = run_watch(show)
        made, source, found = run_schedule(
            run,
            config,
            callback=lambda report: watch.practice(PRACTICE, report),
            said=watch.stage,
            ended=watch.said,
            fitting=watch.fitting,
        )
        watch.stage("drawing return against visits")
        spec = source.env.task.spec
        draw_schedule(made, spec, folder / "schedule.svg")
        title = f"One episode of '{spec.name}' at chosen times ({list(made['figures']['intervals'])[-1]})"
        last = list(found.values())[-1][0]
        draw_course(course(source.env, last, source.models[0]), folder / "patient.svg", title)
    if json:
        print_json(made["figures"])
    elif not quiet:
        print_schedule(made, spec)
        print(f"Return against visits: {folder / 'schedule.svg'}. One episode: {folder / 'patient.svg'}.")


def _folder_of(run: Path, config: Any, quiet: bool) -> Path:
    """The folder of a run; for the name of an environment that of a main job, done first where there is none."""
    from kairode.config.run import usual
    from kairode.envs.core import Discrete
    from kairode.envs.zoo import ENVIRONMENTS, make
    from kairode.runs.schedule import check_schedule_config

    if run.exists():
        return run
    name = str(run)
    if name not in ENVIRONMENTS:
        raise KairodeError(
            f"there is no folder {run}, and no environment of that name: give a folder of `kairode run` or `kairode "
            f"rounds`, or one of {', '.join(ENVIRONMENTS)}."
        )
    spec = make(name).task.spec
    if not isinstance(spec.actions, Discrete):
        raise KairodeError(
            f"intervals are chosen by the values of named actions so far; those of '{name}' are controls."
        )
    check_schedule_config(config, spec)
    if config.revisits and not usual(name).rounds:
        raise KairodeError(f"--revisits goes on from rounds, and the main job of '{name}' takes none: leave it out.")
    whole, bare = (Path("runs") / f"{name}-latent-ode-{kind}seed0" for kind in ("", "visits-"))
    if (whole / "record.json").exists():
        return whole
    if not (bare / "record.json").exists():  # a main job of its own, without what is not needed here
        main_job(NamedOptions(model_free=0, visits=0), ControlOptions(), env=name, out=bare, quiet=quiet)
    return bare
