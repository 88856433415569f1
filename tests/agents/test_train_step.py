"""One decision of training, closely: what is stored, when the target is renewed, what the latent policy sees."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Cue, abreast, one_of, table

import kairode
from kairode.agents.encoder import IdentityEncoder, LatentEncoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.agents.train_step import TrainingBatch, env_step, init_train_state, run_steps, transitions_from_data
from kairode.config.agents import DQNConfig
from kairode.config.models import ModelConfig
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Environment
from kairode.envs.schedule import Own
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.zoo import build
from kairode.planning.model_env import make_model_env

KEY = jax.random.key(0)
TINY = DQNConfig(hidden=(), batch_size=4, replay_capacity=16, target_period=3)


def small(name: str, env: Environment, seed: int) -> DynamicsModel:
    return build(
        name, env.task.spec, ModelConfig(latent_size=4, encoder_hidden=3, timer="none"), key=jax.random.key(seed)
    )


def test_the_target_is_renewed_after_some_episodes() -> None:
    """Episodes of one decision: the network moves at each from the fourth on, the target at every third."""
    batches = (TrainingBatch(abreast(table({})), Own(), IdentityEncoder(), 1),)
    train_state = jax.tree.map(jnp.copy, init_train_state(batches, TINY, 20, [0]))
    networks, targets = [], []
    for k in range(11):
        networks.append(np.array(train_state.learner.q.weights[0]))
        targets.append(np.array(train_state.learner.target.weights[0]))
        np.testing.assert_array_equal(targets[k], networks[k - k % 3])
        assert int(train_state.decisions[0]) == int(train_state.episodes[0]) == k
        train_state = run_steps((TINY, batches, 1), train_state)
    moved = [bool((a != b).any()) for a, b in itertools.pairwise(networks)]
    assert moved == [False] * 3 + [True] * 7


def test_what_is_stored_of_a_decision() -> None:
    """Rewards scaled and less the doubt of an imagined world; the episode's returns as they are."""
    env = kairode.make("gridworld")
    model_env = make_model_env([small("rnn", env, seed) for seed in range(2)], env)
    plain = dataclasses.replace(TINY, reward_scale=0.5)
    batch = TrainingBatch(model_env, Own(), IdentityEncoder(), 1)
    episode = one_of(
        init_train_state([TrainingBatch(abreast(model_env), Own(), IdentityEncoder(), 1)], plain, 1, [0]).episode, 0
    )
    action = jnp.array(3)
    step = eqx.filter_jit(env_step)
    q = ReLUNetwork.new(2, 4, 8, key=KEY)
    found = step(plain, batch, episode, action, KEY, q)
    penalized = step(dataclasses.replace(plain, disagreement_penalty=3.0), batch, episode, action, KEY, q)
    tau, disagreement = found.episode.moment.time, found.episode.moment.state.disagreement
    assert disagreement > 1e-3
    after = found.episode.moment.obs
    assert found.returns[0] == pytest.approx(float(env.task.reward(episode.moment.obs, action, after, tau)))
    assert found.transition.reward == pytest.approx(0.5 * float(found.returns[0]))
    assert penalized.transition.reward == pytest.approx(0.5 * float(found.returns[0]) - 3.0 * float(disagreement))
    np.testing.assert_array_equal(penalized.returns, found.returns)
    assert found.transition.discount == pytest.approx(0.99 ** float(tau))
    np.testing.assert_array_equal(found.transition.features, episode.moment.obs)
    np.testing.assert_array_equal(found.transition.next_features, after)


def test_what_really_happened_as_transitions() -> None:
    """An episode of one decision that ended by itself, one of two that were cut: padding is left out."""
    env = kairode.make("acrobot", discount=0.9)
    seen = np.random.default_rng(0).normal(size=(2, 3, 6)).astype(np.float32)
    data = Trajectory(
        spec=env.task.spec,
        observation=seen,
        action=np.array([[1, 0], [2, 1]], np.int32),
        interval=np.array([[0.4, 0.0], [0.2, 1.0]], np.float32),
        reward=np.array([[-2.0, 0.0], [-1.0, -5.0]], np.float32),
        length=np.array([1, 2], np.int32),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
    )
    settings = DQNConfig(batch_size=4, replay_capacity=100, reward_scale=0.1)
    found = transitions_from_data(settings, data, data.spec)
    np.testing.assert_array_equal(found.features, [seen[0, 0], seen[1, 0], seen[1, 1]])
    np.testing.assert_array_equal(found.next_features, [seen[0, 1], seen[1, 1], seen[1, 2]])
    np.testing.assert_array_equal(found.action, [1, 2, 1])
    np.testing.assert_allclose(found.reward, [-0.2, -0.1, -0.5])
    np.testing.assert_allclose(found.discount, [0.0, 0.9, 0.9**5], rtol=1e-6)  # 0.2 s count as one
    assert (
        len(transitions_from_data(dataclasses.replace(settings, replay_capacity=4), data, data.spec).reward) == 2
    )  # half a replay


def test_a_penalty_needs_an_imagined_world() -> None:
    batches = (TrainingBatch(Cue(), Own(), IdentityEncoder(), 1),)
    settings = dataclasses.replace(TINY, disagreement_penalty=1.0)
    with pytest.raises(KairodeError, match="needs a model environment"):
        run_steps((settings, batches, 1), init_train_state(batches, settings, 1, [0]))


@pytest.mark.parametrize("seeds", [[0], [0, 1, 2]])
def test_a_seed_for_each_agent(seeds: list[int]) -> None:
    with pytest.raises(KairodeError, match="one seed per agent is needed: 2 agents"):
        init_train_state([TrainingBatch(Cue(), Own(), IdentityEncoder(), 2)], TINY, 1, seeds)


def test_the_latent_state_is_carried_along_the_episode() -> None:
    """Steps of the model by hand, along an episode that the policy itself made on the real system."""
    env = kairode.make("gridworld", max_decisions=6)
    model = small("latent-ode", env, 0)
    weights = jax.random.normal(KEY, (8, 2 + 4)).at[:, :2].set(0.0)  # what is observed says nothing: z alone decides
    policy = QPolicy(ReLUNetwork((weights,), (jnp.zeros(8),)), LatentEncoder(model), env.task.spec, epsilon=0.0)
    assert policy.encoder.size(env.task.spec) == 6
    seen = kairode.collect(env, policy, episodes=3, seed=1)
    # The key of the memory, as the rollout makes it.
    keys = [jax.random.split(jax.random.fold_in(jax.random.fold_in(jax.random.key(1), n), 0))[0] for n in range(3)]
    for n in range(3):
        z = model.start(key=keys[n])
        for k in range(int(seen.length[n])):
            obs, action = jnp.asarray(seen.observation[n, k]), jnp.asarray(seen.action[n, k])
            assert int(policy.q(jnp.concatenate([obs, z])).argmax()) == int(action), (n, k)
            z, _ = model.step(z, obs, action, jnp.asarray(seen.interval[n, k]))
    assert len(np.unique(seen.action)) > 1
