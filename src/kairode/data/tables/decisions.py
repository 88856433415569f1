"""The actions, rewards and ends of a table."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kairode.data.tables.columns import MISSING, categories, flag_values, is_empty, is_number, numbers
from kairode.data.tables.context import ENDS, SortedRows, TableContext
from kairode.data.tables.expression import BEFORE, INTERVAL, Columns, Expression
from kairode.data.tables.observations import carry_forward
from kairode.envs.core import Continuous, Discrete
from kairode.errors import KairodeError, did_you_mean
from kairode.text import listed, number_of, short_name

Reward = Callable[[Columns, Columns, np.ndarray], Any]
"""Of the columns at the decisions, the columns at the ends of their intervals, and the intervals."""
MOST_ACTIONS = 1000
MANY = 20
"""Different numbers from which on a column of actions may be meant as a quantity."""
UNFIT = "nothing can be fitted to this table until you"
"""In the note on missing rewards, of which a report warns."""
RARE = 0.01
"""Fraction of the decisions below which a combination of actions is reported as rare."""


def read_actions(context: TableContext) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes of discrete actions (`MISSING` where empty) with their names, or continuous ones (NaN) with theirs."""
    config, table, faults = context.config, context.table, context.faults
    if config.controls:
        return np.stack([numbers(table[name], name, faults) for name in config.controls], 1), config.controls
    found = [categories(table[name], name, faults) for name in config.action]
    for name, one in zip(config.action, found, strict=True):
        if not one.names and name not in faults.columns:
            faults.add(name, "there is no action in it")
    if len(found) == 1 or faults.columns & {*config.action}:
        return found[0].codes, tuple(found[0].names)
    codes = np.stack([one.codes for one in found], 1)
    known = (codes != MISSING).all(1)
    kinds, places = np.unique(codes[known], axis=0, return_inverse=True)
    action = np.full(len(codes), MISSING)
    action[known] = places.reshape(-1)
    named = [
        [f"{name}={one.names[i]}" for name, one, i in zip(config.action, found, kind, strict=True)] for kind in kinds
    ]
    return action, tuple(map(", ".join, named))


def decided_actions(
    context: TableContext, action: np.ndarray, names: tuple[str, ...], decides: np.ndarray
) -> tuple[np.ndarray, Discrete | Continuous]:
    """The actions at decisions, 0 in other rows, and the kinds or bounds of those that were taken."""
    if action.ndim == 2:
        taken = action[decides]
        low, high = (tuple(bound(taken, axis=0).tolist()) for bound in (np.min, np.max))
        return np.where(decides[:, None], action, 0.0), Continuous(names, low, high)
    counts = np.bincount(action[decides], minlength=len(names))
    kinds = np.flatnonzero(counts)
    if len(kinds) > MOST_ACTIONS:
        raise KairodeError(
            f"{context.name}, column '{short_name(context.decided[0])}': {len(kinds):,} different actions, at most "
            f"{MOST_ACTIONS:,}: give continuous ones as controls, or group them."
        )
    unused = [name for name, count in zip(names, counts, strict=True) if not count]
    if unused:
        context.notes.append(f"Actions that no decision takes are left out: {listed(unused)}.")
    taken_names, few = [names[i] for i in kinds], RARE * counts.sum()
    rare = [f"{name} ({count:,})" for name, count in zip(taken_names, counts[kinds], strict=True) if count < few]
    if rare and len(context.decided) > 1:
        context.notes.append(f"Rare combinations of actions (decisions): {listed(rare)}.")
    if len(kinds) > MANY and all(number_of(name) is not None for name in taken_names):
        context.notes.append(
            f"'{short_name(context.decided[0])}' has {len(kinds):,} different numbers, each an action of its own: if "
            "it is a quantity, such as a dose, give it as controls."
        )
    code_of = (np.cumsum(counts > 0) - 1).astype(np.int32)
    return np.where(decides, code_of[action], np.int32(0)), Discrete(tuple(taken_names))


def check_actions_given(context: TableContext, action: np.ndarray, last: np.ndarray) -> None:
    """A missing action in a row that is not its episode's last is a fault."""
    lost = (action == MISSING if action.ndim == 1 else np.isnan(action).any(1)) & ~last
    if not lost.any() or context.faults.columns & {*context.decided}:
        return
    row = int(lost.argmax())
    empty = [name for name in context.decided if _empty_cell(context, name, row)]
    context.faults.add_rows(
        lost,
        (empty or context.decided)[0],
        "the action is missing: fill it, or end the episode with this row",
    )


