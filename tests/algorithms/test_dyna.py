"""Dyna rounds: every real episode is counted, and interrupted rounds end as if they had never been."""

import dataclasses
import json
import os
import signal

import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.callbacks import Progress
from kairode.config.agents import DQNConfig
from kairode.config.algorithms import DynaConfig
from kairode.data.trajectory import join
from kairode.envs.gridworld import WindyGridworld
from kairode.errors import KairodeError, Stopped
from kairode.runs.dyna import run_dyna

SMALL = {
    "model": "rnn",
    "initial_episodes": 10,
    "episodes_per_round": 2,
    "ensemble_size": 2,
    "fit_iterations": 4,
    "imagined_episodes": 2,
    "dqn": DQNConfig(hidden=(16, 16), replay_capacity=512, batch_size=16, reward_scale=0.1, double_q=True),
}


class Mine(WindyGridworld):
    """No name makes it."""

    @property
    def task(self):
        task = super().task
        return dataclasses.replace(task, spec=dataclasses.replace(task.spec, name="mine"))


@pytest.mark.slow
def test_interrupted_rounds_end_with_the_same_record(tmp_path) -> None:
    config = DynaConfig("gridworld", rounds=1, env_fields={"horizon": 30.0}, **SMALL)
    told: list[Progress] = []
    made = run_dyna(config, tmp_path / "whole", told.append)
    said = [progress.message for progress in told if progress.message]
    assert [message.split(",")[0] for message in said] == [
        "Round 0: 10 real episodes",
        "Round 1: 12 real episodes",
    ]
    assert [found["real_episodes"] for found in made["figures"]["rounds"]] == [10, 12]
    assert np.isfinite([found["model_error"] for found in made["figures"]["rounds"]]).all()
    assert made == json.loads((tmp_path / "whole" / "record.json").read_text())

    def stop_at(wanted):
        def callback(progress: Progress) -> None:
            if wanted(progress):
                os.kill(os.getpid(), signal.SIGTERM)

        return callback

    folder = tmp_path / "parts"
    with pytest.raises(Stopped, match=rf"in round 0, .* Run the same command again to resume: kairode dyna .*{folder}"):
        run_dyna(config, folder, stop_at(lambda progress: progress.stage == "fitting" and not progress.done))
    with pytest.raises(Stopped, match=r"interrupted after round 0, saved\. Run the same command again"):
        run_dyna(config, folder, stop_at(lambda progress: progress.message.startswith("Round 0")))
    assert not (folder / "record.json").exists()
    assert run_dyna(config, folder)["figures"] == made["figures"]
    policy = kairode.load_policy(folder)
    env = kairode.make("gridworld", horizon=30.0)
    assert kairode.evaluate(env, policy).score == made["figures"]["test"]["return"]
    with pytest.raises(KairodeError, match=r"holds another run .exploration is 0.1 there and 0.2 here"):
        run_dyna(dataclasses.replace(config, exploration=0.2), folder)


@pytest.mark.slow
def test_rounds_on_a_system_of_ones_own(tmp_path) -> None:
    env = Mine(noise=0.0, horizon=20.0)
    made = kairode.train_dyna(env, rounds=1, folder=tmp_path / "dyna", **SMALL)
    assert [found["real_episodes"] for found in made.rounds] == [10, 12]
    assert len(made.data) == 12
    assert dict(made.data.spec.settings)["horizon"] == 20
    assert len(made.models) == 2
    assert np.isfinite(kairode.evaluate(env, made.policy, episodes=2).score)

    more = kairode.train_dyna(env, rounds=2, folder=tmp_path / "dyna", **SMALL)
    assert more.rounds[:2] == made.rounds, "it continued"
    with pytest.raises(KairodeError, match=r"another run .system.settings.noise is 0.0 there and 0.9 here"):
        kairode.train_dyna(Mine(noise=0.9, horizon=20.0), rounds=2, folder=tmp_path / "dyna", **SMALL)
    fresh = kairode.train_dyna(env, rounds=2, **SMALL)
    assert fresh.rounds == more.rounds
    seen = jnp.asarray(made.data.observation[:4, 0])
    assert (np.asarray(fresh.policy.q(seen)) == np.asarray(more.policy.q(seen))).all()


def test_what_it_refuses(tmp_path) -> None:
    with pytest.raises(KairodeError, match=r"unknown option 'round_length'.*Did you mean 'rollout_length'"):
        kairode.train_dyna("gridworld", round_length=10)
    with pytest.raises(KairodeError, match="continuous"):
        kairode.train_dyna("hopper")
    wrong = (
        {"model": "latnt-ode"},
        {"fit_iterations": 1},
        {"rollout_length": 0},
        {"exploration": 3.0},
        {"obs_margin": -1.0},
    )
    for options in wrong:
        with pytest.raises(KairodeError):
            kairode.train_dyna("gridworld", folder=tmp_path / "wrong", **options)
    assert not (tmp_path / "wrong").exists()
    with pytest.raises(KairodeError, match="continuous"):
        kairode.train_dyna("pendulum")


def test_joined_episodes_are_those_of_the_parts() -> None:
    env = kairode.make("gridworld", horizon=30.0)
    parts = [kairode.collect(env, episodes=2, seed=0), kairode.collect(env, episodes=3, seed=1, schedule=7)]
    both = join(parts)
    assert len(both) == 5
    assert both.decisions == sum(part.decisions for part in parts)
    assert np.allclose(both.undiscounted, np.concatenate([part.undiscounted for part in parts]))
    assert np.allclose(both.discounted, np.concatenate([part.discounted for part in parts]))
    assert np.allclose(both.observation[3, -1], parts[1].observation[1, -1])
