"""What was seen: trajectories, how they are collected, stored and replayed."""

from kairode.data.collect import collect
from kairode.data.policy import Constant, Memoryless, Policy, Random
from kairode.data.table import read, write
from kairode.data.trajectory import Trajectory

__all__ = ["Constant", "Memoryless", "Policy", "Random", "Trajectory", "collect", "read", "write"]
