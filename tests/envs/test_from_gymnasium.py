"""Gymnasium's environments as ours, against Gymnasium's own stepped by hand."""

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.utils.env_checker import check_env

import kairode
from kairode.data.collect import collect_scored
from kairode.envs.core import Discrete, Spec, Task
from kairode.envs.gym.making import environment_maker
from kairode.envs.gym.spaces import convert_actions, convert_observations
from kairode.envs.gym.wrap import _checked_intervals
from kairode.envs.host import NotRestored, SimulatorTask
from kairode.envs.vector_host import HostVectorEnv
from kairode.errors import KairodeError, KairodeWarning

GAMMA = 0.9
LAKE: dict[str, Any] = {"map_name": "4x4", "is_slippery": True}


class Count(gymnasium.Env):
    """The observation is the number of steps so far, which is also the reward; from `end` on it terminates."""

    observation_space: spaces.Space = spaces.Box(-100.0, 100.0, (1,), np.float64)
    action_space: spaces.Space = spaces.Discrete(2)

    def __init__(self, end: float = math.inf) -> None:
        self.end = end

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.zeros(1)
        return self.state, {}

    def step(self, action):
        self.state += 1.0  # in place: the array that was returned before changes
        return self.state, self.state[0], bool(self.state[0] >= self.end), False, {}


class Height(Task):
    """The tip's height; above 1 it terminates."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs, action, next_obs, tau):
        return self.height(next_obs)

    def terminal(self, obs):
        return self.height(obs) > 1.0

    def height(self, obs):
        return -obs[0] - (obs[0] * obs[2] - obs[1] * obs[3])


def wrapped(env: Any, **options: Any) -> Any:
    return kairode.from_gymnasium(env, **{"discount": GAMMA, "horizon": 50, **options})


def episode_seeds(seed: int, episodes: int) -> list[int]:
    return np.random.SeedSequence(seed).generate_state(episodes).tolist()


def held(gym: gymnasium.Env, action: Any, tau: int) -> tuple[np.ndarray, float, float, bool, bool, int]:
    """Gymnasium's environment stepped in a loop: observation, discounted and plain reward, ends, steps."""
    reward = total = 0.0
    for i in range(tau):
        obs, earned, terminated, truncated, _ = gym.step(action)
        reward += GAMMA**i * float(earned)
        total += float(earned)
        if terminated or truncated:
            break
    return spaces.flatten(gym.observation_space, obs), reward, total, terminated, truncated, i + 1


CASES: list[tuple[str, dict[str, Any], int, Callable[[Any], Any]]] = [
    ("CartPole-v1", {}, 6, int),
    ("Pendulum-v1", {}, 2, lambda action: np.asarray(action, np.float32)),
    ("MountainCar-v0", {}, 2, int),
    ("FrozenLake-v1", LAKE, 12, int),
]


@pytest.mark.parametrize(("gym_id", "options", "episodes", "action"), CASES, ids=[case[0] for case in CASES])
def test_every_interval_is_that_of_the_environment_stepped_by_hand(gym_id, options, episodes, action) -> None:
    env = kairode.from_gymnasium(gym_id, intervals=(2, 7), discount=GAMMA, **options)
    found, totals = collect_scored(env, episodes=episodes, seed=3)
    gym = gymnasium.make(gym_id, **options)
    within = 0
    for k, seed in enumerate(episode_seeds(3, episodes)):
        obs, _ = gym.reset(seed=seed)
        np.testing.assert_allclose(found.observation[k, 0], spaces.flatten(gym.observation_space, obs), rtol=1e-6)
        total = 0.0
        for j in range(found.length[k]):
            tau = round(float(found.interval[k, j]))
            obs, reward, plain, terminated, truncated, steps = held(gym, action(found.action[k, j]), tau)
            total += plain
            np.testing.assert_allclose(found.observation[k, j + 1], obs, rtol=1e-6)
            np.testing.assert_allclose(found.reward[k, j], reward, rtol=1e-5)
            assert steps == tau, "no interval goes on after the end"
            assert (terminated or truncated) == (j == found.length[k] - 1)
        assert (found.terminated[k], found.truncated[k]) == (terminated, truncated and not terminated)
        np.testing.assert_allclose(totals[k], total, rtol=1e-6)
        within += tau < 2
    if gym_id in ("CartPole-v1", "FrozenLake-v1"):
        assert found.terminated.all()
    if gym_id == "FrozenLake-v1":
        assert within, "some end in the first step of an interval"
    gym.close()


