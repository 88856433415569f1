"""Why the simulators step as they do: error against scipy by step size, drift of energy, time of a step by lanes.

`kairode bench simulators`, with `--json` for the figures alone. docs/architecture.md takes its numbers from here.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import run
from scipy.integrate import odeint

import kairode
from kairode.data import Policy
from kairode.envs.hiv import MARKERS, TREATMENTS, UNHEALTHY, hiv_field

DAYS = np.arange(0.0, 15.0)
KEY = jax.random.key(0)


class Blocks(Policy):
    """Both drugs for weeks, then nothing for weeks: the virus nearly goes, then rebounds."""

    def start(self, *, key: jax.Array) -> Any:
        treated, paused = jax.random.uniform(key, (2,), minval=5.0, maxval=120.0)
        return jnp.zeros(()), treated, paused

    def act(self, memory: Any, obs: jax.Array, elapsed: jax.Array, *, key: jax.Array) -> Any:
        time, treated, paused = memory
        time = time + elapsed
        return jnp.where(time % (treated + paused) < treated, 3, 0), (time, treated, paused)


def hiv_errors(count: int = 300) -> dict[str, float]:
    """Largest relative error of any marker, treatment and interval of 1 to 14 days, by steps a day and per virus."""
    env = kairode.make("hiv")
    seen = kairode.collect(env, Blocks(), episodes=60, seed=0, schedule=2)
    obs = seen.observation[:, :-1][seen.mask]
    obs = obs[np.random.default_rng(0).choice(len(obs), count, replace=False)]
    states = np.stack([np.asarray(env.task.marker(name, obs)) for name in MARKERS], axis=1)

    def solved(state: np.ndarray, e1: Any, e2: Any) -> np.ndarray:
        rates = lambda y, t: np.asarray(hiv_field(tuple(y), e1, e2))  # noqa: E731
        return odeint(rates, state.astype(float), DAYS, rtol=1e-12, atol=1e-10, mxstep=100_000)[1:]

    exact = np.array([[solved(state, e1, e2) for e1, e2 in TREATMENTS.values()] for state in states])
    errors = {}
    for per_day, per_virus in ((16.0, 2e-4), (13 / 0.6, 1e-4 / 0.6), (24.0, 2e-4)):
        env = kairode.make("hiv", steps_per_day=per_day, steps_per_virus=per_virus)
        hold = lambda s, a, d, env=env: env.transition(s, a, d, key=KEY)  # noqa: E731
        over_all = jax.vmap(jax.vmap(jax.vmap(hold, (None, None, 0)), (None, 0, None)), (0, None, None))
        got = jax.jit(over_all)(jnp.asarray(states), jnp.arange(4), jnp.asarray(DAYS[1:], jnp.float32))
        errors[f"{per_day:.3g} + {per_virus:.2g} V"] = float(np.abs(np.asarray(got) / exact - 1).max())
    return errors


def energy(state: Any) -> np.ndarray:
    """Of the acrobot, in joules."""
    theta1, theta2, dtheta1, dtheta2 = np.asarray(state, np.float64).T
    d1, d2 = 3.5 + np.cos(theta2), 1.25 + 0.5 * np.cos(theta2)
    kinetic = 0.5 * d1 * dtheta1**2 + d2 * dtheta1 * dtheta2 + 0.625 * dtheta2**2
    return kinetic - 9.8 * (1.5 * np.cos(theta1) + 0.5 * np.cos(theta1 + theta2))


def acrobot_drift() -> dict[str, float]:
    """Largest change of energy in 10 s without torque, as a share of that between hanging and standing, by substep."""
    bounds = jnp.array([3.0, 3.0, 2.0, 2.0])
    starts = jax.random.uniform(KEY, (200, 4), minval=-bounds, maxval=bounds)
    drift = {}
    for substep in (0.05, 0.02):
        env = kairode.make("acrobot", substep=substep)
        swing = jax.vmap(lambda s, env=env: env.transition(s, jnp.asarray(1), jnp.asarray(10.0), key=KEY))
        drift[f"{substep:g} s"] = float(np.abs(energy(swing(starts)) - energy(starts)).max() / 39.2)
    return drift


def lane_times() -> dict[str, float]:
    """Nanoseconds of one RK4 step of one HIV lane, by the number of lanes in the call."""
    env = kairode.make("hiv")
    hold = jax.jit(jax.vmap(lambda s, a, t: env.transition(s, a, t, key=KEY)))
    days = 14.0
    steps = days * (env.steps_per_day + env.steps_per_virus * UNHEALTHY[4])  # of the untreated, the most there are
    found = {}
    for lanes in (1, 32, 128, 256, 1024):
        states, taus = jnp.tile(jnp.array(UNHEALTHY), (lanes, 1)), jnp.full((lanes,), days)
        actions = jnp.arange(lanes) % 4
        hold(states, actions, taus).block_until_ready()
        start = time.perf_counter()
        for _ in range(20):
            hold(states, actions, taus).block_until_ready()
        found[f"{lanes}"] = (time.perf_counter() - start) / 20 / steps / lanes * 1e9
    return found


def measure() -> dict[str, dict[str, float]]:
    return {
        "hiv: largest relative error, by steps a day": hiv_errors(),
        "acrobot: drift of energy in 10 s, by substep": acrobot_drift(),
        "hiv: ns of a step of a lane, by lanes": lane_times(),
    }


def show(figures: dict[str, dict[str, float]]) -> None:
    for title, found in figures.items():
        print(title)
        for name, value in found.items():
            print(f"  {name:>18}  {value:.3g}")


if __name__ == "__main__":
    run("simulators", measure, {"seed": 0}, show, __doc__)
