"""What a statistician would warn of before learning a policy from a table of observed decisions."""

import itertools
import math

import numpy as np

from kairode.config.tables import TIME_UNITS
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete
from kairode.text import listed, short_name

FEW_EPISODES = 30
EPISODES_PER_VARIABLE = 5
"""Episodes for each variable and action below which there are too few."""
DIFFERENT = 0.5
"""Standardised difference of a variable between the decisions for an action and all others."""
BEYOND_CHANCE = 3.0
"""Standard errors from which on such a difference counts."""
BANDS = 5
"""Bands of equally many decisions that a variable is divided into."""
EXPECTED = 20.0
"""Times that an action would be taken in a band by chance, from which on its absence is remarked on."""
ALWAYS = 0.999
"""Correlation from which on one column is taken to determine another."""
PAIRS = 10
"""Pairs of values that a correlation needs."""
MOST = 5
"""Variables that are named in a sentence."""


def statistical_warnings(data: Trajectory) -> list[str]:
    """Sentences on confounding, support, variation, sample size, clock changes and leaks."""
    found = [_few_episodes(data), _clock_changes(data)]
    if isinstance(data.spec.actions, Discrete):
        found += [_never_varied(data), *_confounding(data), *_no_support(data)]
    else:
        found += [_constant_controls(data)]
    found += _leaks(data)
    return [text for text in found if text]


