"""How cost grows: time per iteration and memory, by episodes, their length, observed variables, latent size and agents.

One quantity varies while the others stay as in BASE. Memory is what the compiled program occupies on the device: data,
weights, optimiser and temporary arrays. `streamed` is the fit by episodes with batches read from a Parquet file, and
`peak` the peak memory of a whole process that fits from memory and from the file. Run it while nothing else runs (five
minutes on two cores): `kairode bench scaling`, with `--json` for the figures alone.
"""

import dataclasses
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import print_rows, run, seconds_a_call

import kairode
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.train_step import TrainingBatch, init_train_state, run_steps
from kairode.config.agents import DQNConfig
from kairode.config.models import SOLVER, ModelConfig
from kairode.config.presets import fit_preset
from kairode.config.training import TrainingConfig
from kairode.data import Trajectory
from kairode.data.stream import EpisodeStream
from kairode.envs.core import Discrete, Intervals, Spec, Variable
from kairode.envs.schedule import Own
from kairode.models.zoo import build
from kairode.planning.model_env import make_model_env
from kairode.training.sources import batch_source
from kairode.training.step import init_fit_state, run_iterations
from kairode.trees import stack

MODEL, BATCH, ITERATIONS = "latent-ode", 32, 20
BASE = {"episodes": 256, "length": 50, "variables": 6, "latent": 10}
SIZES: dict[str, tuple[int, ...]] = {
    "episodes": (100, 1000, 10_000, 100_000),
    "length": (10, 30, 100, 300, 1000),
    "variables": (2, 6, 20, 60, 200),
    "latent": (4, 10, 32, 100, 256),
    "agents": (1, 4, 16, 64, 210),
}
SHORT = 20
"""Decisions of an episode where the number of episodes varies."""
PEAK = (1000, 10_000, 100_000)
"""Episodes of the files whose fits' peak memory is measured."""
PART = 5000
"""Episodes that are written to a file at once."""
DECISIONS = 10


def synthetic(episodes: int, length: int, variables: int, seed: int = 0) -> Trajectory:
    """Episodes of random numbers: iterations take as long with any data."""
    rng = np.random.default_rng(seed)
    spec = Spec(
        name="synthetic",
        observations=tuple(Variable(f"x{i}", "1") for i in range(variables)),
        actions=Discrete(("off", "on")),
        intervals=Intervals(1.0, 5.0, step=1.0),
        time_unit="day",
    )
    return Trajectory(
        spec=spec,
        observation=rng.normal(size=(episodes, length + 1, variables)).astype(np.float32),
        action=rng.integers(2, size=(episodes, length)).astype(np.int32),
        interval=rng.integers(1, 6, size=(episodes, length)).astype(np.float32),
        reward=rng.normal(size=(episodes, length)).astype(np.float32),
        length=np.full(episodes, length, np.int32),
        terminated=np.zeros(episodes, bool),
        truncated=np.ones(episodes, bool),
    )


def write_synthetic(path: Path, episodes: int) -> Path:
    """A file of any number of episodes, of which a part at a time is in memory."""

    def parts() -> Iterator[Trajectory]:
        for first in range(0, episodes, PART):
            yield synthetic(min(PART, episodes - first), SHORT, BASE["variables"], seed=first)

    kairode.write(path, parts())
    return path


def fit_cost(data: Trajectory | EpisodeStream, latent: int = BASE["latent"]) -> dict[str, float]:
    """Milliseconds per iteration, with the choice of its batch, and megabytes on the device."""
    sizes = dataclasses.replace(ModelConfig(), latent_size=latent, field_hidden=max(20, latent), timer="none")
    settings = TrainingConfig(iterations=10**6, batch_size=BATCH, validate_every=ITERATIONS)
    models = stack([build(MODEL, data.spec, sizes, key=jax.random.key(0))])
    static = eqx.filter(models, eqx.is_array, inverse=True)
    fit_state = init_fit_state(models, settings, [0])
    source = batch_source(models, settings, data, [0])
    episodes, batches = source.batches(0)
    compiled = run_iterations.lower(fit_state, episodes, batches, static, settings).compile()
    done = 0

    def call() -> None:
        nonlocal done
        done += ITERATIONS
        jax.block_until_ready(compiled(fit_state, *source.batches(done)))

    seconds = seconds_a_call(call, 0.5)
    source.close()
    return {"milliseconds": 1e3 * seconds / ITERATIONS, "megabytes": _megabytes(compiled)}


def _megabytes(compiled: Any) -> float:
    found = compiled.memory_analysis()
    kinds = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
    return (sum(getattr(found, kind) for kind in kinds) - found.alias_size_in_bytes) / 1e6


