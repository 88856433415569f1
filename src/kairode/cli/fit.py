"""`kairode fit`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from kairode.cli.common import Command, Quiet, first_word, loading, on_devices, parser_config, plain_config
from kairode.config.algorithms import FitConfig, is_import
from kairode.config.commands import FIT_FLAT
from kairode.config.presets import fit_preset
from kairode.errors import KairodeError
from kairode.text import file_name, say


def fit_command(words: Sequence[str]) -> tuple[Command, list[str]]:
    """Fit a dynamics model to data and evaluate it on held-out episodes.

    The data are collected from an environment (gridworld, acrobot, hiv, hiv-partial, pendulum, swimmer, hopper,
    half-cheetah) with random actions, or read from a CSV or Parquet file (of which a tenth of the episodes is held out
    for validation and a tenth for the test). Safe to interrupt: run the same command again to resume. The defaults
    below are those of the environment: `kairode fit hiv --help` shows HIV's, `kairode fit visits.csv --help` also the
    options that say what the columns of a file mean.

    Example: kairode fit hiv --model latent-ode --seeds 5

    Example: kairode fit visits.csv --episode subject --time when --action drug --static age --iterations 3000

    Example: kairode fit large.parquet --stream
    """
    source, rest = first_word(words, what="ENV|TABLE")
    default = fit_preset(source)
    hidden = ("source", "env_fields", "digest", *(() if default.is_file else ("table",)))
    parsed = parser_config(default, hidden=hidden, flat=[name for name in FIT_FLAT if name not in hidden])

    def command(
        config: Any = parsed,
        set: tuple[str, ...] = (),
        out: Path | None = None,
        tensorboard: bool = False,
        devices: int = 1,
        stream: bool = False,
        quiet: Quiet = False,
    ) -> None:
        for name in ("episodes", "validation_episodes", "test_episodes"):
            if default.is_file and getattr(config, name) != getattr(default, name):
                raise KairodeError(f"--{name.replace('_', '-')} is for data to collect, and {source} is a file.")
        with on_devices(devices):
            _fit(plain_config(config, set), out, tensorboard, stream, quiet)

    command.__annotations__["config"] = Annotated[type(parsed), tyro.conf.arg(name="")]
    command.__doc__ = f"""{fit_command.__doc__}
    Args:
        set: fields of the environment, such as max_decisions=50.
        out: run folder; by default runs/fit-SOURCE-MODEL-seedS.
        tensorboard: also write event files for TensorBoard (needs the extra tensorboard).
        devices: spread seeds, or the episodes of each batch, over this many devices.
        stream: read the batches from disk during the fit, for data that exceed memory (validation and test use at
            most 1000 episodes each). By default only where episodes padded to the longest would take far more memory
            than their rows.
        quiet: print nothing but warnings and errors.
    """
    return command, rest


def _fit(config: FitConfig, out: Path | None, tensorboard: bool, stream: bool, quiet: bool) -> None:
    with loading(quiet):
        from kairode.callbacks import Progress, combined
        from kairode.data.checks import warn
        from kairode.envs import make
        from kairode.loggers import tensorboard_callback
        from kairode.report.course import draw_course
        from kairode.report.fits import calibration_warning, draw_calibration, print_fit
        from kairode.report.progress import display
        from kairode.report.summary import interval_warning
        from kairode.runs.course import course
        from kairode.runs.fit import run_fit

    many = f"-{config.seeds}" * (config.seeds > 1)
    source = file_name(config.source) if is_import(config.source) else Path(config.source).stem
    name = f"fit-{source}-{config.model}-seed{config.seed}{many}"
    folder = out or Path("runs") / name
    picture = folder / "predictions.svg"
    with tensorboard_callback(folder if tensorboard else None) as board, display(quiet) as show:
        found = run_fit(config, folder, combined(show, board), streamed=stream)
        show(Progress("drawing predictions"))
        env = None if config.is_file else make(config.source, setting=config.setting, **config.env_fields)
        test = found.data.test
        shown = course(env, test[0], found.result.models[0], "predicted", most=60)
        title = f"{config.model} on {test.spec.name}"
        draw_course(shown, picture, title)
        figures = found.record["figures"]
        calibration = figures.get("calibration")
        if calibration is not None:
            draw_calibration(calibration, folder / "calibration.svg", title)
    warn([*filter(None, [interval_warning(figures.get("intervals")), calibration_warning(calibration)])])
    if not quiet:
        print_fit(found.record, found.data.test.spec)
        say(f"Models, curves and record: {folder}. Predictions: {picture}.")
        if calibration is not None:
            say(f"Spread and errors of the ensemble: {folder / 'calibration.svg'}.")
