"""Acrobot: swing up a two-link pendulum by a torque on the joint between its links.

Dynamics of Sutton and Barto's book (section 11.3 of the first edition), the same as Gymnasium's Acrobot; observed are
angles and angular velocities.
"""

import math
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from kairode.envs.core import Discrete, Environment, Intervals, Obs, Spec, Task, Tau, Variable, settings_of
from kairode.envs.integrate import integrate
from kairode.errors import KairodeError

MASS = LENGTH = INERTIA = 1.0
"""Of each link: mass (kg), length (m), moment of inertia (kg m^2)."""
CENTRE = 0.5
"""Distance of a link's centre of mass from its upper joint, m."""
GRAVITY = 9.8
TORQUES = {"torque -1": -1.0, "no torque": 0.0, "torque +1": 1.0}
MAX_VELOCITY = (4 * math.pi, 9 * math.pi)


def height(theta1: Float[Array, ""], theta2: Float[Array, ""]) -> Float[Array, ""]:
    """Height of the tip above the pivot, in link lengths."""
    return -jnp.cos(theta1) - jnp.cos(theta1 + theta2)


Motion = tuple[Array, Array, Array, Array]
"""Angles and velocities as scalars: under vmap each is a contiguous vector, which is fastest on the CPU."""


def acrobot_field(motion: Motion, torque: Float[Array, ""]) -> Motion:
    """Equations of motion, book version, with equal links."""
    theta1, theta2, dtheta1, dtheta2 = motion
    m, length, lc, i, g = MASS, LENGTH, CENTRE, INERTIA, GRAVITY
    sin2, cos2 = jnp.sin(theta2), jnp.cos(theta2)
    d1 = m * lc**2 + m * (length**2 + lc**2 + 2 * length * lc * cos2) + 2 * i
    d2 = m * (lc**2 + length * lc * cos2) + i
    phi2 = m * lc * g * jnp.sin(theta1 + theta2)
    phi1 = (
        -m * length * lc * dtheta2**2 * sin2
        - 2 * m * length * lc * dtheta2 * dtheta1 * sin2
        + (m * lc + m * length) * g * jnp.sin(theta1)
        + phi2
    )
    ddtheta2 = (torque + d2 / d1 * phi1 - m * length * lc * dtheta1**2 * sin2 - phi2) / (m * lc**2 + i - d2**2 / d1)
    ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
    return dtheta1, dtheta2, ddtheta1, ddtheta2


def wrap_and_clip(motion: Motion) -> Motion:
    """Angles wrapped to [-pi, pi), velocities clipped to their maximum."""
    theta1, theta2, dtheta1, dtheta2 = motion

    def wrap(angle: Array) -> Array:
        return (angle + math.pi) % (2 * math.pi) - math.pi

    limit1, limit2 = MAX_VELOCITY
    return wrap(theta1), wrap(theta2), jnp.clip(dtheta1, -limit1, limit1), jnp.clip(dtheta2, -limit2, limit2)


class AcrobotTask(Task):
    """The reward is the tip's height at the next decision; above 1 the episode terminates."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs: Obs, action: Int[Array, ""], next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """R = -cos(theta1') - cos(theta1' + theta2')."""
        return height(next_obs[0], next_obs[1])

    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        return height(obs[0], obs[1]) > 1.0


class Acrobot(Environment):
    """Swing up a two-link pendulum that initially hangs down; three torques; intervals of 0.2 to 1.0 s."""

    deterministic: ClassVar[bool] = True

    substep: float = 0.02
    """Longest step of the RK4 integration, s; math.inf takes one step per interval (published run)."""
    intervals: tuple[float, float] = eqx.field(default=(0.2, 1.0), converter=tuple)
    """Intervals are uniform on the multiples of 0.2 s in this range."""
    horizon: float = 100.0
    """Seconds after which an episode is truncated."""
    max_decisions: int | None = None
    """Decisions after which an episode is truncated; None for no cap."""
    discount: float = 1.0
    """Gamma, per 0.2 s."""

    def __check_init__(self) -> None:
        if not self.substep > 0:
            raise KairodeError(f"substep of 'acrobot' must be positive, got {self.substep}.")
        if any(abs(5 * tau - round(5 * tau)) > 1e-6 for tau in self.intervals):
            raise KairodeError(f"intervals of 'acrobot' must be multiples of 0.2 s, got {self.intervals}.")

    @property
    def action_mode(self) -> Literal["held", "once"]:
        """Held; with one integration step per interval, however, two intervals of tau differ from one of 2 tau, and
        states in between are computed from the decision, as for `once`."""
        return "once" if math.isinf(self.substep) else "held"

    @property
    def task(self) -> AcrobotTask:
        limits = (math.pi, math.pi, *MAX_VELOCITY)
        names = ("theta1", "theta2", "dtheta1", "dtheta2")
        units = ("rad", "rad", "rad/s", "rad/s")
        spec = Spec(
            name="acrobot",
            observations=tuple(map(Variable, names, units, [-x for x in limits], limits)),
            actions=Discrete(tuple(TORQUES)),
            intervals=Intervals(*self.intervals, step=0.2),
            time_unit="second",
            tick=0.2,
            horizon=self.horizon,
            max_decisions=self.max_decisions,
            discount=self.discount,
            settings=settings_of(self),
        )
        return AcrobotTask(spec)

    def reset(self, *, key: Key[Array, ""]) -> Float[Array, "4"]:
        return jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)

    def observe(self, state: Float[Array, "4"]) -> Obs:
        return state

    def restored(self, obs: Obs) -> Float[Array, "4"]:
        return obs

    def interval(self, state: Float[Array, "4"], action: Int[Array, ""], *, key: Key[Array, ""]) -> Tau:
        low, high = (round(5 * tau) for tau in self.intervals)
        return jax.random.randint(key, (), low, high + 1).astype(state.dtype) / 5

    def transition(
        self, state: Float[Array, "4"], action: Int[Array, ""], tau: Tau, *, key: Key[Array, ""]
    ) -> Float[Array, "4"]:
        """Hold the torque for tau, in substeps: one interval of 1.0 s equals five of 0.2 s."""
        torque = jnp.array(list(TORQUES.values()), state.dtype)[action]
        rate = jnp.asarray(1 / self.substep, state.dtype)
        motion = (state[0], state[1], state[2], state[3])
        return jnp.stack(integrate(lambda y: acrobot_field(y, torque), motion, tau, lambda _: rate, wrap_and_clip))
