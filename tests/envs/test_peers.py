"""Stable-Baselines3's agents learn on our environments, in learned models, and with discounts gamma^dt."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.agents.probes import END, Table, table
from tests.test_docs import ROOT, blocks

import kairode
from kairode.errors import KairodeError

pytest.importorskip("stable_baselines3")
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy

from kairode.envs.gym.stable_baselines import (
    RecordIntervals,
    SemiMarkovReplayBuffer,
    SemiMarkovRolloutBuffer,
    StableBaselinesVecEnv,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped with a ``Monitor``:UserWarning"),
]
torch.set_num_threads(1)
GAMMA = 0.9
# Two ways of unlike length; the longer leads to more. With gamma^dt the shorter is the better one.
WAYS = table({0: [(1, 0.0, 1.0), (2, 0.0, 10.0)], 1: [(END, 1.0, 1.0)] * 2, 2: [(END, 1.2, 1.0)] * 2})
SEMI_MARKOV = {0: (0.9 * 1.0, 0.9**10 * 1.2), 1: (1.0, 1.0), 2: (1.2, 1.2)}
PLAIN = {0: (0.9 * 1.0, 0.9 * 1.2), 1: (1.0, 1.0), 2: (1.2, 1.2)}
# The first action ends the process; the second lasts, until the cap on decisions (which says nothing of values).
LASTING = table({0: [(END, 1.0, 1.0), (0, 0.5, 5.0)]})
REPLAY = {"replay_buffer_class": SemiMarkovReplayBuffer, "replay_buffer_kwargs": {"gamma": GAMMA}}
ROLLOUT = {"rollout_buffer_class": SemiMarkovRolloutBuffer}


def dqn(env: Any, steps: int = 4000, **options: Any) -> DQN:
    """DQN with a small network and much exploration."""
    common: dict[str, Any] = {"gamma": GAMMA, "learning_rate": 3e-3, "learning_starts": 100, "train_freq": 1}
    common |= {"target_update_interval": 20, "exploration_final_eps": 0.5, "policy_kwargs": {"net_arch": [64]}}
    return DQN("MlpPolicy", env, seed=0, device="cpu", **{**common, **options}).learn(steps)


def q_values(agent: DQN, state: int) -> np.ndarray:
    with torch.no_grad():
        return agent.q_net(torch.eye(4)[state][None])[0].numpy()


@pytest.mark.parametrize(("options", "expected"), [(REPLAY, SEMI_MARKOV), ({}, PLAIN)], ids=["gamma^dt", "gamma"])
def test_values_of_dqn(options: dict, expected: dict) -> None:
    """Those of the closed form with our buffer; without it, those of another process, with another policy."""
    agent = dqn(WAYS.to_gymnasium(), **options)
    for state, values in expected.items():
        np.testing.assert_allclose(q_values(agent, state), values, atol=0.05)
    assert np.argmax(q_values(agent, 0)) == np.argmax(expected[0])


def test_values_of_dqn_in_ticks_and_beyond_the_cap() -> None:
    scaled = {**REPLAY, "replay_buffer_kwargs": {"gamma": GAMMA, "tick": 0.2}}
    ticks = Table(WAYS.goes, WAYS.pays, WAYS.lasts, tick=0.2)
    np.testing.assert_allclose(q_values(dqn(ticks.to_gymnasium(), **scaled), 0), SEMI_MARKOV[0], atol=0.05)
    lasting = q_values(dqn(LASTING.to_gymnasium(), **REPLAY), 0)
    np.testing.assert_allclose(lasting, (1.0, 0.5 / (1 - 0.9**5)), atol=0.05)


def ppo(env: Any, steps: int, callback: Any = None, **options: Any) -> PPO:
    """PPO with a small network."""
    common: dict[str, Any] = {"gamma": GAMMA, "n_steps": 32, "batch_size": 128, "learning_rate": 3e-3}
    common |= {"policy_kwargs": {"net_arch": [32]}, "n_epochs": 5}
    return PPO("MlpPolicy", env, seed=0, device="cpu", **{**common, **options}).learn(steps, callback)


def value(agent: PPO, state: int = 0) -> float:
    with torch.no_grad():
        return agent.policy.predict_values(torch.eye(4)[state][None]).item()


@pytest.mark.parametrize("gae_lambda", [0.5, 1.0])
def test_values_of_ppo(gae_lambda: float) -> None:
    """The best way of the closed form; with the plain discount the other way. Truncation is no end."""
    for options, callback, best, expected in (
        (ROLLOUT, RecordIntervals(), 0, 0.9),
        ({}, None, 1, 0.9 * 1.2),
    ):
        agent = ppo(StableBaselinesVecEnv(WAYS, 16), 20_000, callback, gae_lambda=gae_lambda, **options)
        assert agent.predict(np.eye(4)[0], deterministic=True)[0] == best
        assert value(agent) == pytest.approx(expected, abs=0.05)
    agent = ppo(StableBaselinesVecEnv(LASTING, 16), 30_000, RecordIntervals(), gae_lambda=gae_lambda, **ROLLOUT)
    assert agent.predict(np.eye(4)[0], deterministic=True)[0] == 1
    assert value(agent) == pytest.approx(0.5 / (1 - 0.9**5), abs=0.06)


def filled(kind: Callable[..., RolloutBuffer], steps: int, **options: Any) -> RolloutBuffer:
    """A buffer of two instances with arbitrary numbers; dt is 1 without our buffer."""
    draw = np.random.default_rng(0)
    space = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
    buffer = kind(steps, *space, device="cpu", gamma=GAMMA, gae_lambda=0.8, n_envs=2, **options)
    for _ in range(steps):
        dts = draw.integers(1, 6, 2)
        if isinstance(buffer, SemiMarkovRolloutBuffer):
            buffer.record([{"dt": dt if buffer.tick == 1 else buffer.tick} for dt in dts])
        torch_values = torch.tensor(draw.normal(size=2), dtype=torch.float32)
        arrays = draw.normal(size=(2, 3)), np.zeros(2), draw.normal(size=2), draw.random(2) < 0.2
        buffer.add(*arrays, torch_values, torch.zeros(2))
    buffer.compute_returns_and_advantage(torch.tensor([[0.3], [-0.7]]), np.array([False, True]))
    return buffer


def test_advantages_with_equal_intervals_are_theirs() -> None:
    ours, theirs = filled(SemiMarkovRolloutBuffer, 40, tick=0.2), filled(RolloutBuffer, 40)
    np.testing.assert_allclose(ours.advantages, theirs.advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.returns, theirs.returns, rtol=1e-4, atol=1e-5)


def test_advantages_are_the_sum_of_their_definition() -> None:
    """Temporal differences weighted by (lambda gamma^dt) of the steps before them, up to the episode's end."""
    ours, last = filled(SemiMarkovRolloutBuffer, 12), np.array([0.3, -0.7])
    follows = np.concatenate([ours.values[1:], last[None]])
    goes_on = 1 - np.concatenate([ours.episode_starts[1:], [[0, 1]]])
    for i in range(2):
        for step in range(12):
            weight, total = 1.0, 0.0
            for later in range(step, 12):
                gamma = ours.discounts[later, i] * goes_on[later, i]
                total += weight * (ours.rewards[later, i] + gamma * follows[later, i] - ours.values[later, i])
                weight *= 0.8 * gamma
            assert ours.advantages[step, i] == pytest.approx(total, rel=1e-4, abs=1e-5)


