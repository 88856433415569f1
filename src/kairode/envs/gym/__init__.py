"""Gymnasium in both directions: environments of ours as Gymnasium environments, and Gymnasium's as ours."""

from kairode.envs.gym.semi_markov import SemiMarkovEnv, SemiMarkovVectorEnv
from kairode.envs.gym.wrap import GymnasiumEnvironment, from_gymnasium

__all__ = ["GymnasiumEnvironment", "SemiMarkovEnv", "SemiMarkovVectorEnv", "from_gymnasium"]
