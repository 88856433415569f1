"""A slow simulator with Gymnasium's interface: glucose under insulin and unannounced meals, for a day.

Bergman's minimal model with absorption from the gut (`tools/glucose.py`), integrated by scipy in substeps of three
seconds, so that a step of five minutes takes about 7 ms. The action is an infusion of insulin; the reward is minus the
risk of the glucose value (Kovatchev et al. 2000), which is 0 at 112.5 mg/dl and grows towards both sides.

    kairode run glucose_env:GlucoseEnv        # in this folder
"""

from typing import Any

import gymnasium
import numpy as np
from glucose import BASAL_GLUCOSE, BASAL_INSULIN, BASAL_POTASSIUM, glucose_field
from scipy.integrate import solve_ivp

STEP, HOURS, MOST_INSULIN = 1 / 12, 24.0, 40.0
"""Hours of a step and of an episode; the largest infusion, mU/l per hour."""


class GlucoseEnv(gymnasium.Env):
    """Infuse insulin so that glucose stays near normal, whatever is eaten."""

    def __init__(self, max_step: float = STEP / 110) -> None:
        self.max_step = max_step
        self.observation_space = gymnasium.spaces.Box(0.0, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Box(0.0, MOST_INSULIN, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.state = np.array([BASAL_GLUCOSE, BASAL_INSULIN, BASAL_POTASSIUM, 0.0, 0.0])
        self.state[0] += self.np_random.uniform(0, 80)
        # Three meals, each within two hours of its usual time.
        self.meals = np.array([7.0, 12.5, 19.0]) + self.np_random.uniform(-1, 1, 3)
        self.sizes = self.np_random.uniform(300, 700, 3)
        self.hours = 0.0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        insulin = np.asarray(float(np.asarray(action).reshape(())))
        eaten = self.sizes[(self.meals >= self.hours) & (self.meals < self.hours + STEP)].sum()
        self.state[4] += eaten

        def field(_: float, state: np.ndarray) -> np.ndarray:
            return glucose_field(state, insulin, np.zeros(()), np.ones(()))

        found = solve_ivp(field, (0.0, STEP), self.state, max_step=self.max_step)
        self.state = found.y[:, -1]
        self.hours += STEP
        return self._seen(), -risk(self.state[0]), False, self.hours >= HOURS - 1e-9, {}

    def _seen(self) -> np.ndarray:
        return self.state[[0, 1, 3]].copy()


def risk(glucose: float) -> float:
    """10 f(g)^2 with f(g) = 1.509 (ln(g)^1.084 - 5.381)."""
    f = 1.509 * (np.log(max(glucose, 1.0)) ** 1.084 - 5.381)
    return float(10 * f**2)