def test_ends_within_an_interval() -> None:
    simulation = wrapped(lambda: Count(7), intervals=5).open()
    simulation.reset(0)
    step = simulation.transition(np.int32(0), 5.0)
    assert step.obs.tolist() == [5.0]
    assert (step.reward, step.total) == pytest.approx((sum(GAMMA**i * (i + 1) for i in range(5)), 15.0))
    step = simulation.transition(np.int32(0), 5.0)
    assert step[2:5] == (True, False, 2.0)
    assert step.obs.tolist() == [7.0]
    assert (step.reward, step.total) == pytest.approx((6 + GAMMA * 7, 13.0))
    after = simulation.transition(np.int32(0), 5.0)
    assert after[1:] == (0.0, True, False, 0.0, 0.0), "until its reset, nothing happens"
    simulation = wrapped(Count, intervals=5, horizon=7).open()
    simulation.reset(0)
    assert simulation.transition(np.int32(0), 5.0)[2:5] == (False, False, 5.0)
    step = simulation.transition(np.int32(0), 5.0)
    assert step[2:5] == (False, True, 2.0)
    assert step.obs.tolist() == [7.0]
    assert simulation.transition(np.int32(0), 5.0)[1:] == (0.0, False, True, 0.0, 0.0)


def test_the_time_limit_is_the_environments_own_or_the_horizon() -> None:
    assert kairode.from_gymnasium("CartPole-v1").task.spec.horizon == 500
    longer = kairode.from_gymnasium("Pendulum-v1", horizon=230, intervals=100)
    found = kairode.collect(longer, episodes=1)
    assert found.interval[0].tolist() == [100.0, 100.0, 30.0]
    # A limit beneath another wrapper stays where it is, and ends the interval there.
    inner = gymnasium.wrappers.FlattenObservation(gymnasium.make("Pendulum-v1", max_episode_steps=30))
    found = kairode.collect(kairode.from_gymnasium(inner, intervals=20), episodes=1)
    assert found.interval[0].tolist() == [20.0, 10.0]
    assert found.truncated.all()
    with pytest.warns(KairodeWarning, match="'Count' has no time limit: episodes are truncated after 1,000 steps"):
        assert kairode.from_gymnasium(Count).task.spec.horizon == 1000


def same(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("observation", "action", "interval", "reward", "length", "terminated")
    )


@pytest.mark.parametrize("gym_id", ["CartPole-v1", "FrozenLake-v1"])
def test_seeds_reproduce(gym_id: str) -> None:
    env = kairode.from_gymnasium(gym_id)
    first = kairode.collect(env, episodes=20, seed=5)
    assert same(first, kairode.collect(env, episodes=20, seed=5))
    assert same(first, kairode.collect(kairode.from_gymnasium(gym_id), episodes=20, seed=5))
    assert not same(first, kairode.collect(env, episodes=20, seed=6))
    # An instance alone finds the same, whatever the others do.
    for k, seed in enumerate(episode_seeds(5, 20)):
        simulation = env.open()
        np.testing.assert_array_equal(simulation.reset(seed).astype(np.float32), first.observation[k, 0])
        for j in range(first.length[k]):
            action = first.action[k, j]
            tau = simulation.interval(action)
            step = simulation.transition(action, tau)
            np.testing.assert_array_equal(step.obs.astype(np.float32), first.observation[k, j + 1])
            assert step.elapsed == first.interval[k, j]
            assert np.float32(step.reward) == first.reward[k, j]
        assert step.terminated == first.terminated[k]
        assert first.interval[k, : first.length[k] - 1].min(initial=9) >= 1


def test_vector_environments_equal_single_ones() -> None:
    env = kairode.from_gymnasium("CartPole-v1", intervals=(1, 9))
    vector, singles = env.to_gymnasium(num_envs=3), [env.to_gymnasium() for _ in range(3)]
    obs, _ = vector.reset(seed=4)
    for i, single in enumerate(singles):
        np.testing.assert_array_equal(obs[i], single.reset(seed=4 + i)[0])
    vector.action_space.seed(0)
    ended, ends = np.zeros(3, bool), 0
    for _ in range(40):
        actions = vector.action_space.sample()
        obs, reward, terminated, truncated, info = vector.step(actions)
        for i, single in enumerate(singles):
            if ended[i]:
                expected, now = single.reset()
            else:
                expected, earned, *over, now = single.step(actions[i])
                assert reward[i] == pytest.approx(earned)
                assert [terminated[i], truncated[i]] == over
            np.testing.assert_array_equal(obs[i], expected)
            assert (info["dt"][i], info["time"][i]) == (now["dt"], now["time"])
        ended = terminated | truncated
        ends += ended.sum()
    assert ends > 5


# Spaces


OBSERVED: list[tuple[spaces.Space, list[str]]] = [
    (spaces.Box(-1, 1, (2,), np.float32), ["obs0", "obs1"]),
    (spaces.Box(-1, 1, (), np.float32), ["obs"]),
    (spaces.Box(-1, 1, (2, 2), np.float64), ["obs0", "obs1", "obs2", "obs3"]),
    (spaces.Box(0, 9, (2,), np.uint8), ["obs0", "obs1"]),
    (spaces.Discrete(3), ["obs=0", "obs=1", "obs=2"]),
    (spaces.Discrete(2, start=-1), ["obs=-1", "obs=0"]),
    (spaces.MultiDiscrete([2, 3]), ["obs0=0", "obs0=1", "obs1=0", "obs1=1", "obs1=2"]),
    (spaces.MultiDiscrete([2, 2], start=[5, -1]), ["obs0=5", "obs0=6", "obs1=-1", "obs1=0"]),
    (spaces.MultiBinary(2), ["obs0", "obs1"]),
    (spaces.MultiBinary((2, 1)), ["obs0", "obs1"]),
    (
        spaces.Dict({"where": spaces.Box(-1, 1, (2,)), "load": spaces.Discrete(2), "speed": spaces.Box(0, 1, (1,))}),
        ["load=0", "load=1", "speed", "where 0", "where 1"],
    ),
    (
        spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Dict({"on": spaces.MultiBinary(2)}))),
        ["0", "1.on 0", "1.on 1"],
    ),
]


