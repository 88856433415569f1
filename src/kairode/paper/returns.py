"""The studies behind the paper's tables of returns, in the paper's settings and in ours, and the tables.

Tables are read from the records of the studies; `plan` lists the work for missing ones, which takes hours on two cores
and minutes on a large GPU.
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kairode.config.agents import DQNConfig
from kairode.config.models import PAPER_MODELS
from kairode.paper.studies import ORACLE, Study, interval_label
from kairode.result import objective_of
from kairode.runs.record import read_record
from kairode.stats import mean, std

ENVS = ("gridworld", "acrobot", "hiv")
REGULAR: dict[str, tuple[float, ...]] = {
    "gridworld": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
    "acrobot": (0.2, 0.4, 0.6, 0.8, 1.0),
    "hiv": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
}
"""The regular schedules of the paper's table 4."""
TRANSFER = {"gridworld": 7.0, "acrobot": 0.2, "hiv": 5.0}
"""The regular schedules of the paper's table 2b."""
IMAGINED = {"gridworld": 1000, "acrobot": 200, "hiv": 1500}
REAL = {"gridworld": 1000, "acrobot": 1000, "hiv": 3500}
"""Training episodes, in imagination and on the real system."""
SETTINGS = {"gridworld": "paper", "acrobot": "paper", "hiv": "ours"}
"""Environment settings of the published runs; HIV has only one."""
OURS = {
    "gridworld": DQNConfig(reward_scale=0.1, double_q=True),
    "acrobot": DQNConfig(reward_scale=0.1, double_q=True),
    "hiv": DQNConfig(reward_scale=1e-6, double_q=True),
}
"""Rewards scaled so that values are about one to a hundred."""


def _studies() -> dict[str, Study]:
    found: dict[str, Study] = {}
    for env in ENVS:
        setting, taus, there = SETTINGS[env], REGULAR[env], TRANSFER[env]
        # Short intervals make episodes much longer, and the agents of a study wait for the slowest.
        parts: dict[str, tuple[float, ...]] = {"": (0.0, *taus)}
        if env == "gridworld":
            parts = {"": (0.0, *taus[1:]), "-1": taus[:1]}
        elif env == "hiv":
            parts = {"": (0.0, there), "-3467": (3.0, 4.0, 6.0, 7.0), "-12": (1.0, 2.0)}
        looks = 10_000 if env == "hiv" else 5_000
        for part, schedules in parts.items():
            found[f"paper-{env}{part}"] = Study(env, setting, env, PAPER_MODELS, schedules, IMAGINED[env])
            oracle = Study(env, setting, env, (ORACLE,), schedules, REAL[env], validate_every=looks)
            found[f"paper-{env}-oracle{part}"] = oracle
        ours = dataclasses.replace(oracle, schedules=(0.0, there), dqn=OURS[env])
        found[f"ours-{env}-oracle"] = ours
        found[f"ours-{env}"] = dataclasses.replace(
            ours, models=("latent-ode",), episodes=IMAGINED[env], ensemble=True, validate_every=5_000, obs_margin=0.5
        )
    # Comparison with a constant learning rate.
    found["constant-hiv-oracle"] = found["ours-hiv-oracle"]
    cooled = dataclasses.replace(OURS["hiv"], cooldown=0.3)
    # At intervals of days episodes are long: fewer episodes and model seeds.
    changed: dict[str, dict[str, Any]] = {
        "paper-hiv-3467": {"seeds": 1, "episodes": 700, "validate_every": 50_000},
        "paper-hiv-12": {"seeds": 1, "episodes": 250, "validate_every": 50_000},
        "paper-hiv-oracle-3467": {"episodes": 1750, "validate_every": 20_000},
        "ours-hiv-oracle": {"episodes": 1800, "validate_every": 20_000, "dqn": cooled},
    }
    for name, changes in changed.items():
        found[name] = dataclasses.replace(found[name], **changes)
    both = found.pop("paper-hiv-oracle-12")
    for tau, episodes, every in ((1.0, 700, 50_000), (2.0, 1400, 20_000)):
        found[f"paper-hiv-oracle-{tau:g}"] = dataclasses.replace(
            both, schedules=(tau,), episodes=episodes, validate_every=every
        )
    # Imagination branches off from data of random treatment (tuned with agents 100 to 104).
    found["ours-hiv"] = dataclasses.replace(
        found["ours-hiv"],
        episodes=2400,
        rollout_length=25,
        real_transitions=True,
        validate_every=10_000,
        model_env={"resample_member": True},
        dqn=dataclasses.replace(OURS["hiv"], target_period=40),
    )
    # Does a solver as fine as in the published runs keep predictions bounded in imagination?
    found["fine-hiv"] = dataclasses.replace(
        found["paper-hiv"], fits="hiv-fine", models=("latent-ode",), validate_every=10_000
    )
    plain = Study("hiv-partial", "ours", "hiv-partial", ("latent-ode",), (0.0,), IMAGINED["hiv"], validate_every=10_000)
    partial: dict[str, dict[str, Any]] = {
        "": {},
        "-latent": {"latent_policy": True},
        "-oracle": {"models": (ORACLE,), "episodes": REAL["hiv"]},
    }
    for part, changes in partial.items():
        study = found[f"paper-hiv-partial{part}"] = dataclasses.replace(plain, **changes)
        imagined: dict[str, Any] = {} if part == "-oracle" else {"ensemble": True, "obs_margin": 0.5, "episodes": 400}
        found[f"ours-hiv-partial{part}"] = dataclasses.replace(study, dqn=OURS["hiv"], **imagined)
    return found