def _empty_cell(context: TableContext, name: str, row: int) -> bool:
    return is_empty(context.table[name][int(np.flatnonzero(context.order == context.faults.rows[row])[0])].as_py())


def read_terminated(context: TableContext, rows: SortedRows) -> np.ndarray:
    """Mask of the rows at which an episode terminates."""
    name = context.config.terminal or ENDS[0]
    if not context.has(name):
        context.notes.append("Every episode ends by truncation: no column says which ones terminated.")
        return np.zeros(context.table.num_rows, bool)
    if name != ENDS[0] and context.has(ENDS[0]):
        context.notes.append(f"The column '{ENDS[0]}' is not used.")
    found = flag_values(context.table[name], name, context.faults)
    groups = rows.groups
    ends = rows.last if groups.single else groups.number[rows.last][rows.episode] == groups.number
    context.faults.add_rows(
        found & ~ends, name, "true before the last row of its episode: it must be true in the last row alone"
    )
    return found


def read_reward(context: TableContext, function: Reward | None) -> np.ndarray | Reward:
    """The reward column (NaN where empty), or a function that computes the rewards."""
    config, names = context.config, context.table.column_names
    text = config.reward
    column = "reward" if text is None else text
    if function is None and context.has(column):
        if text is not None and text != "reward":
            context.notes.append(
                f"The column '{short_name(column)}' is the reward, and not an observation (as an expression, such as "
                f"1 * {short_name(column)}, it is both)."
            )
        return numbers(context.table[column], column, context.faults)
    if function is None and text is None:
        context.notes.append("There is no reward column: all rewards are 0.")
        return np.zeros(context.table.num_rows)
    if config.reward_row != "decision":
        raise KairodeError("reward_row says where the reward column's value stands: it has no meaning for expressions.")
    if context.has("reward"):
        context.notes.append("The column 'reward' is not used: rewards are computed.")
    if function is not None:
        return function
    expression = Expression(str(text))
    unknown = sorted(expression.names - set(names))
    if unknown:
        raise KairodeError(
            f"{context.name}: the reward '{text}' is not a column, and as an expression it has unknown names: "
            f"{listed(unknown)}.{did_you_mean(unknown[0], names)} Columns: {listed(names)}. Put names that are not "
            "plain letters between backticks."
        )
    following = sorted(expression.names_after & {*context.decided})
    if following:
        raise KairodeError(
            f"{context.name}: in '{text}', {listed(following)} is the action of the row that ends the interval, which "
            f"is the next decision's: write {BEFORE}({following[0]}) for the action of the decision."
        )
    if expression.uses_interval and INTERVAL in names:
        raise KairodeError(f"{context.name}: in '{text}', {INTERVAL} is the interval: rename the column '{INTERVAL}'.")
    return expression


def reward_columns(context: TableContext, reward: np.ndarray | Reward) -> dict[str, np.ndarray]:
    """Columns of numbers that a function or expression computes the rewards from."""
    if isinstance(reward, np.ndarray):
        return {}
    table = context.table
    if isinstance(reward, Expression):
        return {name: numbers(table[name], name, context.faults) for name in sorted(reward.names)}
    return {
        name: numbers(table[name], name, context.faults) for name in table.column_names if is_number(table[name].type)
    }


def reward_formula(
    context: TableContext,
    reward: np.ndarray | Reward,
    columns: Columns,
    action: np.ndarray,
    actions: Discrete | Continuous,
    decides: np.ndarray,
) -> dict[str, Any]:
    """Fields of a spec whose reward is an expression of observations and actions, as a task computes it; otherwise
    none."""
    if not isinstance(reward, Expression):
        return {}
    predicted = {*context.observed} - {*context.config.categorical}
    beyond = sorted(reward.names - {*predicted, *context.decided})
    if beyond:
        context.notes.append(
            f"The reward uses {listed(beyond)}, which models do not predict: in imagination a learned reward stands "
            "for it."
        )
        return {}
    values = []
    if isinstance(actions, Discrete):
        _, rows = np.unique(action[decides], return_index=True)
        for name in sorted(reward.names & {*context.decided}):
            values.append((name, tuple(columns[name][decides][rows].tolist())))
    return {"reward_expression": reward.text, "action_values": tuple(values)}


