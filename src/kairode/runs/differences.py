"""Where a policy differs from what was done, as plain numbers for a record."""

from typing import Any

import numpy as np

from kairode.agents.behavior import policy_probabilities
from kairode.agents.fitted_q_controls import policy_controls
from kairode.data.trajectory import Trajectory, carried_forward
from kairode.envs.core import Discrete

TELLING = 4
"""Variables that are named for an action."""


def differences(policy: Any, data: Trajectory) -> dict[str, Any]:
    """How often the policy agrees with the records, action by action, and what the states have in common in which it
    chooses each one.

    For every action: its share in the records and in the policy's choices, what was done where the policy chooses it,
    and the variables whose mean there differs most from the mean over all decisions, in standard deviations. For every
    continuous action: its mean in the records and in the policy's choices, the mean size of the change, and the
    variables that the change is correlated with most.
    """
    mask, names = np.asarray(data.mask), data.spec.actions.names
    if not isinstance(data.spec.actions, Discrete):
        return {"controls": _control_differences(policy, data), "decisions": int(mask.sum())}
    chosen = policy_probabilities(policy, data)[:, :-1][mask].argmax(-1)
    taken = np.asarray(data.action)[mask]
    seen = np.asarray(carried_forward(data).observation, np.float64)[:, :-1][mask]
    middle, spread = seen.mean(0), np.where(seen.std(0) > 1e-12, seen.std(0), 1.0)
    found = {}
    for i, name in enumerate(names):
        here = chosen == i
        done = np.bincount(taken[here], minlength=len(names))
        apart = (seen[here].mean(0) - middle) / spread if here.any() else np.zeros(len(middle))
        telling = np.argsort(-np.abs(apart))[:TELLING]
        found[name] = {
            "records": float((taken == i).mean()),
            "policy": float(here.mean()),
            "done_instead": {names[j]: int(done[j]) for j in np.argsort(-done) if done[j] and j != i},
            "agrees": int(done[i]),
            "states": {
                data.spec.observations[j].name: {"apart": float(apart[j]), "mean": float(seen[here, j].mean())}
                for j in telling
                if here.any()
            },
        }
    return {"agreement": float((chosen == taken).mean()), "decisions": len(taken), "actions": found}


def _control_differences(policy: Any, data: Trajectory) -> dict[str, Any]:
    mask = np.asarray(data.mask)
    chosen = np.asarray(policy_controls(policy, data), np.float64)[:, :-1][mask]
    taken = np.asarray(data.action, np.float64)[mask]
    seen = np.asarray(carried_forward(data).observation, np.float64)[:, :-1][mask]
    variables = [variable.name for variable in data.spec.observations]
    found = {}
    for name, policy_value, value in zip(data.spec.actions.names, chosen.T, taken.T, strict=True):
        change = policy_value - value
        with_states = np.array([_correlation(column, change) for column in seen.T])
        telling = np.argsort(-np.abs(with_states))[:TELLING]
        found[name] = {
            "records": float(value.mean()),
            "policy": float(policy_value.mean()),
            "change": float(np.abs(change).mean()),
            "raised": float((change > 0).mean()),
            "states": {variables[j]: float(with_states[j]) for j in telling},
        }
    return found


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    """0 where one of them does not vary."""
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0
