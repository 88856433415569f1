"""The host loop: bookkeeping of episodes, against intervals and rewards worked out by hand."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from kairode.data.host_rollout import HostRollout
from kairode.envs.core import Continuous, Environment, Intervals, Spec, Task, Variable
from kairode.envs.vector_jax import JaxVectorEnv

SPEC = Spec("counter", (Variable("s", ""),), Continuous(("a",), (-9.0,), (9.0,)), Intervals(1, 2, 1), "s", horizon=5.0)


class CounterTask(Task):
    spec: Spec = eqx.field(static=True, default=SPEC)

    def reward(self, obs, action, next_obs, tau):
        return action[0]

    def terminal(self, obs):
        return obs[0] >= 6


class Counter(Environment):
    """s' = s + a tau from 0, decided every 2 s."""

    task: CounterTask = CounterTask()

    def reset(self, *, key):
        return jnp.zeros(1)

    def observe(self, state):
        return state

    def interval(self, state, action, *, key):
        return jnp.asarray(2.0)

    def transition(self, state, action, tau, *, key):
        return state + action * tau


def test_episodes_are_counted_until_they_are_started_again() -> None:
    rollout = HostRollout(JaxVectorEnv(Counter(), 2))
    rollout.start(np.arange(2), [0, 1])
    assert rollout.elapsed.tolist() == [0.0, 0.0]
    actions = np.array([[1.0], [2.0]], np.float32)
    assert not rollout.step(actions).ended.any()
    step = rollout.step(actions)  # the second reaches s = 8
    assert step.ended.tolist() == [False, True]
    assert step.terminated.tolist() == [False, True]
    assert rollout.obs.tolist() == [[4.0], [8.0]]
    assert rollout.elapsed.tolist() == [2.0, 2.0]
    assert rollout.earned.tolist() == [2.0, 4.0]
    assert rollout.length.tolist() == [2, 2]
    rollout.start(np.array([1]), [2])
    assert rollout.obs.tolist() == [[4.0], [0.0]]
    assert rollout.elapsed.tolist() == [2.0, 0.0]
    assert rollout.earned.tolist() == [2.0, 0.0]
    assert rollout.length.tolist() == [2, 0]
    assert rollout.episode.tolist() == [1, 2]
    step = rollout.step(-actions, np.array([1.0, 2.0]))  # an interval given: at 5 s the first is truncated
    assert step.truncated.tolist() == [True, False]
    assert rollout.obs.tolist() == [[3.0], [-4.0]]


def test_starting_none_changes_nothing() -> None:
    rollout = HostRollout(JaxVectorEnv(Counter(), 1))
    rollout.start(np.arange(1), [0])
    rollout.step(np.ones((1, 1), np.float32))
    rollout.start(np.arange(0), [])
    assert rollout.obs.tolist() == [[2.0]]
    assert rollout.episode.tolist() == [1]


def test_a_snapshot_continues() -> None:
    ones = np.ones((2, 1), np.float32)
    rollout, other = HostRollout(JaxVectorEnv(Counter(), 2)), HostRollout(JaxVectorEnv(Counter(), 2))
    rollout.start(np.arange(2), [0, 1])
    rollout.step(ones)
    other.restore(rollout.snapshot())
    other.vector_env.restore(rollout.vector_env.snapshot())
    for one in (rollout, other):
        one.step(ones)
        one.start(np.array([0]), [3])
    for name, value in rollout.snapshot().items():
        np.testing.assert_array_equal(other.snapshot()[name], value)
        assert other.snapshot()[name].dtype == value.dtype