@pytest.mark.parametrize(("space", "names"), OBSERVED, ids=[str(space) for space, _ in OBSERVED])
def test_observations_are_flattened_as_gymnasium_does(space: spaces.Space, names: list[str]) -> None:
    found = convert_observations(space, (), "'it'")
    flat = spaces.flatten_space(space)
    assert isinstance(flat, spaces.Box)
    if not isinstance(space, spaces.Dict):  # whose order of keys is another in older versions
        assert [variable.name for variable in found.variables] == names
    assert sorted(variable.name for variable in found.variables) == sorted(names)
    np.testing.assert_allclose([variable.low for variable in found.variables], flat.low.ravel())
    np.testing.assert_allclose([variable.high for variable in found.variables], flat.high.ravel())
    space.seed(0)
    for _ in range(20):
        obs = space.sample()
        flattened = found.flatten(obs)
        assert flattened.shape == (len(names),)
        np.testing.assert_array_equal(flattened, np.asarray(spaces.flatten(space, obs), flattened.dtype).ravel())


def test_names_of_flattened_observations_belong_to_their_numbers() -> None:
    space = spaces.Dict({"b": spaces.Discrete(3, start=4), "a": spaces.Box(-9, 9, (2,)), "c": spaces.MultiBinary(1)})
    found = convert_observations(space, (), "'it'")
    values = found.flatten({"a": np.array([1.5, -2.5], np.float32), "b": np.int64(5), "c": np.array([1], np.int8)})
    seen = dict(zip((variable.name for variable in found.variables), values.tolist(), strict=True))
    assert seen == {"a 0": 1.5, "a 1": -2.5, "b=4": 0.0, "b=5": 1.0, "b=6": 0.0, "c": 1.0}


ACTIONS: list[tuple[spaces.Space, list[str]]] = [
    (spaces.Discrete(3), ["0", "1", "2"]),
    (spaces.Discrete(2, start=-1), ["-1", "0"]),
    (spaces.MultiDiscrete([2, 3]), ["0 0", "0 1", "0 2", "1 0", "1 1", "1 2"]),
    (spaces.MultiDiscrete([[2], [2]], start=[[5], [-1]]), ["5 -1", "5 0", "6 -1", "6 0"]),
    (spaces.MultiBinary(2), ["0 0", "0 1", "1 0", "1 1"]),
    (spaces.MultiBinary((1, 1)), ["0", "1"]),
]


@pytest.mark.parametrize(("space", "names"), ACTIONS, ids=[str(space) for space, _ in ACTIONS])
def test_discrete_actions_are_all_those_of_the_space(space: Any, names: list[str]) -> None:
    found = convert_actions(space, (), "'it'")
    assert isinstance(found.kind, Discrete)
    assert list(found.kind.names) == names
    given = [found.convert(np.int32(i)) for i in range(found.kind.n)]
    assert all(space.contains(one) for one in given)
    assert [" ".join(map(str, np.ravel(one))) for one in given] == names
    space.seed(0)
    assert {str(space.sample()) for _ in range(200)} == {str(np.asarray(one)) for one in given}


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([-1.0, 0.0]), np.array([2.0, 0.3]), dtype=np.float64),
        spaces.Box(-0.1, 0.1, (2, 2), np.float32),
        spaces.Box(-0.1, 0.1, (), np.float32),
    ],
    ids=str,
)
def test_continuous_actions_are_in_the_space(space: spaces.Box) -> None:
    found = convert_actions(space, (), "'it'")
    low, high = np.float32(np.ravel(space.low)), np.float32(np.ravel(space.high))
    for share in (0.0, 0.3, 1.0, 1.000001):
        given = found.convert((low + np.float32(share) * (high - low)).astype(np.float32))
        assert space.contains(given)
        wanted = np.minimum(np.ravel(space.low) + share * np.ravel(space.high - space.low), np.ravel(space.high))
        np.testing.assert_allclose(np.ravel(given), wanted, rtol=1e-5, atol=1e-6)


