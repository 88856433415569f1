"""What a statistician would warn of before learning a policy from a table of observed decisions."""

import itertools
from collections.abc import Iterator

import numpy as np

from kairode.config.tables import TIME_UNITS
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete
from kairode.text import listed, number_of, short_name

FEW_EPISODES = 30
EPISODES_PER_VARIABLE = 5
"""Episodes for each variable and action below which there are too few."""
DIFFERENT = 0.5
"""Standardised difference of a variable between the decisions for an action and all others."""
CORRELATED = 0.3
"""Correlation of a variable with a continuous action."""
BEYOND_CHANCE = 3.0
"""Standard errors from which on such a difference or correlation counts."""
BANDS = 5
"""Bands of equally many decisions that a variable is divided into."""
EXPECTED = 20.0
"""Decisions for an action, and otherwise, from which on states are compared; and times that an action would be taken in
a band by chance, from which on its absence is remarked on."""
FEW_ENDS = 20
"""Terminations below which there are few."""
ALWAYS = 0.999
"""Correlation from which on one column is taken to determine another."""
PAIRS = 10
"""Pairs of values that a correlation needs."""
MOST = 5
"""Variables that are named in a sentence."""


def statistical_warnings(data: Trajectory) -> list[str]:
    """Sentences on confounding, support, variation, sample size, clock changes and data leakage."""
    found = [_few_episodes(data), _clock_changes(data), *_terminations(data), *_spellings(data)]
    if isinstance(data.spec.actions, Discrete):
        found += [_never_varied(data), *_confounding(data), *_no_support(data)]
    else:
        found += [_constant_controls(data), *_control_confounding(data)]
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


def _terminations(data: Trajectory) -> list[str]:
    """Few of them, or rewards that make an early one look good."""
    ended, reward = int(np.sum(data.terminated)), np.asarray(data.reward)[data.mask]
    said = []
    if ended and reward.max() <= 0 and reward.min() < 0:
        said.append(
            "No reward is positive, so an early termination saves a policy the negative rewards that would follow: if "
            "it should not gain by that, make the reward of the decision before a termination as negative as what it "
            "saves."
        )
    if 0 < ended < FEW_ENDS:
        said.append(
            f"Only {ended} episode{'s' * (ended > 1)} terminated: what leads to a termination can hardly be learned."
        )
    return said


def _spellings(data: Trajectory) -> list[str]:
    """Names of actions and categories that differ only in case, spaces or how a number is written."""
    kinds = {"actions": data.spec.actions.names} if isinstance(data.spec.actions, Discrete) else {}
    said = []
    for what, names in {**kinds, **{f"categories of '{name}'": names for name, names in data.spec.categories}}.items():
        same: dict[str, list[str]] = {}
        for name in names:
            plain = "".join(name.casefold().split())
            number = number_of(plain)
            same.setdefault(plain if number is None else repr(number), []).append(name)
        said += [
            f"The {short_name(what)} {listed(map(repr, group))} differ only in case, spaces or how a number is "
            "written: if they are the same, write them alike."
            for group in same.values()
            if len(group) > 1
        ]
    return said


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
        if not EXPECTED <= taken.sum() <= len(taken) - EXPECTED:
            continue
        size = np.array([_difference(column, taken, episode) for column in observed.T])
        far = [j for j in np.argsort(-np.abs(size)) if abs(size[j]) >= DIFFERENT][:MOST]
        if far:
            words = [_differs(data, j, observed[:, j], taken, size[j]) for j in map(int, far)]
            said.append(
                f"Confounding by indication: '{short_name(name)}' is taken when {', '.join(words)}, so what follows it "
                "is also due to the reasons for taking it. Make sure that all reasons are among the variables."
            )
    return said


def _control_confounding(data: Trajectory) -> list[str]:
    """Controls that depend on what was observed: correlations."""
    observed, controls = _decisions(data)
    episode = np.nonzero(data.mask)[0]
    said = []
    for name, control in zip(data.spec.actions.names, controls.T.astype(np.float64), strict=True):
        size = np.array([_dependence(column, control, episode) for column in observed.T])
        far = [j for j in np.argsort(-np.abs(size)) if abs(size[j]) >= CORRELATED][:MOST]
        if far:
            words = [
                f"{short_name(data.spec.observations[j].name)} is {'higher' if size[j] > 0 else 'lower'} "
                f"(correlation {size[j]:.2f})"
                for j in map(int, far)
            ]
            said.append(
                f"Confounding by indication: '{short_name(name)}' is higher when {', '.join(words)}, so what follows "
                "it is also due to the reasons for choosing it. Make sure that all reasons are among the variables."
            )
    return said


def _dependence(values: np.ndarray, control: np.ndarray, episode: np.ndarray) -> float:
    """Correlation of a variable with a control; 0 if it may be due to chance, by a standard error of clustered data."""
    known = ~np.isnan(values)
    values, control, episode = values[known], control[known], episode[known]
    if len(values) < PAIRS or np.ptp(values) == 0 or np.ptp(control) == 0:
        return 0.0
    x, y = ((some - some.mean()) / some.std() for some in (values, control))
    found = float((x * y).mean())
    influence = (x * y - found * (x**2 + y**2) / 2) / len(x)
    count = len(np.unique(episode))
    error = np.sqrt((np.bincount(episode, influence) ** 2).sum() * count / max(count - 1, 1))
    return found if abs(found) > BEYOND_CHANCE * error else 0.0


