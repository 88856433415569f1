"""Host environments (physics in C): a description, and simulations of it."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from kairode.envs.core import Task


class Simulation(abc.ABC):
    """One running instance. It may be stepped in its own thread."""

    @abc.abstractmethod
    def reset(self, seed: int | None) -> np.ndarray:
        """Start an episode and observe; without a seed the instance's random generator continues."""

    @abc.abstractmethod
    def interval(self, action: np.ndarray) -> float:
        """The environment's own schedule in the current state."""

    @abc.abstractmethod
    def transition(self, action: np.ndarray, tau: float) -> np.ndarray:
        """Hold the action for tau, then observe."""

    @abc.abstractmethod
    def snapshot(self) -> np.ndarray:
        """The complete physical state (float64)."""

    @abc.abstractmethod
    def restore(self, state: np.ndarray) -> np.ndarray:
        """Restore a snapshot and observe. The random generator of later resets is not part of it."""

    @abc.abstractmethod
    def render(self) -> np.ndarray:
        """RGB image of the current state."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release resources."""


class SimulationGroup(abc.ABC):
    """The physics of several simulations, stepped in one call of a library. A group may be stepped in its own thread.

    The simulations are still used to start episodes; their own physical states are then out of date.
    """

    @abc.abstractmethod
    def load(self, index: int) -> None:
        """Continue from the state of a simulation, which was just reset or restored."""

    @abc.abstractmethod
    def intervals(self, actions: np.ndarray) -> list[float]:
        """`Simulation.interval` of each."""

    @abc.abstractmethod
    def transition(self, actions: np.ndarray, taus: np.ndarray, going: np.ndarray) -> np.ndarray:
        """Hold each action for its tau where `going`, then observe all."""

    @abc.abstractmethod
    def snapshot(self, index: int) -> np.ndarray:
        """`Simulation.snapshot`."""


class HostEnvironment(abc.ABC):
    """An environment like `Environment`, whose state is not a JAX array.

    Its task must also work on NumPy arrays with leading axes of instances: plain operators and methods, no `jax.numpy`.
    """

    @property
    @abc.abstractmethod
    def task(self) -> Task:
        """Reward, termination and sizes."""

    @abc.abstractmethod
    def open(self, **options: Any) -> Simulation:
        """Start a simulation."""

    def group(self, simulations: Sequence[Any]) -> SimulationGroup | None:
        """Step these simulations together; None if each is to be stepped on its own."""
        return None

    def to_gymnasium(self, interval: Any = "own", render_mode: str | None = None, num_envs: int | None = None) -> Any:
        """The environment as a Gymnasium environment, as `Environment.to_gymnasium`."""
        from kairode.envs.gym.semi_markov import as_gymnasium

        return as_gymnasium(self, interval, render_mode, num_envs)