class Spiteful(Count):
    """Changes the action that it is given."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action):
        action *= 0.5
        self.state = self.state + action[0]
        return self.state, 0.0, False, False, {}


def test_arrays_that_an_environment_changes() -> None:
    found = kairode.collect(wrapped(Spiteful, intervals=3, horizon=3), lambda obs, key: jnp.ones(1), episodes=1)
    np.testing.assert_allclose(found.observation[0, -1], [1.5])
    simulation = wrapped(Count).open()  # whose observation is the same array all the time
    first = simulation.reset(0)
    second = simulation.transition(np.int32(0), 1.0).obs
    assert (first.tolist(), second.tolist()) == ([0.0], [1.0])


def test_names() -> None:
    spec = kairode.from_gymnasium("CartPole-v1").task.spec
    assert [variable.name for variable in spec.observations] == ["x", "dx", "angle", "dangle"]
    assert spec.actions.names == ("left", "right")
    assert kairode.from_gymnasium("MountainCarContinuous-v0").task.spec.actions.names == ("force",)
    # With another observation or other actions, the environment's names say nothing.
    timed = gymnasium.wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1"))
    assert len(kairode.from_gymnasium(timed).task.spec.observations) == 5
    given = wrapped(Count, observation_names=["n"], action_names=("a", "b"), time_unit="tic", name="mine").task.spec
    assert (given.name, given.time_unit, given.actions.names) == ("mine", "tic", ("a", "b"))
    assert given.observations[0].name == "n"


# Intervals


def drawn(env: Any, count: int = 1000) -> np.ndarray:
    simulation = env.open()
    simulation.reset(0)
    return np.array([simulation.interval(np.int32(0)) for _ in range(count)])


def test_intervals_are_uniform_or_from_a_list_or_always_the_same() -> None:
    values, counts = np.unique(drawn(wrapped(Count, intervals=(2, 5)), 4000), return_counts=True)
    assert values.tolist() == [2, 3, 4, 5]
    assert (np.abs(counts - 1000) < 5 * math.sqrt(1000 * 0.75)).all()
    values, counts = np.unique(drawn(wrapped(Count, intervals=[1, 4, 4, 20]), 4000), return_counts=True)
    assert values.tolist() == [1, 4, 20]
    assert (np.abs(counts - [1000, 2000, 1000]) < 5 * math.sqrt(1000)).all()
    assert set(drawn(wrapped(Count, intervals=3), 50)) == {3.0}
    times = drawn(wrapped("Pendulum-v1", intervals=(0.5, 2), time_step="dt"), 4000)
    assert 0.5 <= times.min() < 0.51
    assert 1.99 < times.max() <= 2
    assert abs(times.mean() - 1.25) < 5 * 1.5 / math.sqrt(12 * 4000)
    kept = dict(wrapped(Count, intervals=(1.0, 2.0)).task.spec.settings)["intervals"]
    assert (kept, {type(one) for one in kept}) == ((1, 2), {int})


def test_a_rule_of_state_and_action() -> None:
    env = wrapped(Count, intervals=(1, 6), rule=lambda obs, action: 1 + obs[0] // 4 + 2 * int(action), horizon=14)
    found = kairode.collect(env, episodes=5)
    ruled = 1 + found.observation[:, :-1, 0] // 4 + 2 * found.action
    left = 14 - found.time[:, :-1]
    np.testing.assert_array_equal(found.interval, np.where(found.mask, np.minimum(ruled, left), 0))
    assert len(set(found.interval.ravel())) > 4


@pytest.mark.parametrize(("gym_id", "attribute"), [("Pendulum-v1", "dt"), ("CartPole-v1", "tau")])
def test_parts_of_a_step_are_steps_of_a_shorter_length(gym_id: str, attribute: str) -> None:
    env = kairode.from_gymnasium(gym_id, intervals=(0.3, 3.0), time_step=attribute, discount=GAMMA)
    assert env.task.spec.intervals.step == 0
    simulation, gym = env.open(), gymnasium.make(gym_id).unwrapped
    usual = getattr(gym, attribute)
    gym.reset(seed=1)
    simulation.reset(1)
    action = np.array([0.7], np.float32) if gym_id == "Pendulum-v1" else 1
    for tau in (0.3, 1.0, 1.7, 2.0, 2.01):
        found = simulation.transition(np.asarray(action), tau)
        steps, reward, total = math.ceil(tau), 0.0, 0.0
        setattr(gym, attribute, usual * tau / steps)
        for i in range(steps):
            obs, earned, *_ = gym.step(action)
            reward += GAMMA ** (i * tau / steps) * earned * tau / steps
            total += earned * tau / steps
        np.testing.assert_allclose(found.obs, obs, rtol=1e-6)
        assert (found.reward, found.total) == pytest.approx((reward, total))
        assert found.elapsed == pytest.approx(tau)
        assert getattr(simulation.gym.unwrapped, attribute) == usual


def test_short_intervals_lead_to_the_solution_of_the_equation() -> None:
    """A free fall: Euler's steps of the usual length, and of a shorter one in proportion."""

    class Fall(Count):
        observation_space = spaces.Box(-1e3, 1e3, (2,), np.float64)
        dt = 0.5

        def reset(self, *, seed=None, options=None):
            _, info = super().reset(seed=seed)
            self.x = np.zeros(2)
            return self.x.copy(), info

        def step(self, action):
            self.x = self.x + self.dt * np.array([self.x[1], -1.0])
            return self.x.copy(), 1.0, bool(self.x[1] < -1.9), False, {}

    simulation = wrapped(Fall, intervals=(0.01, 9), time_step="dt").open()
    simulation.reset(0)
    assert simulation.transition(np.int32(0), 0.5).obs.tolist() == [0.0, -0.25]
    assert simulation.transition(np.int32(0), 1.5).obs.tolist() == [-0.375 * (0.25 + 0.625), -1.0]
    simulation.reset(0)
    for _ in range(100):
        x, v = simulation.transition(np.int32(0), 0.02).obs  # 0.01 s each
    assert (x, v) == pytest.approx((-1.0 / 2, -1.0), rel=0.02)
    assert simulation.gym.unwrapped.dt == 0.5
    simulation.reset(0)
    ended = simulation.transition(np.int32(0), 9.0)
    assert (ended.terminated, ended.elapsed, ended.total) == (True, 4.0, 4.0)