def rewards_of(
    context: TableContext, reward: np.ndarray | Reward, columns: Columns, rows: SortedRows, keep_missing: bool
) -> np.ndarray:
    """The reward of every decision; 0 in last rows."""
    decides = ~rows.last
    begins = np.flatnonzero(decides)
    found = np.zeros(len(decides))
    if isinstance(reward, np.ndarray):
        found[begins] = reward[begins + 1] if context.config.reward_row == "end" else reward[begins]
        unused = int((np.nan_to_num(reward[rows.last & ~rows.first]) != 0).sum())
        dropped = int((np.nan_to_num(reward[rows.first & ~rows.last]) != 0).sum())
        if dropped and context.config.reward_row == "end":
            context.notes.append(
                f"Rewards in the first row of an episode are not used, as no interval ends there ({dropped:,}). If "
                "they were earned by the decision in their row, leave reward_row out."
            )
        if unused and context.config.reward_row == "decision":
            context.notes.append(
                f"Rewards in the last row of an episode are not used, as no interval follows ({unused:,}). If they "
                "were earned in the interval before, set reward_row to end."
            )
    else:
        tau = rows.t[begins + 1] - rows.t[begins]
        before, after = ({name: x[place] for name, x in columns.items()} for place in (begins, begins + 1))
        found[begins] = _computed(reward, before, after, tau)
        if context.config.reward_missing == "carry":
            carried = _carried(columns, {*context.observed}, rows)
            before, after = ({name: x[place] for name, x in carried.items()} for place in (begins, begins + 1))
            known, found[begins] = np.isfinite(found[begins]), _computed(reward, before, after, tau)
            if not known.all():
                context.notes.append(
                    f"{(~known).sum():,} rewards ({(~known).mean():.1%}) were computed from the last values measured, "
                    "since a measurement is missing."
                )
        if context.filled:
            context.notes.append("Rewards were computed from filled values where measurements are missing.")
    column = context.config.reward or "reward"
    faulty = isinstance(reward, Expression) and reward.names & context.faults.columns
    bad = ~(np.abs(found) <= np.finfo(np.float32).max)
    if keep_missing and bad.any():
        carry = isinstance(reward, Expression) and context.config.reward_missing == "refuse"
        remedy = "compute them from the last values measured (reward_missing: carry)" if carry else "correct them"
        if _stand_at_ends(context, reward, rows):
            remedy = "set reward_row to end, where they seem to stand"
        context.notes.append(
            f"{bad.sum():,} reward{'s are' if bad.sum() > 1 else ' is'} missing, and counted as 0 here; {UNFIT} "
            f"{remedy}."
        )
    elif not (faulty or column in context.faults.columns):
        late = isinstance(reward, np.ndarray) and context.config.reward_row == "end"
        context.faults.add_rows(
            np.roll(bad, 1) if late else bad,  # the row where the reward stands
            column,
            f"the reward {'' if late else 'of the decision '}in this row is missing or not finite: "
            f"{_remedy(context, reward, rows)}",
        )
    return np.where(bad, 0.0, found)


def _remedy(context: TableContext, reward: Any, rows: SortedRows) -> str:
    if isinstance(reward, Expression):
        return "correct what it depends on, or compute it from the last values measured (reward_missing: carry)"
    if _stand_at_ends(context, reward, rows):
        return (
            "the first rows of episodes have none and the last rows have, so rewards seem to stand in the row in which "
            "their interval ends: set reward_row to end"
        )
    return "correct it" if isinstance(reward, np.ndarray) else "correct what it depends on"


def _stand_at_ends(context: TableContext, reward: Any, rows: SortedRows) -> bool:
    """Whether rewards taken to be in the row of their decision are missing in the first rows of episodes and present in
    their last ones."""
    several = rows.first != rows.last
    if not (isinstance(reward, np.ndarray) and several.any() and context.config.reward_row == "decision"):
        return False
    return bool(np.isnan(reward[rows.first & several]).all() and np.isfinite(reward[rows.last & several]).all())


def _carried(columns: Columns, observed: set[str], rows: SortedRows) -> Columns:
    """With the last values measured in place of missing measurements."""
    return {
        name: carry_forward(x, rows)[0] if name in observed and np.isnan(x).any() and not np.isnan(x).all() else x
        for name, x in columns.items()
    }


def _computed(reward: Reward, before: Columns, after: Columns, tau: np.ndarray) -> np.ndarray:
    if isinstance(reward, Expression):
        return reward(before, after, tau)
    try:
        return np.broadcast_to(np.asarray(reward(before, after, tau), np.float64), tau.shape)
    except Exception as error:
        raise KairodeError(
            f"the reward function failed on arrays of the columns at {len(tau):,} decisions: {error!r}."
        ) from error
