"""The host loop of collection, MPC and video recording."""

from collections.abc import Sequence

import numpy as np

from kairode.envs.vector import Step, VectorEnv

ARRAYS = ("obs", "elapsed", "episode", "earned", "length")


class HostRollout:
    """A vector environment with the bookkeeping of its episodes.

    The caller chooses the actions, calls `step`, and calls `start` where an episode ended; until then `earned` and
    `length` are those of the finished episode.
    """

    def __init__(self, vector_env: VectorEnv) -> None:
        self.vector_env, size = vector_env, vector_env.size
        self.obs = np.zeros((size, len(vector_env.task.spec.observations)), np.float32)
        self.elapsed = np.zeros(size, np.float32)
        """The interval before this decision; 0 at the first decision of an episode."""
        self.episode = np.zeros(size, np.int64)
        """Episodes started in each instance."""
        self.earned = np.zeros(size)
        """Sum of the rewards of the episode so far, without discount within intervals."""
        self.length = np.zeros(size, np.int64)
        """Decisions taken in it."""

    def start(self, instances: np.ndarray, seeds: Sequence[int]) -> None:
        if not instances.size:
            return
        obs = self.vector_env.reset(seeds, instances.tolist())
        self.obs = self.obs.copy()  # the device may still read the old array
        self.obs[instances] = obs[instances]
        self.episode[instances] += 1
        self.elapsed[instances], self.earned[instances], self.length[instances] = 0.0, 0.0, 0

    def step(self, actions: np.ndarray, taus: np.ndarray | None = None) -> Step:
        step = self.vector_env.step(actions, taus)
        self.obs, self.elapsed = step.obs, step.tau.astype(np.float32)
        self.earned += step.reward if step.total is None else step.total
        self.length += 1
        return step

    def snapshot(self) -> dict[str, np.ndarray]:
        """Arrays of the episodes; the vector environment has its own snapshot."""
        return {name: getattr(self, name) for name in ARRAYS}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        for name in ARRAYS:
            setattr(self, name, np.array(state[name], getattr(self, name).dtype))
