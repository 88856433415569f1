"""Policies learned from records of HIV alone, beside d3rlpy's, with their true returns.

    python tools/offline_learning.py tables FOLDER                      # the records, as CSV files
    python tools/offline_learning.py ours FOLDER half --seed 0          # kairode learn, and the true returns
    python tools/offline_learning.py export FOLDER half                 # for tools/offline_peers.py
    python tools/offline_learning.py peers FOLDER half                  # true returns of what that learned
    python tools/offline_learning.py record FOLDER                      # writes results/offline-learning.json
    python tools/offline_learning.py table                              # the tables of docs/results.md

The simulator makes the tables and, at the very end, tells the truth; nothing is learned from it or chosen by it. The
recipes of `kairode.learn_offline`, and how it chooses among them, were developed on other tables of these four kinds
(`TABLE_SEED = 400_000`), with the true returns of the policies learned from these. Each step skips what is already in
the folder. d3rlpy needs a virtual environment of its own (`pip install torch==2.13.0 d3rlpy`): tools/offline_peers.py.
"""

import argparse
import csv
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
from kairode.agents.network import ReLUNetwork
from kairode.algorithms.learn_offline import choose_offline
from kairode.config.offline import RECIPES, OfflineConfig
from kairode.data.policy import Policy
from kairode.data.trajectory import Trajectory, carried_forward, join
from kairode.envs.hiv import LOG_MEAN, LOG_STD, MARKERS
from kairode.files import save_json
from kairode.result import rounded
from kairode.runs.record import commit, machine, make_record, read_record
from kairode.stats import mean, std

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "offline-learning.json"
REWARD = "1000 * 10 ** E - 0.1 * 10 ** V - 9800 * before(rti) - 180 * before(pi)"
"""HIV's reward in terms of the columns: log10 of the markers, and the drugs given until the next visit."""
COLUMNS: dict[str, Any] = {
    "episode": "patient",
    "time": "day",
    "time_unit": "day",
    "action": ["rti", "pi"],
    "reward": REWARD,
    "discount": 0.995,
    "reward_missing": "carry",
}
TABLES = ("random", "blocks", "half", "mixture")
MISSING = 0.3
ENSEMBLE, ITERATIONS, CHUNK = 5, 4000, 50
HALF, RANDOM_ACTIONS = 45e7, 0.2
"""True return of the half-good policy, and the share of random actions when it makes records."""
TABLE_SEED, TEST_EPISODES, TEST_SEED = 700_000, 100, 7
FLEXIBILITY = 0.3
"""Of d3rlpy's DiscreteBCQ, its default."""
ORDER = (0, 2, 1, 3)
"""HIV's action for each of the table's: rti=0 pi=0, rti=0 pi=1, rti=1 pi=0, rti=1 pi=1."""


class Blocks(Policy):
    """A uniformly random treatment, held for 14 to 120 days."""

    def start(self, *, key: Any) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(())

    def act(self, memory: Any, obs: Any, elapsed: Any, *, key: Any) -> Any:
        (action, left), (action_key, length_key) = memory, jax.random.split(key)
        over = left - elapsed <= 0
        action = jnp.where(over, jax.random.randint(action_key, (), 0, 4), action)
        left = jnp.where(over, jax.random.uniform(length_key, (), minval=14.0, maxval=120.0), left - elapsed)
        return action, (action, left)


class OnSystem(Policy):
    """A policy of the table's columns on HIV itself, whose observations are standardised and treatments named."""

    inner: Policy

    def start(self, *, key: Any) -> Any:
        return self.inner.start(key=key)

    def act(self, memory: Any, obs: Any, elapsed: Any, *, key: Any) -> Any:
        seen = obs * jnp.asarray(LOG_STD, obs.dtype) + jnp.asarray(LOG_MEAN, obs.dtype)
        action, memory = self.inner.act(memory, seen, elapsed, key=key)
        return jnp.asarray(ORDER)[action], memory


