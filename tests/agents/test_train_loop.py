"""Whole training runs: agents together and alone, interrupted and resumed, diverging."""

import dataclasses
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from probes import Fragile, abreast, some_of

import kairode
from kairode.agents.encoder import IdentityEncoder, LatentEncoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.train_loop import TrainResult, train_agents
from kairode.agents.train_step import TrainingBatch
from kairode.callbacks import Progress
from kairode.config.agents import DQNConfig
from kairode.config.models import ModelConfig
from kairode.envs.schedule import FixedOrOwn, Own
from kairode.errors import KairodeError, Stopped
from kairode.models.zoo import build
from kairode.planning.model_env import make_model_env

SETTINGS = DQNConfig(hidden=(16,), batch_size=16, replay_capacity=128, target_period=3, learning_rate=3e-3)
ENV = kairode.make("gridworld", horizon=30, noise=0.05)
FIVE = TrainingBatch(ENV, FixedOrOwn(jnp.array([0.0, 0.0, 3.0, 5.0, 0.0]), least=1.0), IdentityEncoder(), 5)
SEEDS = [5, 6, 7, 8, 9]


def validate(q: ReLUNetwork) -> dict[str, Any]:
    """A score that goes up and down."""
    return {"score": jnp.sin(1e3 * q.biases[-1].sum(-1)), "size": jnp.abs(q.weights[0]).sum((1, 2))}


def trained(batches: Sequence[TrainingBatch], seeds: Sequence[int], **options: Any) -> TrainResult:
    return train_agents(batches, SETTINGS, 40, seeds, chunk=100, validate_every=200, validate=validate, **options)


@pytest.fixture(scope="module")
def five() -> TrainResult:
    return trained([FIVE], SEEDS)


def same(a: TrainResult, b: TrainResult, tolerance: float = 0.0) -> None:
    for x, y in zip(jax.tree.leaves((a.q, a.last)), jax.tree.leaves((b.q, b.last)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)
    np.testing.assert_allclose(a.returns, b.returns, rtol=tolerance)
    assert a.decisions == b.decisions


def only(done: TrainResult, i: int) -> TrainResult:
    """What one agent did."""
    q, last = some_of((done.q, done.last), i, i + 1)
    return dataclasses.replace(
        done, q=q, last=last, returns=done.returns[i : i + 1], decisions=done.decisions[i : i + 1]
    )


@pytest.mark.slow
def test_one_alone_is_the_same_among_five(five: TrainResult) -> None:
    """The one that takes the most decisions, and so goes on when the others have finished, and one of those."""
    assert len(set(five.decisions)) == 5
    for i in (2, 3):
        alone = trained([some_of(dataclasses.replace(FIVE, agents=1), i, i + 1)], SEEDS[i : i + 1])
        same(only(five, i), alone, 5e-3)  # the same decisions; sums are rounded in another order, and learning adds up
    assert np.isfinite(five.returns).all()
    np.testing.assert_array_less(five.decisions[3], five.decisions[2])


@pytest.mark.slow
def test_an_agent_of_the_second_room_is_the_same_apart() -> None:
    """Imagining with unlike models. The second, since it is its lanes, keys and seeds that could be mistaken."""
    env = kairode.make("gridworld", horizon=30)

    def batch(name: str) -> TrainingBatch:
        model = build(name, env.task.spec, ModelConfig(latent_size=4, timer="none"), key=jax.random.key(3))
        return TrainingBatch(abreast(make_model_env(model, env)), Own(), LatentEncoder(abreast(model)), 1)

    first, second = batch("rnn"), batch("dt-rnn")
    together = trained([first, second], [0, 1])
    same(only(together, 1), trained([second], [1]), 1e-4)
    assert (together.returns[0] != together.returns[1]).any()


def test_interrupted_and_resumed_is_never_interrupted(five: TrainResult, tmp_path: Path) -> None:
    told: list[Progress] = []

    def note(report: Progress) -> None:
        if report.seconds:  # not that training starts
            told.append(report)

    def press(report: Progress) -> None:
        note(report)
        if report.seconds:
            signal.raise_signal(signal.SIGINT)

    for taken in (100, 200):  # before the first look, and right after it
        with pytest.raises(Stopped, match="interrupted in 'learning' at episode ") as stopped:
            trained([FIVE], SEEDS, folder=tmp_path, callback=press)
        assert str(stopped.value).endswith(f" {told[-1].done} of 40, saved.")
        assert len(told) == taken // 100
    done = trained([FIVE], SEEDS, folder=tmp_path, callback=note)
    same(done, five)
    assert len(told) == -(-max(five.decisions) // 100)  # no hundred decisions twice
    assert [report.done for report in told] == sorted(report.done for report in told)
    assert told[-1].finished
    assert told[-1].done == 40

    def plain(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in point.items() if name != "seconds"} for point in curve]

    assert plain(done.curve) == plain(five.curve)
    # Once more: all is done already.
    same(trained([FIVE], SEEDS, folder=tmp_path), five)


def test_when_time_is_up_training_ends_with_what_it_has(five: TrainResult, tmp_path: Path) -> None:
    cut = trained([FIVE], SEEDS, folder=tmp_path, time_limit=1e-9)
    assert cut.decisions == [100] * 5
    assert np.isnan(cut.returns[:, -1]).all()
    same(trained([FIVE], SEEDS, folder=tmp_path), five)


def test_the_best_looked_at_is_kept(five: TrainResult) -> None:
    scores = np.array([point["score"] for point in five.curve])
    assert scores.shape == (len(five.curve), 5)
    np.testing.assert_allclose(validate(five.q)["score"], scores.max(0), atol=1e-6)
    np.testing.assert_allclose(validate(five.last)["score"], scores[-1], atol=1e-6)
    assert (scores.argmax(0) < len(scores) - 1).any()


def fragile(last_obs: Any, last_reward: Any) -> list[TrainingBatch]:
    return [TrainingBatch(Fragile(jnp.asarray(last_obs), jnp.asarray(last_reward)), Own(), IdentityEncoder(), 3)]


def finite(tree: Any) -> bool:
    return all(bool(np.isfinite(x).all()) for x in jax.tree.leaves(tree))


def test_one_diverges_and_the_others_go_on(tmp_path: Path) -> None:
    """An observation, then a reward that is no number; and with all agents gone, an error."""
    settings = dataclasses.replace(
        SETTINGS, batch_size=4
    )  # small, so that what is wrong is seldom drawn: it is seen at once
    done = train_agents(fragile([20.5, np.inf, np.inf], [np.inf, 30.5, np.inf]), settings, 2, [0, 1, 2], chunk=50)
    assert done.diverged == [True, True, False]
    assert done.decisions == [21, 31, 120]
    assert finite(done.last)
    np.testing.assert_allclose(done.returns[2, :, 0], 60.0)
    assert not np.isfinite(done.returns[:2]).any()
    untouched = train_agents(fragile([np.inf] * 3, [np.inf] * 3), settings, 2, [0, 1, 2], chunk=50)
    same(only(done, 2), only(untouched, 2))

    with pytest.raises(KairodeError, match="seed 1 diverged after 11 decisions"):
        train_agents(fragile([20.5, 10.5, 90.0], [90.0, 90.0, 30.5]), settings, 2, [0, 1, 2], chunk=50, folder=tmp_path)
    [file] = tmp_path.glob("*.safetensors")
    kept = safetensors.numpy.load_file(file)
    assert finite([kept[name] for name in kept if ".q." in name or ".target." in name or ".optimizer." in name])
    assert any(".q." in name for name in kept)
