"""The environments as Gymnasium sees them."""

import copy
import pickle
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import kairode
from kairode._gymnasium import IDS
from kairode.envs.core import decimal
from kairode.envs.gym import SemiMarkovEnv
from kairode.errors import KairodeError

SIMPLE = ["kairode/WindyGridworld-v0", "kairode/Acrobot-v0", "kairode/HIV-v0", "kairode/HIVPartial-v0"]


@pytest.mark.parametrize("interval", ["own", "agent"])
@pytest.mark.parametrize("gym_id", IDS)
def test_check_env(gym_id: str, interval: str) -> None:
    env = gymnasium.make(gym_id, interval=interval, render_mode="rgb_array" if gym_id in SIMPLE else None).unwrapped
    with warnings.catch_warnings():
        # Markers, angles and velocities of physics have no bounds, and the checker would rather see some.
        warnings.filterwarnings("ignore", message=".*Box observation space (minimum|maximum) value is -?infinity.*")
        # Nor is the pendulum's torque, in Gymnasium's own either, within [-1, 1].
        warnings.filterwarnings("ignore", message=".*recommend using a symmetric and normalized space.*")
        check_env(env, skip_render_check=gym_id not in SIMPLE)
    env.close()


def rollout(env, seed: int, steps: int):
    env.action_space.seed(seed)
    obs, info = env.reset(seed=seed)
    seen = [(obs, 0.0, False, False, info)]
    for _ in range(steps):
        seen.append(env.step(env.action_space.sample()))
        if seen[-1][2] or seen[-1][3]:
            seen.append(env.reset())
    return seen


def same(a, b) -> bool:
    return all(
        np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y
        for one, other in zip(a, b, strict=True)
        for x, y in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("gym_id", IDS)
def test_seeds_reproduce_and_agree_between_environments(gym_id: str) -> None:
    one, other = gymnasium.make(gym_id), gymnasium.make(gym_id)
    first = rollout(one, 7, 60)
    assert same(first, rollout(one, 7, 60))
    assert same(first, rollout(other, 7, 60))
    another = rollout(other, 8, 60)
    assert len(another) != len(first) or not same(first, another)
    one.close()
    other.close()


def test_episodes_after_one_seed_differ() -> None:
    env = gymnasium.make("kairode/Acrobot-v0")
    first, _ = env.reset(seed=1)
    second, _ = env.reset()
    third, _ = env.reset()
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)


@pytest.mark.parametrize("gym_id", IDS)
def test_time_is_told_on_every_step_and_reset(gym_id: str) -> None:
    env = gymnasium.make(gym_id)
    env.action_space.seed(0)
    _, info = env.reset(seed=0)
    assert info == {"dt": 0.0, "time": 0.0}
    time = 0.0
    spec = kairode.make(IDS[gym_id]).task.spec
    for _ in range(30):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert spec.intervals.low <= info["dt"] <= spec.intervals.high
        time += info["dt"]
        assert info["time"] == pytest.approx(time)
        if terminated or truncated:
            break
    env.close()


@pytest.mark.parametrize(("gym_id", "tau", "steps"), [("kairode/HIV-v0", 5, 200), ("kairode/Acrobot-v0", 0.2, 500)])
def test_horizon_truncates_and_interval_fixes(gym_id: str, tau: float, steps: int) -> None:
    env = gymnasium.make(gym_id, interval=tau)
    env.reset(seed=0)
    for step in range(steps):
        _, _, terminated, truncated, info = env.step(0)
        assert info["dt"] == tau
        assert not terminated
        assert truncated == (step == steps - 1)
    assert info["time"] == pytest.approx(tau * steps)


def test_caps_truncate() -> None:
    env = gymnasium.make("kairode/HIV-v0", max_decisions=3, interval=[1, 2])
    env.reset(seed=0)
    steps = [env.step(3) for _ in range(3)]
    assert [step[3] for step in steps] == [False, False, True]
    assert [step[4]["dt"] for step in steps] == [1.0, 2.0, 1.0]


def test_goal_terminates() -> None:
    env = gymnasium.make("kairode/WindyGridworld-v0", interval=1)
    obs, _ = env.reset(seed=0)
    # Cross to the goal's column, then let the crosswind be met by moving down.
    for _ in range(150):
        action = 3 if obs[0] < 0.2 else 7
        obs, reward, terminated, truncated, _ = env.step(action)
        if terminated:
            break
    assert terminated
    assert not truncated
    assert reward == 9.0


def test_agent_chooses_the_interval() -> None:
    env = gymnasium.make("kairode/HIV-v0", interval="agent")
    assert env.action_space["interval"].contains(np.int64(14))
    env.reset(seed=0)
    for tau in (1, 14, 3):
        *_, info = env.step({"action": 3, "interval": tau})
        assert info["dt"] == tau
    fixed = gymnasium.make("kairode/HIV-v0", interval=9)
    fixed.reset(seed=0)
    env.reset(seed=0)
    np.testing.assert_array_equal(env.step({"action": 1, "interval": 9})[0], fixed.step(1)[0])
    acrobot = gymnasium.make("kairode/Acrobot-v0", interval="agent")
    acrobot.reset(seed=0)
    assert acrobot.step({"action": 0, "interval": 0.3})[4]["dt"] == 0.3


