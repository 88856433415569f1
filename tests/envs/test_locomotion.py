"""The MuJoCo environments against plain mujoco frame by frame, and against Gymnasium at its own frame skip."""

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import kairode
from kairode.envs.locomotion import ROBOTS, quiet_loading, repeat_rule
from kairode.envs.schedule import Decision, Fixed, Given
from kairode.envs.vector_host import HostVectorEnv, _schedule_intervals
from kairode.errors import KairodeError

NAMES = list(ROBOTS)
OWN_SKIP = {"swimmer": 4, "hopper": 4, "half-cheetah": 5}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_equals_frames_one_by_one(name: str) -> None:
    simulation = kairode.make(name).open()
    simulation.reset(0)
    with quiet_loading(name):
        model = mujoco.MjModel.from_xml_path(simulation.gym.fullpath)
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = simulation.gym.data.qpos, simulation.gym.data.qvel
    mujoco.mj_forward(model, data)
    rng = np.random.default_rng(0)
    for _ in range(10):
        action = rng.uniform(-1, 1, model.nu)
        tau = int(rng.integers(1, 8))
        simulation.transition(action, tau)
        data.ctrl[:] = action
        for _ in range(tau):
            mujoco.mj_step(model, data)
        np.testing.assert_array_equal(simulation.gym.data.qpos, data.qpos)
        np.testing.assert_array_equal(simulation.gym.data.qvel, data.qvel)


