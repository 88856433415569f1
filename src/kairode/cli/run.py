"""`kairode run`: the main job, from a system to a policy tested on it, and a page that says what came out."""

import dataclasses
from pathlib import Path
from typing import Any

from tyro.conf import OmitArgPrefixes

from kairode.cli.common import Environment, Quiet, fields_of
from kairode.config.options import ControlOptions, NamedOptions
from kairode.errors import KairodeError


def run(
    named: OmitArgPrefixes[NamedOptions],
    control: OmitArgPrefixes[ControlOptions],
    env: Environment = "hiv",
    model: str = "latent-ode",
    paper: bool = False,
    seed: int = 0,
    out: Path | None = None,
    setting: str = "ours",
    set: tuple[str, ...] = (),
    quiet: Quiet = False,
) -> None:
    """Do the main job: from a system to a policy, tested on it, and a page that shows what came out.

    Named actions (gridworld, acrobot, hiv, hiv-partial): collect experience, fit models, learn a policy in their
    imagination, test it on the real system beside random, constant and model-free policies, choose visit times. On HIV
    the policy takes turns with the models: it collects a few more episodes, they are refitted, it learns on.

    Controls (pendulum, swimmer, hopper, half-cheetah): take turns between fitting a model and acting by planning in it
    (MPC with an actor-critic).

    Stopped at any moment, the same command goes on from there. The last line says where the page is.

    Example: kairode run hiv

    Example: kairode run hiv-partial --latent

    Example: kairode run acrobot --schedule 0.4 --seed 1

    Example: kairode run pendulum

    Example: kairode run hopper --model free --seeds 3

    Args:
        named: for systems with named actions (gridworld, acrobot, hiv, hiv-partial).
        control: for systems with controls (pendulum, swimmer, hopper, half-cheetah).
        env: name of the environment (see `kairode envs`).
        model: rnn, dt-rnn, decay-rnn, latent-rnn, ode-rnn, latent-ode or variational-ode-rnn; for controls also free,
            which plans nothing and follows its actor.
        paper: the paper's protocol in full: 1000 random episodes, one model, its practice and its settings (visit times
            are chosen in ours); hours.
        seed: fixes everything random.
        out: folder of the run; runs/ENV-MODEL-seedS by default.
        setting: of the environment: ours, or paper for the fields of the runs behind the paper's numbers.
        set: fields of the environment, such as horizon=500.
        quiet: no progress bar, no sentences.
    """
    import kairode
    from kairode.envs.core import Discrete

    fields = fields_of(set)
    environment = kairode.make(env, setting=setting, **fields)
    both = {"seed": seed, "setting": "paper" if paper else setting, "fields": fields}
    mine, other = _given(named), _given(control)
    if isinstance(environment.task.spec.actions, Discrete):
        _refuse(other, "controls", env, "named actions")
        _run_named(env, model, paper, {**mine, **both}, out, quiet)
    else:
        other |= {"rounds": mine.pop("rounds")} if "rounds" in mine else {}
        _refuse(mine, "named actions", env, "controls")
        _run_steered(env, model, environment, {**other, **both}, out, quiet)


def _given(options: Any) -> dict[str, Any]:
    """Those that were given."""
    values = dataclasses.asdict(options)
    return {name: value for name, value in values.items() if value not in (None, ()) and value is not False}


def _refuse(given: dict[str, Any], kind: str, env: str, has: str) -> None:
    for name in given:
        raise KairodeError(f"--{name.replace('_', '-')} is for systems with {kind}; '{env}' has {has}.")


def _run_named(env: str, model: str, paper: bool, options: dict[str, Any], out: Path | None, quiet: bool) -> None:
    """Collect, fit, learn in imagination, test, choose visits, write the page."""
    from kairode.config.run import usual
    from kairode.models.zoo import check_model
    from kairode.report.events import run_watch
    from kairode.report.progress import display
    from kairode.report.run_page import write_run_page
    from kairode.report.runs import print_run
    from kairode.runs.pipeline import run_pipeline

    check_model(model)
    latent, schedule = options.get("latent", False), options.get("schedule")
    if options.get("visits") == 0:
        if options.get("revisits"):
            raise KairodeError("--revisits goes with visits, and --visits 0 chooses none: leave one of them out.")
        options["revisits"] = 0
    changed = {{"price": "prices"}.get(name, name): value for name, value in options.items()}
    base = usual(env, latent=latent, schedule=schedule, paper=paper, rounds=options.get("rounds"))
    config = dataclasses.replace(base, model=model, **changed)
    kind = f"{'-sees-z' * latent}{f'-every{schedule:g}' if schedule else ''}"
    kind += "-paper" * (config.setting == "paper")
    folder = out or Path("runs") / f"{env}-{model}{kind}-seed{config.seed}"
    with display(quiet) as show:
        watch = run_watch(show)
        made = run_pipeline(config, folder, watch)
        watch.stage("writing the page")
        page = write_run_page(folder)
    if not quiet:
        print_run(made)
        print(f"The page of this run: {page}")


def _run_steered(
    env: str, model: str, environment: Any, options: dict[str, Any], out: Path | None, quiet: bool
) -> None:
    """Take turns between fitting and planning, test, film."""
    from kairode.algorithms.mpc import run_mpc
    from kairode.callbacks import Progress
    from kairode.config.mpc import with_options
    from kairode.report.events import control_events
    from kairode.report.figures import save_figure
    from kairode.report.mpc import mpc_learning_figure, print_control
    from kairode.report.progress import display
    from kairode.report.run_page import write_run_page
    from kairode.report.video import save_video
    from kairode.runs.mpc import load_policies

    config = with_options(env, model, **options)
    kind = f"-{config.agent.kind}" * (config.agent.kind != "ddpg")
    kind += "-paper" if config.setting == "paper" else "-places" * (not config.changes)
    many = f"-{config.seeds}" * (config.seeds > 1)
    folder = out or Path("runs") / f"{env}-{model}{kind}-seed{config.seed}{many}"
    with display(quiet) as show:
        made = run_mpc(config, folder, control_events(f"{env}, {model}", show))
        show(Progress("drawing the learning curve and a film", 0, None, {}, 0.0))
        save_figure(mpc_learning_figure({f"{env}, {model}": made}), folder / "learning.svg")
        page = write_run_page(folder)
        shown = save_video(environment, load_policies(folder), made, folder / "film.gif")
    if not quiet:
        print_control(made, environment.task.spec)
        print(f"Policies and record: {folder}. Learning curve: {folder / 'learning.svg'}.{shown}")
        print(f"Test it again: kairode evaluate {folder} --episodes 20")
        print(f"The page of this run: {page}")
