"""Windy gridworld with continuous states: king's moves towards a goal in a crosswind.

Sutton and Barto's gridworld as extended in the paper's appendix. States are centred: x along the side of 7 (the wind
pushes towards +x, "up" in the paper), y along the side of 10.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from kairode.envs.core import Discrete, Environment, Intervals, Obs, Spec, Task, Tau, Variable, settings_of
from kairode.errors import KairodeError

HALF_WIDTH, HALF_LENGTH = 3.5, 5.0
STEP = 0.17
DIAGONAL = STEP / math.sqrt(2)
MOVES = {
    "up": (STEP, 0.0),
    "down": (-STEP, 0.0),
    "left": (0.0, -STEP),
    "right": (0.0, STEP),
    "up-left": (DIAGONAL, -DIAGONAL),
    "up-right": (DIAGONAL, DIAGONAL),
    "down-left": (-DIAGONAL, -DIAGONAL),
    "down-right": (-DIAGONAL, DIAGONAL),
}
START = ((-0.5, 0.5), (-5.0, -4.0))
"""Ranges of x and y of the uniform initial states."""
GOAL = ((-0.5, 0.5), (1.5, 2.5))
WEAK_WIND, STRONG_WIND = STEP / 4, STEP / 2
WEAK_BAND, STRONG_BAND = (-2.5, 3.5), (0.5, 2.5)
"""Ranges of y with wind: the weak band includes its ends, the strong one does not."""

Carry = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""], Int[Array, ""]]
"""Time left, x, y and the seconds counted."""


def wind(y: Float[Array, ""]) -> Float[Array, ""]:
    """Displacement by the wind along x per second."""
    weak = (WEAK_BAND[0] <= y) & (y <= WEAK_BAND[1])
    strong = (STRONG_BAND[0] < y) & (y < STRONG_BAND[1])
    return jnp.where(strong, STRONG_WIND, jnp.where(weak, WEAK_WIND, 0.0)).astype(y.dtype)


class GridworldTask(Task):
    """Every second costs 1; reaching the goal gives 10 and terminates the episode."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs: Obs, action: Int[Array, ""], next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """R = 10 [s' in goal] - tau."""
        return jnp.where(self.terminal(next_obs), 10.0, 0.0) - tau

    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        (x_low, x_high), (y_low, y_high) = GOAL
        x, y = obs
        return (x_low <= x) & (x <= x_high) & (y_low <= y) & (y <= y_high)


class WindyGridworld(Environment):
    """Reach a goal in a box with wind and walls; eight moves of length 0.17 per second; intervals of 1 to 7 s."""

    noise: float = 0.0
    """Standard deviation of the Gaussian noise added to both coordinates every second (published run: 0.05)."""
    intervals: tuple[int, int] = eqx.field(default=(1, 7), converter=tuple)
    """Intervals are uniform on the whole seconds of this range."""
    horizon: float = 150.0
    """Seconds after which an episode is truncated."""
    max_decisions: int | None = None
    """Decisions after which an episode is truncated; None for no cap."""
    discount: float = 0.99
    """Gamma, per second."""
    unrolled_keys = True

    def __check_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise KairodeError(f"noise of 'gridworld' must be finite and not negative, got {self.noise}.")
        if any(tau != round(tau) for tau in self.intervals):
            raise KairodeError(f"intervals of 'gridworld' must be whole seconds, got {self.intervals}.")

    @property
    def task(self) -> GridworldTask:
        spec = Spec(
            name="gridworld",
            observations=(
                Variable("x", "cell", -HALF_WIDTH, HALF_WIDTH),
                Variable("y", "cell", -HALF_LENGTH, HALF_LENGTH),
            ),
            actions=Discrete(tuple(MOVES)),
            intervals=Intervals(*self.intervals, step=1),
            time_unit="second",
            horizon=self.horizon,
            max_decisions=self.max_decisions,
            discount=self.discount,
            settings=settings_of(self),
        )
        return GridworldTask(spec)

    @property
    def loops(self) -> bool:
        """Without noise an interval is one kernel."""
        return self.noise > 0

    def reset(self, *, key: Key[Array, ""]) -> Float[Array, "2"]:
        low, high = jnp.array(START).T
        return jax.random.uniform(key, (2,), minval=low, maxval=high)

    def observe(self, state: Float[Array, "2"]) -> Obs:
        return state

    def interval(self, state: Float[Array, "2"], action: Int[Array, ""], *, key: Key[Array, ""]) -> Tau:
        low, high = self.intervals
        return jax.random.randint(key, (), low, high + 1).astype(state.dtype)

    def transition(
        self, state: Float[Array, "2"], action: Int[Array, ""], tau: Tau, *, key: Key[Array, ""]
    ) -> Float[Array, "2"]:
        """Second by second: move, wind and noise, then the walls; proportionally for a fraction of a second."""
        moves = jnp.array(list(MOVES.values()), state.dtype)
        move_x, move_y = moves[:, 0][action], moves[:, 1][action]

        def second(carry: Carry) -> Carry:
            left, x, y, count = carry
            part = jnp.minimum(left, 1.0)
            x, y = x + part * (move_x + wind(y)), y + part * move_y
            if self.noise:
                noise = jax.random.normal(jax.random.fold_in(key, count), (2,), state.dtype)
                x, y = jnp.stack([x, y]) + self.noise * jnp.sqrt(part) * noise
            x, y = jnp.clip(x, -HALF_WIDTH, HALF_WIDTH), jnp.clip(y, -HALF_LENGTH, HALF_LENGTH)
            return left - part, x, y, count + 1

        def seconds(carry: Carry) -> Carry:
            """As many as the longest interval of its own has, in one kernel; once nothing is left, they change nothing.
            With noise one by one: draws are not free."""
            for _ in range(1 if self.noise else int(self.intervals[1])):
                carry = second(carry)
            return carry

        start = (tau, state[0], state[1], jnp.zeros((), jnp.int32))
        _, x, y, _ = jax.lax.while_loop(lambda carry: carry[0] > 1e-5, seconds, start)
        return jnp.stack([x, y])
