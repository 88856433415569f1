"""`kairode dyna`."""

from collections.abc import Sequence
from pathlib import Path

from kairode.cli.common import Command, config_command, first_word, loading
from kairode.config.algorithms import DynaConfig
from kairode.config.presets import dyna_preset
from kairode.text import say


def dyna_command(words: Sequence[str]) -> tuple[Command, list[str]]:
    """Learn a policy by Dyna rounds: collect with the policy, refit the models, learn in imagination, again.

    ENV: gridworld, acrobot, hiv or hiv-partial; default: hiv. Every real episode is counted. A round takes a minute or
    two on two cores. Safe to interrupt: run the same command again to resume.

    Example: kairode dyna hiv
    """
    env, rest = first_word(words, default="hiv")
    about = f"""{dyna_command.__doc__}
    Args:
        set: fields of the environment, such as horizon=500.
        out: run folder; by default runs/dyna-ENV-seedS.
        devices: spread the fits of the models over this many devices.
        quiet: print nothing but warnings and errors.
    """
    return config_command(dyna_preset(env), _dyna, about), rest


def _dyna(config: DynaConfig, out: Path | None, quiet: bool) -> None:
    with loading(quiet):
        from kairode.report.progress import display
        from kairode.report.summary import dyna_warnings
        from kairode.result import Result
        from kairode.runs.dyna import dyna_folder, run_dyna

    folder = out or dyna_folder(Path("runs"), config.env, config.seed)
    with display(quiet) as show:
        record = run_dyna(config, folder, show)
    if not quiet:
        for sentence in dyna_warnings(record):
            print(sentence)
        test, rounds = Result.from_figures(record["figures"]["test"]), record["figures"]["rounds"]
        say(f"Policy after {rounds[-1]['real_episodes']} real episodes: {test}. Policy and record: {folder}.")
