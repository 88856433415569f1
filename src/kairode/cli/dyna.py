"""`kairode dyna`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from kairode.cli.common import Command, Quiet, config_class, first_word, parsed_default, plain_config, with_fields
from kairode.config.algorithms import DynaConfig
from kairode.config.presets import dyna_preset


def dyna_command(words: Sequence[str]) -> tuple[Command, list[str]]:
    """Learn a policy by Dyna rounds: collect with the policy, refit the models, learn in imagination, again.

    Every real episode is counted. A round takes a minute or two on two cores. Safe to interrupt: run the same command
    again to resume.

    Example: kairode dyna hiv
    """
    env, rest = first_word(words, default="hiv")
    default = dyna_preset(env)
    cls = config_class(default, hidden=("env", "env_fields"))

    def command(
        config: Any = parsed_default(default, cls),  # noqa: B008
        set: tuple[str, ...] = (),
        out: Path | None = None,
        quiet: Quiet = False,
    ) -> None:
        _dyna(with_fields(plain_config(config, DynaConfig, env=env, env_fields={}), set), out, quiet)

    command.__annotations__["config"] = Annotated[cls, tyro.conf.arg(name="")]
    command.__doc__ = f"""{dyna_command.__doc__}
    Args:
        set: fields of the environment, such as horizon=500.
        out: run folder; by default runs/rounds-ENV-seedS.
        quiet: print nothing but errors.
    """
    return command, rest


def _dyna(config: DynaConfig, out: Path | None, quiet: bool) -> None:
    from kairode.report.progress import display
    from kairode.result import Result
    from kairode.runs.dyna import run_dyna

    folder = out or Path("runs") / f"rounds-{config.env}-seed{config.seed}"
    with display(quiet) as show:
        record = run_dyna(config, folder, show)
    if not quiet:
        test, rounds = Result.from_figures(record["figures"]["test"]), record["figures"]["rounds"]
        print(f"Policy after {rounds[-1]['real_episodes']} real episodes: {test}. Policy and record: {folder}.")