def agent_cost(agents: int) -> dict[str, float]:
    """Milliseconds for a decision of all agents, in imagination, and megabytes on the device."""
    env = kairode.make("hiv")
    # Small weights, so that no prediction grows.
    models = [build(MODEL, env.task.spec, fit_preset("hiv").sizes, key=jax.random.key(i)) for i in range(agents)]
    models = [jax.tree.map(lambda x: 0.25 * x if eqx.is_array(x) else x, model) for model in models]
    envs = stack([make_model_env(model, env, sample_intervals=False) for model in models])
    batch = TrainingBatch(envs, Own(), IdentityEncoder(), agents)
    settings = DQNConfig()
    state = [jax.tree.map(jnp.copy, init_train_state([batch], settings, 10_000, range(agents)))]
    fixed = (settings, (batch,), DECISIONS)
    held = sum(x.nbytes for x in jax.tree.leaves(eqx.filter((fixed, state[0]), eqx.is_array)))

    def call() -> None:
        state[0] = jax.block_until_ready(run_steps(fixed, state[0]))

    for _ in range(settings.batch_size // DECISIONS + 1):  # updates begin with a full batch
        call()
    seconds = seconds_a_call(call, 0.5)
    assert not state[0].diverged.any(), "an agent diverged: no updates were measured"
    return {"milliseconds": 1e3 * seconds / DECISIONS, "megabytes": held / 1e6}


def peak_megabytes(path: Path, streamed: bool) -> float:
    """Peak memory of a process that fits to a file for some iterations."""
    program = (
        "import re, kairode\n"
        f"data = kairode.{'stream' if streamed else 'read'}({str(path)!r})\n"
        f"kairode.fit('rnn', data, iterations=100, batch_size={BATCH})\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}
    )
    return float(done.stdout) / 1024


def measure() -> dict[str, Any]:
    costs: dict[str, dict[int, dict[str, float]]] = {name: {} for name in (*SIZES, "streamed")}
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in SIZES["episodes"]:
            costs["episodes"][count] = fit_cost(synthetic(count, SHORT, BASE["variables"]))
            path = write_synthetic(Path(folder) / f"{count}.parquet", count)
            costs["streamed"][count] = fit_cost(kairode.stream(path, scratch=folder))
        figures["peak"] = {
            name: {str(count): peak_megabytes(Path(folder) / f"{count}.parquet", name == "streamed") for count in PEAK}
            for name in ("memory", "streamed")
        }
    for length in SIZES["length"]:
        costs["length"][length] = fit_cost(synthetic(BASE["episodes"], length, BASE["variables"]))
    for variables in SIZES["variables"]:
        costs["variables"][variables] = fit_cost(synthetic(BASE["episodes"], BASE["length"], variables))
    for latent in SIZES["latent"]:
        costs["latent"][latent] = fit_cost(synthetic(BASE["episodes"], BASE["length"], BASE["variables"]), latent)
    for agents in SIZES["agents"]:
        costs["agents"][agents] = agent_cost(agents)
    for name, found in costs.items():
        kinds = ("milliseconds", "megabytes")
        figures[name] = {kind: {str(size): cost[kind] for size, cost in found.items()} for kind in kinds}
        figures[name]["exponent"] = {kind: exponent(found, kind) for kind in kinds}
    return figures


def exponent(found: dict[int, dict[str, float]], kind: str) -> float:
    """Slope of the last two points in logarithms: 1 for linear growth."""
    (a, before), (b, after) = list(found.items())[-2:]
    return math.log(after[kind] / before[kind]) / math.log(b / a)


def show(figures: dict[str, Any]) -> None:
    for name, found in figures.items():
        if name == "peak":
            rows: Iterable[list[str]] = [
                [size, *(f"{found[kind][size]:,.0f}" for kind in found)] for size in found["memory"]
            ]
            print_rows(["episodes", *found], rows, title="peak memory of the process, MB")
            continue
        slopes = found["exponent"]
        rows = [[size, f"{ms:.4g}", f"{found['megabytes'][size]:,.4g}"] for size, ms in found["milliseconds"].items()]
        rows += [["growth", f"n^{slopes['milliseconds']:.2f}", f"n^{slopes['megabytes']:.2f}"]]
        print_rows([name, "ms", "MB"], rows)


if __name__ == "__main__":
    config = {"model": MODEL, "solver": SOLVER, "batch": BATCH, "base": BASE, "short": SHORT, "sizes": SIZES}
    run("scaling", measure, config, show, __doc__)
