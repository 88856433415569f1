"""Solvers of dz/dt = f(z); the only module that uses diffrax.

The field does not depend on time, so dz/ds = tau f(z) is integrated for s in [0, 1]: all samples of a batch end at the
same s, and tau only scales the field.
"""

import abc
import math
from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from diffrax import ButcherTableau
from jaxtyping import Array, Float, Int

from kairode.errors import KairodeError, unknown
from kairode.models.adaptive import solve_adaptive, worst_error
from kairode.models.field import HiddenField, weighted

Latent = Float[Array, "z *batch"]
Field = Callable[[Latent], Latent]
"""dz/dt as a function of z."""
Ticks = Float[Array, "*batch"]
"""Times in ticks."""

RK4 = ButcherTableau(
    a_lower=(np.array([0.5]), np.array([0.0, 0.5]), np.array([0.0, 0.0, 1.0])),
    b_sol=np.array([1, 2, 2, 1]) / 6,
    b_error=np.zeros(4),
    c=np.array([0.5, 0.5, 1.0]),
)
METHODS: dict[str, ButcherTableau] = {
    "midpoint": diffrax.Midpoint.tableau,
    "heun": diffrax.Heun.tableau,
    "ralston": diffrax.Ralston.tableau,
    "bosh3": diffrax.Bosh3.tableau,
    "rk4": RK4,
    "tsit5": diffrax.Tsit5.tableau,
}
"""Fixed-step methods by name."""


class Solver(eqx.Module):
    """Solver of an autonomous ODE."""

    @abc.abstractmethod
    def solve(self, field: Field, z: Latent, tau: Ticks) -> Latent:
        """ODESolve(f, z, tau): the state after tau."""

    @abc.abstractmethod
    def path(self, field: Field, z: Latent, taus: Float[Array, "k *batch"]) -> Float[Array, "k z *batch"]:
        """States at several times, in ascending order."""


class FixedSteps(Solver):
    """A fixed number of equal steps per interval, whatever its length."""

    method: str = eqx.field(static=True, default="rk4")
    steps: int = eqx.field(static=True, default=1)
    """Steps per interval."""

    def __check_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("fixed-step method", self.method, METHODS)
        if not (isinstance(self.steps, int) and self.steps >= 1):
            raise KairodeError(f"steps must be an integer of at least 1, got {self.steps}.")

    @classmethod
    def of_length(cls, method: str, length: float, longest: float) -> "FixedSteps":
        """As many steps as the longest interval needs for steps of at most `length` (in ticks)."""
        if not (length > 0 and longest > 0):
            raise KairodeError(f"step length and interval must be positive, got {length} and {longest}.")
        return cls(method, math.ceil(longest / length - 1e-9))

    def solve(self, field: Field, z: Latent, tau: Ticks) -> Latent:
        if isinstance(field, HiddenField):
            return field.steps(METHODS[self.method], self.steps, z, tau)
        for _ in range(self.steps):
            z = explicit_step(METHODS[self.method], field, z, tau / self.steps)
        return z

    def path(self, field: Field, z: Latent, taus: Float[Array, "k *batch"]) -> Float[Array, "k z *batch"]:
        return jax.vmap(lambda tau: self.solve(field, z, tau))(taus)


def explicit_step(tableau: ButcherTableau, field: Field, z: Latent, h: Ticks) -> Latent:
    """One step of an explicit Runge-Kutta method: k_i = f(z + h sum_j a_ij k_j), z + h sum_i b_i k_i."""
    used = np.flatnonzero(tableau.b_sol)[-1]  # the last stage may only serve error estimation
    slopes = [field(z)]
    for row in tableau.a_lower[:used]:
        slopes.append(field(z + h[None] * weighted(row.tolist(), slopes)))
    return z + h[None] * weighted(tableau.b_sol.tolist(), slopes)


