"""Where a policy differs from what was done, as plain numbers for a record."""

from typing import Any

import numpy as np

from kairode.agents.behavior import policy_probabilities
from kairode.data.trajectory import Trajectory, carried_forward
from kairode.envs.core import Discrete

TELLING = 4
"""Variables that are named for an action."""


def differences(policy: Any, data: Trajectory) -> dict[str, Any] | None:
    """How often the policy agrees with the records, action by action, and what the states have in common in which it
    chooses each one; None for continuous actions.

    For every action: its share in the records and in the policy's choices, what was done where the policy chooses it,
    and the variables whose mean there differs most from the mean over all decisions, in standard deviations.
    """
    if not isinstance(data.spec.actions, Discrete):
        return None
    mask, names = np.asarray(data.mask), data.spec.actions.names
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
