"""`kairode reproduce`: the paper's tables and figures."""

from pathlib import Path
from typing import Any

from tyro.conf import Positional

from kairode.cli.common import Quiet, counted, print_json
from kairode.errors import KairodeError

VISITS, ROBOTS = "figure-schedule", "figure-mujoco"


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
            figure-curves, figure-pomdp, figure-rounds, figure-schedule (return against visits) or figure-mujoco
            (learning curves of the robots).
        rows: rows of table1: gridworld, acrobot, hiv, hiv-whole by default; also gridworld-still (no noise),
            acrobot-fine (integrated finely), hiv-partial, and gridworld-cooled, acrobot-cooled, hiv-cooled,
            hiv-whole-cooled (fitted with a cooldown).
        models: of table1, only these; the paper's six by default.
        studies: of the tables of returns, of figure-schedule and of figure-mujoco, only run these (named as their
            records).
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
    elif what == ROBOTS:
        _robots(studies, results / "control", runs, out, run, again, json, quiet)
    elif what in FIGURES:
        path = out or Path(f"{what}.svg")
        FIGURES[what](results / "policies", path)
        print(f"Drawn from the records in {results / 'policies'}: {path}.")
    elif what in returns.TABLES:
        _returns(what, studies, results / "policies", runs, workers, run, again, json, quiet)
    elif what == "table1":
        _table1(rows, models, seeds, results / "table1", runs / "table1", workers, again, json, quiet)
    else:
        raise unknown("table or figure", what, ("table1", *returns.TABLES, *FIGURES, VISITS, ROBOTS))


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


def _robots(
    studies: tuple[str, ...],
    results: Path,
    runs: Path,
    out: Path | None,
    run: bool,
    again: bool,
    json: bool,
    quiet: bool,
) -> None:
    from kairode.experiments import locomotion
    from kairode.report.control import draw_mujoco, mujoco_table, print_mujoco, watching_control

    def tell(name: str) -> Any:
        return watching_control(name, quiet)

    missing = locomotion.reproduce(results=results, runs=runs, run=run, again=again, only=studies, watch=tell)
    if json:
        print_json(mujoco_table(results))
        return
    path = out or Path(f"{ROBOTS}.svg")
    draw_mujoco(results, path)
    if not quiet:
        print_mujoco(results)
        if missing:
            print(f"Without a record: {', '.join(missing)}; --run runs them (hours each on a CPU).")
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
    with counted("fits", quiet) as tell:
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
        print_json(found)
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
        print_json(found)
    else:
        print_returns(what, found, missing, results)