# Tasks


class LogTask(Task):
    """Written for JAX, and for one example: conditions and logarithms."""

    spec: Spec = eqx.field(static=True)
    end: float = 7.0

    def reward(self, obs, action, next_obs, tau):
        return jnp.where(action > 0, jnp.log(1.0 + next_obs[0]), tau)

    def terminal(self, obs):
        return jnp.where(obs[0] > 100.0, True, obs[0] >= self.end)


def test_a_task_replaces_the_rewards() -> None:
    env = wrapped(lambda: Count(7), intervals=2, task=LogTask)
    assert isinstance(env.task, LogTask)
    found, totals = collect_scored(env, episodes=4)
    assert found.length.tolist() == [4] * 4
    assert found.terminated.all()
    np.testing.assert_array_equal(found.interval[0], [2, 2, 2, 1])
    expected = np.where(found.action > 0, np.log(1 + found.observation[:, 1:, 0]), found.interval)
    np.testing.assert_allclose(found.reward, expected, rtol=1e-6)
    np.testing.assert_allclose(totals, expected.sum(1), rtol=1e-6)
    spec = env.task.spec
    again = wrapped(lambda: Count(7), intervals=2, task=LogTask(spec), name="other")
    assert again.task.spec.name == "other"
    assert isinstance(wrapped(Count).task, SimulatorTask)


def test_simulator_and_task_must_agree_on_ends() -> None:
    env = wrapped(lambda: Count(5), intervals=2, task=lambda spec: LogTask(spec, 9.0))
    with pytest.warns(KairodeWarning, match="ended an episode in a state that the task does not call terminal"):
        found = kairode.collect(env, episodes=1)
    assert found.terminated.all()
    # The task may call a state terminal where the simulator goes on, at decisions.
    env = wrapped(Count, intervals=(1, 2), task=LogTask)
    found = kairode.collect(env, episodes=20)
    last = np.take_along_axis(found.observation[:, :, 0], found.length[:, None], 1)
    assert set(last.ravel()) == {7.0, 8.0}
    # Truncated episodes are no disagreement, also while the others go on.
    found = kairode.collect(wrapped(Count, horizon=6, task=LogTask), episodes=8)
    assert found.truncated.all()
    assert len(set(found.length.tolist())) > 1


def test_a_task_on_numpys_arrays_ends_where_the_simulator_does() -> None:
    class Batched(LogTask):
        batched = True

        def reward(self, obs, action, next_obs, tau):
            return tau + next_obs[..., 0]

        def terminal(self, obs):
            return obs[..., 0] > 100

    env = wrapped(lambda: Count(5), intervals=2, task=Batched)
    with pytest.warns(KairodeWarning, match="ended an episode in a state that the task does not call terminal"):
        found = kairode.collect(env, episodes=1)
    assert found.reward[0].tolist() == [4.0, 6.0, 6.0]
    single = env.to_gymnasium()
    single.reset(seed=0)
    with pytest.warns(KairodeWarning, match="ended an episode in a state that the task does not call terminal"):
        steps = [single.step(0)[1:4] for _ in range(3)]
    assert steps == [(4.0, False, False), (6.0, False, False), (6.0, True, False)]


def test_a_task_that_cannot_be_compiled() -> None:
    class Plain(LogTask):
        def reward(self, obs, action, next_obs, tau):
            return 1.0 if obs[0] > 3 else 0.0

    with pytest.raises(KairodeError, match=r"cannot be compiled by JAX: write its reward and terminal with jax.numpy"):
        kairode.collect(wrapped(Count, task=Plain), episodes=1)


