"""`kairode evaluate`."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from kairode.cli.common import loading, print_json
from kairode.errors import KairodeError
from kairode.text import say


def evaluate_command(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    schedule: tuple[str, ...] = (),
    episodes: int = 100,
    accrue: bool = False,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Evaluate the policy of a run on the real system, on its schedule or any other.

    Rewards are counted at decisions; with --accrue on every finest time step up to the same horizon (each day of HIV),
    so that schedules are comparable.

    Example: kairode evaluate runs/hiv-latent-ode-seed0 --schedule 5

    Args:
        run: folder of `kairode run` or `kairode dyna`; with continuous actions and several seeds, the best one is used.
        schedule: fixed interval instead of the schedule it was learned for; several are cycled through. `chosen`
            evaluates the policy of `kairode schedule RUN` at the times that it chooses without a price.
        episodes: number of test episodes.
        accrue: count rewards on every finest time step.
        seed: seed of the test episodes.
        json: print only the figures, as JSON.
    """
    with loading(json):
        from kairode.runs.evaluate import evaluate_run

    timing: Any = "chosen" if schedule == ("chosen",) else tuple(map(_interval, schedule))
    timing = timing[0] if len(timing) == 1 else (timing or None)
    about, found = evaluate_run(run, schedule=timing, episodes=episodes, accrue=accrue or None, seed=seed)
    if json:
        print_json(found.figures())
        return
    given, unit = about["schedule"], about["time_unit"]
    if given == "chosen":
        say(f"{about['env']}, at chosen times, rewards counted every {unit}: {found}.")
        return
    taus = given if isinstance(given, tuple | list) else [given]
    when = "own schedule" if given is None else f"a decision every {', '.join(f'{tau:g}' for tau in taus)} {unit}s"
    say(f"{about['env']}, {when}: {found}.")


def _interval(word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise KairodeError(f"--schedule takes intervals, such as 5, or 'chosen', got '{word}'.") from error