class Peer(Policy):
    """The greedy policy of a Q-network that was given [s, time since the last visit]; with an imitator, among the
    actions that are likely enough (BCQ)."""

    q: Any
    imitator: ReLUNetwork | None
    mean: Any
    std: Any

    def act(self, memory: Any, obs: Any, elapsed: Any, *, key: Any) -> Any:
        seen = (jnp.append(obs, elapsed) - self.mean) / self.std
        values = self.q(seen)
        if self.imitator is not None:
            chances = jax.nn.softmax(self.imitator(seen))
            values = jnp.where(chances > FLEXIBILITY * chances.max(), values, -jnp.inf)
        return jnp.argmax(values), memory


def make_tables(folder: Path) -> None:
    """Records of four kinds of treatment, whole and with missing values."""
    env = kairode.make("hiv")
    path = folder / "half-policy"
    if not (path / "policy.json").exists():
        kairode.save_policy(path, half_good(env))
    half: Any = dataclasses.replace(kairode.load_policy(path), epsilon=RANDOM_ACTIONS)
    policies = {"random": (None, 1000), "blocks": (Blocks(), 200), "half": (half, 200)}
    made: dict[str, Trajectory] = {}
    for i, (name, (policy, episodes)) in enumerate(policies.items()):
        made[name] = kairode.collect(env, policy, episodes=episodes, seed=TABLE_SEED + 10_000 * i)
    made["mixture"] = join([made["random"][:400], made["blocks"][:100], made["half"][:100]])
    for name, data in made.items():
        write_csv(folder / f"{name}.csv", data)
        write_csv(folder / f"{name}-missing.csv", data, MISSING)
        save_json(folder / f"{name}.json", {"behavior": float(data.discounted.mean()), "episodes": len(data)})


def half_good(env: Any) -> Any:
    """A model-free policy whose return is close to `HALF`."""
    found = []
    for episodes, seed in ((60, 11), (80, 12), (100, 13), (70, 14), (90, 15)):
        policy = kairode.learn(None, env, episodes=episodes, seed=seed)
        found.append((abs(kairode.evaluate(env, policy, episodes=60, seed=77).score - HALF), policy))
        if found[-1][0] < 0.1 * HALF:
            break
    return min(found, key=lambda one: one[0])[1]


def write_csv(path: Path, data: Trajectory, missing: float = 0.0) -> None:
    """Log10 of the markers, and the drugs given until the next visit."""
    seen, times = np.asarray(data.observation) * np.array(LOG_STD) + np.array(LOG_MEAN), data.time
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", "day", *MARKERS, "rti", "pi"])
        for i, length in enumerate(np.asarray(data.length)):
            lost = rng.random((length + 1, len(MARKERS))) < missing
            for k in range(length + 1):
                action = int(data.action[i, k]) if k < length else 0
                values = ["" if gone else f"{x:.6g}" for x, gone in zip(seen[i, k], lost[k], strict=True)]
                writer.writerow([i, round(times[i, k]), *values, int(action in (1, 3)), int(action in (2, 3))])


def load(folder: Path, table: str) -> Trajectory:
    return kairode.load_table(folder / f"{table}.csv", **COLUMNS)


def true_return(policy: Policy) -> dict[str, Any]:
    found = kairode.evaluate(kairode.make("hiv"), OnSystem(policy), episodes=TEST_EPISODES, seed=TEST_SEED)
    return {"mean": found.score, "interval": found.interval}


