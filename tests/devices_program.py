"""Fits and agents on one device and on four virtual ones, in a process that has four; prints the differences as JSON.

Not a test: `test_devices.py` runs it.
"""

import contextlib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import kairode
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.train_loop import train_agents
from kairode.agents.train_step import TrainingBatch
from kairode.config.agents import DQNConfig
from kairode.config.models import ModelConfig
from kairode.config.training import TrainingConfig
from kairode.devices import FitDevices, use_devices
from kairode.envs.schedule import FixedOrOwn
from kairode.errors import Stopped
from kairode.models.predict import prepare
from kairode.models.zoo import build
from kairode.planning.model_env import make_model_env
from kairode.training.batches import pad
from kairode.training.loop import train
from kairode.training.step import batch_indices, init_fit_state, run_iterations
from kairode.trees import stack

SIZES = ModelConfig(latent_size=3, encoder_hidden=4, field_hidden=5, timer_hidden=4)
SETTINGS = TrainingConfig(iterations=100, batch_size=8, validate_every=50)
DQN = DQNConfig(hidden=(16,), batch_size=16, replay_capacity=128, target_period=3, learning_rate=3e-3)
ENV = kairode.make("gridworld", horizon=15, noise=0.05)
DATA = kairode.collect(ENV, episodes=20, seed=0)


def models(name: str, seeds: int) -> Any:
    return stack([build(name, DATA.spec, SIZES, key=jax.random.key(seed)) for seed in range(seeds)])


def difference(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


def fit(name: str, seeds: int, devices: int, **options: Any) -> Any:
    with use_devices(devices):
        found = train(models(name, seeds), SETTINGS, DATA, DATA, seeds=range(seeds), **options)
    assert {len(x.devices()) for x in jax.tree.leaves(found.models) if isinstance(x, jax.Array)} == {1}
    return found


def resumed_elsewhere(name: str, seeds: int) -> Any:
    """Half on four devices, half on one."""

    def stop(progress: Any) -> None:
        if progress.done == 100:
            raise Stopped("enough")

    with tempfile.TemporaryDirectory() as folder:
        options = {"folder": Path(folder)}
        with contextlib.suppress(Stopped):
            fit(name, seeds, 4, callback=stop, **options)
        done: list[int] = []
        found = fit(name, seeds, 1, callback=lambda progress: done.append(progress.done), **options)
        assert done[0] == 50, done
        return found


def collectives(name: str, seeds: int) -> int:
    """Operations between devices in the compiled iterations."""
    with use_devices(4):
        devices = FitDevices.of(seeds, SETTINGS.batch_size)
    stacked = models(name, seeds)
    state = devices.by_seed(init_fit_state(stacked, SETTINGS, range(seeds)))
    data = devices.everywhere(pad(prepare(stacked, DATA)))
    batches = devices.batches(jnp.asarray(batch_indices(SETTINGS, range(seeds), len(DATA), 0, 50)))
    static = eqx.filter(stacked, eqx.is_array, inverse=True)
    text = run_iterations.lower(state, data, batches, static, SETTINGS).compile().as_text()
    return len(re.findall(r"(?:all-reduce|all-gather|collective-permute|all-to-all)(?:-start)?\(", text))


def agents(devices: int) -> Any:
    """Groups of 5 and of 3 agents: neither is a multiple of four."""

    def group(model: str, taus: list[float]) -> TrainingBatch:
        made = [build(model, DATA.spec, SIZES, key=jax.random.key(i)) for i in range(len(taus))]
        envs = stack([make_model_env(one, ENV, sample_intervals=False) for one in made])
        return TrainingBatch(envs, FixedOrOwn(jnp.array(taus), least=1.0), IdentityEncoder(), len(taus))

    batches = [group("rnn", [0.0, 0.0, 3.0, 5.0, 0.0]), group("dt-rnn", [0.0, 3.0, 5.0])]
    with use_devices(devices):
        return train_agents(
            batches,
            DQN,
            40,
            range(8),
            chunk=50,
            validate_every=100,
            validate=lambda q: {"score": np.asarray(q.biases[-1].sum(-1))},
        )


def streamed() -> float:
    """A fit that reads its batches from a file, on four devices, beside one in memory."""
    options: dict[str, Any] = {"iterations": 100, "batch_size": 8, "latent_size": 3, "seeds": 2}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.parquet"
        kairode.write(path, DATA)
        there = kairode.fit("rnn", kairode.stream(path), devices=4, **options)
        return difference(there, kairode.fit("rnn", kairode.read(path), **options))


def main(what: str) -> dict[str, Any]:
    if what == "streamed":
        return {"weights": streamed()}
    if what == "agents":
        one, four = agents(1), agents(4)
        return {
            "weights": difference((one.q, one.last), (four.q, four.last)),
            "returns": float(np.nanmax(np.abs(one.returns - four.returns))),
            "same_curve": [[point["decisions"] for point in found.curve] for found in (one, four)],
            "decisions": [one.decisions, four.decisions],
        }
    name, seeds = what.split(":")[0], int(what.split(":")[1])
    one, four = fit(name, seeds, 1), fit(name, seeds, 4)
    begun = models(name, seeds)
    found = {
        "weights": difference(one.models, four.models),
        "moved": difference(one.models, [jax.tree.map(lambda x, i=i: x[i], begun) for i in range(seeds)]),
    }
    if name == "latent-ode":
        found["resumed"] = difference(one.models, resumed_elsewhere(name, seeds).models)
        found["collectives"] = collectives(name, seeds)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