STUDIES = _studies()

Cell = dict[str, Any]
Table = dict[str, Any]
"""Nested dicts of cells; a cell is the result of its seeds with mean, std and n, or None without a record."""


def table_cell(results: Path, setting: str, env: str, model: str, tau: float, latent: bool = False) -> Cell | None:
    """Result of a model at an interval from the first record that has it, or None."""
    for name, study in STUDIES.items():
        path = results / f"{name}.json"
        fits = name.startswith(f"{setting}-") and (study.env, study.latent_policy) == (env, latent)
        if fits and model in study.models and path.exists():
            found = read_record(path)["figures"]["cells"].get(model, {}).get(interval_label(tau))
            if found is not None:
                values = objective_of(found)
                return {"mean": mean(values), **found, "std": std(values), "n": len(values), "record": path.name}
    return None


def _row(results: Path, setting: str, env: str, tau: float) -> Table:
    return {model: table_cell(results, setting, env, model, tau) for model in (*PAPER_MODELS, ORACLE)}


PARTIAL = {
    "model-based, s only": ("hiv-partial", "latent-ode", False),
    "model-based, s and z": ("hiv-partial", "latent-ode", True),
    "model-free, s only": ("hiv-partial", ORACLE, False),
    "model-based, full s": ("hiv", "latent-ode", False),
}
"""Rows of table 3: environment, model, whether the policy is conditioned on z."""


TABLES: dict[str, Callable[[Path, str], Table]] = {
    "table2a": lambda results, setting: {env: _row(results, setting, env, 0.0) for env in ENVS},
    "table2b": lambda results, setting: {env: _row(results, setting, env, TRANSFER[env]) for env in ENVS},
    "table3": lambda results, setting: {
        "hiv-partial": {
            row: table_cell(results, setting, env, model, 0.0, latent) for row, (env, model, latent) in PARTIAL.items()
        }
    },
    "table4": lambda results, setting: {
        env: {interval_label(tau): _row(results, setting, env, tau) for tau in REGULAR[env]} for env in ENVS
    },
}
"""The tables of returns; in table 2b the models are those fitted to the irregular schedule."""
NEEDS: dict[str, Callable[[Study], bool]] = {
    "table2a": lambda study: 0.0 in study.schedules and study.env in ENVS,
    "table2b": lambda study: study.env in ENVS and TRANSFER[study.env] in study.schedules,
    "table3": lambda study: (
        study.env == "hiv-partial" or (study.env == "hiv" and 0.0 in study.schedules and "latent-ode" in study.models)
    ),
    "table4": lambda study: study.env in ENVS,
}
"""Selects the studies of a table."""


def required_studies(what: str, names: Iterable[str] = ()) -> list[str]:
    """Names of the studies that a table is made of; with `names`, those."""
    return [name for name, study in STUDIES.items() if (name in names if names else NEEDS[what](study))]
