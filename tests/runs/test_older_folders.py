"""Run folders of the first format (config.json, no manifest): evaluated, reported, continued, told from others."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import kairode
from kairode.config.algorithms import DynaConfig, FitConfig, MPCConfig
from kairode.config.commands import command_of
from kairode.config.run import RunConfig
from kairode.runs.dyna import dyna_folder
from kairode.runs.folder import RunFolder

OLD_RUN: dict[str, Any] = {
    "env": "gridworld",
    "model": "latent-ode",
    "episodes": 12,
    "rounds": 0,
    "each": 5,
    "iterations": 4,
    "fits": 2,
    "imagined": 6,
    "model_free": 6,
    "visits": 0,
    "revisits": 0,
    "prices": [0.0, 1.0],
    "candidates": [],
    "latent": False,
    "schedule": None,
    "seed": 0,
    "setting": "ours",
    "fields": {"horizon": 30},
    "paper": False,
}
OLD_WEIGHTS = {"kl": 1.0, "kl_warmup": 0, "timer": 0.0, "energy": 0.0, "jacobian": 0.0, "curvature": 0.0}
OLD_SETTINGS = {
    "iterations": 4,
    "batch": 32,
    "learning_rate": 0.001,
    "cooldown": 0.0,
    "weight_decay": 0.001,
    "sampling_decay": 0.0,
    "weights": OLD_WEIGHTS,
    "every": 250,
    "patience": None,
    "pieces": None,
    "most_skipped": 10,
}
OLD_SIZES = {
    "latent": 2,
    "encoder_hidden": 5,
    "field_hidden": 5,
    "timer": "none",
    "timer_hidden": 20,
    "solver": "midpoint:2",
}
OLD_FIT = {
    "source": "gridworld",
    "model": "rnn",
    "preset": {
        "sizes": OLD_SIZES,
        "settings": OLD_SETTINGS,
        "fields": {"horizon": 30},
        "episodes": 12,
        "valid": 100,
        "test": 1000,
        "standardise": False,
    },
    "seeds": 2,
    "seed": 0,
    "data_seed": 0,
    "setting": "ours",
    "digest": None,
}
OLD_DQN = {
    "hidden": [256, 512],
    "learning_rate": 0.0005,
    "batch": 128,
    "capacity": 100000,
    "alpha": 0.6,
    "beta": 0.4,
    "clip": 1.0,
    "target_every": 100,
    "epsilon_last": 0.05,
    "epsilon_decay": 200.0,
    "reward_scale": 1e-06,
    "double": True,
    "penalty": 0.0,
    "cooldown": 0.0,
}
OLD_DYNA = {
    "env": "hiv",
    "model": "latent-ode",
    "first": 10,
    "each": 2,
    "rounds": 1,
    "fits": 2,
    "latent": 16,
    "field_hidden": 48,
    "iterations": 4,
    "pieces": 20,
    "branch": 10,
    "imagined": 20,
    "margin": 0.2,
    "explore": 0.1,
    "dqn": OLD_DQN,
    "seed": 0,
    "setting": "ours",
    "fields": {"horizon": 60},
}
OLD_MPC = {
    "env": "pendulum",
    "model": "dt-rnn",
    "decisions": 360,
    "seeds": 1,
    "seed": 0,
    "epoch": 150,
    "agent": {
        "kind": "ddpg",
        "hidden": [8, 8],
        "actor_rate": 0.001,
        "critic_rate": 0.001,
        "batch": 16,
        "updates": 1,
        "capacity": 1000000,
        "soft": 0.005,
        "noise": 0.2,
        "warmup": 200,
        "delay": 2,
        "target_noise": 0.2,
        "target_cut": 0.5,
        "reward_scale": 0.1,
    },
    "plan": {"sequences": 12, "horizon": 3, "noise": 0.3, "best": 3, "rounds": 1, "least_noise": 0.02},
    "sizes": {**OLD_SIZES, "latent": 6, "field_hidden": 6, "timer": "auto"},
    "fit": {
        **OLD_SETTINGS,
        "iterations": 12000,
        "batch": 16,
        "weights": {**OLD_WEIGHTS, "timer": 0.01},
        "patience": 15,
        "pieces": 10,
    },
    "most_iterations": 20,
    "changes": True,
    "test": 2,
    "setting": "ours",
    "fields": {},
}


def without_digest(about: dict) -> dict:
    """A description as older versions wrote it."""
    return {**{name: value for name, value in about.items() if name != "json_sha256"}, "format": 1}


def as_older(folder: Path, config: dict[str, Any]) -> Path:
    """What the first version would have left in the place of a run."""
    (folder / "manifest.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    record = json.loads((folder / "record.json").read_text())
    del record["format"]
    (folder / "record.json").write_text(json.dumps({**record, "config": config}))
    return folder


@pytest.mark.parametrize(
    ("kind", "cls", "config", "command"),
    [
        (
            "run",
            RunConfig,
            OLD_RUN,
            "kairode run gridworld --episodes 12 --fit-iterations 4 --ensemble-size 2 --solver midpoint:2 "
            "--consistency 0 --model-free-episodes 6 --schedule-episodes 0 --prices 0 1 --tolerance 0 "
            "--learn.episodes 6 --learn.no-sample-intervals --set horizon=30",
        ),
        (
            "fit",
            FitConfig,
            OLD_FIT,
            "kairode fit gridworld --model rnn --seeds 2 --episodes 12 --solver midpoint:2 --iterations 4 "
            "--weights.consistency 0 --set horizon=30",
        ),
        (
            "rounds",
            DynaConfig,
            OLD_DYNA,
            "kairode dyna hiv --initial-episodes 10 --episodes-per-round 2 --rounds 1 --ensemble-size 2 "
            "--solver midpoint:2 --consistency 0 --fit-iterations 4 --imagined-episodes 20 --no-sample-intervals "
            "--set horizon=60",
        ),
    ],
)
def test_configs_in_todays_terms(tmp_path, kind: str, cls: type, config: dict[str, Any], command: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert command_of(RunFolder(tmp_path, kind).config(cls)) == command


@pytest.mark.slow
def test_mpc_config_in_todays_terms(tmp_path, mpc_run) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OLD_MPC))
    now = RunFolder(mpc_run.folder).config(MPCConfig)
    weights = dataclasses.replace(now.training.weights, consistency=0.0)
    training = dataclasses.replace(now.training, weights=weights)
    then = dataclasses.replace(now, sizes=dataclasses.replace(now.sizes, solver="midpoint:2"), training=training)
    assert RunFolder(tmp_path, "control").config(MPCConfig) == then


@pytest.mark.slow
def test_a_run_is_evaluated_reported_and_recognized(typed, gridworld_run, tmp_path) -> None:
    folder = shutil.copytree(gridworld_run.folder, tmp_path / "run")
    (folder / "fit" / "manifest.json").unlink()
    (folder / "fit" / "config.json").write_text(json.dumps(OLD_FIT))
    old = {**OLD_RUN, "model": "rnn", "imagined": 2, "model_free": 2, "prices": [0.0, 0.5, 2.0]}
    as_older(folder, old)
    evaluated = [typed("evaluate", str(f), "--episodes", "10", "--json") for f in (folder, gridworld_run.folder)]
    assert evaluated[0] == evaluated[1]
    assert evaluated[0][0] == 0
    code, _, err = typed("report", str(folder))
    assert code == 0, err
    words = ("run", "gridworld", "--model", "rnn", "--episodes", "12", "--fit-iterations", "4", "--ensemble-size", "2")
    words += ("--learn.episodes", "2", "--learn.no-sample-intervals", "--model-free-episodes", "2", "--tolerance", "0")
    words += ("--schedule-episodes", "0", "--set", "horizon=30", "--out", str(folder))
    code, _, err = typed(*words)
    assert code == 0, err
    assert "This run is finished" in err
    assert json.loads((folder / "manifest.json").read_text())["format"] == 1
    code, _, err = typed(*words, "--learn.episodes", "3")
    assert code == 2
    assert "holds another run (learn.episodes is 2 there and 3 here)" in err
    old_sizes = json.loads((folder / "fit" / "models.json").read_text())
    old_sizes["sizes"]["latent"] = old_sizes["sizes"].pop("latent_size")
    (folder / "fit" / "models.json").write_text(json.dumps(without_digest(old_sizes)))
    assert len(kairode.load_models(folder / "fit")) == 2


@pytest.mark.slow
def test_an_mpc_run_is_evaluated_and_recognized(typed, mpc_run, tmp_path) -> None:
    folder = as_older(shutil.copytree(mpc_run.folder, tmp_path / "run"), OLD_MPC)
    for file in folder.glob("policies*"):  # the weights were called otherwise
        file.rename(file.with_name(file.name.replace("policies", "pilots")))
    about = json.loads((folder / "pilots.json").read_text())
    about["file"] = about["file"].replace("policies", "pilots")
    (folder / "pilots.json").write_text(json.dumps(without_digest(about)))
    evaluated = [typed("evaluate", str(f), "--episodes", "2", "--json") for f in (folder, mpc_run.folder)]
    assert evaluated[0] == evaluated[1]
    assert evaluated[0][0] == 0
    record = (folder / "record.json").read_text()
    code, _, err = typed(*mpc_run.words[:-1], str(folder), "-q")
    assert code == 0, err
    assert (folder / "record.json").read_text() == record, "it was finished"
    code, _, err = typed(*mpc_run.words[:-1], str(folder), "--refit-every", "100")
    assert code == 2
    assert "holds another run (refit_every is 150 there and 100 here)" in err
    about = json.loads((folder / "checkpoint.json").read_text())
    about["spent"] = about.pop("stage_seconds")
    (folder / "checkpoint.json").write_text(json.dumps(without_digest(about)))
    code, _, err = typed(*mpc_run.words[:-1], str(folder), "--decisions", "400", "-q")
    assert code == 0, err
    seconds = json.loads((folder / "record.json").read_text())["figures"]["stage_seconds"]
    assert seconds["fitting"] >= round(about["spent"]["fitting"], 1)


def test_folders_of_dyna_rounds(tmp_path) -> None:
    assert dyna_folder(tmp_path, "hiv", 2) == tmp_path / "dyna-hiv-seed2"
    (tmp_path / "rounds-hiv-seed2").mkdir()
    assert dyna_folder(tmp_path, "hiv", 2) == tmp_path / "rounds-hiv-seed2"
