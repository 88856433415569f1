"""What an advisor is made of: models, a policy and a schedule, checked."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from kairode.agents.actor_policy import ActorPolicy
from kairode.agents.encoder import TrackingEncoder
from kairode.agents.q_policy import QPolicy
from kairode.envs.core import Spec, Task
from kairode.envs.schedule import Own, Schedule, as_schedule
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import check_same
from kairode.planning.lookahead import TrueLookahead
from kairode.planning.optimized_schedule import OptimizedSchedule


def members_of(models: DynamicsModel | Sequence[DynamicsModel]) -> list[DynamicsModel]:
    """The members of an ensemble."""
    members = [models] if isinstance(models, DynamicsModel) else list(models or ())
    if not members or not all(isinstance(model, DynamicsModel) for model in members):
        raise KairodeError("an advisor needs a fitted model or a list of them, from kairode.fit.")
    return members


def plain_policy(policy: Any, spec: Spec) -> QPolicy | ActorPolicy:
    """The policy without exploration, and without what a schedule tracked while it was learned."""
    if not isinstance(policy, QPolicy | ActorPolicy):
        hint = ": pass policy.without_planning()" if hasattr(policy, "without_planning") else ""
        raise KairodeError(
            f"an advisor needs a policy of kairode.learn or kairode.learn_offline, got {type(policy).__name__}{hint}."
        )
    check_same(policy.spec, spec, "policy")
    if isinstance(policy, ActorPolicy):
        return dataclasses.replace(policy, explores=False)
    encoder = policy.encoder.inner if isinstance(policy.encoder, TrackingEncoder) else policy.encoder
    return dataclasses.replace(policy, encoder=encoder, epsilon=0.0)


def choose_schedule(schedule: Any, policy: QPolicy | ActorPolicy, task: Task | None, spec: Spec) -> Schedule | None:
    """The schedule; None for the intervals that the models predict."""
    found = as_schedule(schedule, spec if task is None else task.spec)
    if isinstance(found, Own):
        return None
    if not isinstance(found, OptimizedSchedule):
        return found
    if isinstance(found.lookahead, TrueLookahead):
        raise KairodeError(
            "this schedule looks ahead with the true dynamics, which advice does not know: use "
            "optimize_schedule(models, ..)."
        )
    if found.q is None:
        raise KairodeError("this schedule has no policy yet: use optimize_schedule(models, policy, ..).")
    if not isinstance(policy, QPolicy):
        raise KairodeError("an optimized schedule needs a policy with action values, of kairode.learn.")
    encoder = found.encoder.inner if isinstance(found.encoder, TrackingEncoder) else found.encoder
    return dataclasses.replace(found, encoder=encoder)
