"""`kairode learn`: a policy from the records of a table."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from kairode.cli.common import Command, Quiet, first_word, loading, parser_config, print_json
from kairode.config.algorithms import is_file
from kairode.config.commands import LEARN_FLAT
from kairode.config.offline import OfflineRunConfig
from kairode.errors import KairodeError
from kairode.text import say


def learn_command(words: Sequence[str]) -> tuple[Command, list[str]]:
    """Learn a policy from the records of a table, and estimate what it is worth, without a simulator.

    Fits an ensemble of models (missing values are allowed, a reward and terminations without a function are learned),
    tries several conservative ways to learn a policy, chooses one by off-policy estimates on episodes that no policy
    was learned from, and estimates its return on yet other episodes, beside the return of what was done. `kairode
    advise RUN EPISODE` then advises for single episodes, and `kairode run TABLE` does the same as this command and
    writes a page. Safe to interrupt: run the same command again to resume.

    Example: kairode learn visits.csv --episode subject --time when --action dose --reward gain --static age --out RUN
    """
    return offline_command(words, learn_command.__doc__ or "", page=False)


def offline_command(words: Sequence[str], about: str, page: bool) -> tuple[Command, list[str]]:
    """The command that runs a table, with or without a page."""
    source, rest = first_word(words, what="TABLE")
    if source and not is_file(source):
        raise KairodeError(
            f"'{source}' is no table: give a CSV or Parquet file (policies for environments: kairode run {source})."
        )
    default = OfflineRunConfig(source)
    parsed = parser_config(default, hidden=("source", "digest"), flat=LEARN_FLAT)

    def command(
        config: Any = parsed,
        out: Path | None = None,
        json: bool = False,
        quiet: Quiet = False,
    ) -> None:
        plain = OfflineRunConfig(**{field.name: getattr(config, field.name) for field in dataclasses.fields(default)})
        _run(plain, out, page, json, quiet)

    command.__annotations__["config"] = Annotated[type(parsed), tyro.conf.arg(name="")]
    command.__doc__ = f"""{about}
    Args:
        out: run folder; by default runs/TABLE-MODEL-seedS.
        json: print the estimates as JSON.
        quiet: print nothing but warnings and errors.
    """
    return command, rest


def default_folder(config: OfflineRunConfig) -> Path:
    """Of a run on a table."""
    return Path("runs") / f"{Path(config.source).stem}-{config.model}-seed{config.seed}"


def _run(config: OfflineRunConfig, out: Path | None, page: bool, json: bool, quiet: bool) -> None:
    with loading(quiet or json):
        from kairode.callbacks import Progress
        from kairode.data.checks import warn
        from kairode.report.data.offline import model_warnings, print_offline, summary_json
        from kairode.report.progress import display
        from kairode.report.run_page import write_run_page
        from kairode.runs.offline import run_offline

    folder = out or default_folder(config)
    with display(quiet or json) as show:
        record = run_offline(config, folder, show)
        if page:
            show(Progress("writing the page"))
            written = write_run_page(folder)
    warn(model_warnings(record))
    if json:
        print_json(summary_json(record, folder))
        return
    if quiet:
        return
    print_offline(record)
    say(f"Advice for one episode: kairode advise {folder} EPISODE.csv")
    say(f"Report: {written}" if page else f"Models, policy and record: {folder}. A page: kairode report {folder}")
