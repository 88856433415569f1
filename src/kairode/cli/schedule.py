"""`kairode schedule`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from kairode.cli.common import Quiet, loading, print_json
from kairode.config.algorithms import ScheduleConfig
from kairode.config.presets import run_preset
from kairode.errors import KairodeError
from kairode.text import say


def schedule_command(
    run: Annotated[Positional[Path], arg(metavar="RUN|ENV")],
    config: Annotated[ScheduleConfig, tyro.conf.arg(name="")] = ScheduleConfig(),  # noqa: B008
    json: bool = False,
    quiet: Quiet = False,
) -> None:
    """Let the models of a run choose decision times: fewer decisions at the same return.

    The first time (and for other candidates) a policy is learned in the models' imagination, with rewards on every
    finest time step (each day of HIV); this takes some minutes. With a tolerance of 0 it is learned under the schedule
    that its own values choose, otherwise under the environment's own schedule in calibrated models. Then intervals are
    chosen for the prices or budgets given and tested on the real system, beside every fixed interval and the
    environment's own schedule.

    Example: kairode schedule runs/dyna-hiv-seed0 --prices 0 1e6 1e7

    Example: kairode schedule runs/dyna-hiv-seed0 --budgets 100

    Example: kairode schedule acrobot

    Args:
        run: folder of `kairode run` or `kairode dyna`; or the name of an environment, whose models are fitted first
            (as `kairode run ENV --model-free-episodes 0 --schedule-episodes 0` does).
        json: print figures as JSON, nothing else.
        quiet: print nothing but warnings and errors.
    """
    with loading(quiet or json):
        from kairode.callbacks import Progress
        from kairode.report.course import draw_course
        from kairode.report.progress import display
        from kairode.report.schedule import draw_schedule, print_schedule
        from kairode.runs.course import course
        from kairode.runs.schedule import run_schedule

    if config.budgets and config.prices == ScheduleConfig().prices:
        config = dataclasses.replace(config, prices=())
    still = quiet or json
    with display(still) as show:
        folder = _run_folder(run, config, show)
        found = run_schedule(folder, config, show)
        show(Progress("drawing return against decisions"))
        spec, place = found.system.env.task.spec, folder / "schedule"
        draw_schedule(found.record, spec, place / "schedule.svg")
        title = f"One episode of '{spec.name}' at chosen times ({list(found.episodes)[-1]})"
        last = list(found.episodes.values())[-1][0]
        draw_course(course(found.system.env, last, found.system.models[0]), place / "episode.svg", title)
    if json:
        print_json(found.record["figures"])
    elif not quiet:
        print_schedule(found.record, spec)
        say(f"Return against decisions: {place / 'schedule.svg'}. One episode: {place / 'episode.svg'}.")


def _run_folder(run: Path, config: ScheduleConfig, show: object) -> Path:
    """The folder of a run; for the name of an environment that of its main job, run first where there is none."""
    from kairode.envs.core import Discrete
    from kairode.envs.zoo import ENVIRONMENTS, make
    from kairode.runs.pipeline import run_pipeline
    from kairode.runs.schedule import check_refits, check_schedule_config

    if run.exists():
        return run
    name = str(run)
    if name not in ENVIRONMENTS:
        raise KairodeError(
            f"there is no folder {run}, and no environment of that name: give a folder of `kairode run` or `kairode "
            f"dyna`, or one of {', '.join(ENVIRONMENTS)}."
        )
    spec = make(name).task.spec
    if not isinstance(spec.actions, Discrete):
        raise KairodeError(f"decision times are chosen for discrete actions; those of '{name}' are continuous.")
    check_schedule_config(config, spec)
    default = run_preset(name)
    check_refits(default.rounds or None, config.refits)
    whole, bare = (Path("runs") / f"{name}-latent-ode-{kind}seed0" for kind in ("", "models-"))
    if (whole / "record.json").exists():
        return whole
    needed = dataclasses.replace(default, model_free_episodes=0, schedule_episodes=0, schedule_refits=0)
    run_pipeline(needed, bare, show)  # type: ignore[arg-type]
    return bare