def _differs(data: Trajectory, j: int, values: np.ndarray, taken: np.ndarray, size: float) -> str:
    """How a variable differs between the decisions for an action and all others, in words."""
    name = short_name(data.spec.observations[j].name)
    if np.isin(values[~np.isnan(values)], (0.0, 1.0)).all():
        share, rest = np.nanmean(values[taken]), np.nanmean(values[~taken])
        return f"{name} is {'more' if size > 0 else 'less'} frequent ({share:.0%} of these decisions, else {rest:.0%})"
    return f"{name} is {'higher' if size > 0 else 'lower'} ({size:+.1f} standard deviations)"


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
            for inside, words in _bands(observed[:, j], short_name(variable.name)):
                if share * inside.sum() >= EXPECTED and not (inside & taken).any():
                    where.append(words)
        if where:
            said.append(
                f"'{short_name(name)}' is never taken where {listed(where, MOST)}: its effect there is unknown, and a "
                "policy should not use it there."
            )
    return said


def _bands(values: np.ndarray, name: str) -> Iterator[tuple[np.ndarray, str]]:
    """Masks of the rows of each band of a variable, in words: each value where there are few, otherwise bands of about
    equally many rows."""
    known = values[~np.isnan(values)]
    distinct = np.unique(known)
    if len(distinct) <= 2 * BANDS:
        for value in distinct:
            yield values == value, f"{name} is {value:.3g}"
        return
    edges = np.unique(np.quantile(known, np.linspace(0, 1, BANDS + 1)))
    for low, high in itertools.pairwise(edges):
        inside = (values >= low) & ((values < high) | (high == edges[-1]))
        yield inside, f"{name} is {low:.3g} to {high:.3g}"


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
    last = np.take_along_axis(np.asarray(data.observation, np.float64), length[:, None, None], 1)[:, 0]
    names = [short_name(variable.name) for variable in spec.observations]
    now, ahead = _correlations(observed, observed), _correlations(observed, after)
    length_of, end_of = (_correlations(start, x[:, None])[:, 0] for x in (length.astype(np.float64), ended))
    ends_of, starts_of = _correlations(start, last), _correlations(start, start)
    # An expression of the observations is determined by them.
    earned = np.zeros(len(names)) if spec.reward_expression else _correlations(observed, reward[:, None])[:, 0]
    said = []
    for j, name in enumerate(names):
        if earned[j] > ALWAYS:
            said.append(f"'{name}' determines the reward of the same decision: was it recorded afterwards?")
        if _at_ends_alone(observed[:, j], last[:, j]):
            said.append(
                f"'{name}' changes in the last rows of episodes alone: was it recorded afterwards, or does it mark an "
                "end, such as a death (give it as terminal then)?"
            )
        fixed = _constant(np.asarray(data.observation)[:, :, j], length)
        if fixed and length_of[j] > ALWAYS:
            said.append(f"'{name}' tells the length of the episode from its start: was it recorded afterwards?")
        if fixed and end_of[j] > ALWAYS:
            said.append(f"'{name}' tells from the start whether the episode terminates: was it recorded afterwards?")
        said += [
            f"'{name}', which never changes, is the last value of '{names[k]}' in its episode: was it recorded "
            "afterwards?"
            for k in np.flatnonzero((ends_of[j] > ALWAYS) & (starts_of[j] < ALWAYS))
            if fixed and k != j
        ]
        said += [
            f"'{name}' is the value that '{names[k]}' has one row later: was it shifted? (All is well if '{names[k]}' "
            f"is meant to be the previous value of '{name}'.)"
            for k in np.flatnonzero((ahead[j] > ALWAYS) & (now[j] < ALWAYS))
            if k != j
        ]
    return [f"Possible data leakage from the future: {text}" for text in said]


def _at_ends_alone(observed: np.ndarray, last: np.ndarray) -> bool:
    """Whether a variable has one value at all decisions, and another one in last rows."""
    known, ends = np.unique(observed[~np.isnan(observed)]), last[~np.isnan(last)]
    return len(observed) >= PAIRS and len(known) == 1 and bool((ends != known).any())


def _constant(values: np.ndarray, length: np.ndarray) -> bool:
    real = np.arange(values.shape[1]) <= length[:, None]
    return bool(np.all(~real | (values == values[:, :1])))


def _correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Absolute correlations of the columns of a with those of b, over the rows where both are known; 0 where one does
    not vary, or too few are known."""
    (x, known_x), (y, known_y) = (_centered(columns) for columns in (a, b))
    count = np.maximum(known_x.T @ known_y, 1.0)
    mean_x, mean_y = x.T @ known_y / count, known_x.T @ y / count
    covariance = x.T @ y / count - mean_x * mean_y
    variance = ((x**2).T @ known_y / count - mean_x**2) * (known_x.T @ y**2 / count - mean_y**2)
    valid = (known_x.T @ known_y >= PAIRS) & (variance > 1e-18)
    return np.where(valid, np.abs(covariance) / np.sqrt(np.where(valid, variance, 1.0)), 0.0)


def _centered(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns of mean 0 and standard deviation 1 with zeros for what is missing, and what is known."""
    known = ~np.isnan(columns)
    count = np.maximum(known.sum(0), 1)
    centered = np.where(known, columns - np.where(known, columns, 0.0).sum(0) / count, 0.0)
    std = np.sqrt((centered**2).sum(0) / count)
    return centered / np.where(std > 0, std, 1.0), known.astype(np.float64)
