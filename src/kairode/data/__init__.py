"""Data: trajectories, their collection, storage and replay."""

from kairode.data.collect import collect
from kairode.data.policy import Constant, Memoryless, Policy, Random
from kairode.data.table import read, write
from kairode.data.trajectory import Trajectory

__all__ = ["Constant", "Memoryless", "Policy", "Random", "Trajectory", "collect", "read", "write"]
