"""What happens: semi-Markov decision processes with irregular intervals.

Pure JAX ones (`Environment`) run by the thousand in one `vmap`; host ones (`HostEnvironment`, MuJoCo in C) share their
`Task` and are stepped side by side. `make` builds either by name.
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
]
