"""`kairode envs` and `kairode collect`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kairode.cli.common import Quiet, loading, parse_fields
from kairode.text import say


def envs_command(name: Positional[str | None] = None) -> None:
    """List the environments; with a name, show one of them and all its fields.

    Example: kairode envs hiv

    Args:
        name: name of an environment.
    """
    from kairode.report.environments import list_environments, show_environment

    if name is None:
        list_environments()
    else:
        show_environment(name)


def collect_command(
    env: Annotated[Positional[str], arg(metavar="ENV")],
    out: Path,
    episodes: int = 1000,
    seed: int = 0,
    schedule: tuple[float, ...] = (),
    setting: str = "ours",
    set: tuple[str, ...] = (),
    quiet: Quiet = False,
) -> None:
    """Collect episodes with random actions and write them to a Parquet file.

    Example: kairode collect hiv --episodes 100 --out visits.parquet --set max_decisions=50

    Args:
        env: name of the environment (see `kairode envs`).
        out: file to write.
        episodes: number of episodes.
        seed: random seed.
        schedule: fixed interval in the environment's unit of time, instead of its own schedule; several are cycled
            through.
        setting: ours, or paper for the paper's runs.
        set: fields of the environment, such as noise=0.05 intervals=[1,3] substep=inf.
        quiet: print nothing but warnings and errors.
    """
    import kairode
    from kairode.files import check_target

    with loading(quiet):
        from kairode.envs import make
        from kairode.report.progress import display

    environment = make(env, setting=setting, **parse_fields(set))
    check_target(out)
    with display(quiet) as show:
        trajectory = kairode.collect(
            environment, episodes=episodes, seed=seed, schedule=schedule or None, callback=show
        )
    kairode.write(out, trajectory)
    if not quiet:
        say(f"Wrote {episodes:,} episodes with {trajectory.decisions:,} decisions of '{env}' to {out}.")
