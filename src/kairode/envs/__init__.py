"""Environments: semi-Markov decision processes with irregular intervals.

JAX environments (`Environment`) run in parallel under `vmap`; host environments (`HostEnvironment`, such as MuJoCo)
share their `Task` and are stepped in threads. `make` creates either by name.
"""

from kairode.envs.acrobot import Acrobot
from kairode.envs.core import (
    Continuous,
    Discrete,
    Environment,
    Intervals,
    Moment,
    Outcome,
    Spec,
    Task,
    Variable,
    advance_episode,
    begin_episode,
    settings_of,
)
from kairode.envs.gridworld import WindyGridworld
from kairode.envs.hiv import HIV
from kairode.envs.host import HostEnvironment, Simulation
from kairode.envs.locomotion import Locomotion
from kairode.envs.schedule import Fixed, Given, Own, Schedule, as_schedule, hold, next_interval
from kairode.envs.zoo import ENVIRONMENTS, make

__all__ = [
    "ENVIRONMENTS",
    "HIV",
    "Acrobot",
    "Continuous",
    "Discrete",
    "Environment",
    "Fixed",
    "Given",
    "HostEnvironment",
    "Intervals",
    "Locomotion",
    "Moment",
    "Outcome",
    "Own",
    "Schedule",
    "Simulation",
    "Spec",
    "Task",
    "Variable",
    "WindyGridworld",
    "advance_episode",
    "as_schedule",
    "begin_episode",
    "hold",
    "make",
    "next_interval",
    "settings_of",
]
