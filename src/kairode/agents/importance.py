"""Off-policy estimates by importance sampling, for episodes with irregular intervals: a decision's reward is discounted
by gamma^t, t being its time.

Arrays are [episodes, decisions]. After the end of an episode ratios are 1 and rewards 0, so that its weight stays.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Steps = Float[np.ndarray, "n T"]


class Contributions(NamedTuple):
    """Parts of a self-normalised estimate, sum_k [sum_i w_ik x_ik / sum_i w_ik]: linear in the episodes, so that a
    bootstrap resamples sums."""

    weighted: Steps
    """w_ik x_ik."""
    weights: Steps
    """w_ik."""

    def estimate(self, counts: Float[np.ndarray, "b n"], *, unknown: float = np.nan) -> Float[np.ndarray, " b"]:
        """Of each of b samples, which hold every episode so many times. Where no episode of a sample has any weight
        left, a decision contributes `unknown`."""
        total = counts @ self.weights
        return np.divide(counts @ self.weighted, total, out=np.full_like(total, unknown), where=total > 0).sum(1)


def cumulative_ratios(target: Steps, behavior: Steps, mask: Any) -> Steps:
    """rho_k = prod_(j <= k) pi(a_j | s_j) / b(a_j | s_j), 64-bit, with the largest of a decision scaled to 1: only
    ratios among episodes count."""
    with np.errstate(divide="ignore"):
        logs = np.where(mask, np.log(target) - np.log(behavior), 0.0)
    sums = np.cumsum(logs, axis=1)
    largest = sums.max(axis=0)
    return np.exp(sums - np.where(np.isfinite(largest), largest, 0.0))


def per_decision(ratios: Steps, rewards: Steps, discounts: Steps) -> Contributions:
    """Weighted per-decision importance sampling (Precup, Sutton and Singh 2000)."""
    return Contributions(ratios * discounts * rewards, ratios)


class DoublyRobust(NamedTuple):
    """Weighted doubly robust estimate (Thomas and Brunskill 2016): values of a model, corrected where it is wrong.

    From the first decision on at which no episode has any weight left, the value V there stands uncorrected.
    """

    values: Contributions
    """gamma^t_k V(s_k) with the weights of the decision before."""
    corrections: Contributions
    """gamma^t_k (r_k - Q(s_k, a_k))."""

    def estimate(self, counts: Float[np.ndarray, "b n"]) -> Float[np.ndarray, " b"]:
        return self.values.estimate(counts, unknown=0.0) + self.corrections.estimate(counts, unknown=0.0)


def doubly_robust(ratios: Steps, rewards: Steps, discounts: Steps, q: Steps, v: Steps, mask: Any) -> DoublyRobust:
    """With action values q of the actions taken and state values v, both 0 after the end of an episode."""
    before = np.concatenate([np.ones((len(ratios), 1)), ratios[:, :-1]], axis=1)
    values = Contributions(before * discounts * v * mask, before)
    return DoublyRobust(values, Contributions(ratios * discounts * (rewards - q) * mask, ratios))


def decisions_with_weight(ratios: Steps, least: float = 1.0) -> int:
    """Decisions up to which the effective sample size is at least `least`."""
    enough = effective_sample_size(ratios) >= least
    return len(enough) if enough.all() else int(np.argmin(enough))


def effective_sample_size(ratios: Steps) -> Float[np.ndarray, " T"]:
    """(sum w)^2 / sum w^2 at every decision: the number of episodes that a weighted estimate rests on."""
    squares = (ratios**2).sum(0)
    return np.divide(ratios.sum(0) ** 2, squares, out=np.zeros_like(squares), where=squares > 0)


def bootstrap_counts(episodes: int, resamples: int, seed: int = 0) -> Float[np.ndarray, "b n"]:
    """How often each episode is drawn in every resample."""
    return np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), resamples).astype(float)
