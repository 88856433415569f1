"""Host environments (physics in C, any Gymnasium environment): a description, and simulations of it."""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from kairode.envs.core import Action, Obs, Spec, Task, Tau
from kairode.errors import KairodeError


class NotRestored(Exception):
    """A simulation cannot continue from a snapshot; its episode begins again."""


class SimulationStep(NamedTuple):
    """What a simulation reports of an interval when rewards and terminations are its own."""

    obs: np.ndarray
    """Where the interval ended."""
    reward: float
    """Rewards of the interval added up, each discounted by gamma^t from the interval's start."""
    terminated: bool
    """Whether the process terminated, at the end of the interval or within it."""
    truncated: bool
    """Whether the simulator's own time limit was reached."""
    elapsed: float
    """Time that passed: shorter than the interval if the episode ended within it."""
    total: float
    """The same rewards added up without discount."""


class Simulation(abc.ABC):
    """One running instance. It may be stepped in its own thread.

    `snapshot`, `restore` and `render` are optional. Without the first two, an interrupted run continues at the start of
    its last episode.
    """

    @abc.abstractmethod
    def reset(self, seed: int | None) -> np.ndarray:
        """Start an episode and observe; without a seed the instance's random generator continues."""

    @abc.abstractmethod
    def interval(self, action: np.ndarray) -> float:
        """The environment's own schedule in the current state."""

    @abc.abstractmethod
    def transition(self, action: np.ndarray, tau: float) -> np.ndarray | SimulationStep:
        """Hold the action for tau, then observe; a `SimulationStep` if rewards are the simulator's own."""

    def snapshot(self) -> Any:
        """The complete state: arrays, numbers, strings and None in dictionaries, lists and tuples of any depth. None if
        the state cannot be saved."""
        return None

    def restore(self, state: Any) -> np.ndarray:
        """Restore a snapshot and observe. The random generator of later resets is not part of it.

        Raises `NotRestored` if the simulation cannot continue from it after all.
        """
        raise NotRestored

    def render(self) -> np.ndarray:
        """RGB image of the current state."""
        raise KairodeError(f"{type(self).__name__} does not draw its state: it has no method `render`.")

    def close(self) -> None:  # noqa: B027  optional
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

    Its task is written for one example, as for `Environment`, and compiled by JAX; one that works on NumPy arrays with
    leading axes of instances says so (`Task.batched`) and is called with float64. Where reward and termination are the
    simulator's own, its task is a `SimulatorTask`.
    """

    @property
    def releases_gil(self) -> bool:
        """Whether simulations run side by side in threads: physics in C does, Python does not."""
        return True

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


class SimulatorTask(Task):
    """The task of a simulator whose rewards and terminations are known from experience alone.

    Imagination needs a function instead: `kairode.learn_task` learns it from data.
    """

    spec: Spec = eqx.field(static=True)

    def reward(self, obs: Obs, action: Action, next_obs: Obs, tau: Tau) -> Any:
        """Unknown."""
        raise self._unknown("reward")

    def terminal(self, obs: Obs) -> Any:
        """Unknown."""
        raise self._unknown("termination")

    def _unknown(self, what: str) -> KairodeError:
        return KairodeError(
            f"the {what} of '{self.spec.name}' is its simulator's own, and a model cannot predict it: learn it from "
            "data (kairode.learn_task(data)), or give a Task when you wrap the environment (task=..)."
        )
