"""Stable-Baselines3 (2.7 or newer): discounts gamma^dt for its agents, and instances stepped together.

Its agents discount every step by the same gamma. In a semi-Markov process the next value is worth gamma^dt, with dt the
time that passed, which an environment reports as `info["dt"]`. `docs/stable-baselines3.md` shows the use.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kairode.envs.gym.semi_markov import AGENT, Env, SemiMarkovVectorEnv
from kairode.errors import KairodeError

try:
    from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise KairodeError(
        f"Stable-Baselines3 cannot be imported ({error}): pip install 'stable-baselines3>=2.7'."
    ) from error
if "discounts" not in ReplayBufferSamples._fields:
    raise KairodeError(
        "this Stable-Baselines3 has one discount for all transitions: pip install 'stable-baselines3>=2.7'."
    )


def discounts_of(infos: Sequence[dict[str, Any]], gamma: float, tick: float) -> np.ndarray:
    """gamma^(dt / tick) of the step that each instance took."""
    missing = [i for i, info in enumerate(infos) if "dt" not in info]
    if missing:
        raise KairodeError(
            f"info has no 'dt' (instance {missing[0]}): an environment must report there the time that each step took."
        )
    return np.power(gamma, np.array([info["dt"] for info in infos], np.float64) / tick).astype(np.float32)


class SemiMarkovReplayBuffer(ReplayBuffer):
    """Replay buffer with discounts gamma^dt, for DQN, SAC, TD3 and DDPG: `replay_buffer_class=SemiMarkovReplayBuffer`.

    Args:
        args: those of Stable-Baselines3's `ReplayBuffer`.
        gamma: discount per tick (`replay_buffer_kwargs={"gamma": 0.99}`). The agent's own gamma is not used.
        tick: unit of time of the discount, in units of `info["dt"]`.
        options: those of `ReplayBuffer`.
    """

    def __init__(self, *args: Any, gamma: float, tick: float = 1.0, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.optimize_memory_usage:
            raise KairodeError("SemiMarkovReplayBuffer needs optimize_memory_usage=False.")
        self.gamma, self.tick = gamma, tick
        self.discounts = np.ones((self.buffer_size, self.n_envs), np.float32)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Store a transition of every instance, with its discount."""
        self.discounts[self.pos] = discounts_of(infos, self.gamma, self.tick)
        super().add(obs, next_obs, action, reward, done, infos)

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> ReplayBufferSamples:
        rows = batch_inds, np.random.randint(self.n_envs, size=len(batch_inds))  # noqa: NPY002  theirs, which they seed
        ended = self.dones[rows] * (1 - self.timeouts[rows])
        samples = (
            self._normalize_obs(self.observations[rows], env),
            self.actions[rows],
            self._normalize_obs(self.next_observations[rows], env),
            ended[:, None],
            self._normalize_reward(self.rewards[rows][:, None], env),
            self.discounts[rows][:, None],
        )
        return ReplayBufferSamples(*map(self.to_torch, samples))


class SemiMarkovRolloutBuffer(RolloutBuffer):
    """Rollout buffer whose advantages have discounts gamma^dt, for PPO and A2C.

    Pass `rollout_buffer_class=SemiMarkovRolloutBuffer` to the agent, and `callback=RecordIntervals()` to its `learn`.
    The agent's gamma is the discount per tick. Its gae_lambda is a factor per decision, as it is without intervals:
    it says how far the value of the next observation is trusted, which does not depend on the time until then.

    Args:
        args: those of Stable-Baselines3's `RolloutBuffer`.
        tick: unit of time of the discount, in units of `info["dt"]`.
        options: those of `RolloutBuffer`.
    """

    def __init__(self, *args: Any, tick: float = 1.0, **options: Any) -> None:
        self.tick = tick
        super().__init__(*args, **options)

    def reset(self) -> None:
        """Forget the last rollout."""
        super().reset()
        self.discounts = np.full((self.buffer_size, self.n_envs), np.nan, np.float32)

    def record(self, infos: list[dict[str, Any]]) -> np.ndarray:
        """Discounts of the steps that are added next."""
        self.discounts[self.pos] = discounts_of(infos, self.gamma, self.tick)
        return self.discounts[self.pos]

    def compute_returns_and_advantage(self, last_values: Any, dones: np.ndarray) -> None:
        """Generalised advantage estimates (arXiv:1506.02438, equation 16), with gamma^dt of each step."""
        if np.isnan(self.discounts).any():
            raise KairodeError(
                "SemiMarkovRolloutBuffer was told no intervals: pass callback=RecordIntervals() to learn()."
            )
        last = last_values.detach().cpu().numpy().reshape(1, -1)
        discounts = self.discounts * (1 - np.concatenate([self.episode_starts[1:], dones[None].astype(np.float32)]))
        errors = self.rewards + discounts * np.concatenate([self.values[1:], last]) - self.values
        advantage = np.zeros(self.n_envs, np.float32)
        for step in reversed(range(self.buffer_size)):
            advantage = errors[step] + self.gae_lambda * discounts[step] * advantage
            self.advantages[step] = advantage
        self.returns = self.advantages + self.values