@pytest.mark.parametrize("mode", [None, "sync"])
@pytest.mark.parametrize("gym_id", IDS)
def test_make_vec_equals_single_environments(gym_id: str, mode: str | None) -> None:
    vector = gymnasium.make_vec(gym_id, num_envs=3, vectorization_mode=mode, max_decisions=6)
    singles = [gymnasium.make(gym_id, max_decisions=6) for _ in range(3)]
    obs, info = vector.reset(seed=10)
    for i, env in enumerate(singles):
        np.testing.assert_array_equal(obs[i], env.reset(seed=10 + i)[0])
    np.testing.assert_array_equal(info["time"], np.zeros(3))
    vector.action_space.seed(0)
    ended = np.zeros(3, bool)
    for _ in range(15):
        actions = vector.action_space.sample()
        obs, reward, terminated, truncated, info = vector.step(actions)
        assert obs.dtype == np.float32
        for i, env in enumerate(singles):
            expected = (*env.reset(), 0) if ended[i] else env.step(actions[i])
            np.testing.assert_allclose(obs[i], expected[0], rtol=1e-5, atol=1e-5)
            now = expected[1] if ended[i] else expected[4]
            assert info["dt"][i] == now["dt"]
            assert info["time"][i] == now["time"]
            if not ended[i]:
                assert reward[i] == pytest.approx(expected[1], rel=1e-5)
                assert (terminated[i], truncated[i]) == expected[2:4]
        ended = terminated | truncated
    assert info["time"].max() > 0
    vector.close()


def test_many_at_once_in_blocks() -> None:
    # More instances than one block of lanes: still each equal to itself alone.
    vector = gymnasium.make_vec("kairode/HIV-v0", num_envs=300)
    obs, _ = vector.reset(seed=0)
    obs, *_ = vector.step(np.arange(300) % 4)
    for i in (0, 129, 299):
        single = gymnasium.make("kairode/HIV-v0")
        single.reset(seed=i)
        np.testing.assert_allclose(single.step(i % 4)[0], obs[i], rtol=1e-5, atol=1e-5)


def test_times_have_the_shortest_decimal() -> None:
    numbers = np.array([0.2, 0.6, 3.0, 1e20], np.float32)
    assert decimal(numbers).tolist() == [0.2, 0.6, 3.0, 1e20]
    assert decimal(numbers[2:]).tolist() == [3.0, 1e20]
    whole = decimal(np.array([1.0, 7.0, 2**24 - 1], np.float32))
    assert whole.dtype == np.float64
    assert whole.tolist() == [1.0, 7.0, 2**24 - 1]


@pytest.mark.parametrize(
    ("gym_id", "action", "message"),
    [
        ("kairode/HIV-v0", 4, "action 4 is outside the actions of 'hiv': 0 none, 1 RTI, 2 PI, 3 RTI.PI"),
        ("kairode/HIV-v0", -1, "action -1 is outside"),
        ("kairode/HIV-v0", 2**32, "action 4294967296 is outside"),
        ("kairode/HIV-v0", 1.5, "must be an integer"),
        ("kairode/Hopper-v0", np.array([0.0, 0.0, 1.5]), r"'foot' of 'hopper' must be within \[-1, 1\], got 1.5"),
        ("kairode/Hopper-v0", np.array([0.0, np.nan, 0.0]), r"'leg' of 'hopper' must be within \[-1, 1\], got nan"),
        ("kairode/Hopper-v0", np.zeros(2), "must have 3 numbers"),
    ],
)
def test_bad_actions(gym_id: str, action, message: str) -> None:
    env = gymnasium.make(gym_id).unwrapped
    env.reset(seed=0)
    with pytest.raises(KairodeError, match=message):
        env.step(action)


@pytest.mark.parametrize("tau", [0, -1, float("nan"), float("inf")])
def test_bad_intervals(tau: float) -> None:
    with pytest.raises(KairodeError, match="must be a positive, finite time"):
        gymnasium.make("kairode/HIV-v0", interval=tau)
    with pytest.raises(KairodeError, match="must be a positive, finite time"):
        gymnasium.make("kairode/HIV-v0", interval=[3, tau])
    env = gymnasium.make("kairode/HIV-v0", interval="agent").unwrapped
    env.reset(seed=0)
    with pytest.raises(KairodeError, match="must be a positive, finite time"):
        env.step({"action": 0, "interval": tau})


