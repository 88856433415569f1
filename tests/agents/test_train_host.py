"""DQN on host systems: values known in closed form, returns counted by the environment, interrupted and resumed."""

import dataclasses
import signal
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import kairode
from kairode.agents.train_host import train_agents_on_host
from kairode.agents.train_loop import TrainResult
from kairode.callbacks import Progress
from kairode.config.agents import DQNConfig
from kairode.envs.core import Discrete, Intervals, Spec, Variable
from kairode.envs.host import HostEnvironment, Simulation, SimulationStep, SimulatorTask
from kairode.envs.schedule import Own
from kairode.envs.vector_host import pack_states, unpack_states
from kairode.errors import KairodeError, Stopped

GAMMA = 0.9
HELD = {(0, 0): 1, (0, 1): 4, (1, 0): 5, (1, 1): 3}
"""How many steps an action (second) is held in a state (first)."""
SETTINGS = DQNConfig(
    hidden=(32,),
    batch_size=32,
    replay_capacity=512,
    target_decisions=40,
    learning_rate=3e-3,
    final_epsilon=0.5,
    epsilon_decay=50,
)


class Rooms(gymnasium.Env):
    """Two rooms. In the first every step earns 1, and the second action leaves it after four steps only; in the second
    a step earns 0.5, and the first action ends the process at the second step, for 3 more."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self) -> None:
        self.totals: list[tuple[float, float]] = []
        self.steps = 0
        self.stop_at = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room, self.stayed, self.time = int(self.np_random.integers(2)), 0, 0
        self.earned = self.discounted = 0.0
        return self.room, {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.stop_at:
            signal.raise_signal(signal.SIGINT)
        self.stayed += 1
        last = self.room == 1 and action == 0 and self.stayed == 2
        reward = 1.0 if self.room == 0 else 3.5 if last else 0.5
        self.earned += reward
        self.discounted += GAMMA**self.time * reward
        self.time += 1
        if last:
            self.totals.append((self.earned, self.discounted))
        elif self.stayed == {(0, 0): 1, (0, 1): 4, (1, 1): 3}.get((self.room, int(action))):
            self.room, self.stayed = 1 - self.room, 0
        return self.room, reward, last, False, {}


def rooms(stop_at: int = -1) -> tuple[Any, list[Rooms]]:
    """The system, and the environments that it made, of which the last are those of training."""
    made: list[Rooms] = []

    def make() -> Rooms:
        env = Rooms()
        env.stop_at = stop_at if len(made) == 2 else -1  # the first two are looked at only
        made.append(env)
        return env

    def rule(obs: np.ndarray, action: Any) -> float:
        return HELD[int(obs[1]), int(action)]

    found = kairode.from_gymnasium(make, intervals=(1, 5), rule=rule, discount=GAMMA, horizon=10_000, name="rooms")
    return found, made


def trained(env: HostEnvironment, episodes: int, seeds: list[int], **options: Any) -> TrainResult:
    return train_agents_on_host(env, Own(), SETTINGS, episodes, seeds, **options)


@pytest.mark.slow
def test_values_of_two_rooms() -> None:
    env, made = rooms()
    done = trained(env, 300, [0, 1])
    # Q(1, 0) = 0.5 + 3.5 gamma, and staying: V(0) = 1 + .. + gamma^3 + gamma^4 V(1), V(1) = 0.5 + .. + gamma^3 V(0).
    loops = 1 - GAMMA**7
    first = (sum(GAMMA**i for i in range(4)) + GAMMA**4 * 0.5 * sum(GAMMA**i for i in range(3))) / loops
    second = 0.5 * sum(GAMMA**i for i in range(3)) + GAMMA**3 * first
    values = np.array([[1 + GAMMA * second, first], [0.5 + 3.5 * GAMMA, second]])
    for agent in range(2):
        q = jax.tree.map(lambda x, agent=agent: x[agent], done.q)
        np.testing.assert_allclose(jax.vmap(q)(jnp.eye(2)), values, rtol=0.04)
    # Both returns of every episode, as the environment counted them.
    for agent, world in enumerate(made[-2:]):
        np.testing.assert_allclose(done.returns[agent], np.array(world.totals)[:300], rtol=1e-5)
    assert not np.array_equal(done.returns[0], done.returns[1])


@pytest.mark.slow
def test_learn_on_a_host_system() -> None:
    env, made = rooms()
    policy = kairode.learn(None, env, episodes=30, hidden=(16,), batch_size=16, replay_capacity=256)
    assert policy.spec == env.task.spec
    looked = len(made)
    policy = dataclasses.replace(policy, epsilon=0.5)  # so that episodes end
    found = kairode.evaluate(env, policy, episodes=20)
    counted = np.array([total for world in made[looked:] for total in world.totals])
    assert len(counted) == 20
    assert found.returns["return"] == pytest.approx(counted[:, 0].mean(), rel=1e-5)
    assert found.returns["discounted_return"] == pytest.approx(counted[:, 1].mean(), rel=1e-5)


def test_states_of_simulations_as_one_array() -> None:
    same, other = [np.arange(3.0), np.ones(3)], [np.arange(3.0), np.ones(2)]
    assert pack_states(same).tolist() == [[0, 1, 2], [1, 1, 1]]
    for states in (same, other, [np.zeros(1), None], [None, None], [np.float32([1]), np.float32([2])], ["a", {"b": 1}]):
        found = unpack_states(pack_states(states))
        assert [type(one) for one in found] == [type(one) for one in states]
        assert str(found) == str(states)


def test_what_learning_on_a_host_system_refuses() -> None:
    env, _ = rooms()
    with pytest.raises(KairodeError, match="latent_policy needs a model"):
        kairode.learn(None, env, latent_policy=True)
    with pytest.raises(KairodeError, match=r"kairode.learn needs discrete actions; those of 'Pendulum-v1' are"):
        kairode.learn(None, kairode.from_gymnasium("Pendulum-v1"))
    with pytest.raises(KairodeError, match=r"pass data=.., such as kairode.collect"):
        kairode.learn([], env)


def weights(done: TrainResult) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves((done.q, done.last))]


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [7, 333, 334, 335])
def test_interrupted_within_an_episode_it_ends_the_same(stop_at: int, tmp_path: Path) -> None:
    whole = trained(rooms()[0], 60, [3])
    env, made = rooms(stop_at)
    with pytest.raises(Stopped, match=r"interrupted in 'learning' at episode \d+ of 60, saved"):
        trained(env, 60, [3], folder=tmp_path)
    assert made[2].steps < stop_at + 5
    told: list[Progress] = []
    done = trained(rooms()[0], 60, [3], folder=tmp_path, callback=told.append)
    assert not [report for report in told if report.message]
    for x, y in zip(weights(done), weights(whole), strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(done.returns, whole.returns)
    assert done.decisions == whole.decisions
    # Once more: all is done.
    again = trained(rooms()[0], 60, [3], folder=tmp_path)
    np.testing.assert_array_equal(again.returns, whole.returns)


class Blind(Simulation):
    """The rooms without a snapshot."""

    def __init__(self, inner: Simulation) -> None:
        self.inner = inner

    def reset(self, seed):
        return self.inner.reset(seed)

    def interval(self, action):
        return self.inner.interval(action)

    def transition(self, action, tau) -> SimulationStep:
        found = self.inner.transition(action, tau)
        assert isinstance(found, SimulationStep)
        return found


@dataclasses.dataclass(frozen=True)
class BlindRooms(HostEnvironment):
    inner: Any

    @property
    def task(self) -> SimulatorTask:
        return SimulatorTask(self.inner.task.spec)

    def open(self, **options: Any) -> Blind:
        return Blind(self.inner.open())


@pytest.mark.slow
def test_what_cannot_be_saved_begins_its_episode_again(tmp_path: Path) -> None:
    env, made = rooms(337)
    with pytest.raises(Stopped, match="interrupted in 'learning' at episode"):
        trained(BlindRooms(env), 60, [3], folder=tmp_path)
    before = made[2]
    assert before.time > 0, "in the middle of an episode"
    told: list[Progress] = []
    env, made = rooms()
    done = trained(BlindRooms(env), 60, [3], folder=tmp_path, callback=told.append)
    said = [report.message for report in told if report.message]
    assert said == ["The simulator of 'rooms' cannot be continued: its last episode begins again."]
    # Every episode's return is one that an environment counted, in order, and none twice.
    counted = before.totals + made[2].totals
    np.testing.assert_allclose(done.returns[0], np.array(counted)[:60], rtol=1e-5)
    # The one that began again began where it did before.
    whole = trained(BlindRooms(rooms()[0]), 60, [3])
    n = len(before.totals)
    np.testing.assert_array_equal(done.returns[0, :n], whole.returns[0, :n])


@pytest.mark.slow
def test_a_folder_of_another_system_is_refused(tmp_path: Path) -> None:
    config = {"episodes": 3, "folder": tmp_path, "hidden": (8,), "batch_size": 4, "replay_capacity": 64}
    kairode.learn(None, rooms()[0], **config)
    kairode.learn(None, rooms()[0], **config)
    other = kairode.from_gymnasium(Rooms, intervals=(1, 3), discount=GAMMA, horizon=10_000, name="rooms")
    with pytest.raises(KairodeError, match=r"holds the checkpoint of another run"):
        kairode.learn(None, other, **config)


@pytest.mark.slow
def test_intervals_and_variables_of_a_simulation_of_ones_own(tmp_path: Path) -> None:
    """Its snapshot is a dictionary whose arrays grow: checkpoints have the shapes that they had."""

    class Walk(Simulation):
        def reset(self, seed):
            self.past = [float(np.random.default_rng(seed).normal())]
            return np.array(self.past[-1:])

        def interval(self, action):
            return 1.0 + len(self.past) % 2

        def transition(self, action, tau):
            self.past += [self.past[-1] + (0.1 if action else -0.1)] * int(tau)
            done = len(self.past) > 20
            return SimulationStep(np.array(self.past[-1:]), -abs(self.past[-1]), done, False, tau, -abs(self.past[-1]))

        def snapshot(self):
            return {"past": np.array(self.past), "about": ("walk", None, len(self.past))}

        def restore(self, state):
            assert state["about"] == ("walk", None, len(state["past"]))
            self.past = state["past"].tolist()
            return np.array(self.past[-1:])

    class Walks(HostEnvironment):
        @property
        def task(self):
            variables, actions = (Variable("x", ""),), Discrete(("down", "up"))
            spec = Spec("walk", variables, actions, Intervals(1, 2, 1), "step", horizon=100.0, discount=GAMMA)
            return SimulatorTask(spec)

        def open(self, **options):
            return Walk()

    whole = trained(Walks(), 30, [0, 1])
    parts = 0

    def press(report: Progress) -> None:
        if report.seconds and report.done == 7 * (parts + 1):
            signal.raise_signal(signal.SIGINT)

    for parts in range(3):  # noqa: B007  read by `press`
        with pytest.raises(Stopped):
            trained(Walks(), 30, [0, 1], folder=tmp_path, callback=press)
    done = trained(Walks(), 30, [0, 1], folder=tmp_path)
    for x, y in zip(weights(done), weights(whole), strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(done.returns, whole.returns)
