"""The dosing example (docs/dosing-example.md): its system against scipy, and its accrued return against NumPy."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import kairode
from kairode.data import collect
from kairode.envs.schedule import Decision
from kairode.planning.lookahead import TrueLookahead
from kairode.runs.course import between_decisions

PAGE = Path(__file__).parents[2] / "docs/dosing-example.md"
RATE, RESPONSE, POTENCY = math.log(2) / 6, 0.1, 0.6
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def env() -> Any:
    """The system as the page's first block writes it."""
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), space)
    return space["Dosing"]()


def test_between_two_pills_both_equations_hold(env: Any) -> None:
    def field(t: float, y: np.ndarray) -> list[float]:
        return [-RATE * y[0], RESPONSE * (1 - POTENCY * y[0] - y[1])]

    hours = np.arange(1.0, 13.0)
    for action, dose in enumerate((0.0, 1.0, 2.0)):
        start = (0.7 + dose, 0.4)
        solved = scipy.integrate.solve_ivp(field, (0, 12), start, t_eval=hours, rtol=1e-9, atol=1e-9).y.T
        found = env.course(jnp.array([0.7, 0.4]), jnp.array(action), jnp.asarray(hours, jnp.float32), key=KEY)
        np.testing.assert_allclose(found, solved, rtol=1e-4, atol=1e-5)


def by_hour(marker: float, doses: list[float], taus: list[int], horizon: int = 120) -> tuple[float, list[float]]:
    """Return and concentrations, hour by hour, with a pill at the first hour of each interval alone."""
    c, total, seen = 0.0, 0.0, []
    pills = dict(zip(np.cumsum([0, *taus[:-1]]).tolist(), doses, strict=True))
    for hour in range(horizon):
        c += pills.get(hour, 0.0)
        slow, fast = math.exp(-RATE), math.exp(-RESPONSE)
        marker = 1 + (marker - 1) * fast - POTENCY * RESPONSE * c * (slow - fast) / (RESPONSE - RATE)
        c *= slow
        total += 1 - marker**2 - 0.5 * max(c - 3, 0) ** 2
        seen.append(c)
    return total, seen


def test_accrued_returns_are_those_of_every_hour(env: Any) -> None:
    taus = [3.0, 7.0, 12.0, 2.0]

    def dosed(obs: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.where(obs[0] < 1, 2, jnp.where(obs[0] < 2, 1, 0))

    found = collect(env, dosed, episodes=2, seed=1_000_003, schedule=taus)
    wanted = []
    for i in range(2):
        n = int(found.length[i])
        doses = np.asarray(found.action)[i, :n].astype(float).tolist()
        intervals = np.asarray(found.interval)[i, :n].astype(int).tolist()
        wanted.append(by_hour(float(found.observation[i, 0, 1]), doses, intervals)[0])
    accrued = kairode.evaluate(env, dosed, episodes=2, schedule=taus, accrue=True)
    np.testing.assert_allclose(accrued.episode_scores, wanted, rtol=1e-4)


def test_the_course_of_an_episode_and_the_oracle_give_one_pill(env: Any) -> None:
    def full(obs: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.array(2)

    episode = collect(env, full, episodes=1, schedule=12)[0]
    times, seen = between_decisions(env, episode, points=12)
    _, by_hand = by_hour(float(episode.observation[0, 1]), [2.0] * 10, [12] * 10)
    np.testing.assert_allclose(times, np.arange(121), rtol=1e-5)
    np.testing.assert_allclose(seen[1:, 0], by_hand, rtol=1e-4)
    decision = Decision(jnp.array([0.0, 1.0]), jnp.array(2), jnp.zeros(()), jnp.array(0), state=jnp.array([0.0, 1.0]))
    ahead = TrueLookahead(env).predict(decision, jnp.arange(1.0, 13.0), key=KEY)
    np.testing.assert_allclose(ahead[0, :, 0], by_hand[:12], rtol=1e-4)
