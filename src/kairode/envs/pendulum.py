"""Pendulum: swing up a rod and balance it by a torque at its pivot.

Equation of motion, limits and cost of Gymnasium's Pendulum-v1, whose step of 0.05 s is the tick here; an action is held
for one to five ticks. The smallest system with continuous actions, convenient for testing actor-critics and planners.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from kairode.envs.core import Continuous, Environment, Intervals, Obs, Spec, Task, Tau, Variable, settings_of
from kairode.envs.integrate import integrate
from kairode.errors import KairodeError

GRAVITY, MASS, LENGTH = 10.0, 1.0, 1.0
TICK = 0.05
MAX_TORQUE, MAX_VELOCITY = 2.0, 8.0

Motion = tuple[Array, Array]
"""Angle from the upright position and angular velocity."""


def pendulum_field(motion: Motion, torque: Float[Array, ""]) -> Motion:
    """theta'' = 3 g / (2 l) sin(theta) + 3 u / (m l^2), a rod rotating about its end."""
    theta, velocity = motion
    return velocity, 1.5 * GRAVITY / LENGTH * jnp.sin(theta) + 3.0 * torque / (MASS * LENGTH**2)


def wrap_angle(motion: Motion) -> Motion:
    """Clip the velocity; the angle is observed by its sine and cosine."""
    return motion[0], jnp.clip(motion[1], -MAX_VELOCITY, MAX_VELOCITY)


class PendulumTask(Task):
    """Minus the cost of angle, velocity and torque, times the interval."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs: Obs, action: Float[Array, "1"], next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """R = -(theta'^2 + 0.1 dtheta'^2 + 0.001 u^2) tau / 0.05 s, theta from the top."""
        theta = jnp.arctan2(next_obs[1], next_obs[0])
        cost = theta**2 + 0.1 * next_obs[2] ** 2 + 0.001 * (action**2).sum()
        return -cost * tau / TICK

    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        return jnp.zeros((), bool)


class Pendulum(Environment):
    """Swing up and balance a rod; one torque; intervals of 0.05 to 0.25 s."""

    substep: float = 0.01
    """Longest step of the RK4 integration, s."""
    intervals: tuple[float, float] = eqx.field(default=(0.05, 0.25), converter=tuple)
    """Intervals are uniform on the multiples of 0.05 s in this range."""
    horizon: float = 10.0
    """Seconds after which an episode is truncated."""
    max_decisions: int | None = None
    """Decisions after which an episode is truncated; None for no cap."""
    discount: float = 0.99
    """Gamma, per 0.05 s."""

    def __check_init__(self) -> None:
        if not self.substep > 0:
            raise KairodeError(f"substep of 'pendulum' must be positive, got {self.substep}.")
        if any(abs(tau / TICK - round(tau / TICK)) > 1e-6 for tau in self.intervals):
            raise KairodeError(f"intervals of 'pendulum' must be multiples of {TICK} s, got {self.intervals}.")

    @property
    def task(self) -> PendulumTask:
        spec = Spec(
            name="pendulum",
            observations=(
                Variable("cos", "1", -1.0, 1.0),
                Variable("sin", "1", -1.0, 1.0),
                Variable("dtheta", "rad/s", -MAX_VELOCITY, MAX_VELOCITY),
            ),
            actions=Continuous(("torque",), (-MAX_TORQUE,), (MAX_TORQUE,)),
            intervals=Intervals(*self.intervals, step=TICK),
            time_unit="second",
            tick=TICK,
            horizon=self.horizon,
            max_decisions=self.max_decisions,
            discount=self.discount,
            settings=settings_of(self),
        )
        return PendulumTask(spec)

    def reset(self, *, key: Key[Array, ""]) -> Float[Array, "2"]:
        limit = jnp.array([math.pi, 1.0])
        return jax.random.uniform(key, (2,), minval=-limit, maxval=limit)

    def observe(self, state: Float[Array, "2"]) -> Obs:
        return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])

    def interval(self, state: Float[Array, "2"], action: Float[Array, "1"], *, key: Key[Array, ""]) -> Tau:
        low, high = (round(tau / TICK) for tau in self.intervals)
        return jax.random.randint(key, (), low, high + 1).astype(state.dtype) * TICK

    def transition(
        self, state: Float[Array, "2"], action: Float[Array, "1"], tau: Tau, *, key: Key[Array, ""]
    ) -> Float[Array, "2"]:
        torque = jnp.clip(action[0], -MAX_TORQUE, MAX_TORQUE)
        rate = jnp.asarray(1 / self.substep, state.dtype)
        motion = (state[0], state[1])
        return jnp.stack(integrate(lambda y: pendulum_field(y, torque), motion, tau, lambda _: rate, wrap_angle))