@pytest.mark.slow
def test_random_actions_earn_in_gymnasiums_acrobot_what_they_earn_in_ours() -> None:
    class Endless(AcrobotEnv):
        """It ends at decisions only, as ours does."""

        def _terminal(self):
            return False

    theirs = kairode.from_gymnasium(Endless, horizon=500, task=Height, discount=1.0)
    ours = kairode.make("acrobot")
    found = [kairode.collect(env, episodes=32, seed=1) for env in (theirs, ours)]
    (mean, error), (other, other_error) = (
        (one.undiscounted.mean(), one.undiscounted.std() / math.sqrt(31)) for one in found
    )
    assert mean < 0, "hanging down"
    assert abs(mean - other) < 3 * math.hypot(error, other_error)
    # Two parts of one distribution: of the heights as well.
    heights = [np.concatenate([r[:n] for r, n in zip(one.reward, one.length, strict=True)]) for one in found]
    np.testing.assert_allclose(*(np.quantile(x, [0.25, 0.5, 0.75]) for x in heights), atol=0.1)


# As Gymnasium's environments again


@pytest.mark.parametrize("gym_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "MountainCarContinuous-v0"])
@pytest.mark.parametrize("interval", ["own", "agent"])
def test_check_env(gym_id: str, interval: str) -> None:
    env = kairode.from_gymnasium(gym_id).to_gymnasium(interval)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Box observation space (minimum|maximum) value is -?infinity.*")
        warnings.filterwarnings("ignore", message=".*recommend using a symmetric and normalized space.*")
        check_env(env, skip_render_check=True)
    env.close()


def test_the_vector_version() -> None:
    env = kairode.from_gymnasium("CartPole-v1").to_gymnasium(num_envs=4)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    for _ in range(30):
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs)
        assert reward.dtype == np.float64
        assert (terminated.shape, truncated.shape, info["dt"].shape) == ((4,),) * 3
    env.close()


def test_pictures_are_the_environments() -> None:
    class Painted(Count):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  Gymnasium's way

        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__()
            self.render_mode = render_mode

        def render(self):
            return np.full((4, 4, 3), int(self.state[0]), np.uint8)

    env = wrapped(Painted, intervals=3).to_gymnasium(render_mode="rgb_array")
    env.reset(seed=0)
    env.step(0)
    assert env.render().tolist() == np.full((4, 4, 3), 3).tolist()
    with pytest.raises(KairodeError, match="'Count' does not draw images: it takes no render_mode"):
        wrapped(Count).to_gymnasium(render_mode="rgb_array")
    with pytest.raises(KairodeError, match="make 'Painted' with render_mode='rgb_array' before you pass it"):
        wrapped(Painted()).to_gymnasium(render_mode="rgb_array")


# Snapshots


def test_a_snapshot_continues() -> None:
    env = kairode.from_gymnasium("FrozenLake-v1", intervals=(1, 3), **LAKE)

    def course(vector: HostVectorEnv, rng: np.random.Generator, count: int) -> list[Any]:
        return [vector.step(rng.integers(4, size=2).astype(np.int32), autoreset=None) for _ in range(count)]

    def moved(vector: HostVectorEnv, actions: Any) -> list[Any]:
        return [vector.step(np.array(pair, np.int32)) for pair in actions]

    for seeds in itertools.count(0, 10):
        first = HostVectorEnv(env, 2)
        first.reset([seeds, seeds + 1])
        begun = moved(first, [(0, 3), (1, 0)])
        if not any(step.ended.any() for step in begun):
            break
    state = first.snapshot()
    assert first.resumable
    other = HostVectorEnv(env, 2)
    other.reset([77, 78])
    np.testing.assert_array_equal(other.restore(state), begun[-1].obs)
    actions = [(2, 1), (0, 2), (1, 1), (3, 0)]
    for one, two in zip(moved(first, actions), moved(other, actions), strict=True):
        for x, y in zip(one, two, strict=True):
            np.testing.assert_array_equal(x, y)


def test_what_cannot_be_repeated_is_not_restored() -> None:
    class Chance(Count):
        """Seeds say where it starts, not where it goes."""

        def step(self, action):
            self.state = self.state + np.random.default_rng().normal()
            return self.state, 0.0, False, False, {}

    simulation = wrapped(Chance).open()
    simulation.reset(0)
    assert simulation.transition(np.int32(0), 2.0).obs.shape == (1,)
    with pytest.raises(NotRestored):
        simulation.restore(simulation.snapshot())
    vector = HostVectorEnv(wrapped(Chance), 1)
    vector.reset([0])
    vector.step(np.zeros(1, np.int32))
    assert vector.restore(vector.snapshot()) is None
    simulation.reset(None)  # an episode whose seed is not known
    assert simulation.snapshot() is None


# What is refused


def spaced(action: spaces.Space | None = None, observed: spaces.Space | None = None) -> Callable[[], gymnasium.Env]:
    def make() -> gymnasium.Env:
        env = Count()
        env.action_space = action or env.action_space
        env.observation_space = observed or env.observation_space
        return env

    make.__name__ = "Odd"
    return make


def needs() -> gymnasium.Env:
    raise gymnasium.error.DependencyNotInstalled("no Box2D")


