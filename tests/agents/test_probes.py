"""Agents learn the values and the policies of processes whose optimum is known by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import END, Cue, abreast, one_of, table

from kairode.agents.encoder import IdentityEncoder, LatentEncoder
from kairode.agents.evaluate import evaluate
from kairode.agents.train_loop import TrainResult, train_agents
from kairode.agents.train_step import TrainingBatch
from kairode.config.agents import DQNConfig
from kairode.config.models import ModelConfig
from kairode.envs.schedule import FixedOrOwn, Own
from kairode.models.zoo import build

SETTINGS = DQNConfig(
    hidden=(64,),
    batch_size=32,
    replay_capacity=512,
    target_period=2,
    learning_rate=3e-3,
    final_epsilon=0.5,
    epsilon_decay=50,
)
# Two ways of unlike length; the longer leads to more. gamma = 0.9.
WAYS = {0: [(1, 0.0, 1.0), (2, 0.0, 10.0)], 1: [(END, 1.0, 1.0)] * 2, 2: [(END, 1.2, 1.0)] * 2}
PROBES = {
    "constant": {0: [(END, 1.0, 1.0)] * 2},
    "choice": {0: [(END, 0.2, 1.0), (END, 0.8, 1.0)]},
    "delay": {0: [(1, 0.0, 1.0)] * 2, 1: [(END, 1.0, 1.0), (END, 0.5, 1.0)]},
    "interval": WAYS,
    "interval, timed": WAYS,
    # The first action ends the process; the second lasts, until the cap on decisions (which says nothing of values).
    "ending": {0: [(END, 1.0, 1.0), (0, 0.5, 5.0)]},
    "interval, in ticks": WAYS,
}
VALUES = {
    "constant": {0: (1.0, 1.0)},
    "choice": {0: (0.2, 0.8)},
    "delay": {0: (0.9, 0.9), 1: (1.0, 0.5)},
    "interval": {0: (0.9 * 1.0, 0.9**10 * 1.2), 1: (1.0, 1.0), 2: (1.2, 1.2)},
    "interval, timed": {0: (0.9 * 1.0, 0.9 * 1.2)},  # both ways last as long: now the other one is the better
    "ending": {0: (1.0, 0.5 / (1 - 0.9**5))},
    "interval, in ticks": {0: (0.9 * 1.0, 0.9**10 * 1.2)},
}


@pytest.fixture(scope="module")
def learned() -> tuple[list[TrainingBatch], TrainResult]:
    """All probes at once, an agent each; in rooms of their own the one with another tick and the one with a cue."""
    envs = [table(ways) for ways in PROBES.values()]
    timed = FixedOrOwn(jnp.array([float(name == "interval, timed") for name in PROBES])[:-1], least=1.0)
    batches = [
        TrainingBatch(abreast(*envs[:-1]), timed, IdentityEncoder(), len(envs) - 1),
        TrainingBatch(abreast(table(WAYS, tick=0.2)), Own(), IdentityEncoder(), 1),
        TrainingBatch(Cue(), Own(), IdentityEncoder(), 1),
    ]
    return batches, train_agents(batches, SETTINGS, 1000, range(len(PROBES) + 1))


@pytest.mark.parametrize("name", PROBES)
def test_values_and_policy(name: str, learned: tuple[list[TrainingBatch], TrainResult]) -> None:
    q = one_of(learned[1].q, list(PROBES).index(name))
    for state, values in VALUES[name].items():
        found = q(jax.nn.one_hot(state, 4))
        np.testing.assert_allclose(found, values, atol=0.05, err_msg=f"state {state}")
        if values[0] != values[1]:
            assert found.argmax() == np.argmax(values)


def test_returns_of_training(learned: tuple[list[TrainingBatch], TrainResult]) -> None:
    """Plain, and each reward times gamma^t, t the time of its decision: of either way there are many."""
    for name, taus in (("interval", (1, 10)), ("interval, timed", (1, 1)), ("interval, in ticks", (1, 10))):
        found = learned[1].returns[list(PROBES).index(name)]
        left = found[:, 0] < 1.1
        assert 100 < left.sum() < 900
        np.testing.assert_allclose(found[left], [[1.0, 0.9 ** taus[0]]] * left.sum(), rtol=1e-5)
        np.testing.assert_allclose(found[~left], [[1.2, 1.2 * 0.9 ** taus[1]]] * (~left).sum(), rtol=1e-5)


def test_without_memory_it_is_chance(learned: tuple[list[TrainingBatch], TrainResult]) -> None:
    batches, done = learned
    assert abs(evaluate(Cue(), done.policies(batches, epsilon=0.0)[-1], episodes=400).score) < 0.2


@pytest.mark.slow
def test_memory_solves_what_needs_memory() -> None:
    """A latent state of a model that never learned anything still depends on what was seen: enough to remember by."""
    model = build("rnn", Cue().task.spec, ModelConfig(latent_size=8, timer="none"), key=jax.random.key(0))
    batches = [TrainingBatch(Cue(), Own(), LatentEncoder(abreast(model)), 1)]
    [policy] = train_agents(batches, SETTINGS, 1000, [0]).policies(batches, epsilon=0.0)
    assert evaluate(Cue(), policy, episodes=400).score == 1.0
