"""`kairode.evaluate_offline`: the return of a policy from records of another, without a simulator."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kairode.agents.behavior import BehaviorFit, fit_behavior, policy_probabilities
from kairode.agents.fitted_q import ITERATIONS, MEMBERS, ActionValues, fit_action_values
from kairode.agents.fitted_q_controls import control_support, fit_control_values, policy_controls
from kairode.agents.importance import (
    DoublyRobust,
    bootstrap_counts,
    cumulative_ratios,
    decisions_with_weight,
    doubly_robust,
    effective_sample_size,
    per_decision,
)
from kairode.algorithms.estimate import RESAMPLES, Estimate, normal_interval, percentiles
from kairode.algorithms.model_estimate import estimate_in_models, model_bias, model_task
from kairode.algorithms.task import with_rewards_of
from kairode.config.offline import ESTIMATORS
from kairode.data.checks import warn
from kairode.data.policy import Policy, as_policy
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Task
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import check_same
from kairode.result import short_number
from kairode.text import listed

LEAST_RESAMPLES = 200
"""Of the bootstrap over episodes, also where there are many."""
COUNTS = 20_000_000
"""Numbers of a bootstrap's counts, at most, as long as there are `LEAST_RESAMPLES`."""
LEAST_EPISODES, FEW_EPISODES, FEW_EFFECTIVE = 3, 30, 10.0
"""Episodes without which there is no estimate; episodes, and effective ones, below which it is not supported."""
RARE, OFTEN = 0.02, 0.1
"""Behaviour probability below which an action is rare, and share of rare actions from which on it is said."""
LEFT = 0.05
"""Discount at the end of records, from which on what lies beyond them matters."""


class Effort(NamedTuple):
    """How much is computed."""

    members: int
    """Networks of fitted Q evaluation."""
    iterations: int
    episodes: int
    """Imagined by each model."""


FULL, SELECTION = Effort(MEMBERS, ITERATIONS, 100), Effort(5, 2500, 40)
"""For an estimate, and to choose among many policies."""


@dataclasses.dataclass(frozen=True)
class OfflineEvaluation:
    """Off-policy estimates of the mean return of a policy within the length of the records, discounted by gamma^t."""

    estimates: Mapping[str, Estimate]
    """By estimator: fitted_q, importance, doubly_robust and, with models, model. With continuous actions, fitted_q and
    model alone: a policy hardly ever takes exactly the action of the data."""
    behavior: Estimate
    """The return of the records themselves."""
    effective_sample_size: float
    """Episodes that importance sampling rests on at the last decision of the median episode; NaN with continuous
    actions."""
    supported: float
    """Mean probability of the policy's actions under the behaviour policy, relative to that of the actions taken. With
    continuous actions, the share of the policy's actions within the range of those taken in the most similar states."""
    warnings: tuple[str, ...] = ()
    gain: Estimate | None = None
    """The doubly robust estimate minus the return of the records, with the interval of this difference over the same
    resamples of the episodes; None with continuous actions."""

    @property
    def lower_bound(self) -> float:
        """The lowest lower end among fitted Q, doubly robust and model estimates, to choose between policies by.

        Where the data do not show what a policy does, some estimate is usually low or uncertain, while the mean of
        another may be far too high. What could not be estimated (NaN) is left out.
        """
        ends = [one.low for name, one in self.estimates.items() if name != "importance" and np.isfinite(one.low)]
        return min(ends, default=float("nan"))

    def __str__(self) -> str:
        lines = [f"{name.replace('_', ' ')}: {one}" for name, one in self.estimates.items()]
        lines += [
            f"lower bound: {short_number(self.lower_bound)}",
            f"behaviour: {self.behavior}",
        ]
        if self.gain is not None and self.gain.known:
            lines.append(f"doubly robust minus behaviour: {self.gain}")
        if np.isfinite(self.effective_sample_size):
            lines.append(f"effective episodes of importance sampling: {self.effective_sample_size:.3g}")
        return "\n".join([*lines, *(f"warning: {text}." for text in self.warnings)])

    def figures(self) -> dict[str, Any]:
        """For a record."""
        return dataclasses.asdict(self)