def test_continuous_actions() -> None:
    """SAC takes the discounts, on several instances too."""
    env = StableBaselinesVecEnv("pendulum", 4)
    options = {"replay_buffer_kwargs": {"gamma": GAMMA, "tick": 0.05}, "replay_buffer_class": SemiMarkovReplayBuffer}
    agent = SAC("MlpPolicy", env, seed=0, device="cpu", learning_starts=100, **options).learn(400)
    buffer = agent.replay_buffer
    assert len(np.unique(buffer.discounts[: buffer.pos])) > 1
    samples = buffer.sample(32)
    assert samples.discounts.shape == (32, 1)


def test_many_equal_single_ones() -> None:
    """The same numbers as one environment alone, also after an episode's end."""
    many = StableBaselinesVecEnv("gridworld", 3, max_decisions=4)
    singles = [gymnasium.make("kairode/WindyGridworld-v0", max_decisions=4) for _ in range(3)]
    many.seed(5)
    np.testing.assert_array_equal(many.reset(), [env.reset(seed=5 + i)[0] for i, env in enumerate(singles)])
    for k in range(9):
        actions = np.array([k % 8, 3, 7 - k % 8])
        obs, reward, done, infos = many.step(actions)
        for i, env in enumerate(singles):
            seen, pay, terminated, truncated, info = env.step(actions[i])
            assert {name: infos[i][name] for name in ("dt", "time")} == info
            assert infos[i]["TimeLimit.truncated"] == truncated
            assert done[i] == (terminated or truncated)
            if done[i]:
                np.testing.assert_allclose(infos[i]["terminal_observation"], seen, rtol=1e-5)
                seen, _ = env.reset()
            np.testing.assert_allclose(obs[i], seen, rtol=1e-5, atol=1e-6)
            assert reward[i] == pytest.approx(pay, rel=1e-5)


