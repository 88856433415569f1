"""Configs of format 0 (before fields were renamed), read as today's."""

from collections.abc import Callable, Mapping
from typing import Any

from kairode.config.presets import run_preset
from kairode.config.serialize import to_dict

DQN = {
    "batch": "batch_size",
    "capacity": "replay_capacity",
    "clip": "gradient_clip",
    "target_every": "target_period",
    "epsilon_last": "final_epsilon",
    "double": "double_q",
    "penalty": "disagreement_penalty",
}
ACTOR_CRITIC = {
    "actor_rate": "actor_learning_rate",
    "critic_rate": "critic_learning_rate",
    "batch": "batch_size",
    "capacity": "replay_capacity",
    "soft": "polyak",
    "delay": "policy_delay",
    "target_cut": "target_noise_clip",
}
PLAN = {"sequences": "candidates", "best": "elites", "rounds": "iterations", "least_noise": "min_noise"}
SIZES = {"latent": "latent_size"}
TRAINING = {
    "batch": "batch_size",
    "every": "validate_every",
    "pieces": "chunk_length",
    "most_skipped": "max_skipped",
}
DYNA = {
    "first": "initial_episodes",
    "each": "episodes_per_round",
    "fits": "ensemble_size",
    "latent": "latent_size",
    "iterations": "fit_iterations",
    "pieces": "chunk_length",
    "branch": "rollout_length",
    "imagined": "imagined_episodes",
    "margin": "obs_margin",
    "explore": "exploration",
    "fields": "env_fields",
}
MPC = {
    "epoch": "refit_every",
    "fit": "training",
    "most_iterations": "max_fit_iterations",
    "changes": "relative_obs",
    "test": "test_episodes",
    "fields": "env_fields",
}
RUN = {
    "each": "episodes_per_round",
    "iterations": "fit_iterations",
    "fits": "ensemble_size",
    "model_free": "model_free_episodes",
    "visits": "schedule_episodes",
    "revisits": "schedule_refits",
    "latent": "latent_policy",
    "fields": "env_fields",
}
SCHEDULE = {
    "taus": "candidates",
    "imagined": "imagined_episodes",
    "revisits": "refits",
    "episodes": "test_episodes",
    "seed": "test_seed",
    "learning_seed": "seed",
}
FIT = {"valid": "validation_episodes", "test": "test_episodes", "standardise": "standardize", "fields": "env_fields"}
STUDY = {
    "latent": "latent_policy",
    "world": "model_env",
    "margin": "obs_margin",
    "branch": "rollout_length",
    "real": "real_transitions",
    "every": "validate_every",
    "look_episodes": "validation_episodes",
}
SCHEDULE_STUDY = {"by": "chooser", "taus": "intervals", "every": "validate_every"}
MODEL_ENV = {"switching": "resample_member", "sampled": "sample_intervals"}


def _renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in config.items()}


def _part(config: dict[str, Any], name: str, names: Mapping[str, str]) -> None:
    if isinstance(config.get(name), dict):
        config[name] = _renamed(config[name], names)


def _fit(config: dict[str, Any]) -> dict[str, Any]:
    if "preset" not in config:  # figures of several fits
        return config
    preset = _renamed(config.pop("preset", {}), FIT)
    preset["training"] = _renamed(preset.pop("settings", {}), TRAINING)
    _part(preset, "sizes", SIZES)
    return {**config, **preset}


def _dyna(config: dict[str, Any]) -> dict[str, Any]:
    found = _renamed(config, DYNA)
    _part(found, "dqn", DQN)
    return {"sample_intervals": False, **found}  # before it was a field, the most likely interval was taken


def _mpc(config: dict[str, Any]) -> dict[str, Any]:
    found = _renamed(config, MPC)
    for name, names in (("agent", ACTOR_CRITIC), ("plan", PLAN), ("sizes", SIZES), ("training", TRAINING)):
        _part(found, name, names)
    return found


def _run(config: dict[str, Any]) -> dict[str, Any]:
    imagined = config.pop("imagined", None)
    found = {"tolerance": 0.0, **_renamed(config, RUN)}  # before it was a field, the best interval was taken
    preset = run_preset(
        found["env"],
        rounds=found.get("rounds"),
        schedule=found.get("schedule"),
        latent_policy=bool(found.get("latent_policy")),
        paper=bool(found.get("paper")),
    )
    learn = to_dict(preset.learn)
    learn |= {"sample_intervals": False} | ({} if imagined is None else {"episodes": imagined})
    return {**found, "learn": learn}


def _schedule(config: dict[str, Any]) -> dict[str, Any]:
    found = _renamed(config, SCHEDULE)
    # before these were fields, all policies were learned with seed 0, and the best interval was taken
    return {"seed": 0, "tolerance": 0.0, **found}


def _study(config: dict[str, Any]) -> dict[str, Any]:
    found = _renamed(config, STUDY)
    _part(found, "dqn", DQN)
    _part(found, "model_env", MODEL_ENV)
    return found


def _schedule_study(config: dict[str, Any]) -> dict[str, Any]:
    found = _renamed(config, SCHEDULE_STUDY)
    _part(found, "dqn", DQN)
    return found


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "fit": _fit,
    "table1": _fit,
    "solvers": _fit,
    "rounds": _dyna,
    "control": _mpc,
    "run": _run,
    "runs": _run,
    "schedule": _schedule,
    "study": _study,
    "visits": _schedule_study,
}