def _decisions(data: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Observations at the decisions, and the actions."""
    return np.asarray(data.observation, np.float64)[:, :-1][data.mask], np.asarray(data.action)[data.mask]


def _few_episodes(data: Trajectory) -> str:
    spec, episodes = data.spec, len(np.asarray(data.length))
    size = len(spec.observations) + spec.actions.n
    needed = max(FEW_EPISODES, EPISODES_PER_VARIABLE * size)
    if episodes >= needed:
        return ""
    return (
        f"{episodes} episodes are few for {len(spec.observations)} variables and {spec.actions.n} actions: below about "
        f"{needed}, estimates of a policy are very uncertain."
    )


def _never_varied(data: Trajectory) -> str:
    names = data.spec.actions.names
    action = np.where(data.mask, np.asarray(data.action), -1)
    taken = np.unique(action[action >= 0])
    if len(taken) == 1:
        return f"The action is always '{short_name(names[int(taken[0])])}': nothing can be learned about another."
    first = action[:, :1]
    if ((action == first) | (action < 0)).all():
        return (
            "The action never changes within an episode: its effect cannot be told from differences between episodes."
        )
    return ""


def _constant_controls(data: Trajectory) -> str:
    controls = np.asarray(data.action)[data.mask]
    names = [name for name, column in zip(data.spec.actions.names, controls.T, strict=True) if np.ptp(column) == 0]
    return f"Never varied, so nothing can be learned about them: {listed(names)}." if names else ""


def _confounding(data: Trajectory) -> list[str]:
    """Actions that depend on what was observed: standardised differences of the means."""
    observed, action = _decisions(data)
    episode = np.nonzero(data.mask)[0]
    said = []
    for i, name in enumerate(data.spec.actions.names):
        taken = action == i
        if not 0 < taken.sum() < len(taken):
            continue
        size = np.array([_difference(column, taken, episode) for column in observed.T])
        far = [j for j in np.argsort(-np.abs(size)) if abs(size[j]) >= DIFFERENT][:MOST]
        if far:
            words = [
                f"{short_name(data.spec.observations[j].name)} is {'higher' if size[j] > 0 else 'lower'} "
                f"({size[j]:+.1f} standard deviations)"
                for j in far
            ]
            said.append(
                f"Confounding by indication: '{short_name(name)}' is taken when {', '.join(words)}, so what follows it "
                "is also due to the reasons for taking it. Make sure that all reasons are among the variables."
            )
    return said


def _difference(values: np.ndarray, taken: np.ndarray, episode: np.ndarray) -> float:
    """Difference between the means of two groups in standard deviations; 0 if it may be due to chance.

    Its standard error is that of clustered data: decisions of one episode are not independent of each other.
    """
    known = ~np.isnan(values)
    values, taken, episode = values[known], taken[known], episode[known]
    spread = values.std() if len(values) else 0.0
    if not (spread > 0 and 0 < taken.sum() < len(taken)):
        return 0.0
    mean, other = values[taken].mean(), values[~taken].mean()
    influence = np.where(taken, (values - mean) / taken.sum(), (other - values) / (~taken).sum())
    per_episode = np.bincount(episode, influence)
    count = len(np.unique(episode))
    error = np.sqrt((per_episode**2).sum() * count / max(count - 1, 1))
    return float((mean - other) / spread) if abs(mean - other) > BEYOND_CHANCE * error else 0.0


def _no_support(data: Trajectory) -> list[str]:
    """Actions that are never taken in a band of a variable, where chance would have them taken often."""
    observed, action = _decisions(data)
    said = []
    for i, name in enumerate(data.spec.actions.names):
        taken, where = action == i, []
        share = taken.mean()
        for j, variable in enumerate(data.spec.observations):
            edges = np.unique(np.nanquantile(observed[:, j], np.linspace(0, 1, BANDS + 1)))
            for low, high in itertools.pairwise(edges):
                inside = (observed[:, j] >= low) & (observed[:, j] <= high)
                if share * inside.sum() >= EXPECTED and not (inside & taken).any():
                    where.append(f"{short_name(variable.name)} from {low:.3g} to {high:.3g}")
        if where:
            said.append(
                f"'{short_name(name)}' is never taken at {listed(where, MOST)}: its effect there is unknown, and a "
                "policy should not use it there."
            )
    return said


def _clock_changes(data: Trajectory) -> str:
    """Intervals that miss whole days by exactly an hour, of timestamps whose clock was changed."""
    seconds = TIME_UNITS.get(data.spec.time_unit)
    if seconds is None:
        return ""
    tau = np.asarray(data.interval, np.float64)[data.mask] * seconds
    days = np.round(tau / 86400.0)
    apart = np.where(days > 0, tau - 86400.0 * days, np.inf)
    whole, hour = np.abs(apart) < 30.0, np.abs(np.abs(apart) - 3600.0) < 30.0
    if whole.mean() < 0.5 or not hour.any() or hour.mean() > 0.2:
        return ""
    return f"{hour.sum():,} intervals are an hour off whole days, as if clocks had been changed: give times in UTC."


def _leaks(data: Trajectory) -> list[str]:
    """Variables that tell the future: the reward, the length or the end of the episode, or a value still to come."""
    spec, mask, length = data.spec, data.mask, np.asarray(data.length)
    observed, after = (np.asarray(data.observation, np.float64)[:, part][mask] for part in (np.s_[:-1], np.s_[1:]))
    reward = np.asarray(data.reward, np.float64)[mask]
    start = np.asarray(data.observation, np.float64)[:, 0]
    ended = np.asarray(data.terminated, np.float64)
    names = [short_name(variable.name) for variable in spec.observations]
    said = []
    for j, name in enumerate(names):
        if _correlation(observed[:, j], reward) > ALWAYS:
            said.append(f"'{name}' determines the reward of the same decision: was it recorded afterwards?")
        fixed = _constant(np.asarray(data.observation)[:, :, j], length)
        if fixed and _correlation(start[:, j], length.astype(np.float64)) > ALWAYS:
            said.append(f"'{name}' tells the length of the episode from its start: was it recorded afterwards?")
        if fixed and _correlation(start[:, j], ended) > ALWAYS:
            said.append(f"'{name}' tells from the start whether the episode terminates: was it recorded afterwards?")
        for k, other in enumerate(names):
            ahead = _correlation(observed[:, j], after[:, k])
            if j != k and ahead > ALWAYS and _correlation(observed[:, j], observed[:, k]) < ALWAYS:
                said.append(
                    f"'{name}' is the value that '{other}' has one row later: was it shifted? (All is well if "
                    f"'{other}' is meant to be the previous value of '{name}'.)"
                )
    return [f"Possible leak of the future: {text}" for text in said]


def _constant(values: np.ndarray, length: np.ndarray) -> bool:
    real = np.arange(values.shape[1]) <= length[:, None]
    return bool(np.all(~real | (values == values[:, :1])))


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Absolute correlation of the pairs that are known; 0 where one does not vary, or too few are known."""
    known = ~(np.isnan(a) | np.isnan(b))
    a, b = a[known], b[known]
    if len(a) < PAIRS or a.std() == 0 or b.std() == 0:
        return 0.0
    found = float(np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std()))
    return abs(found) if math.isfinite(found) else 0.0
