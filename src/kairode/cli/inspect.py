"""`kairode inspect`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kairode.cli.common import is_strict, loading, print_json
from kairode.config.tables import TableConfig
from kairode.errors import KairodeWarning
from kairode.text import say


def inspect_command(
    table: Annotated[Positional[Path], arg(metavar="TABLE")],
    columns: Annotated[TableConfig, arg(name="")] = TableConfig(),  # noqa: B008  a frozen dataclass
    page: Path | None = None,
    json: bool = False,
) -> None:
    """Show what is in a table (CSV or Parquet), and warn of what may mislead a policy learned from it.

    Episodes and their lengths, intervals, missing values, ranges and outliers, how often each action is taken and after
    what, rewards; confounding, actions without support, too few episodes, clock changes, leaks of the future. Missing
    values are counted, whatever --missing says.

    Example: kairode inspect visits.csv --episode subject --time when --action drug --static age --categorical sex

    Args:
        table: the file.
        columns: what the columns mean.
        page: also write an HTML page to this file.
        json: print the figures as JSON.
    """
    with loading(json):
        from kairode.data.tables.inspect import inspect_file
        from kairode.report.data.inspect import print_inspection, write_inspection_page

    found = inspect_file(table, columns)
    if json:
        print_json(found)
    else:
        print_inspection(found)
    if page is not None:
        write_inspection_page(page, found)
        if not json:
            say(f"Page: {page}")
    if found["warnings"] and is_strict():  # they are a part of the report: shown first, all of them
        raise KairodeWarning(f"{table}: warnings are errors with --strict, and there are {len(found['warnings'])}.")
