"""Configs of format 0 (before fields were renamed), read as today's."""

from collections.abc import Callable, Mapping
from typing import Any

from kairode.config.agents import DQNConfig
from kairode.config.presets import RUN_MODES, run_preset
from kairode.config.serialize import to_dict

Change = Callable[[dict[str, Any]], dict[str, Any]]

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
FIT = {
    "valid": "validation_episodes",
    "test": "test_episodes",
    "standardise": "standardize",
    "fields": "env_fields",
    "settings": "training",
}
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


def _changed(names: Mapping[str, str], parts: Mapping[str, Mapping[str, str]], **before: Any) -> Change:
    """Renames of fields, and of those of its parts; `before` are the values of fields that did not exist yet."""

    def change(config: dict[str, Any]) -> dict[str, Any]:
        found = {**before, **_renamed(config, names)}
        inside = {name: found[name] for name in parts if isinstance(found.get(name), dict)}
        return {**found, **{name: _renamed(part, parts[name]) for name, part in inside.items()}}

    return change


def _fit(config: dict[str, Any]) -> dict[str, Any]:
    if "preset" not in config:  # figures of several fits
        return config
    preset = config.pop("preset")
    return {**config, **_changed(FIT, {"sizes": SIZES, "training": TRAINING})(preset)}


def _run(config: dict[str, Any]) -> dict[str, Any]:
    imagined = config.pop("imagined", None)
    found = {"tolerance": 0.0, **_renamed(config, RUN)}  # before it was a field, the best interval was taken
    modes = {name: found[name] for name in RUN_MODES if name in found}
    learn = to_dict(run_preset(found["env"], **modes).learn)
    learn["dqn"]["hidden"] = list(DQNConfig.hidden)  # smaller in today's Dyna rounds
    learn |= {"sample_intervals": False} | ({} if imagined is None else {"episodes": imagined})
    return {**found, "learn": learn}


CHANGES: dict[str, Change] = {
    "fit": _fit,
    "table1": _fit,
    "solvers": _fit,
    "rounds": _changed(DYNA, {"dqn": DQN}, sample_intervals=False),  # the most likely interval was taken
    "control": _changed(MPC, {"agent": ACTOR_CRITIC, "plan": PLAN, "sizes": SIZES, "training": TRAINING}),
    "run": _run,
    "runs": _run,
    "schedule": _changed(SCHEDULE, {}, seed=0, tolerance=0.0),  # the best interval was taken
    "study": _changed(STUDY, {"dqn": DQN, "model_env": MODEL_ENV}),
    "visits": _changed(SCHEDULE_STUDY, {"dqn": DQN}),
}
"""By the kind of run; a field that was added since has the value that stood for it then."""
