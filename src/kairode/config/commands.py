"""The command that makes a run again, derived from its config. The only place that writes command lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kairode.config.algorithms import DynaConfig, FitConfig, MPCConfig, ScheduleConfig
from kairode.config.command_line import command_line, command_text, value_words
from kairode.config.presets import dyna_preset, fit_preset, mpc_preset, run_preset
from kairode.config.run import RunConfig

RUN_MODES = ("rounds", "latent_policy", "schedule", "paper")
"""Options of `kairode run` that the defaults of the others depend on."""
FLAT = ("sizes", "training")
"""Parts of a config whose options have no prefix, in `kairode fit`."""
FROM_FILE = ("digest", "episodes", "validation_episodes", "test_episodes")
"""Fields that a file determines."""


def command_of(config: Any, folder: Path | str | None = None) -> str:
    """The command of a config, for a folder if one is given."""
    words = _words(config)
    return command_text([*words, *([] if folder is None else ["--out", str(folder)])])


def command_of_schedule(config: ScheduleConfig, run: Path | str) -> str:
    """Of a choice of decision times in the folder of a run."""
    return command_text(command_line(("kairode", "schedule", str(run)), config, ScheduleConfig()))


def _words(config: Any) -> Sequence[str]:
    if isinstance(config, FitConfig):
        default = fit_preset(config.source)
        omit = FROM_FILE if config.is_file else ("digest",)
        return command_line(("kairode", "fit"), config, default, positional=("source",), omit=omit, flat=FLAT)
    if isinstance(config, RunConfig):
        return _run_words(config)
    if isinstance(config, DynaConfig):
        return command_line(("kairode", "dyna"), config, dyna_preset(config.env), positional=("env",))
    if isinstance(config, MPCConfig):
        agent = None if config.agent.kind == mpc_preset(config.env).agent.kind else config.agent.kind
        usual = mpc_preset(config.env, config.model, agent)
        words = list(command_line(("kairode", "run"), config, usual, positional=("env",)))
        modes = [] if config.model == MPCConfig.model else ["--model", config.model]
        modes += [] if agent is None else ["--agent.kind", agent]
        return [*words[:3], *modes, *words[3:]]
    raise TypeError(f"there is no command of a {type(config).__name__}")


def _run_words(config: RunConfig) -> Sequence[str]:
    modes = {name: getattr(config, name) for name in RUN_MODES}
    others: dict[str, Any] = {name: value for name, value in modes.items() if name != "rounds"}
    said = [] if config.rounds == run_preset(config.env, **others).rounds else ["--rounds", str(config.rounds)]
    for name, value in others.items():
        if value not in (None, False):
            said += [f"--{name.replace('_', '-')}", *([] if value is True else value_words(value))]
    default = run_preset(config.env, **modes)
    words = list(command_line(("kairode", "run"), config, default, positional=("env",), omit=RUN_MODES))
    return [*words[:3], *said, *words[3:]]
