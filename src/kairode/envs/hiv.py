"""HIV treatment: two drugs, six markers, intervals that depend on viral load and treatment.

The patient model of Adams et al. (2004), "Dynamic multidrug therapies for HIV: optimal and STI control approaches",
with its parameters; reward and intervals are the paper's.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kairode.envs.core import Discrete, Environment, Intervals, Obs, Spec, Task, Tau, Variable, settings_of
from kairode.envs.integrate import integrate, one_loop
from kairode.errors import KairodeError

MARKERS = ("T1", "T2", "T1*", "T2*", "V", "E")
"""Healthy CD4+ T-lymphocytes and macrophages, infected ones, free virus, cytotoxic T-lymphocytes; per ml."""
UNHEALTHY = (163573.0, 5.0, 11945.0, 46.0, 63919.0, 24.0)
"""The untreated steady state in which every episode starts."""
HEALTHY = (967839.0, 621.0, 76.0, 6.0, 415.0, 353108.0)
"""The other stable untreated steady state, the aim of treatment."""
LOG_MEAN = (5.41947795, 1.59751311, 3.03701108, 1.45943164, 3.7256933, 1.73064582)
LOG_STD = (0.1913442, 0.86731865, 1.19517352, 0.48159324, 1.16411527, 0.20234819)
"""Observations are (log10 of the markers - mean) / std."""
TREATMENTS = {"none": (0.0, 0.0), "RTI": (0.7, 0.0), "PI": (0.0, 0.3), "RTI+PI": (0.7, 0.3)}
"""Efficacies (e1, e2) of reverse transcriptase and protease inhibitors."""
VISITS = (
    ((7, 14), (3, 7), (3, 7), (3, 7)),
    ((3, 7), (3, 5), (3, 5), (3, 3)),
    ((3, 3), (1, 2), (1, 2), (1, 2)),
)
"""Days to the next visit, uniform on (min, max): rows for V <= 1e4, V <= 1e5 and above, one column per treatment."""

REGIMES = ("healthy", "V below 1e4", "V below 1e5", "V above 1e5")
"""Regimes: in the first the immune system controls the virus, the others are those of the visit rule."""
MEASURES = (
    (
        "healthy",
        "Healthy: the patient's own cells keep the virus down, E above a tenth of the healthy state's 353,108 per ml "
        "and V below 1,000 per ml.",
    ),
)

Markers = tuple[Array, Array, Array, Array, Array, Array]
"""Markers as scalars: under vmap each is a contiguous vector, which is fastest on the CPU."""


def hiv_field(markers: Markers, e1: Float[Array, ""], e2: Float[Array, ""]) -> Markers:
    """Rates of change per day (Adams et al. 2004, equation 2.1)."""
    T1, T2, T1s, T2s, V, E = markers
    l1, d1, k1, m1, r1 = 1e4, 0.01, 8e-7, 1e-5, 1.0
    l2, d2, k2, m2, r2 = 31.98, 0.01, 1e-4, 1e-5, 1.0
    f, delta, NT, c = 0.34, 0.7, 100.0, 13.0
    lE, bE, Kb, dE, Kd, deltaE = 1.0, 0.3, 100.0, 0.25, 500.0, 0.1

    infection1 = (1 - e1) * k1 * V * T1
    infection2 = (1 - f * e1) * k2 * V * T2
    infected = T1s + T2s
    return (
        l1 - d1 * T1 - infection1,
        l2 - d2 * T2 - infection2,
        infection1 - delta * T1s - m1 * E * T1s,
        infection2 - delta * T2s - m2 * E * T2s,
        (1 - e2) * NT * delta * infected - c * V - r1 * infection1 - r2 * infection2,
        lE + bE * infected / (infected + Kb) * E - dE * infected / (infected + Kd) * E - deltaE * E,
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _variable(name: str) -> Variable:
    i = MARKERS.index(name)
    return Variable(name, "log10 per ml, standardised", log=(LOG_MEAN[i], LOG_STD[i]), quantity_unit="per ml")


class HIVTask(Task):
    """Rewards little virus, many cytotoxic cells and little medication."""

    spec: Spec = eqx.field(static=True)
    markers: tuple[str, ...] = eqx.field(static=True)
    """Observed markers, in order."""

    def marker(self, name: str, obs: Float[Array | np.ndarray, "... obs"]) -> Any:
        i = MARKERS.index(name)
        return 10.0 ** (obs[..., self.markers.index(name)] * LOG_STD[i] + LOG_MEAN[i])

    def reward(self, obs: Obs, action: Int[Array, ""], next_obs: Obs, tau: Tau) -> Float[Array, ""]:
        """R = -0.1 V' - 20000 e1^2 - 2000 e2^2 + 1000 E'."""
        e1, e2 = jnp.array(list(TREATMENTS.values()), obs.dtype)[action]
        medicine = 20000 * e1**2 + 2000 * e2**2
        return 1000 * self.marker("E", next_obs) - 0.1 * self.marker("V", next_obs) - medicine

    def measures(self, obs: Float[Array | np.ndarray, "... obs"]) -> dict[str, Any]:
        return {"healthy": (self.marker("E", obs) > 0.1 * HEALTHY[5]) & (self.marker("V", obs) < 1e3)}

    def regime(self, obs: Float[Array | np.ndarray, "... obs"]) -> Any:
        virus = self.marker("V", obs)
        return jnp.where(self.measures(obs)["healthy"], 0, 1 + (virus > 1e4) + (virus > 1e5))

    def terminal(self, obs: Obs) -> Bool[Array, ""]:
        return jnp.zeros((), bool)


class HIV(Environment):
    """Treat a patient from the unhealthy steady state for 1000 days; four treatments; intervals of 1 to 14 days."""

    deterministic: ClassVar[bool] = True

    observed: tuple[str, ...] = eqx.field(default=MARKERS, converter=tuple)
    """Markers measured at a visit; `hiv-partial` leaves out the infected cells T1* and T2*."""
    steps_per_day: float = 24.0
    """RK4 steps per day at low viral load."""
    steps_per_virus: float = 2e-4
    """Additional steps per day for each virus per ml: uninfected macrophages die at a rate of up to 1e-4 V per day."""
    visits: tuple[tuple[tuple[int, int], ...], ...] = eqx.field(default=VISITS, converter=_tuples)
    """Visit rule: minimum and maximum days by viral load (three rows) and treatment (four columns)."""
    horizon: float = 1000.0
    """Days after which an episode is truncated."""
    max_decisions: int | None = None
    """Visits after which an episode is truncated; None for no cap (published run: 50 when fitting models)."""
    discount: float = 0.995
    """Gamma, per day."""

    def __check_init__(self) -> None:
        if not (0 < self.steps_per_day < math.inf and 0 <= self.steps_per_virus < math.inf):
            raise KairodeError("steps_per_day of 'hiv' must be positive and steps_per_virus not negative.")
        if not set(self.observed) <= set(MARKERS) or not {"V", "E"} <= set(self.observed):
            raise KairodeError(
                f"observed of 'hiv' must hold V and E (the reward needs them) and otherwise markers among "
                f"{', '.join(MARKERS)}, got {self.observed}."
            )
        pairs = [pair for row in self.visits for pair in row]
        if [len(row) for row in self.visits] != [4, 4, 4] or any(
            len(pair) != 2 or pair[0] > pair[1] or any(day != round(day) for day in pair) for pair in pairs
        ):
            raise KairodeError("visits of 'hiv' must be 3 rows of 4 pairs (min, max) of whole days.")

    @property
    def task(self) -> HIVTask:
        days = [day for row in self.visits for pair in row for day in pair]
        spec = Spec(
            name="hiv" if self.observed == MARKERS else "hiv-partial",
            observations=tuple(map(_variable, self.observed)),
            actions=Discrete(tuple(TREATMENTS)),
            intervals=Intervals(min(days), max(days), step=1),
            time_unit="day",
            horizon=self.horizon,
            max_decisions=self.max_decisions,
            discount=self.discount,
            discounted_objective=True,
            settings=settings_of(self),
            decision_name="visit",
            subject="patient",
            measures=MEASURES,
            regimes=REGIMES,
            map_axes=("V", "E"),
        )
        return HIVTask(spec, self.observed)

    def reset(self, *, key: Key[Array, ""]) -> Float[Array, "6"]:
        return jnp.array(UNHEALTHY)

    def observe(self, state: Float[Array, "6"]) -> Obs:
        standardised = (jnp.log10(state) - jnp.array(LOG_MEAN, state.dtype)) / jnp.array(LOG_STD, state.dtype)
        return standardised[jnp.array([MARKERS.index(name) for name in self.observed])]

    def restored(self, obs: Obs) -> Float[Array, "6"] | None:
        if self.observed != MARKERS:
            return None
        return 10 ** (obs * jnp.array(LOG_STD, obs.dtype) + jnp.array(LOG_MEAN, obs.dtype))

    def interval(self, state: Float[Array, "6"], action: Int[Array, ""], *, key: Key[Array, ""]) -> Tau:
        """Sicker patients and stronger treatments are seen sooner."""
        virus = state[MARKERS.index("V")]
        row = jnp.searchsorted(jnp.array([1e4, 1e5], state.dtype), virus)
        least, most = jnp.array(self.visits)[row, action]
        return jax.random.randint(key, (), least, most + 1).astype(state.dtype)

    def transition(
        self, state: Float[Array, "6"], action: Int[Array, ""], tau: Tau, *, key: Key[Array, ""]
    ) -> Float[Array, "6"]:
        """Hold the treatment for tau days. The system is stiff, most of all when the virus rebounds."""
        e1, e2 = jnp.array(list(TREATMENTS.values()), state.dtype)[action]

        def rate(markers: Markers) -> Float[Array, ""]:
            return self.steps_per_day + self.steps_per_virus * markers[MARKERS.index("V")]

        def held(*values: Float[Array, ""]) -> Markers:
            *markers, e1, e2, tau = values
            return integrate(lambda y: hiv_field(y, e1, e2), tuple(markers), tau, rate)

        return jnp.stack(one_loop(held)(*state, e1, e2, tau))
