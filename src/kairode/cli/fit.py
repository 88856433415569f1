"""`kairode fit`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kairode.cli.common import Quiet, fields_of
from kairode.config.options import FitOptions
from kairode.errors import KairodeError


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
    from kairode.algorithms.fit import is_file, make_fit_config, run_fit
    from kairode.callbacks import Progress
    from kairode.config.presets import changed, preset
    from kairode.report.events import COLLECTING, fit_events
    from kairode.report.events import tensorboard as written_for
    from kairode.report.fits import draw_predictions, print_fit
    from kairode.report.progress import counter, display

    if is_file(source) and not (options.episodes is options.valid is options.test is None):
        raise KairodeError(f"--episodes, --valid and --test say what to collect, and {source} is a file.")
    config = make_fit_config(
        source,
        model,
        changed(preset(source), options),
        seeds=seeds,
        seed=seed,
        data_seed=data_seed,
        setting=setting,
        fields=fields_of(set),
    )
    folder = out or Path("runs") / f"fit-{Path(source).stem}-{model}-seed{seed}{f'-{seeds}' if seeds > 1 else ''}"
    chosen, picture = config.preset, folder / "predictions.svg"
    count = None if config.is_file else sum((chosen.episodes, chosen.valid, chosen.test))
    with written_for(folder if tensorboard else None) as board, display(quiet) as show:
        fitted, data, made = run_fit(
            config,
            folder,
            fit_callback=fit_events(show, board),
            collected=counter(COLLECTING, count, show),
            callback=show,
        )
        show(Progress("drawing predicted and true courses", 0, None, {}, 0.0))
        draw_predictions(config, fitted.models[0], data.test, picture)
    if not quiet:
        print_fit(made, data.test.spec)
        print(f"Models, curves and record: {folder}. Predicted and true courses: {picture}.")
