"""Any environment as a Gymnasium environment, learned models above all."""

import copy
import pickle
import warnings
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import kairode
from kairode.config.models import ModelConfig
from kairode.envs.gym import SemiMarkovEnv, SemiMarkovVectorEnv
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.zoo import build
from kairode.planning.model_env import ModelEnv, make_model_env

REAL = kairode.make("gridworld")


def untrained(seed: int) -> DynamicsModel:
    """A model that was never fitted, and whose predictions leave the box within a few decisions."""
    model = build("dt-rnn", REAL.task.spec, ModelConfig(latent_size=6, timer="none"), key=jax.random.key(seed))
    return eqx.tree_at(lambda m: m.decoder.weight, model, replace_fn=lambda weight: 200 * weight)


@pytest.fixture(scope="module")
def model_env() -> ModelEnv:
    return make_model_env([untrained(seed) for seed in range(3)], REAL, branch=4)


@pytest.mark.parametrize("interval", ["own", 2, "agent"])
def test_check_env(model_env: ModelEnv, interval: float | str) -> None:
    env = model_env.to_gymnasium(interval=interval)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*environment not having a spec.*")
        check_env(env)
    assert env.spec is None


def test_steps_are_the_models(model_env: ModelEnv) -> None:
    """Its predictions fed back, inside the box; dt, time, reward and end are those of the process."""
    model = untrained(7)
    env = make_model_env(model, REAL, branch=4).to_gymnasium()
    env.action_space.seed(0)
    obs, info = env.reset(seed=0)
    assert info == {"dt": 0.0, "time": 0.0}
    obs, z, time, clipped = jnp.asarray(obs), jnp.zeros(6), 0.0, 0
    for k in range(4):
        action = jnp.asarray(int(env.action_space.sample()))
        seen, reward, terminated, truncated, info = env.step(int(action))
        tau = jnp.asarray(info["dt"], jnp.float32)
        z, after = model.step(z, obs, action, tau)
        time += info["dt"]
        assert info["time"] == time
        assert reward == pytest.approx(float(REAL.task.reward(obs, action, after, tau)), rel=1e-5)
        assert (terminated, truncated) == (bool(REAL.task.terminal(after)), k == 3)
        inside = np.clip(after, env.observation_space.low, env.observation_space.high)
        np.testing.assert_allclose(seen, inside, rtol=1e-4, atol=1e-5)
        clipped += not np.array_equal(inside, after)
        obs = after  # the model continues from its own prediction
    assert clipped


@pytest.mark.slow
def test_many_equal_single_ones_and_seeds_reproduce(model_env: ModelEnv) -> None:
    many, singles = model_env.to_gymnasium(num_envs=3), [model_env.to_gymnasium() for _ in range(3)]
    assert isinstance(many, SemiMarkovVectorEnv)
    many.action_space.seed(0)
    played = [many.action_space.sample() for _ in range(7)]

    def play() -> list[Any]:
        obs, info = many.reset(seed=5)
        return [(obs, info), *(many.step(actions) for actions in played)]

    first, again = play(), play()
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))
    ended = np.zeros(3, bool)
    starts = [env.reset(seed=5 + i)[0] for i, env in enumerate(singles)]
    np.testing.assert_array_equal(first[0][0], starts)
    for actions, (obs, reward, terminated, truncated, info) in zip(played, first[1:], strict=True):
        for i, env in enumerate(singles):
            alone = (*env.reset(), 0) if ended[i] else env.step(actions[i])
            np.testing.assert_allclose(obs[i], alone[0], rtol=1e-4, atol=1e-5)
            now = alone[1] if ended[i] else alone[4]
            assert (info["dt"][i], info["time"][i]) == (now["dt"], now["time"])
            if not ended[i]:
                assert reward[i] == pytest.approx(alone[1], rel=1e-4)
                assert (terminated[i], truncated[i]) == alone[2:4]
        ended = terminated | truncated
    assert first[4][3].all(), "four decisions are an episode"


@pytest.mark.slow
def test_copies_continue_like_the_original(model_env: ModelEnv) -> None:
    env = model_env.to_gymnasium()
    env.reset(seed=0)
    env.step(2)
    twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    expected = env.step(1)
    for twin in twins:
        assert jax.tree.all(jax.tree.map(np.array_equal, expected, twin.step(1)))


@pytest.mark.parametrize("name", ["acrobot", "hiv", "pendulum", "swimmer"])
def test_an_environment_equals_that_of_its_name(name: str) -> None:
    env = kairode.make(name, max_decisions=3)
    pair = env.to_gymnasium(interval=1), SemiMarkovEnv(name, 1, max_decisions=3)
    for one in pair:
        one.action_space.seed(0)
    seen = [[one.reset(seed=0), *(one.step(one.action_space.sample()) for _ in range(3))] for one in pair]
    assert jax.tree.all(jax.tree.map(np.array_equal, *seen))
    assert seen[0][-1][3]


def test_ids_and_pictures_are_as_before() -> None:
    assert gymnasium.make("kairode/WindyGridworld-v0").spec.id == "kairode/WindyGridworld-v0"
    env = REAL.to_gymnasium(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (480, 640, 3)


def test_refusals(model_env: ModelEnv) -> None:
    with pytest.raises(KairodeError, match=r"fields \(horizon\) can be given with a name only.*make 'gridworld'"):
        SemiMarkovEnv(model_env, horizon=5)
    with pytest.raises(KairodeError, match=r"'gridworld' \(ModelEnv\) has no drawing: use render_mode=None"):
        model_env.to_gymnasium(render_mode="rgb_array")
    with pytest.raises(KairodeError, match="a vector environment of 'gridworld' is not drawn"):
        REAL.to_gymnasium(render_mode="rgb_array", num_envs=2)
    with pytest.raises(KairodeError, match="num_envs must be an integer of at least 1, got 0"):
        model_env.to_gymnasium(num_envs=0)
    with pytest.raises(KairodeError, match="render_mode of 'gridworld' must be None or 'rgb_array', got 'human'"):
        REAL.to_gymnasium(render_mode="human")