def score(agent: Any, env: Any, episodes: int = 20) -> float:
    return evaluate_policy(agent, env, n_eval_episodes=episodes)[0]


def test_their_checker_and_agents_on_an_id() -> None:
    """Acrobot swings up at less than a third of what random actions cost."""
    env = gymnasium.make("kairode/Acrobot-v0")
    check_env(env.unwrapped)
    random = kairode.evaluate(kairode.make("acrobot"), episodes=100).score
    assert random < -150
    discount = {"replay_buffer_class": SemiMarkovReplayBuffer, "replay_buffer_kwargs": {"gamma": 0.99, "tick": 0.2}}
    options: dict[str, Any] = {"learning_starts": 500, "train_freq": 2, "target_update_interval": 200}
    options |= {"learning_rate": 1e-3, "batch_size": 64, "exploration_fraction": 0.5, "exploration_final_eps": 0.05}
    agent = dqn(env, 10_000, **options, **discount, policy_kwargs={"net_arch": [64, 64]})
    assert score(agent, env) > random / 3
    options = {"gamma": 0.99, "n_steps": 64, "batch_size": 256, "learning_rate": 1e-3, "policy_kwargs": {}}
    many = StableBaselinesVecEnv("acrobot", 16)
    agent = ppo(many, 60_000, RecordIntervals(), rollout_buffer_kwargs={"tick": 0.2}, **options, **ROLLOUT)
    assert score(agent, env) > random / 3


def test_agents_learn_in_a_learned_model() -> None:
    """A model of the process with two ways, fitted to random actions; the policy is tested on the process itself."""
    data = kairode.collect(WAYS, episodes=300, seed=0)
    model = kairode.fit("dt-rnn", data, iterations=400, learning_rate=1e-2, cooldown=0.5, latent_size=8, seed=0)
    model_env = kairode.make_model_env(model, WAYS)
    check_env(model_env.to_gymnasium())
    in_model = dqn(model_env.to_gymnasium(), **REPLAY)
    np.testing.assert_allclose(q_values(in_model, 0), SEMI_MARKOV[0], atol=0.15)
    many = StableBaselinesVecEnv(model_env, 16)
    assert many.observation_space == WAYS.to_gymnasium().observation_space
    for agent in (in_model, ppo(many, 20_000, RecordIntervals(), **ROLLOUT)):
        assert agent.predict(np.eye(4)[0], deterministic=True)[0] == 0
        assert score(agent, WAYS.to_gymnasium(), 5) == 1.0


def test_refusals() -> None:
    with pytest.raises(KairodeError, match=r"told no intervals: pass callback=RecordIntervals\(\)"):
        ppo(StableBaselinesVecEnv(WAYS, 4), 128, **ROLLOUT)
    with pytest.raises(KairodeError, match="rollout_buffer_class=SemiMarkovRolloutBuffer"):
        ppo(StableBaselinesVecEnv(WAYS, 4), 128, RecordIntervals())
    with pytest.raises(KairodeError, match="info has no 'dt'"):
        dqn("CartPole-v1", 200, **REPLAY)
    with pytest.raises(KairodeError, match=r"cannot choose intervals .* wrap the environment in IntervalActions"):
        StableBaselinesVecEnv(WAYS, 4, interval="agent")


def test_the_page_runs() -> None:
    page, space = "docs/stable-baselines3.md", {"__name__": "page"}
    for language, line, code in blocks(page):
        if language == "python":
            exec(compile("\n" * (line - 1) + code, str(ROOT / page), "exec"), space)
    assert {"dqn", "ppo"} <= space.keys()
