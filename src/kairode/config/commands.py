"""The command that makes a run again, derived from its config. The only place that writes command lines."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from kairode.config.algorithms import DynaConfig, FitConfig, MPCConfig, ScheduleConfig
from kairode.config.command_line import command_line
from kairode.config.keywords import field_names
from kairode.config.offline import OfflineRunConfig
from kairode.config.presets import RUN_MODES, dyna_preset, fit_preset, mpc_preset, run_preset
from kairode.config.run import RunConfig
from kairode.config.tables import TableConfig

FIT_FLAT, LEARN_FLAT = ("sizes", "training", "table"), ("table", "offline")
"""Parts of a config whose options have no prefix, in `kairode fit` and in `kairode learn`."""
FROM_FILE = ("digest", "episodes", "validation_episodes", "test_episodes")
"""Fields that a file determines."""


def command_of(config: Any, folder: Path | str | None = None) -> str:
    """The command of a config, for a folder if one is given."""
    return shlex.join([*_words(config), *([] if folder is None else ["--out", str(folder)])])


def command_of_schedule(config: ScheduleConfig, run: Path | str) -> str:
    """Of a choice of decision times in the folder of a run."""
    return shlex.join(command_line(("kairode", "schedule", str(run)), config, ScheduleConfig()))


def _words(config: Any) -> list[str]:
    if isinstance(config, FitConfig):
        omit = ("source", *(FROM_FILE if config.is_file else ("digest",)))
        program = ("kairode", "fit", config.source)
        usual_fit = dataclasses.replace(fit_preset(config.source), table=config.table and TableConfig())
        return command_line(program, config, usual_fit, omit=omit, flat=FIT_FLAT)
    if isinstance(config, OfflineRunConfig):
        usual_run = dataclasses.replace(OfflineRunConfig(config.source), table=config.table and TableConfig())
        program = ("kairode", "learn", config.source)
        return command_line(program, config, usual_run, omit=("source", "digest"), flat=LEARN_FLAT)
    if isinstance(config, DynaConfig):
        return command_line(("kairode", "dyna", config.env), config, dyna_preset(config.env), omit=("env",))
    if isinstance(config, MPCConfig):
        agent = None if config.agent.kind == mpc_preset(config.env).agent.kind else config.agent.kind
        modes = [] if config.model == MPCConfig.model else ["--model", config.model]
        modes += [] if agent is None else ["--agent.kind", agent]
        default = mpc_preset(config.env, config.model, agent)
        return command_line(("kairode", "run", config.env, *modes), config, default, omit=("env",))
    if isinstance(config, RunConfig):
        given = {name: getattr(config, name) for name in RUN_MODES}
        usual = RunConfig(rounds=run_preset(config.env, **{**given, "rounds": None}).rounds)
        modes = command_line((), config, usual, omit=field_names(RunConfig, but=RUN_MODES))
        preset = run_preset(config.env, **given)
        return command_line(("kairode", "run", config.env, *modes), config, preset, omit=("env", *RUN_MODES))
    raise TypeError(f"there is no command of a {type(config).__name__}")