@pytest.mark.parametrize("name", NAMES)
def test_equals_gymnasium_at_its_own_frame_skip(name: str) -> None:
    env = kairode.make(name)
    with quiet_loading(name):
        theirs = gymnasium.make(env.robot.gym_id)
    expected, _ = theirs.reset(seed=5)
    vector_env = HostVectorEnv(env, 1, Fixed(OWN_SKIP[name]))
    obs = vector_env.reset([5])[0]
    rng = np.random.default_rng(0)
    for _ in range(50):
        np.testing.assert_allclose(obs[:-1], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(obs[-1], theirs.unwrapped.data.qpos[0], rtol=1e-6, atol=1e-7)
        action = rng.uniform(-1, 1, (1, env.task.spec.actions.n)).astype(np.float32)
        expected, reward, terminated, _, _ = theirs.step(action[0])
        step = vector_env.step(action)
        obs = step.obs[0]
        np.testing.assert_allclose(step.reward[0], reward, rtol=1e-5, atol=1e-5)
        assert step.terminated[0] == terminated
        if terminated:
            break
    if name == "hopper":
        assert terminated
        assert np.abs(expected[5:]).max() <= 10
    vector_env.close()


@pytest.mark.parametrize(
    ("velocity", "most", "tau"),
    [
        ([0.0, 0.0], 7, 7),  # cos 0
        ([0.05], 7, 1),  # cos pi
        ([0.03, 0.04], 7, 1),  # the norm is 0.05
        ([0.025], 7, 4),  # cos pi / 2
        ([0.1], 7, 7),  # a whole turn
        ([1 / 60], 7, 6),  # 3 cos(pi / 3) + 4 = 5.5 and a little, by hand below
        ([0.0125], 9, 8),  # 4 cos(pi / 4) + 5 = 7.83
        ([0.05], 9, 1),
    ],
)
def test_interval_rule_by_hand(velocity, most, tau) -> None:
    if velocity == [1 / 60]:
        velocity = [1 / 60 - 1e-6]
    assert repeat_rule(np.array(velocity), 1, most) == tau


def test_interval_rule_has_numpys_norm() -> None:
    for velocity in np.random.default_rng(0).normal(size=(200, 9)):
        expected = round(4 * np.cos(20 * np.pi * np.linalg.norm(velocity)) + 5)
        assert repeat_rule(velocity, 1, 9) == expected


@pytest.mark.parametrize("name", NAMES)
def test_observation_is_gymnasiums_and_the_place(name: str) -> None:
    simulation = kairode.make(name).open()
    simulation.reset(0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        qpos, qvel = rng.normal(0, 8, simulation.gym.model.nq), rng.normal(0, 8, simulation.gym.model.nv)
        simulation.gym.set_state(qpos, qvel)
        expected = np.append(simulation.gym._get_obs(), qpos[0])
        np.testing.assert_array_equal(simulation.observation(), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schedule", [None, Fixed(3), Given((2, 5))])
def test_a_single_step_equals_the_step_of_one_instance(name: str, schedule) -> None:
    env = kairode.make(name, max_decisions=25)
    one, other = HostVectorEnv(env, 1, schedule), HostVectorEnv(env, 1, schedule)
    one.reset([4])
    other.reset([4])
    for action in np.random.default_rng(0).uniform(-1, 1, (25, 1, env.task.spec.actions.n)).astype(np.float32):
        single, step = one.step_one(action[0]), other.step(action)
        for mine, theirs in zip(single, step[: len(single)], strict=True):
            np.testing.assert_array_equal(mine, theirs[0])
    assert single.terminated if name == "hopper" and schedule is None else single.truncated
    for mine, theirs in zip(one.snapshot().values(), other.snapshot().values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    one.close()
    other.close()


@pytest.mark.parametrize("schedule", [Fixed(3), Given((2, 5))])
def test_constant_schedules_on_the_host_equal_the_compiled_ones(schedule) -> None:
    vector_env = HostVectorEnv(kairode.make("swimmer"), 3, schedule)
    vector_env.reset([0, 1, 2])
    vector_env.count[:] = [0, 1, 6]
    actions, single = np.zeros((3, 2)), np.float32
    decisions = Decision(vector_env.obs.astype(single), actions, vector_env.time.astype(single), vector_env.count, ())
    compiled = _schedule_intervals(schedule, np.full(3, 7, single), decisions, vector_env.keys.data)
    np.testing.assert_array_equal(vector_env.intervals(actions), compiled)
    vector_env.close()


@pytest.mark.parametrize("name", NAMES)
def test_robots_in_a_batch_move_as_each_alone(name: str) -> None:
    """Different intervals, resets on the way, a snapshot taken by one and continued by the other."""
    pytest.importorskip("mujoco.batch")
    env = kairode.make(name, max_decisions=10)
    batch = HostVectorEnv(env, 6, threads=2, grouped=True)
    each = HostVectorEnv(env, 6, threads=2, grouped=False)
    assert all(batch.groups)
    assert not any(each.groups)
    np.testing.assert_array_equal(batch.reset(range(6)), each.reset(range(6)))
    ended, different = np.zeros(6, bool), 0
    for k, action in enumerate(np.random.default_rng(0).uniform(-1, 1, (25, 6, env.task.spec.actions.n))):
        if k == 15:
            first, second = batch.snapshot(), each.snapshot()
            for key, value in first.items():
                np.testing.assert_array_equal(value, second[key])
            batch.restore(second)
            each.restore(first)
        step, expected = batch.step(action, autoreset=ended), each.step(action, autoreset=ended)
        for mine, theirs in zip(step, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        ended, different = step.ended, different + len(set(step.tau))
    assert different > 50
    with pytest.raises(KairodeError, match="integer number of frames"):
        batch.step(action, np.full(6, 2.5))
    batch.close()
    each.close()


def test_which_velocities_set_the_interval() -> None:
    every, angular = (kairode.make("hopper", timing=timing).open() for timing in ("all", "angular"))
    for simulation in (every, angular):
        simulation.reset(0)
        simulation.gym.set_state(np.zeros(6), np.array([0.05, 0.0, 0.0, 0.0, 0.0, 0.0]))
    assert every.interval(np.zeros(3)) == 1.0
    assert angular.interval(np.zeros(3)) == 7.0


def test_unit_of_the_reward() -> None:
    seconds, frames = (kairode.make("swimmer", reward_time=unit).task for unit in ("seconds", "frames"))
    obs, next_obs = np.zeros(9), np.append(np.zeros(8), 0.06)
    assert seconds.reward(obs, np.zeros(2), next_obs, 3.0) == pytest.approx(0.06 / 0.03)
    assert frames.reward(obs, np.zeros(2), next_obs, 3.0) == pytest.approx(0.06 / 3)
    assert frames.reward(obs, np.array([1.0, -1.0]), next_obs, 3.0) == pytest.approx(0.02 - 2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_task_serves_jax_as_well(name: str) -> None:
    task = kairode.make(name).task
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 20, len(task.spec.observations))).astype(np.float32)
    after[:10, :2] = (1.2, 0.0)  # a hopper that stands
    actions = rng.uniform(-1, 1, (20, task.spec.actions.n)).astype(np.float32)
    taus = rng.integers(1, 8, 20).astype(np.float32)
    on_host = task.reward(before.astype(float), actions.astype(float), after.astype(float), taus.astype(float))
    compiled = jax.jit(jax.vmap(task.reward))(before, actions, after, taus)
    np.testing.assert_allclose(compiled, on_host, rtol=1e-3, atol=1e-2)
    np.testing.assert_array_equal(jax.vmap(task.terminal)(jnp.asarray(after)), task.terminal(after))


@pytest.mark.parametrize("tau", [0.0, 2.5, float("nan"), float("inf")])
def test_no_fractions_of_a_frame(tau: float) -> None:
    simulation = kairode.make("swimmer").open()
    simulation.reset(0)
    with pytest.raises(KairodeError, match="integer number of frames"):
        simulation.transition(np.zeros(2), tau)
    simulation.transition(np.zeros(2), 2.9999998)
    assert simulation.gym.data.time == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("change", "fallen"),
    [({}, False), ({0: 0.69}, True), ({1: 0.21}, True), ({1: -0.21}, True), ({4: 101.0}, True)],
)
def test_hopper_falls_as_in_gymnasium(change, fallen) -> None:
    obs = np.append(np.array([1.25] + [0.0] * 10), 3.0)
    for i, value in change.items():
        obs[i] = value
    assert bool(kairode.make("hopper").task.terminal(obs)) == fallen


def test_instances_do_not_disturb_each_other() -> None:
    env = kairode.make("half-cheetah")
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 5, 6))
    together = HostVectorEnv(env, 5, threads=2)
    together.reset([3, 4, 5, 6, 7])
    steps = [together.step(action) for action in actions]
    for lane in range(5):
        alone = HostVectorEnv(env, 1)
        alone.reset([3 + lane])
        for action, step in zip(actions, steps, strict=True):
            single = alone.step(action[lane : lane + 1])
            np.testing.assert_array_equal(single.obs[0], step.obs[lane])
            assert single.tau[0] == step.tau[lane]
        alone.close()
    together.close()


def test_given_schedule() -> None:
    vector_env = HostVectorEnv(kairode.make("swimmer"), 2, Given((2, 5)))
    vector_env.reset([0, 1])
    taus = [vector_env.step(np.zeros((2, 2))).tau.tolist() for _ in range(4)]
    assert taus == [[2, 2], [5, 5], [2, 2], [5, 5]]
    vector_env.close()


def test_without_mujoco_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mujoco", None)
    env = kairode.make("hopper")  # the description needs no physics
    assert env.task.spec.actions.n == 3
    with pytest.raises(KairodeError, match=r"pip install 'kairode\[mujoco\]'"):
        env.open()


@pytest.mark.parametrize("name", NAMES)
def test_physics_goes_on_bit_for_bit_from_a_snapshot(name: str) -> None:
    env = kairode.make(name)
    vector_env, other = HostVectorEnv(env, 2), HostVectorEnv(env, 2)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (12, 2, env.task.spec.actions.n)).astype(np.float32)
    vector_env.reset([1, 2])
    for action in actions[:6]:
        vector_env.step(action)
    other.reset([8, 9])
    other.restore(vector_env.snapshot())
    for action in actions[6:]:
        for mine, theirs in zip(vector_env.step(action), other.step(action), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    vector_env.close()
    other.close()


def test_a_pose_is_where_the_limbs_are() -> None:
    simulation = kairode.make("hopper").open()
    simulation.reset(0)
    pose = simulation.pose()
    assert pose.shape == (4, 5)  # torso, thigh, leg, foot
    torso = pose[0]
    assert abs(torso[0] - torso[2]) < 0.01  # upright
    assert np.hypot(*(torso[:2] - torso[2:4])) == pytest.approx(0.4, abs=1e-6)  # as long as in MuJoCo's file
    np.testing.assert_allclose(pose[:, 4], [0.05, 0.05, 0.04, 0.06])
    assert pose[:, [1, 3]].min() > 0  # above the ground


def test_only_the_place_is_relative() -> None:
    for name in NAMES:
        spec = kairode.make(name).task.spec
        assert [v.name for v in spec.observations if v.relative] == ["x"]
