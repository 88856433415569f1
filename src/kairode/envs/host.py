"""Environments that live on the host (physics in C): a description, and running simulations of it."""

import abc
from typing import Any

import numpy as np

from kairode.envs.core import Task


class Simulation(abc.ABC):
    """One running instance. It may be stepped in a thread of its own."""

    @abc.abstractmethod
    def reset(self, seed: int | None) -> np.ndarray:
        """Start an episode and observe; without a seed the instance's own random numbers go on."""

    @abc.abstractmethod
    def interval(self, action: np.ndarray) -> float:
        """The environment's own schedule in the present state."""

    @abc.abstractmethod
    def transition(self, action: np.ndarray, tau: float) -> np.ndarray:
        """Hold the action for tau, then observe."""

    @abc.abstractmethod
    def snapshot(self) -> np.ndarray:
        """The whole physical state as numbers (float64)."""

    @abc.abstractmethod
    def restore(self, state: np.ndarray) -> np.ndarray:
        """Go on from such a state; observe. What the instance draws in later resets is not part of it."""

    @abc.abstractmethod
    def render(self) -> np.ndarray:
        """A picture of the present state, RGB."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what it holds."""


class HostEnvironment(abc.ABC):
    """An environment in the same words as `Environment`, whose state is not a JAX array.

    Its task must also work on NumPy arrays, instances on leading axes: plain operators and methods, no `jax.numpy`.
    """

    @property
    @abc.abstractmethod
    def task(self) -> Task:
        """Reward, terminal and sizes."""

    @abc.abstractmethod
    def open(self, **options: Any) -> Simulation:
        """A new running instance."""