def learn_ours(folder: Path, table: str, seed: int) -> None:
    """One whole run: models, recipes, the choice; the truth of every candidate is computed after it."""
    path, began = folder / f"ours-{table}-{seed}.json", time.perf_counter()
    if path.exists():
        return
    data = load(folder, table)
    options: dict[str, Any] = {"iterations": ITERATIONS, "chunk_length": CHUNK, "cooldown": 0.4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = folder / f"models-{table}-{seed}"
        models = kairode.fit("latent-ode", data, seeds=ENSEMBLE, seed=100 * seed, folder=place, **options)
        found = choose_offline(models, data, OfflineConfig(), seed=seed, folder=folder / f"training-{table}-{seed}")
    seconds = time.perf_counter() - began
    candidates = [
        {
            "name": one.name,
            "true": true_return(one.policy),
            **({} if one.estimates is None else one.estimates.figures()),
        }
        for one in found.candidates
    ]
    save_json(path, {"candidates": rounded(candidates), "seconds": seconds, **made()})
    print(table, seed, candidates[0]["name"], candidates[0]["true"], f"{seconds:.0f} s", flush=True)


def made() -> dict[str, Any]:
    """Where a result is from: the record itself is put together later."""
    return {
        "commit": commit(),
        "machine": f"{machine()['cores']} cores, {machine()['processor']}, jax {jax.__version__}",
    }


def export(folder: Path, table: str) -> None:
    """Transitions for d3rlpy: [s, time since the last visit], missing values carried forward, rewards scaled."""
    data = carried_forward(load(folder, table))
    waits = np.concatenate([np.zeros((len(data), 1)), np.asarray(data.interval)], axis=1)
    seen = np.concatenate([np.asarray(data.observation), waits[..., None]], axis=-1)
    mask = np.asarray(data.mask)
    rows = seen[:, :-1][mask]
    middle, spread = rows.mean(0), rows.std(0)
    last = (np.arange(mask.shape[1]) == np.asarray(data.length)[:, None] - 1)[mask]
    np.savez(
        folder / f"{table}.npz",
        observations=((rows - middle) / spread).astype(np.float32),
        actions=np.asarray(data.action)[mask],
        rewards=(np.asarray(data.reward)[mask] / np.abs(data.discounted).mean()).astype(np.float32),
        timeouts=last,
        mean=middle,
        std=spread,
        gamma=data.spec.discount ** np.asarray(data.interval)[mask].mean(),
    )


def evaluate_peers(folder: Path, table: str) -> None:
    """True returns of the networks that tools/offline_peers.py has written."""
    scale = np.load(folder / f"{table}.npz")
    for path in sorted(folder.glob(f"peer-{table}-*.npz")):
        target = path.with_suffix(".json")
        if target.exists():
            continue
        found = np.load(path)
        numbers = (jnp.asarray(scale[x], jnp.float32) for x in ("mean", "std"))
        save_json(target, {"true": true_return(Peer(network(found, "q"), network(found, "imitator"), *numbers))})
        print(target.stem, json.loads(target.read_text())["true"], flush=True)


def network(found: Any, name: str) -> ReLUNetwork | None:
    """The layers of one network; None if there are none."""
    count = sum(one.startswith(f"{name}-weight") for one in found.files)
    parts = (tuple(jnp.asarray(found[f"{name}-{part}{i}"]) for i in range(count)) for part in ("weight", "bias"))
    return ReLUNetwork(*parts) if count else None


def best_of(candidates: list[dict[str, Any]], names: Any) -> float:
    """True return of the candidate of these recipes with the highest lower bound."""
    return next(one["true"]["mean"] for one in candidates if one["name"].split()[0] in names)


def estimate_quality(each: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Estimates of the candidates of all seeds against their true returns: rank correlations of the mean and of the
    lower end, share of the intervals that cover the truth, and what the chosen candidates return of the best."""
    found: dict[str, Any] = {"policies": sum(map(len, each))}
    together = [one for candidates in each for one in candidates]
    true = np.array([one["true"]["mean"] for one in together])
    for name in ("fitted_q", "doubly_robust", "model"):
        low, middle, high = (
            np.array([one["estimates"][name][end] for one in together], np.float64) for end in ("low", "mean", "high")
        )
        ranks = [stats.spearmanr(true, x, nan_policy="omit").statistic for x in (middle, low)]
        figures = (*ranks, np.mean((low <= true) & (true <= high)))
        keys = ("rank_correlation", "rank_correlation_low", "coverage")
        found[name] = {key: float(value) for key, value in zip(keys, figures, strict=True)}
    chosen = [one[0]["true"]["mean"] / max(candidate["true"]["mean"] for candidate in one) for one in each]
    return {**found, "chosen_of_best": {"mean": mean(chosen), "each": chosen}}


def make_the_record(folder: Path) -> None:
    """All tables: what was done, ours, ours by recipe, d3rlpy's."""
    figures: dict[str, Any] = {}
    for table in (f"{name}{kind}" for name in TABLES for kind in ("", "-missing")):
        paths = sorted(folder.glob(f"ours-{table}-[0-9]*.json"))
        if not paths:
            continue
        found = [json.loads(path.read_text()) for path in paths]
        each = [one["candidates"] for one in found]
        free = [name for name, recipe in RECIPES.items() if not recipe.model]
        rows = {
            "ours": [one[0]["true"]["mean"] for one in each],
            "without pessimism": [best_of(one, ["ensemble"]) for one in each],
            "without models": [best_of(one, free) for one in each],
        }
        for path in sorted(folder.glob(f"peer-{table}-*.json")):
            rows.setdefault(path.stem.split("-")[-2], []).append(json.loads(path.read_text())["true"]["mean"])
        figures[table] = {
            "behavior": json.loads((folder / f"{table.removesuffix('-missing')}.json").read_text())["behavior"],
            "rows": {name: {"mean": mean(x), "std": std(x), "each": x} for name, x in rows.items()},
            "chosen": [one[0]["name"] for one in each],
            "estimates": estimate_quality(each),
            "best": [max(candidate["true"]["mean"] for candidate in one) for one in each],
            "seconds": [one["seconds"] for one in found],
            "made": sorted({json.dumps([one["commit"], one["machine"]]) for one in found}),
        }
        print(table, json.dumps(rounded(figures[table]["rows"], 3)))
    config = {"tables": TABLES, "missing": MISSING, "models": ENSEMBLE, "iterations": ITERATIONS, "chunk_length": CHUNK}
    command = "python tools/offline_learning.py record FOLDER"
    save_json(RECORD, make_record("offline", config, rounded(figures), command=command, seconds=0.0))


def print_tables() -> None:
    """The tables of docs/results.md, from the record; returns in 1e7."""
    figures = read_record(RECORD)["figures"]
    names = list(dict.fromkeys(name for one in figures.values() for name in one["rows"]))
    print("| table | what was done |", *(f"{name} |" for name in names))
    print("|---|---|" + "---|" * len(names))
    for table, one in figures.items():
        cells = [f"{one['behavior'] / 1e7:.2f}", *(_cell(one["rows"].get(name)) for name in names)]
        print(f"| {table} |", *(f"{cell} |" for cell in cells))
    print("\n| table | estimates by | rank correlation: mean, lower end | intervals that cover | chosen, of the best |")
    print("|---|---|---|---|---|")
    for table, one in figures.items():
        found = one["estimates"]
        for name in ("fitted_q", "doubly_robust", "model"):
            ranks = f"{found[name]['rank_correlation']:.2f}, {found[name]['rank_correlation_low']:.2f}"
            chosen = f"{found['chosen_of_best']['mean']:.0%}" if name == "fitted_q" else ""
            print(f"| {table if chosen else ''} | {name} | {ranks} | {found[name]['coverage']:.0%} | {chosen} |")


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    spread = f" ± {row['std'] / 1e7:.1f}" if len(row["each"]) > 1 else ""
    return f"{row['mean'] / 1e7:.1f}{spread}"


def main() -> None:
    """One step of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("tables", "ours", "export", "peers", "record", "table"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("."))
    parser.add_argument("table", nargs="?", choices=[f"{name}{kind}" for name in TABLES for kind in ("", "-missing")])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.step == "table":
        print_tables()
    elif given.step == "tables":
        make_tables(given.folder)
    elif given.step == "ours":
        learn_ours(given.folder, given.table, given.seed)
    elif given.step == "export":
        export(given.folder, given.table)
    elif given.step == "peers":
        evaluate_peers(given.folder, given.table)
    else:
        make_the_record(given.folder)


if __name__ == "__main__":
    main()
