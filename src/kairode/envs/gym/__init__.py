"""Gymnasium in both directions: environments of ours as Gymnasium environments, and Gymnasium's as ours."""

from kairode.envs.gym.semi_markov import SemiMarkovEnv, SemiMarkovVectorEnv

__all__ = ["SemiMarkovEnv", "SemiMarkovVectorEnv"]
