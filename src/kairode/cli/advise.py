"""`kairode advise`."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from kairode.cli.common import Quiet, loading, print_json
from kairode.text import MOST, say, short_name, visible_lines

PLACE = "advice"
"""Folder of advice inside that of a run."""


def advise_command(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    history: Annotated[Positional[Path], arg(metavar="HISTORY")],
    price: float | None = None,
    budget: int | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: Quiet = False,
) -> None:
    """Advise what to do now and when to look next, for the records of one or several new episodes.

    The file has the columns of the table that was learned from. The last row of every episode is the current visit,
    whose action may be empty; an empty cell is a measurement that was not taken. Prints the action, the next visit,
    the value of every action, what to expect, and whether this is unlike the data.

    Example: kairode advise runs/learn-visits new.csv

    Args:
        run: folder of `kairode learn`, or of `Advisor.save` in Python.
        history: the file, CSV or Parquet.
        price: cost of a decision in units of reward, for a run that chooses decision times.
        budget: maximum number of decisions per episode, for such a run.
        out: folder for advice.json and a figure of each of the first episodes; by default advice/NAME in the folder of
            the run, with the name of the file.
        json: print the advice as JSON, a list if there are several episodes.
        quiet: print nothing but warnings and errors.
    """
    with loading(quiet or json):
        from kairode.files import check_target, save_json
        from kairode.report.data.advice import draw_advice
        from kairode.runs.advise import advise_table, load_advisor, table_config

    place = run / PLACE / history.stem if out is None else out
    check_target(place / "advice.json")
    advisor = load_advisor(run, price=price, budget=budget)
    found, _ = advise_table(advisor, history, table_config(run, advisor.spec))
    save_json(place / "advice.json", found[0] if len(found) == 1 else found)
    drawn = []
    for i, one in enumerate(found[:MOST]):
        name = "advice.svg" if len(found) == 1 else f"advice-{i + 1}.svg"
        draw_advice(one, place / name)
        drawn.append(name)
    plain = [{name: value for name, value in one.items() if name != "history"} for one in found]
    if json:
        print_json(plain[0] if len(found) == 1 else plain)
    elif not quiet:
        _print(found)
        pictures = drawn[0] if len(drawn) == 1 else f"{drawn[0]} to {drawn[-1]}"
        say(f"Written to {place}: advice.json, {pictures}.")


def _print(found: list[dict[str, Any]]) -> None:
    for one in found:
        if len(found) > 1:
            say(f"{short_name(one['episode'])}:")
        print(visible_lines(one["text"]))
        if "next_date" in one:
            say(f"next visit on {one['next_date']}")
