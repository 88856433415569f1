"""Results of a run as plain numbers for its record: tests, a map of the policy, example episodes."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from kairode.agents.encoder import IdentityEncoder
from kairode.agents.evaluate import evaluate
from kairode.agents.q_policy import QPolicy
from kairode.callbacks import Callback, Progress
from kairode.data import Trajectory, collect
from kairode.data.policy import Constant
from kairode.envs.core import Discrete, Environment
from kairode.envs.host import HostEnvironment
from kairode.models.dynamics import DynamicsModel
from kairode.result import rounded
from kairode.runs import labels
from kairode.runs.course import course
from kairode.seeds import Purpose, derive

CELLS = 32
"""Cells of a map along each axis."""


def evaluate_on_system(
    env: Environment | HostEnvironment,
    policies: dict[str, Any],
    schedule: float | None,
    episodes: int = 100,
    callback: Callback = lambda event: None,
) -> dict[str, Any]:
    """Test each policy (learned, model-free) on the same episodes, then all constant policies and random actions."""
    assert isinstance(env.task.spec.actions, Discrete)
    tested: list[tuple[dict[str, Any], Any]] = [({"kind": kind}, policy) for kind, policy in policies.items()]
    for i, name in enumerate(env.task.spec.actions.names):
        tested.append((labels.constant(name), Constant(jnp.asarray(i))))
    tested.append(({"kind": "random"}, None))
    found: dict[str, Any] = {}
    for i, (about, policy) in enumerate(tested):
        callback(Progress(f"evaluating {len(tested)} policies on {episodes} episodes", i, len(tested)))
        found[labels.label(about)] = about | evaluate(env, policy, schedule=schedule, episodes=episodes).figures()
    return found


def example_courses(
    env: Environment | HostEnvironment, policy: QPolicy, model: DynamicsModel, schedule: float | None, most: int = 40
) -> dict[str, Any]:
    """Example episodes not used for learning: predictions under random actions and the policy, and a whole episode."""
    chance = collect(env, episodes=1, seed=derive(0, Purpose.TEST), schedule=schedule)[0]
    mine = collect(env, policy, episodes=1, seed=derive(0, Purpose.TEST), schedule=schedule)[0]
    return {
        "random": course(env, chance, model, "predicted", most, points=4),
        "policy": course(env, mine, model, "predicted", most, points=4),
        "episode": course(env, mine, points=3),
    }


def policy_map(env: Environment | HostEnvironment, policy: QPolicy, data: Trajectory) -> dict[str, Any] | None:
    """Action and value over two variables, the others at their median; None for a policy with a latent state."""
    if not isinstance(policy.encoder, IdentityEncoder):
        return None
    spec = env.task.spec
    names = [variable.name for variable in spec.observations]
    if len(names) < 2:
        return None
    across = [names.index(name) for name in spec.map_axes or names[:2]]
    seen = np.asarray(data.observation)[:, :-1][data.mask]
    low, high = np.quantile(seen, [0.005, 0.995], axis=0)
    grids = [np.linspace(low[i], high[i], CELLS, dtype=seen.dtype) for i in across]
    points = np.tile(np.median(seen, axis=0), (CELLS, CELLS, 1))
    points[..., across[0]], points[..., across[1]] = np.meshgrid(*grids, indexing="ij")
    values = np.asarray(policy.q(jnp.asarray(points, jnp.float32))) / policy.scale
    axes = []
    for i, grid in zip(across, grids, strict=True):
        variable = spec.observations[i]
        at = rounded(variable.quantity(grid), 4)
        axes.append({"name": variable.name, "unit": variable.read_in, "log": variable.log is not None, "at": at})
    assert isinstance(spec.actions, Discrete)
    return {
        "axes": axes,
        "names": list(spec.actions.names),
        "actions": values.argmax(-1).tolist(),
        "values": rounded(values.max(-1), 4),
        "others": "the median of the data",
    }
