"""Off-policy estimates beside true returns, on HIV: 25 policies of known return, estimated from two tables.

    python tools/offline_study.py policies FOLDER --worker 0 --workers 1   # model-free policies of various quality
    python tools/offline_study.py models FOLDER random                     # Latent-ODEs of a table
    python tools/offline_study.py estimates FOLDER random --worker 0 --workers 1
    python tools/offline_study.py record FOLDER                            # writes results/offline-estimates.json

The simulator makes the policies, the tables and the true returns; the estimates see the tables, and that of the models
is given HIV's reward function. Each step skips what is already in the folder.
"""

import argparse
import dataclasses
import json
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import kairode
from kairode.agents.behavior import fit_behavior
from kairode.data.policy import Constant, Policy
from kairode.files import save_json
from kairode.result import rounded
from kairode.runs.record import commit, machine, make_record

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "offline-estimates.json"
EPISODES, SEEDS = (400, 200, 100, 60, 30), (0, 1, 2, 3)
"""Of model-free training, longest first."""
TABLES = {"random": 1000, "half-good": 200}
"""Episodes: under random actions, and under a policy of about half the best one's return with 20 % random actions."""
MODELS, ITERATIONS, CHUNK = 5, 6000, 50
TEST_EPISODES, TEST_SEED, TABLE_SEED = 200, 7, 400_000


def names() -> list[str]:
    """All policies."""
    learned = [f"learned-{episodes}-{seed}" for episodes in EPISODES for seed in SEEDS]
    actions = kairode.make("hiv").task.spec.actions.n
    return [*learned, *(f"constant-{action}" for action in range(actions)), "uniform"]


def policy_of(folder: Path, name: str) -> Policy | None:
    """A policy by name; None is the random one."""
    kind, *rest = name.split("-")
    if kind == "uniform":
        return None
    return Constant(jnp.asarray(int(rest[0]))) if kind == "constant" else kairode.load_policy(folder / name)


def make_policies(folder: Path, mine: list[str]) -> None:
    """Learn on the simulator, and evaluate there."""
    env = kairode.make("hiv")
    for name in mine:
        if (folder / name / "true.json").exists():
            continue
        if name.startswith("learned"):
            _, episodes, seed = name.split("-")
            kairode.save_policy(folder / name, kairode.learn(None, env, episodes=int(episodes), seed=int(seed)))
        found = kairode.evaluate(env, policy_of(folder, name), episodes=TEST_EPISODES, seed=TEST_SEED)
        save_json(folder / name / "true.json", {"mean": found.score, "interval": found.interval})
        print(name, found, flush=True)


def true_returns(folder: Path) -> dict[str, float]:
    return {name: json.loads((folder / name / "true.json").read_text())["mean"] for name in names()}


def table_of(folder: Path, name: str, *, episodes: int | None = None, seed: int = TABLE_SEED) -> Any:
    """The records, and who made them; with another number of episodes or seed, others of the same kind."""
    env, episodes = kairode.make("hiv"), episodes or TABLES[name]
    if name == "random":
        return kairode.collect(env, episodes=episodes, seed=seed), "uniform"
    true = true_returns(folder)
    best = max(true.values())
    half = min((one for one in true if one.startswith("learned")), key=lambda one: abs(true[one] - best / 2))
    policy: Any = dataclasses.replace(policy_of(folder, half), epsilon=0.2)  # type: ignore[type-var]
    return kairode.collect(env, policy, episodes=episodes, seed=seed), half


def make_models(folder: Path, table: str) -> None:
    data, _ = table_of(folder, table)
    kairode.fit(
        "latent-ode", data, seeds=MODELS, iterations=ITERATIONS, chunk_length=CHUNK, folder=folder / f"models-{table}"
    )


def make_estimates(folder: Path, table: str, mine: list[str]) -> None:
    """Estimate the return of some policies from one table."""
    env = kairode.make("hiv")
    data, _ = table_of(folder, table)
    place = folder / f"models-{table}"
    models = kairode.load_models(place) if (place / "models.json").exists() else None
    behavior = fit_behavior(data)
    for name in mine:
        path = folder / f"estimates-{table}" / f"{name}.json"
        if path.exists():
            continue
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = kairode.evaluate_offline(policy_of(folder, name), data, models, task=env.task, behavior=behavior)
        path.parent.mkdir(exist_ok=True)
        save_json(
            path,
            {**found.figures(), "lower_bound": found.lower_bound, **made(), "seconds": time.perf_counter() - began},
        )
        print(table, name, found, sep="\n", flush=True)


def made() -> dict[str, Any]:
    """Where an estimate is from: the record itself is put together later."""
    return {
        "commit": commit(),
        "machine": f"{machine()['cores']} cores, {machine()['processor']}, jax {jax.__version__}",
    }


def summary(true: np.ndarray, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one estimator, by its mean and by its lower end: rank correlation with the truth, and the return of the policy
    that it chooses, relative to the best one's; coverage of its intervals."""
    mean, low, high = (np.array([one[name] for one in found]) for name in ("mean", "low", "high"))
    return {
        "mean": _by(true, mean),
        "low": _by(true, low),
        "coverage": float(np.mean((low <= true) & (true <= high))),
        "relative_error": float(np.median(np.abs(mean - true) / np.abs(true))),
    }


def _by(true: np.ndarray, value: np.ndarray) -> dict[str, float]:
    chosen = true[int(np.argmax(value))] / true.max()
    return {"rank_correlation": float(stats.spearmanr(value, true).statistic), "chosen": float(chosen)}


def make_the_record(folder: Path) -> None:
    true = true_returns(folder)
    figures: dict[str, Any] = {"true": true}
    for table in TABLES:
        found = {
            name: json.loads((folder / f"estimates-{table}" / f"{name}.json").read_text())
            for name in names()
            if (folder / f"estimates-{table}" / f"{name}.json").exists()
        }
        if not found:
            continue
        returns = np.array([true[name] for name in found])
        estimators = next(iter(found.values()))["estimates"]
        figures[table] = {
            "policies": len(found),
            "behavior": next(iter(found.values()))["behavior"],
            "made_by": table_of(folder, table)[1],
            "estimators": {
                one: summary(returns, [each["estimates"][one] for each in found.values()]) for one in estimators
            },
            "lower_bound": _by(returns, np.array([each["lower_bound"] for each in found.values()])),
            "estimates": {name: each["estimates"] for name, each in found.items()},
            "effective_sample_size": {name: each["effective_sample_size"] for name, each in found.items()},
            "seconds": float(np.mean([each["seconds"] for each in found.values()])),
            "made": sorted({json.dumps([each["commit"], each["machine"]]) for each in found.values()}),
        }
        print(table, json.dumps(rounded(figures[table]["estimators"], 3)), figures[table]["lower_bound"])
    config = {"tables": TABLES, "policies": names(), "models": MODELS, "iterations": ITERATIONS, "chunk_length": CHUNK}
    command = "python tools/offline_study.py record FOLDER"
    save_json(RECORD, make_record("offline", config, rounded(figures), command=command, seconds=0.0))


def main() -> None:
    """One step of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("policies", "models", "estimates", "record"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("table", nargs="?", choices=tuple(TABLES))
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    mine = names()[given.worker :: given.workers]
    if given.step == "policies":
        make_policies(given.folder, mine)
    elif given.step == "models":
        make_models(given.folder, given.table)
    elif given.step == "estimates":
        make_estimates(given.folder, given.table, mine)
    else:
        make_the_record(given.folder)


if __name__ == "__main__":
    main()
