"""`kairode dyna`: Dyna rounds in a run folder, a test, a record."""

from pathlib import Path
from typing import Any

from kairode.agents.policy_files import save_policy
from kairode.algorithms.dyna import MUTABLE_FIELDS, run_rounds
from kairode.callbacks import Callback, no_callback
from kairode.config.algorithms import DynaConfig
from kairode.config.commands import command_of
from kairode.envs import make
from kairode.runs.findings import evaluate_on_system
from kairode.runs.folder import RunFolder
from kairode.runs.migrate import migrate_figures
from kairode.runs.record import make_record
from kairode.text import file_name

KIND = "rounds"


def dyna_folder(runs: Path, env: str, seed: int) -> Path:
    """Where the run of an environment and a seed belongs: runs/dyna-ENV-seedS, or as older versions named it."""
    old = runs / f"rounds-{env}-seed{seed}"
    return old if old.exists() else runs / f"dyna-{file_name(env)}-seed{seed}"


def run_dyna(config: DynaConfig, path: Path, callback: Callback = no_callback) -> dict[str, Any]:
    """Run or resume Dyna rounds, evaluate the last policy on 100 episodes; returns the record."""
    env = make(config.env, setting=config.setting, **config.env_fields)
    command = command_of(config, path)
    with RunFolder.open(path, KIND, config, command, mutable=MUTABLE_FIELDS) as folder:
        if folder.finished:
            return folder.record or {}
        result = run_rounds(config, env, folder=path, callback=callback)
        save_policy(path, result.policy, {"env": config.env, "setting": config.setting, "fields": config.env_fields})
        tests = evaluate_on_system(env, {"imagination": result.policy}, None, callback=callback)
        intervals = None if result.intervals is None else [result.intervals.figures()]
        figures = {"rounds": result.rounds, "test": tests["imagination"], "tests": tests, "intervals": intervals}
        figures = migrate_figures(KIND, figures, {"env": config.env})  # may have been started by an older version
        return folder.finish(make_record(KIND, config, figures, command=command, seconds=result.seconds))
