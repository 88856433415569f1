"""Collected episodes are what stepping the environment by hand gives."""

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import kairode
from kairode.callbacks import Progress
from kairode.data import Policy, Trajectory
from kairode.envs import Discrete, Schedule
from kairode.envs.zoo import ENVIRONMENTS
from kairode.errors import KairodeError

JAX_ENVS = ["gridworld", "acrobot", "hiv", "hiv-partial"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_shape_of_what_comes_back(name: str) -> None:
    env = kairode.make(name, max_decisions=25)
    seen = kairode.collect(env, episodes=6, seed=0)
    spec = env.task.spec
    assert isinstance(seen, Trajectory)
    assert seen.spec == spec
    assert len(seen) == 6
    steps = seen.length.max()
    assert seen.observation.shape == (6, steps + 1, len(spec.observations))
    assert seen.action.shape == ((6, steps) if isinstance(spec.actions, Discrete) else (6, steps, spec.actions.n))
    np.testing.assert_array_equal(seen.mask.sum(1), seen.length)
    assert (seen.terminated ^ seen.truncated).all()
    assert (seen.interval[seen.mask] >= spec.intervals.low).all()
    assert (seen.interval[~seen.mask] == 0).all()
    assert (seen.reward[~seen.mask] == 0).all()
    for episode in range(6):
        after = seen.observation[episode, seen.length[episode] :]
        np.testing.assert_array_equal(after, np.broadcast_to(after[0], after.shape))
    assert seen.decisions == seen.length.sum()
    np.testing.assert_allclose(seen[2].undiscounted, seen.undiscounted[2])


@pytest.mark.parametrize("name", ["gridworld", "acrobot", "hiv"])
def test_transitions_follow_the_environment(name: str) -> None:
    env = kairode.make(name, max_decisions=25)  # the program of the test above
    seen = kairode.collect(env, episodes=6, seed=3)
    before, after, mask = seen.observation[:, :-1][seen.mask], seen.observation[:, 1:][seen.mask], seen.mask
    rows = np.random.default_rng(0).choice(len(before), 50, replace=False)

    def state_of(obs):
        if name != "hiv":
            return obs
        return jnp.stack([env.task.marker(m, obs) for m in ("T1", "T2", "T1*", "T2*", "V", "E")])

    @eqx.filter_jit
    @jax.vmap
    def again(obs, action, tau):
        state = env.transition(state_of(obs), action, tau, key=jax.random.key(0))
        return env.observe(state), env.task.reward(obs, action, env.observe(state), tau)

    chosen = [jnp.asarray(x[mask][rows]) for x in (seen.action, seen.interval)]
    obs, reward = again(jnp.asarray(before[rows]), *chosen)
    np.testing.assert_allclose(obs, after[rows], atol=1e-3)
    np.testing.assert_allclose(reward, seen.reward[mask][rows], rtol=2e-3, atol=1e-3)


def test_host_episodes_equal_gymnasium_ones() -> None:
    env = kairode.make("hopper")
    seen = kairode.collect(env, episodes=20, seed=4)
    seeds = np.random.SeedSequence(4).generate_state(20)
    single = gymnasium.make("kairode/Hopper-v0").unwrapped
    for episode in (0, 7, 19):
        obs, _ = single.reset(seed=int(seeds[episode]))
        for k in range(seen.length[episode]):
            np.testing.assert_array_equal(obs, seen.observation[episode, k])
            obs, reward, terminated, truncated, info = single.step(seen.action[episode, k])
            assert reward == pytest.approx(float(seen.reward[episode, k]))
            assert info["dt"] == seen.interval[episode, k]
        np.testing.assert_array_equal(obs, seen.observation[episode, k + 1])
        assert (terminated, truncated) == (seen.terminated[episode], seen.truncated[episode])


@pytest.mark.parametrize("name", ["gridworld", "hiv", "hopper"])
def test_an_episode_depends_on_seed_and_number_alone(name: str) -> None:
    env = kairode.make(name, max_decisions=15, **({"noise": 0.05} if name == "gridworld" else {}))
    few, many = (kairode.collect(env, episodes=n, seed=9) for n in (3, 40))
    other = kairode.collect(env, episodes=3, seed=10)
    steps = few.action.shape[1]
    np.testing.assert_array_equal(few.length, many.length[:3])
    np.testing.assert_array_equal(few.action, many.action[:3, :steps])
    np.testing.assert_allclose(few.observation, many.observation[:3, : steps + 1], rtol=1e-5, atol=1e-5)
    assert not np.array_equal(few.action, other.action[:, :steps])
    assert len(np.unique(many.action[:, 0], axis=0)) > 3


def test_random_actions_are_uniform() -> None:
    from scipy import stats

    seen = kairode.collect(kairode.make("gridworld"), episodes=300, seed=0)
    counts = np.bincount(seen.action[seen.mask], minlength=8)
    assert stats.chisquare(counts).pvalue > 1e-3
    controls = kairode.collect(kairode.make("swimmer", max_decisions=400), episodes=4, seed=0).action
    assert stats.kstest(controls.ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-3


class Remembering(Policy):
    """Counts its decisions and adds up the time it is told: acts 1 on every third decision after day 20."""

    def start(self, *, key):
        return jnp.zeros((), jnp.int32), jnp.zeros(())

    def act(self, memory, obs, elapsed, *, key):
        count, time = memory
        time = time + elapsed
        return jnp.where((count % 3 == 0) & (time > 20), 1, 0), (count + 1, time)


def test_memory_and_elapsed_time_reach_the_policy() -> None:
    seen = kairode.collect(kairode.make("hiv", horizon=100), Remembering(), episodes=5, seed=0)
    number = np.broadcast_to(np.arange(seen.action.shape[1]), seen.action.shape)
    expected = (number % 3 == 0) & (seen.time[:, :-1] > 20)
    np.testing.assert_array_equal(seen.action[seen.mask], expected[seen.mask])


class HostRemembering(Policy):
    """The first control is the number of the decision, the second the time since the last, the third chance."""

    def start(self, *, key):
        return jnp.zeros(())

    def act(self, memory, obs, elapsed, *, key):
        return jnp.stack([memory / 100, elapsed / 10, jax.random.uniform(key)]), memory + 1


def test_memory_on_the_host_starts_anew_with_each_episode() -> None:
    seen = kairode.collect(kairode.make("hopper"), HostRemembering(), episodes=40, seed=0)
    assert len(np.unique(seen.length)) > 3
    mask = seen.mask
    number = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)[mask]
    np.testing.assert_allclose(seen.action[..., 0][mask], number / 100, rtol=1e-6)
    elapsed = np.concatenate([np.zeros((40, 1)), seen.interval[:, :-1]], axis=1)
    np.testing.assert_allclose(seen.action[..., 1][mask], elapsed[mask] / 10, rtol=1e-6)
    chance = seen.action[..., 2][mask]
    assert len(np.unique(chance)) == len(chance)


def test_a_function_is_a_policy() -> None:
    seen = kairode.collect(kairode.make("gridworld"), lambda obs, key: jnp.where(obs[1] < 0, 3, 0), episodes=4)
    np.testing.assert_array_equal(seen.action[seen.mask], np.where(seen.observation[:, :-1, 1] < 0, 3, 0)[seen.mask])


def test_returns() -> None:
    seen = kairode.collect(kairode.make("hiv", max_decisions=30), episodes=3, seed=0)
    for episode in range(3):
        n = seen.length[episode]
        t = np.concatenate([[0.0], np.cumsum(seen.interval[episode, :n].astype(float))[:-1]])
        assert seen.undiscounted[episode] == pytest.approx(seen.reward[episode, :n].sum(), rel=1e-5)
        assert seen.discounted[episode] == pytest.approx((0.995**t * seen.reward[episode, :n]).sum(), rel=1e-5)
    swings = kairode.collect(kairode.make("acrobot", discount=0.9), episodes=2, seed=0, schedule=0.4)
    n = swings.length[0]
    assert swings.discounted[0] == pytest.approx((0.9 ** (2 * np.arange(n)) * swings.reward[0, :n]).sum(), rel=1e-5)


@pytest.mark.parametrize(("name", "episodes"), [("gridworld", 300), ("hopper", 30)])
def test_progress_counts_every_episode(name: str, episodes: int) -> None:
    told: list[Progress] = []
    kairode.collect(kairode.make(name), episodes=episodes, callback=told.append)
    assert {(one.stage, one.total) for one in told} == {("collecting episodes", episodes)}
    done = [one.done for one in told]
    assert (done[0], done[-1], done) == (0, episodes, sorted(done))


@pytest.mark.parametrize("name", ["gridworld", "hopper"])
def test_actions_outside_their_space(name: str) -> None:
    wild = (lambda obs, key: jnp.asarray(8)) if name == "gridworld" else (lambda obs, key: jnp.full((3,), 1.5))
    with pytest.raises(KairodeError, match=rf"outside those of '{name}'.*episode 0, decision 0"):
        kairode.collect(kairode.make(name, max_decisions=3), wild, episodes=2)


def test_values_that_are_no_numbers() -> None:
    # An integration too coarse for the stiff system goes wrong, and is told as such.
    env = kairode.make("hiv", steps_per_day=2.0, steps_per_virus=0.0)
    with pytest.raises(KairodeError, match=r"'hiv' returned a value that is not finite: episode \d+, decision \d+"):
        kairode.collect(env, episodes=20)


def test_bad_arguments() -> None:
    env = kairode.make("gridworld")
    with pytest.raises(KairodeError, match="episodes must be an integer of at least 1, got 0"):
        kairode.collect(env, episodes=0)
    with pytest.raises(KairodeError, match="seed must be an integer between"):
        kairode.collect(env, episodes=1, seed=-1)


class Announcing(Schedule):
    """Says one thing and does another."""

    announced: float = eqx.field(static=True)
    given: Array

    def shortest(self, spec):
        return self.announced

    def interval(self, proposed, decision, *, key):
        return jnp.zeros_like(proposed) + self.given


@pytest.mark.parametrize("name", ["hiv", "swimmer"])
def test_schedules_that_break_their_word(name: str) -> None:
    env = kairode.make(name, horizon=50)
    for given in (0.0, -1.0, float("nan")):
        with pytest.raises(KairodeError, match=r"not positive and finite|integer number of frames"):
            kairode.collect(env, episodes=2, schedule=Announcing(5.0, jnp.asarray(given)))
    if name == "hiv":
        with pytest.raises(KairodeError, match="did not end within 10 decisions"):
            kairode.collect(env, episodes=2, schedule=Announcing(5.0, jnp.asarray(2.0)))


class Looking(Schedule):
    """Lets the policy's memory decide: the count it keeps, plus one."""

    def shortest(self, spec):
        return 1.0

    def interval(self, proposed, decision, *, key):
        return (decision.count % 3 + 1).astype(proposed.dtype) + jnp.where(decision.memory[0] > 6, 4.0, 0.0)


def test_a_schedule_sees_the_policys_memory() -> None:
    seen = kairode.collect(kairode.make("hiv", horizon=60), Remembering(), episodes=2, schedule=Looking())
    number = np.arange(seen.interval.shape[1])
    expected = number % 3 + 1 + np.where(number + 1 > 6, 4, 0)
    np.testing.assert_array_equal(seen.interval[0][seen.mask[0]], expected[seen.mask[0]])


def test_ten_thousand_short_intervals_still_end() -> None:
    # In float32 a plain sum of 10,000 times 0.1 misses 1000 by a tenth.
    seen = kairode.collect(kairode.make("gridworld", horizon=1000), lambda obs, key: 1, episodes=2, schedule=0.1)
    np.testing.assert_array_equal(seen.length, [10_000, 10_000])
    assert seen.truncated.all()


def test_double_precision_reaches_every_block() -> None:
    env = kairode.make("acrobot", max_decisions=5)
    with jax.enable_x64(True):
        double = kairode.collect(env, episodes=300, seed=0)
        one = kairode.collect(env, episodes=1, seed=0)
    assert double.observation.dtype == np.float64
    np.testing.assert_allclose(one.observation[0], double.observation[0], rtol=1e-12)
    low_bits = double.observation.astype(np.float32) != double.observation
    assert low_bits[:, 1:].any(axis=(1, 2)).all(), "every block was computed in double precision"