class RecordIntervals(BaseCallback):
    """Passes `info["dt"]` to a `SemiMarkovRolloutBuffer`. At truncation, too, the next value has gamma^dt."""

    def _on_step(self) -> bool:
        buffer, infos = self.locals.get("rollout_buffer"), self.locals["infos"]
        if not isinstance(buffer, SemiMarkovRolloutBuffer):
            raise KairodeError("RecordIntervals needs an agent with rollout_buffer_class=SemiMarkovRolloutBuffer.")
        discounts = buffer.record(infos)
        for i, info in enumerate(infos):
            if info.get("TimeLimit.truncated", False) and info.get("terminal_observation") is not None:
                policy = self.model.policy
                value = policy.predict_values(policy.obs_to_tensor(info["terminal_observation"])[0])
                self.locals["rewards"][i] += discounts[i] * value.item()
                info["TimeLimit.truncated"] = False  # the agent itself would add the value times gamma
        return True


class StableBaselinesVecEnv(VecEnv):
    """Instances of an environment or of a learned model as Stable-Baselines3's `VecEnv`: one compiled call per step.

    Args:
        name: an environment of `kairode.make`, or an environment, such as a `kairode.ModelEnv`.
        num_envs: number of instances.
        interval: "own" for the environment's schedule, a number to fix it, or a list to cycle through.
        fields: any field of the environment, if it is given by name.
    """

    def __init__(self, name: Env, num_envs: int = 1, interval: Any = "own", **fields: Any) -> None:
        if isinstance(interval, str) and interval == AGENT:
            raise KairodeError(
                "agents of Stable-Baselines3 cannot choose intervals by interval='agent': wrap the environment in "
                "IntervalActions, or use 'own' or times."
            )
        self.env = SemiMarkovVectorEnv(name, num_envs, interval, **fields)
        super().__init__(num_envs, self.env.single_observation_space, self.env.single_action_space)

    def reset(self) -> np.ndarray:
        """Start an episode in every instance; the seeds are those of `seed`."""
        obs, _ = self.env.reset(seed=self._seeds)
        self.reset_infos = [{"dt": 0.0, "time": 0.0} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        """Remember the actions."""
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step all instances; one whose episode ended begins the next at once, as Stable-Baselines3 expects."""
        step = self.env.instances.step(self.actions)
        infos: list[dict[str, Any]] = [
            {"dt": float(tau), "time": float(time), "TimeLimit.truncated": bool(cut)}
            for tau, time, cut in zip(step.tau, step.time, step.truncated & ~step.terminated, strict=True)
        ]
        obs, ended = step.obs, np.flatnonzero(step.ended).tolist()
        if ended:
            for i in ended:
                infos[i]["terminal_observation"] = obs[i]
            obs = self.env.instances.reset([None] * len(ended), ended)
        return obs, step.reward.astype(np.float32), step.ended, infos

    def close(self) -> None:
        """Release the instances."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the vector environment, once per instance."""
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Instances have no attributes of their own."""
        raise KairodeError(f"'{attr_name}' cannot be set: instances have no attributes of their own.")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Instances have no methods of their own."""
        raise KairodeError(f"'{method_name}' cannot be called: instances have no methods of their own.")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """They are not."""
        return [False for _ in self._get_indices(indices)]
