"""`kairode run`, `rounds`, `evaluate` and `schedule`: from a system to a policy, and to its visits."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from kairode.cli.common import Environment, Quiet, fields_of, number, print_json
from kairode.errors import KairodeError


def run(
    env: Environment = "hiv",
    model: str = "latent-ode",
    episodes: int | None = None,
    iterations: int | None = None,
    fits: int | None = None,
    imagined: int | None = None,
    model_free: int | None = None,
    latent: bool = False,
    schedule: float | None = None,
    decisions: int | None = None,
    seeds: int | None = None,
    agent: str | None = None,
    sequences: int | None = None,
    rounds: int | None = None,
    noise: float | None = None,
    solver: str | None = None,
    places: bool = False,
    test: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    setting: str = "ours",
    set: tuple[str, ...] = (),
    quiet: Quiet = False,
) -> None:
    """Do the main job: from a system to a policy, tested on it.

    For named actions (gridworld, acrobot, hiv, hiv-partial): collect, fit models, learn a policy in imagination, test
    it beside random actions and a model-free policy. For controls (pendulum, swimmer, hopper, half-cheetah): take turns
    between fitting a model and acting by planning in it (MPC with an actor-critic). Stopped at any moment, the same
    command goes on from the last checkpoint.

    Example: kairode run hiv

    Example: kairode run hiv-partial --latent

    Example: kairode run pendulum

    Example: kairode run hopper --model free --seeds 3

    Args:
        env: name of the environment (see `kairode envs`).
        model: rnn, dt-rnn, decay-rnn, latent-rnn, ode-rnn, latent-ode or variational-ode-rnn; for controls also free,
            which plans nothing and follows its actor.
        episodes: named actions: real episodes under random actions, which the models are fitted to; 1000.
        iterations: named actions: of fitting; 12000.
        fits: named actions: how many models; from three on, the last judges what the policy learns in the others; 3.
        imagined: named actions: episodes of practice in imagination; what belongs to the environment.
        model_free: named actions: episodes of practice of the model-free policy on the real system; 0 for none.
        latent: named actions: let the policy see the latent state of the first model too.
        schedule: named actions: learn and test on this fixed interval rather than the environment's own schedule.
        decisions: controls: real decisions of each seed, of which the first 15000 are random (pendulum: 1000); 100000
            (free: 400000, pendulum: 10000). More of them go on from where fewer ended.
        seeds: controls: how many side by side; 1.
        agent: controls: ddpg, td3 or sac; ddpg.
        sequences: controls: how many a plan tries; 1000 (pendulum: 200).
        rounds: controls: of a plan; from two on it draws around the best of the last round (CEM); 1.
        noise: controls: how far a plan's actions lie from the actor's, as a standard deviation; 0.1 (pendulum: 0.3).
        solver: controls: of a model with an ODE, as in `kairode fit`.
        places: controls: let agent and model see where the root is, as the paper does, not how far it moved.
        test: controls: episodes of the last test, of each seed; 10.
        seed: fixes everything random.
        out: folder of the run; runs/ENV-MODEL-seedS by default.
        setting: of the environment: ours, or paper for the fields of the runs behind the paper's numbers.
        set: fields of the environment, such as horizon=500.
        quiet: no progress bar, no closing sentences.
    """
    import kairode
    from kairode.envs.core import Discrete

    fields = fields_of(set)
    environment = kairode.make(env, setting=setting, **fields)
    named = {
        "episodes": episodes,
        "iterations": iterations,
        "fits": fits,
        "imagined": imagined,
        "model_free": model_free,
        "latent": latent or None,
        "schedule": schedule,
    }
    steered = {
        "decisions": decisions,
        "seeds": seeds,
        "agent": agent,
        "sequences": sequences,
        "rounds": rounds,
        "noise": noise,
        "solver": solver,
        "places": places or None,
        "test": test,
    }
    both = {"seed": seed, "setting": setting, "fields": fields}
    discrete = isinstance(environment.task.spec.actions, Discrete)
    for name, value in (steered if discrete else named).items():
        if value is not None:
            kinds = ("controls", "named actions") if discrete else ("named actions", "controls")
            option = "--" + name.replace("_", "-")
            raise KairodeError(f"{option} is for systems with {kinds[0]}; '{env}' has {kinds[1]}.")
    if discrete:
        _run_named(env, model, environment, {**named, **both}, out, quiet)
    else:
        _run_steered(env, model, environment, {**steered, **both}, out, quiet)


def _run_named(env: str, model: str, environment: Any, options: dict[str, Any], out: Path | None, quiet: bool) -> None:
    """Collect, fit, learn in imagination, test."""
    from kairode.experiments.pipeline import Run, Watch, defaults
    from kairode.experiments.pipeline import run as run_pipeline
    from kairode.models.zoo import check_model
    from kairode.report.course import draw_course
    from kairode.report.policies import draw_run, print_run, watching_practice
    from kairode.report.watch import bars_with_figures, watching

    check_model(model)
    latent = bool(options["latent"])
    given = {name: value for name, value in options.items() if value is not None}
    config = Run(**{"env": env, "model": model, **defaults(env, latent), **given})
    kind = f"{'-sees-z' * latent}{f'-every{config.schedule:g}' if config.schedule else ''}"
    kind += "-paper" * (config.setting == "paper")
    folder = out or Path("runs") / f"{env}-{model}{kind}-seed{config.seed}"
    with (
        bars_with_figures(quiet) as bars,
        watching_practice(quiet, bars) as practice,
        watching(f"fitting {config.fits} {model}", None, quiet, bars) as (fitting, collecting),
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


def _run_steered(
    env: str, model: str, environment: Any, options: dict[str, Any], out: Path | None, quiet: bool
) -> None:
    """Take turns between fitting and planning, test, film."""
    from kairode.experiments.control import run_control, with_options
    from kairode.experiments.pilots import load_policies
    from kairode.report.control import draw_learning, print_control, watching_control
    from kairode.report.film import film

    config = with_options(env, model, **options)
    kind = f"-{config.agent.kind}" * (config.agent.kind != "ddpg")
    kind += "-paper" if config.setting == "paper" else "-places" * (not config.changes)
    many = f"-{config.seeds}" * (config.seeds > 1)
    folder = out or Path("runs") / f"{env}-{model}{kind}-seed{config.seed}{many}"
    with watching_control(f"{env}, {model}", quiet) as tell:
        made = run_control(config, folder, tell)
    draw_learning({f"{env}, {model}": made}, folder / "learning.svg")
    shown = film(environment, load_policies(folder), made, folder / "film.gif")
    if not quiet:
        print_control(made, environment.task.spec)
        print(f"Policies and record: {folder}. Learning curve: {folder / 'learning.svg'}.{shown}")
        print(f"Test it again: kairode evaluate {folder} --episodes 20")


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
    from kairode.experiments.pipeline import evaluate_run

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
            main_job(env=name, model_free=0, out=run, quiet=still)
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
        print_json(made["figures"])
    elif not quiet:
        print_schedule(made, spec)
        print(f"Return against visits: {folder / 'schedule.svg'}. One episode: {folder / 'patient.svg'}.")


main_job = run
