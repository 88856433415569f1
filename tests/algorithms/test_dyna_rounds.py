import json

import numpy as np
import pytest

import kairode
from kairode.algorithms import dyna as module
from kairode.algorithms.dyna import dyna_round, run_dyna
from kairode.config.agents import DQNConfig
from kairode.config.algorithms import DynaConfig
from kairode.data.trajectory import join
from kairode.errors import Stopped


@pytest.mark.slow
def test_rounds_count_every_real_episode_and_go_on_where_they_were(tmp_path, monkeypatch):
    dqn = DQNConfig(hidden=(16, 16), replay_capacity=512, batch_size=16, reward_scale=0.1)
    config = DynaConfig(
        "gridworld",
        initial_episodes=10,
        episodes_per_round=2,
        rounds=2,
        ensemble_size=2,
        fit_iterations=4,
        imagined_episodes=6,
        rollout_length=3,
        dqn=dqn,
    )
    told = []
    made = run_dyna(config, tmp_path / "run", told.append)
    assert [found.real_episodes for found in told] == [10, 12, 14]
    assert np.isfinite([found.model_error for found in told]).all()
    saved = json.loads((tmp_path / "run" / "record.json").read_text())
    assert saved == json.loads(json.dumps(made))
    assert np.isfinite(saved["figures"]["test"]["return"])

    def killed(config, env, before, number, watch):
        if number == 1:
            raise Stopped("interrupted.")
        return dyna_round(config, env, before, number, watch)

    with monkeypatch.context() as patch:
        patch.setattr(module, "dyna_round", killed)
        with pytest.raises(Stopped, match="in round 1; the same command"):
            run_dyna(config, tmp_path / "other")
    again = run_dyna(config, tmp_path / "other")
    assert again["figures"] == made["figures"]
    policy = kairode.load_policy(tmp_path / "run")
    assert np.isfinite(kairode.evaluate(kairode.make("gridworld"), policy, episodes=2).score)


def test_joined_episodes_are_those_of_the_parts():
    env = kairode.make("gridworld")
    parts = [kairode.collect(env, episodes=2, seed=0), kairode.collect(env, episodes=3, seed=1, schedule=7)]
    both = join(parts)
    assert len(both) == 5
    assert both.decisions == sum(part.decisions for part in parts)
    assert np.allclose(both.undiscounted, np.concatenate([part.undiscounted for part in parts]))
    assert np.allclose(both.discounted, np.concatenate([part.discounted for part in parts]))
    assert np.allclose(both.observation[3, -1], parts[1].observation[1, -1])