def evaluate_offline(
    policy: Policy | Callable[..., Any] | None,
    data: Trajectory,
    models: DynamicsModel | Sequence[DynamicsModel] | None = None,
    *,
    task: Task | None = None,
    train: Trajectory | None = None,
    behavior: BehaviorFit | None = None,
    seed: int = 0,
    effort: Effort = FULL,
) -> OfflineEvaluation:
    """Estimate the mean return of a policy from records: `kairode.evaluate_offline(policy, data, models)`.

    Four estimators, each with a bootstrap interval over episodes, for irregular intervals: fitted Q evaluation,
    weighted per-decision importance sampling, the weighted doubly robust estimator (both corrected for how the actions
    of the data were chosen, which is estimated), and the return in the models. All count the rewards within the length
    of the records. Where they disagree, or the data do not show what the policy does, a warning says so. Estimate with
    episodes that the policy was not learned from. With continuous actions there are two estimators: fitted Q evaluation
    and the return in the models.

    Args:
        policy: from `kairode.learn` or `kairode.learn_offline`, or a function of (observation, key) that JAX can trace,
            or None for random actions.
        data: records, from `kairode.load_table`, `kairode.read` or `kairode.collect`; decisions at their own times.
        models: fitted models, for the estimate in imagination; without them it is left out.
        task: reward and termination of the models' estimate; by default `kairode.learn_task(train, models)`.
        train: episodes that the models were fitted to: what imagined episodes have in common with records, such as the
            range of variables and which of them never change, is then theirs, and the behaviour policy is estimated
            from them too. Without them it is that of `data`, in which rare events may be missing.
        behavior: the estimated behaviour policy of these data, if there is one already; for discrete actions.
        seed: of the networks, the bootstrap and the imagined episodes.
        effort: how much is computed; `SELECTION` of this module takes a tenth of the time.
    """
    check_records(data)
    if train is not None:
        check_records(train, "train", least=1)
        check_same(data.spec, train.spec, "data")
    members = [models] if isinstance(models, DynamicsModel) else list(models or ())
    if task is not None:
        data = with_rewards_of(task, data)
    chosen = as_policy(policy, data.spec)
    if hasattr(chosen, "spec"):
        check_same(chosen.spec, data.spec, "policy")
    resamples = min(RESAMPLES, max(LEAST_RESAMPLES, COUNTS // len(data)))
    counts = bootstrap_counts(len(data), resamples, seed)
    if isinstance(data.spec.actions, Discrete):
        probabilities = policy_probabilities(chosen, data, seed=seed)
        behavior = behavior or fit_behavior(data, others=train, seed=seed)
        values = fit_action_values(data, probabilities, seed=seed, members=effort.members, iterations=effort.iterations)
        found, records = _from_records(data, probabilities, behavior, values, counts)
    else:
        found, records = _from_controls(chosen, data, seed, effort)
    own = data.discounted
    estimate = Estimate(float(own.mean()), *percentiles(counts @ own / len(own)))
    if members:
        known = task or model_task(data, members, train)
        found["model"] = estimate_in_models(chosen, data, members, known, train, seed, effort.episodes)
        if effort != SELECTION:
            records.warnings.extend(model_bias(data, members, known, train, counts))
    said = _warnings(data, found, records.warnings)
    warn(said)
    return OfflineEvaluation(found, estimate, records.size, records.support, tuple(said), records.gain)


def check_records(data: Any, name: str = "data", least: int = LEAST_EPISODES) -> None:
    """Raise for anything but episodes, and for too few of them."""
    if not isinstance(data, Trajectory):
        raise KairodeError(f"{name} must be episodes, from kairode.load_table or kairode.read, got {data!r}.")
    if len(data) < least:
        raise KairodeError(f"off-policy estimates need several episodes, at least {least}: {name} has {len(data)}.")


class _Records(NamedTuple):
    """How far records support an estimate."""

    size: float
    """Effective sample size."""
    support: float
    warnings: list[str]
    gain: Estimate | None = None


def _from_records(
    data: Trajectory,
    probabilities: np.ndarray,
    behavior: BehaviorFit,
    values: ActionValues,
    counts: np.ndarray,
) -> tuple[dict[str, Estimate], _Records]:
    mask, actions = np.asarray(data.mask), np.asarray(data.action)[..., None]
    pi = probabilities[:, :-1]
    taken, own = (np.take_along_axis(x, actions, -1)[..., 0] for x in (pi, behavior.probabilities))
    ratios = cumulative_ratios(taken, own, mask)
    discounts = data.spec.discount ** (data.time / data.spec.tick)
    rewards = np.where(mask, np.asarray(data.reward, np.float64), 0.0)
    all_v = (values.q * probabilities[None]).sum(-1)  # [members, n, moments]

    def robust(q: np.ndarray, v: np.ndarray) -> DoublyRobust:
        taken_q = np.where(mask, np.take_along_axis(q[:, :-1], actions, -1)[..., 0], 0.0)
        return doubly_robust(ratios, rewards, discounts[:, :-1], taken_q, np.where(mask, v[:, :-1], 0.0), mask)

    importance = per_decision(ratios, rewards, discounts[:, :-1])
    ones, members = np.ones((1, len(data))), len(values.q)
    # The interval has what the values leave open: each part of the resamples takes those of one member.
    resampled = [
        robust(q, v).estimate(counts[i::members]) for i, (q, v) in enumerate(zip(values.q, all_v, strict=True))
    ]
    found = {
        "fitted_q": _at_starts(all_v[:, :, 0], values.samples),
        "importance": Estimate(float(importance.estimate(ones)[0]), *percentiles(importance.estimate(counts))),
        "doubly_robust": Estimate(
            float(robust(values.q.mean(0), all_v.mean(0)).estimate(ones)[0]), *percentiles(np.concatenate(resampled))
        ),
    }
    own_return = data.discounted
    apart = [one - counts[i::members] @ own_return / len(data) for i, one in enumerate(resampled)]
    gain = Estimate(found["doubly_robust"].mean - float(own_return.mean()), *percentiles(np.concatenate(apart)))
    expected = (pi * behavior.probabilities).sum(-1)[mask]
    rare = float(((behavior.probabilities < RARE) * pi).sum(-1)[mask].mean())
    support = float(expected.mean() / own[mask].mean())
    size = float(effective_sample_size(ratios)[max(int(np.median(data.length)) - 1, 0)])
    said = []
    if size < FEW_EFFECTIVE:
        until = decisions_with_weight(ratios, FEW_EFFECTIVE)
        said.append(
            f"importance sampling rests on {size:.1f} of {len(data):,} episodes: the policy differs too much from what "
            f"was done, or episodes are too long, for it to be trusted. "
            + (f"From decision {until + 1:,} on" if until else "From the start")
            + f", the doubly robust estimate rests on fewer than {FEW_EFFECTIVE:g} episodes and so on the values of "
            "fitted Q evaluation"
        )
    if rare > OFTEN:
        said.append(
            f"{rare:.0%} of the policy's actions were hardly ever taken in such states (probability below "
            f"{RARE:g}): their effects are extrapolated"
        )
    return found, _Records(size, support, said, gain)


def _from_controls(policy: Policy, data: Trajectory, seed: int, effort: Effort) -> tuple[dict[str, Estimate], _Records]:
    """Of a policy with continuous actions, which has no probabilities to weigh episodes by."""
    controls = policy_controls(policy, data, seed=seed)
    values = fit_control_values(data, controls, seed=seed, members=effort.members, iterations=effort.iterations)
    support = control_support(data, controls, seed=seed)
    said = []
    if 1 - support > OFTEN:
        said.append(
            f"{1 - support:.0%} of the policy's actions are outside of what was done in the most similar states: their "
            "effects are extrapolated"
        )
    estimate = _at_starts(values.q[:, :, 0, 0], values.samples)
    return {"fitted_q": estimate}, _Records(float("nan"), support, said)


def _at_starts(values: np.ndarray, samples: np.ndarray) -> Estimate:
    """Mean of values [members, episodes] at the starts of episodes; the interval has those of every member at its own
    sample of the episodes."""
    fitted = (samples * values).sum(1) / samples.sum(1)
    start = float(values.mean())
    return Estimate(start, *normal_interval(start, fitted))


def _warnings(data: Trajectory, found: Mapping[str, Estimate], of_records: list[str]) -> list[str]:
    said = []
    if len(data) < FEW_EPISODES:
        said.append(f"{len(data)} episodes are too few for an estimate: use at least {FEW_EPISODES}")
    said += of_records
    cut = np.asarray(data.truncated)
    left = float((data.spec.discount ** (data.time[:, -1] / data.spec.tick))[cut].mean()) if cut.any() else 0.0
    if left > LEFT:
        said.append(
            f"records were cut off where rewards still count {left:.0%} of those at the start: estimates count the "
            "rewards up to the end of each record, as if every policy were followed for as long"
        )
    unknown = [name for name, one in found.items() if not one.known]
    if unknown:
        said.append(
            f"no estimate by {listed(ESTIMATORS[name] for name in unknown)}: at some decision no episode is left in "
            "which the policy's actions were taken"
        )
    apart = _apart(found)
    if apart:
        said.append(f"the estimates disagree: {apart}. At least one of them is wrong")
    return said


def _apart(found: Mapping[str, Estimate]) -> str:
    """The pair of estimates whose intervals are farthest apart, in words; empty if all overlap."""
    pairs = [
        (one.low - other.high, f"that by {ESTIMATORS[name]}, {one}, is above that by {ESTIMATORS[second]}, {other}")
        for name, one in found.items()
        for second, other in found.items()
        if one.low > other.high
    ]
    return max(pairs)[1] if pairs else ""