@pytest.mark.parametrize("tau", [0.5, 2.5, 15, 100])
def test_the_agents_interval_must_lie_in_its_space(tau: float) -> None:
    env = gymnasium.make("kairode/HIV-v0", interval="agent").unwrapped
    env.reset(seed=0)
    with pytest.raises(KairodeError, match=f"interval {tau:g} is outside those of 'hiv': integers from 1 to 14"):
        env.step({"action": 0, "interval": tau})
    acrobot = gymnasium.make("kairode/Acrobot-v0", interval="agent").unwrapped
    acrobot.reset(seed=0)
    with pytest.raises(KairodeError, match=r"interval 1.1 is outside those of 'acrobot': times from 0.2 to 1"):
        acrobot.step({"action": 0, "interval": 1.1})


def test_agents_choose_in_many_at_once() -> None:
    vector = gymnasium.make_vec("kairode/HIV-v0", num_envs=3, interval="agent")
    vector.reset(seed=0)
    *_, info = vector.step({"action": np.array([0, 1, 2]), "interval": np.array([1, 14, 3])})
    np.testing.assert_array_equal(info["dt"], [1, 14, 3])


@pytest.mark.parametrize("gym_id", ["kairode/HIV-v0", "kairode/Hopper-v0"])
def test_a_step_before_the_first_reset(gym_id: str) -> None:
    env = gymnasium.make(gym_id).unwrapped
    with pytest.raises(KairodeError, match="before its first step"):
        env.step(env.action_space.sample())


def test_a_step_after_the_end() -> None:
    env = gymnasium.make("kairode/HIV-v0", max_decisions=1)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(KairodeError, match=r"is over: call reset\(\)"):
        env.step(0)


def test_copies_go_on_where_the_original_stands() -> None:
    env = gymnasium.make("kairode/Acrobot-v0").unwrapped
    env.reset(seed=0)
    env.step(2)
    twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    expected = env.step(0)
    for twin in twins:
        assert same([expected], [twin.step(0)])
    robot = gymnasium.make("kairode/Swimmer-v0").unwrapped
    with pytest.raises(KairodeError, match="cannot be copied or pickled"):
        copy.deepcopy(robot)


def test_the_wrong_number_of_many() -> None:
    vector = gymnasium.make_vec("kairode/HIV-v0", num_envs=3)
    with pytest.raises(KairodeError, match="expected 3 seeds, one per instance, got 2"):
        vector.reset(seed=[1, 2])
    vector.reset(seed=0)
    with pytest.raises(KairodeError, match=r"expected 3 actions, one per instance, got an array of shape \(2,\)"):
        vector.step(np.array([0, 1]))
    with pytest.raises(KairodeError, match="num_envs must be an integer of at least 1, got 0"):
        gymnasium.make_vec("kairode/HIV-v0", num_envs=0)


def test_seeds_of_the_many() -> None:
    vector = gymnasium.make_vec("kairode/Acrobot-v0", num_envs=3)
    by_list, _ = vector.reset(seed=[4, 5, 6])
    by_array, _ = vector.reset(seed=np.array([4, 5, 6]))
    by_one, _ = vector.reset(seed=4)
    np.testing.assert_array_equal(by_list, by_array)
    np.testing.assert_array_equal(by_list, by_one)


def test_other_bad_input() -> None:
    with pytest.raises(KairodeError, match=r"integer number of frames, got 2.5"):
        gymnasium.make("kairode/Hopper-v0", interval=2.5)
    with pytest.raises(KairodeError, match="use 'own', an interval in days"):
        gymnasium.make("kairode/HIV-v0", interval="weekly")
    with pytest.raises(KairodeError, match=r"unknown field 'horizn'.*Did you mean 'horizon'"):
        gymnasium.make("kairode/HIV-v0", horizn=5)
    with pytest.raises(KairodeError, match="render_mode of 'hiv' must be None or 'rgb_array', got 'human'"):
        SemiMarkovEnv("hiv", render_mode="human")
    env = gymnasium.make("kairode/HIV-v0", interval="agent").unwrapped
    env.reset(seed=0)
    with pytest.raises(KairodeError, match=r"give \{'action'"):
        env.step(1)


@pytest.mark.parametrize("gym_id", SIMPLE)
def test_render(gym_id: str) -> None:
    env = gymnasium.make(gym_id, render_mode="rgb_array")
    env.action_space.seed(0)
    env.reset(seed=0)
    before = env.render()
    for _ in range(5):
        env.step(env.action_space.sample())
    after = env.render()
    assert before.shape == after.shape == (480, 640, 3)
    assert before.dtype == np.uint8
    assert len(np.unique(before)) > 20
    assert (before != after).any()


def test_import_registers_and_module_prefix_does() -> None:
    code = "import gymnasium; env = gymnasium.make('kairode:kairode/HIV-v0'); env.reset(); print(env.step(3)[4]['dt'])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(printed) in (3.0,)
    code = "import sys, kairode; print('jax' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False", "importing kairode must not load JAX"
