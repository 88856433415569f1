"""`kairode envs` and `kairode collect`."""

from pathlib import Path

from tyro.conf import Positional

from kairode.cli.common import Environment, Quiet, fields_of


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
    from kairode.files import check_target
    from kairode.report.progress import counter, display

    environment = kairode.make(env, setting=setting, **fields_of(set))
    check_target(out)
    with display(quiet) as show:
        trajectory = kairode.collect(
            environment,
            episodes=episodes,
            seed=seed,
            schedule=schedule or None,
            progress=counter(f"collecting {env}", episodes, show),
        )
    kairode.write(out, trajectory)
    if not quiet:
        print(f"{episodes:,} episodes, {trajectory.decisions:,} decisions of '{env}' are in {out}.")