class Adaptive(Solver):
    """Dormand-Prince 5(4) with step-size control; NaN if it needs more than `max_steps`."""

    rtol: float = eqx.field(static=True, default=1e-3)
    atol: float = eqx.field(static=True, default=1e-4)
    max_steps: int = eqx.field(static=True, default=64)
    """A gradient keeps memory for the states of so many steps, at every decision of a batch."""

    def __check_init__(self) -> None:
        if not (self.rtol > 0 and self.atol > 0 and self.max_steps >= 1):
            raise KairodeError(
                "an adaptive solver needs positive tolerances and at least one step, got "
                f"rtol {self.rtol}, atol {self.atol}, max_steps {self.max_steps}."
            )

    def solve(self, field: Field, z: Latent, tau: Ticks) -> Latent:
        return self._run(field, z, tau)[0]

    def path(self, field: Field, z: Latent, taus: Float[Array, "k *batch"]) -> Float[Array, "k z *batch"]:
        ends = jnp.concatenate([jnp.zeros_like(taus[:1]), taus])

        def on(z: Latent, tau: Ticks) -> tuple[Latent, Latent]:
            z = self.solve(field, z, tau)
            return z, z

        return jax.lax.scan(on, z, jnp.diff(ends, axis=0))[1]

    def count(self, field: Field, z: Latent, tau: Ticks) -> Int[Array, ""]:
        """Number of steps; `max_steps` + 1 if they do not suffice."""
        return self._run(field, z, tau)[1]

    def _run(self, field: Field, z: Latent, tau: Ticks) -> tuple[Latent, Int[Array, ""]]:
        """All examples take the same steps, and each must meet the tolerances."""
        if isinstance(field, HiddenField):
            return solve_adaptive(field, z, tau, self.rtol, self.atol, self.max_steps)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda s, z, tau: tau[None] * field(z)),
            diffrax.Dopri5(),
            t0=0.0,
            t1=1.0,
            dt0=None,
            y0=z,
            args=tau,
            stepsize_controller=diffrax.PIDController(rtol=self.rtol, atol=self.atol, norm=worst_error),
            saveat=diffrax.SaveAt(t1=True),
            max_steps=self.max_steps,
            throw=False,
        )
        reached = solution.result == diffrax.RESULTS.successful
        steps = jnp.where(reached, solution.stats["num_steps"], self.max_steps + 1)
        assert solution.ys is not None
        return jnp.where(reached, solution.ys[0], jnp.nan), steps


TIGHT = Adaptive(rtol=1e-6, atol=1e-6, max_steps=4096)
"""Reference that other solvers are compared with."""


def parse_solver(text: str, longest: float) -> Solver:
    """Parse a solver from the command line.

    `rk4:2` for two steps per interval, `rk4:0.5t` for steps of at most half a tick in the longest interval, `dopri5`,
    `dopri5:1e-5,1e-6` or `dopri5:1e-5,1e-6,256` for the adaptive one with its relative and absolute tolerance and
    maximum number of steps.
    """
    method, _, detail = text.partition(":")
    try:
        if method == "dopri5":
            rtol, atol, *most = detail.split(",") if detail else ("1e-3", "1e-4")
            return Adaptive(float(rtol), float(atol), *map(int, most))
        if detail.endswith("t"):
            return FixedSteps.of_length(_known(method), float(detail[:-1]), longest)
        return FixedSteps(_known(method), int(detail or 1))
    except KairodeError:
        raise
    except (ValueError, TypeError) as error:
        raise KairodeError(
            f"'{text}' is not a solver: use METHOD, METHOD:STEPS (rk4:2), METHOD:LENGTHt (rk4:0.5t, in ticks) or "
            f"dopri5:RTOL,ATOL,MAX_STEPS, with METHOD one of {', '.join(METHODS)}."
        ) from error


def _known(method: str) -> str:
    if method not in METHODS:
        raise unknown("solver", method, [*METHODS, "dopri5"])
    return method