UNBOUNDED = spaces.Box(-np.inf, np.inf, (1,), np.float32)
IMAGES = spaces.Box(0, 255, (8, 8, 3), np.uint8)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown id": (lambda: wrapped("CartPool-v1"), "Gymnasium cannot make 'CartPool-v1': .*Did you mean: `CartPole`"),
    "no module of an id": (lambda: wrapped("nope:It-v0"), "the module of 'nope:It-v0' cannot be imported: No module"),
    "something else": (
        lambda: environment_maker(3, {}),
        "expected an id such as 'CartPole-v1', a Gymnasium environment or a funct",
    ),
    "many at once": (
        lambda: environment_maker(gymnasium.make_vec("CartPole-v1"), {}),
        "expected an id such as 'CartPole-v1'",
    ),
    "a factory of nonsense": (lambda: wrapped(lambda: 3), "made a int, not a gymnasium.Env"),
    "no spaces": (lambda: wrapped(gymnasium.Env), "'Env' breaks Gymnasium's contract: it has no observation_space"),
    "ours already": (lambda: environment_maker(kairode.make("hiv"), {}), r"a function that makes one, got HIV\(.*\.$"),
    "a missing package": (lambda: wrapped(needs), "'needs' needs a package that is not installed: no Box2D"),
    "wrong options": (lambda: wrapped(Count, ned=3), "'Count' cannot be made: .*unexpected keyword argument 'ned'"),
    "options of what is made": (lambda: wrapped(Count(), end=3), r"options \(end\) are for an id or a function"),
    "action space": (lambda: wrapped(spaced(spaces.Text(3))), r"the action space of 'Odd', Text\(.*is not supported"),
    "whole actions": (lambda: wrapped(spaced(spaces.Box(0, 3, (1,), np.int64))), "or a Box of real numbers"),
    "unbounded actions": (lambda: wrapped(spaced(UNBOUNDED)), "have no bounds .*RescaleAction"),
    "many actions": (lambda: wrapped(spaced(spaces.MultiBinary(12))), "have 4,096 combinations, more than 1,000"),
    "images": (lambda: wrapped(spaced(None, IMAGES)), "'Odd' is observed as images .*named variables"),
    "many variables": (lambda: wrapped(spaced(None, spaces.Discrete(2000))), "has 2,000 observed variables, more than"),
    "observation space": (lambda: wrapped(spaced(None, spaces.Dict({"a": spaces.Text(2)}))), "not supported, Text"),
    "interval 0": (lambda: wrapped(Count, intervals=0), "intervals must be whole numbers of steps, at least 1"),
    "negative": (lambda: wrapped(Count, intervals=(-1, 2)), r"of steps.*, got \(-1, 2\)"),
    "fractions": (lambda: wrapped(Count, intervals=(0.5, 2)), r"\(parts of a step need time_step=..\)"),
    "none": (lambda: wrapped(Count, intervals=()), r"of steps.*, got \(\)"),
    "no number": (
        lambda: _checked_intervals(("a", 2), continuous=False),
        "intervals must be a number, or several, of steps",
    ),
    "infinite": (lambda: wrapped(Count, intervals=math.inf), "intervals must be whole numbers"),
    "descending": (lambda: wrapped(Count, intervals=(5, 1)), r"the least and the most, in this order, got \(5, 1\)"),
    "part of a step": (lambda: wrapped(Count, horizon=2.5), "horizon of 'Count' must be a whole number of steps"),
    "no horizon": (lambda: wrapped(Count, horizon=0), "horizon must be a positive number of steps"),
    "discount": (lambda: wrapped(Count, discount=1.1), r"discount must lie in \[0, 1\]"),
    "no such time step": (lambda: wrapped(Count, time_step="dt"), "'Count' has no time step that can be set.*'dt'"),
    "time step is none": (lambda: wrapped(Count, time_step="action_space"), "'action_space' is missing, is no number"),
    "time step of 0": (lambda: wrapped(lambda: Count(0), time_step="end"), "'end', must be positive, got 0"),
    "observation names": (lambda: wrapped(Count, observation_names=["a", "b"]), "must be 1 different names, got"),
    "action names": (lambda: wrapped(Count, action_names=["a", "a"]), "action_names of 'Count' must be 2 different"),
    "task": (lambda: wrapped(Count, task=lambda spec: 3), "must be a kairode.Task or a function of the spec"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    call, message = REFUSED[what]
    with pytest.raises(KairodeError, match=message) as found:
        call()
    assert str(found.value).count("\n") == 0


class Setter(Count):
    """Its time step can be read only."""

    @property
    def dt(self) -> float:
        return 0.1


def test_a_time_step_that_can_only_be_read() -> None:
    with pytest.raises(
        KairodeError, match=r"'Setter' has no time step that can be set: its attribute 'dt'.* no setter"
    ):
        wrapped(Setter, time_step="dt")


class Locked(Count):
    def __deepcopy__(self, memo):
        raise TypeError("it holds a lock")


def test_an_environment_that_cannot_be_copied() -> None:
    with pytest.raises(KairodeError, match=r"'Locked' cannot be copied \(TypeError: it holds a lock\): pass its id"):
        wrapped(Locked())


def test_copies_leave_the_original_alone() -> None:
    env = Count()
    env.reset(seed=0)
    env.step(0)
    kairode.collect(wrapped(env), episodes=2)
    assert env.state.tolist() == [1.0]


class Faulty(Count):
    """Breaks the contract at its third step."""

    def __init__(self, *found: Any) -> None:
        super().__init__()
        self.found = found

    def step(self, action):
        right = super().step(action)
        return right if self.state[0] < 3 else self.found


ONE = np.ones(1)
BROKEN: dict[str, tuple[tuple[Any, ...], str]] = {
    "four values": ((ONE, 0.0, False, {}), "step must return .observation, reward, terminated, truncated, info"),
    "no reward": ((ONE, None, False, False, {}), "with a number as reward: unsupported operand"),
    "several rewards": ((ONE, ONE, False, False, {}), r"a reward must be a number, got an array of shape \(1,\)"),
    "text": ((ONE, "much", False, False, {}), "failed in a step with action [01]: TypeError"),
    "another shape": ((np.ones(2), 0.0, False, False, {}), r"must be in its space, Box.*got an array of shape \(2,\)"),
    "a number": ((1.0, 0.0, False, False, {}), "an observation must be in its space"),
    "nothing": ((None, 0.0, False, False, {}), "an observation must be in its space, Box.*got None"),
    "a dictionary": (({"a": 1}, 0.0, False, False, {}), "an observation must be in its space"),
    "nan": ((np.array([np.nan]), 0.0, False, False, {}), "a value that is not finite: obs is nan, after"),
    "nan reward": ((ONE, float("nan"), False, False, {}), "returned a reward that is not finite"),
    "infinite reward": ((ONE, float("inf"), False, False, {}), "returned a reward that is not finite"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_steps_that_break_the_contract(what: str) -> None:
    found, message = BROKEN[what]
    env = wrapped(lambda: Faulty(*found), intervals=1, name="it")
    with pytest.raises(KairodeError, match=message) as error:
        kairode.collect(env, episodes=1)
    assert "'it'" in str(error.value)
    single = env.to_gymnasium()
    single.reset(seed=0)
    single.step(1)
    single.step(1)
    with pytest.raises(KairodeError, match=message):
        single.step(1)


def test_resets_that_break_the_contract() -> None:
    class NoInfo(Count):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0]

    class NoSeed(Count):
        def reset(self):
            return super().reset()

    class Nan(Count):
        def reset(self, *, seed=None, options=None):
            self.state = np.array([np.nan])
            return self.state, {}

    with pytest.raises(KairodeError, match=r"reset must return \(observation, info\), got ndarray"):
        wrapped(NoInfo)
    with pytest.raises(KairodeError, match=r"'NoSeed' failed in a reset .*reset must take seed=.. and options=.."):
        wrapped(NoSeed)
    with pytest.raises(KairodeError, match="'Nan' returned a value that is not finite from reset"):
        wrapped(Nan)


@pytest.mark.parametrize("state", [7, -1, 1.5])
def test_discrete_observations_outside_of_their_space(state: float) -> None:
    class Lost(Count):
        observation_space = spaces.Discrete(5)

        def reset(self, *, seed=None, options=None):
            return 0, {}

        def step(self, action):
            return state, 0.0, False, False, {}

    with pytest.raises(KairodeError, match=rf"must be in its space, Discrete\(5\), got {state}"):
        wrapped(Lost)


@pytest.mark.parametrize("interval", [0, 7, 1.5, math.nan])
def test_rules_outside_of_the_intervals(interval: float) -> None:
    with pytest.raises(KairodeError, match=r"the rule of 'Count' must return a whole number of steps between 1 and 5"):
        kairode.collect(wrapped(Count, rule=lambda obs, action: interval), episodes=1)
    continuous = wrapped("Pendulum-v1", time_step="dt", intervals=(0.5, 2.5), rule=lambda obs, action: 3.0)
    with pytest.raises(KairodeError, match=r"must return a number of steps between 0.5 and 2.5 .*, got 3"):
        kairode.collect(continuous, episodes=1)


def test_schedules_are_whole_steps() -> None:
    found = kairode.collect(wrapped(Count, horizon=12), episodes=1, schedule=[3, 2])
    assert found.interval[0].tolist() == [3.0, 2.0, 3.0, 2.0, 2.0]
    with pytest.raises(KairodeError, match=r"must be an integer number of steps, got 2.5"):
        kairode.collect(wrapped(Count), episodes=1, schedule=2.5)


def test_a_step_before_the_first_reset() -> None:
    with pytest.raises(KairodeError, match="reset 'Count' before its first step"):
        wrapped(Count).open().transition(np.int32(0), 1.0)


def test_environments_that_are_not_reproducible_are_warned_of() -> None:
    class Unseeded(Count):
        def reset(self, *, seed=None, options=None):
            self.state = np.random.default_rng().normal(size=1)
            return self.state, {}

    with pytest.warns(KairodeWarning, match="'Unseeded' starts in other states when it is reset with the same seed"):
        wrapped(Unseeded)
