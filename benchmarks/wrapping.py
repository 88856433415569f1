"""What `kairode.from_gymnasium` adds to an environment's own step.

The same actions, each held for 1 to 5 steps, the same episodes from the same seeds: by a plain loop over
`gymnasium.make(id)` that adds up the rewards with gamma^i, and by our simulation. A ratio below 1 means that ours takes
less time: it does without the wrappers of `gymnasium.make` (the checker, the time limit, the order of calls), and does
their work itself. The last column compares with the plain loop over the environment without them.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from _common import best_seconds, print_rows, run

import kairode

IDS = ("CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Pendulum-v1", "Walker2d-v5")
DECISIONS, GAMMA, SEED = 2000, 0.99, 0


def plan(gym_id: str) -> tuple[list[Any], list[int]]:
    """Actions in the environment's space, and how long each is held."""
    rng = np.random.default_rng(SEED)
    space: Any = kairode.from_gymnasium(gym_id, intervals=(1, 5)).spec.actions
    if hasattr(space, "low"):
        low, high = np.array(space.low), np.array(space.high)
        actions: list[Any] = [rng.uniform(low, high).astype(np.float32) for _ in range(DECISIONS)]
    else:
        actions = rng.integers(0, space.n, DECISIONS).tolist()
    return actions, rng.integers(1, 6, DECISIONS).tolist()


def plain_loop(env: Any, limit: int | None, actions: list[Any], taus: list[int]) -> Callable[[], float]:
    """As a user would write it; without Gymnasium's time limit, steps are counted up to it."""

    def loop() -> float:
        env.reset(seed=SEED)
        earned, taken = 0.0, 0
        for action, tau in zip(actions, taus, strict=True):
            weight, over = 1.0, False
            for _ in range(tau):
                _, reward, terminated, truncated, _ = env.step(action)
                taken += 1
                earned += weight * reward
                weight *= GAMMA
                if terminated or truncated or taken == limit:
                    over = True
                    break
            if over:
                env.reset()
                taken = 0
        return earned

    return loop


def wrapped_loop(gym_id: str, actions: list[Any], taus: list[int]) -> Callable[[], float]:
    """Ours: a call for every interval."""
    simulation = kairode.from_gymnasium(gym_id, intervals=(1, 5), discount=GAMMA).open()

    def loop() -> float:
        simulation.reset(SEED)
        earned = 0.0
        for action, tau in zip(actions, taus, strict=True):
            step = simulation.transition(action, tau)
            earned += step.reward
            if step.terminated or step.truncated:
                simulation.reset(None)
        return earned

    return loop


def measure() -> dict[str, Any]:
    """Seconds of the three loops, taking turns."""
    found = {}
    for gym_id in IDS:
        actions, taus = plan(gym_id)
        made = gymnasium.make(gym_id)
        limit = made.spec.max_episode_steps if made.spec else None
        calls = {
            "gymnasium": plain_loop(made, None, actions, taus),
            "unwrapped": plain_loop(gymnasium.make(gym_id).unwrapped, limit, actions, taus),
            "ours": wrapped_loop(gym_id, actions, taus),
        }
        sums = {name: call() for name, call in calls.items()}
        assert np.allclose(sums["gymnasium"], sums["ours"], rtol=1e-6), sums
        seconds = best_seconds(calls, rounds=9)
        found[gym_id] = {
            **{f"{name}_us": 1e6 * one / sum(taus) for name, one in seconds.items()},
            "ratio": seconds["ours"] / seconds["gymnasium"],
            "ratio_unwrapped": seconds["ours"] / seconds["unwrapped"],
        }
    return found


def show(figures: dict[str, Any]) -> None:
    """A row for each environment."""
    headers = ("environment", "Gymnasium, us a step", "ours", "ours / Gymnasium", "ours / without its wrappers")
    rows = [
        (
            name,
            f"{one['gymnasium_us']:.2f}",
            f"{one['ours_us']:.2f}",
            f"{one['ratio']:.3f}",
            f"{one['ratio_unwrapped']:.3f}",
        )
        for name, one in figures.items()
    ]
    print_rows(headers, rows, "held for 1 to 5 steps")


if __name__ == "__main__":
    run("wrapping", measure, {"decisions": DECISIONS, "discount": GAMMA}, show, __doc__)
