"""Reinforcement learning agents for semi-Markov decision processes: the discount is gamma^tau."""
