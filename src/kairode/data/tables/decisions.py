"""The actions, rewards and ends of a table."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kairode.data.tables.columns import MISSING, Categories, categories, flags, is_number, numbers
from kairode.data.tables.context import ENDS, SortedRows, TableContext
from kairode.data.tables.expression import Columns, Expression
from kairode.envs.core import Continuous, Discrete
from kairode.errors import KairodeError
from kairode.text import listed

Reward = Callable[[Columns, Columns, np.ndarray], Any]
"""Of the columns at the decisions, the columns at the ends of their intervals, and the intervals."""
MOST_ACTIONS = 1000
RARE = 0.01
"""Fraction of the rows below which a combination of actions is reported as rare."""


def read_actions(context: TableContext) -> tuple[np.ndarray, Discrete | Continuous]:
    """Codes of discrete actions (`MISSING` where empty) or continuous ones (NaN), and what they are."""
    config, table, faults = context.config, context.table, context.faults
    if config.controls:
        columns = [numbers(table[name], name, faults) for name in config.controls]
        empty = [name for name, values in zip(config.controls, columns, strict=True) if np.isnan(values).all()]
        for name in empty:
            if name not in faults.columns:
                faults.add(name, "there is no number in it")
        bounds = [
            (0.0, 0.0) if name in empty else (float(np.nanmin(x)), float(np.nanmax(x)))
            for name, x in zip(config.controls, columns, strict=True)
        ]
        low, high = zip(*bounds, strict=True)
        return np.stack(columns, 1), Continuous(config.controls, low, high)
    found = [categories(table[name]) for name in config.action]
    for name, one in zip(config.action, found, strict=True):
        if not one.names:
            faults.add(name, "there is no action in it")
        if len(one.names) > MOST_ACTIONS:
            faults.add(name, f"{len(one.names):,} different actions: use controls=[..] for continuous ones")
    if faults.columns & {*config.action}:
        return np.zeros(table.num_rows, np.int64), Discrete(("",))
    if len(found) == 1:
        return found[0].codes, Discrete(tuple(found[0].names))
    return _combined(context, found)


def _combined(context: TableContext, found: list[Categories]) -> tuple[np.ndarray, Discrete]:
    """The combinations of several columns as actions; one with an empty cell is missing."""
    names = context.config.action
    codes = np.stack([one.codes for one in found], 1)
    known = (codes != MISSING).all(1)
    kinds, places, counts = np.unique(codes[known], axis=0, return_inverse=True, return_counts=True)
    if len(kinds) > MOST_ACTIONS:
        context.faults.add(names[0], f"{len(kinds):,} combinations of actions: group some")
    labels = [
        ", ".join(f"{name}={one.names[i]}" for name, one, i in zip(names, found, kind, strict=True))
        for kind in kinds.tolist()
    ]
    rare = [f"{name} ({count:,})" for name, count in zip(labels, counts, strict=True) if count < RARE * known.sum()]
    if rare:
        context.notes.append(f"Rare combinations of actions (rows): {listed(rare)}.")
    action = np.full(len(codes), MISSING)
    action[known] = places.reshape(-1)
    return action, Discrete(tuple(labels))


def check_actions_given(context: TableContext, action: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The actions, 0 in last rows; a missing one elsewhere is a fault."""
    lost = action == MISSING if action.ndim == 1 else np.isnan(action).any(1)
    column = context.decided[0]
    if column not in context.faults.columns:
        context.faults.add_rows(lost & ~last, column, "the action is missing")
    return np.where((lost | last) if action.ndim == 1 else (lost | last)[:, None], 0, action)


def read_terminated(context: TableContext) -> np.ndarray:
    """Mask of the rows at which an episode terminates."""
    name = context.config.terminal or ENDS[0]
    if name not in context.table.column_names:
        context.notes.append("Every episode ends by truncation: no column says which ones terminated.")
        return np.zeros(context.table.num_rows, bool)
    return flags(context.table[name], name, context.faults)


def read_reward(context: TableContext, function: Reward | None) -> np.ndarray | Reward:
    """The reward column (NaN where empty), or a function that computes the rewards."""
    if function is not None:
        return function
    text, names = context.config.reward, context.table.column_names
    column = "reward" if text is None else text
    if column in names:
        return numbers(context.table[column], column, context.faults)
    if text is None:
        context.notes.append("There is no reward column: all rewards are 0.")
        return np.zeros(context.table.num_rows)
    expression = Expression(text)
    unknown = sorted(expression.names - set(names))
    if unknown:
        raise KairodeError(
            f"{context.name}: the reward '{text}' is not a column, and as an expression it has unknown names: "
            f"{listed(unknown)}. Columns: {listed(names)}."
        )
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


def rewards_of(context: TableContext, reward: np.ndarray | Reward, columns: Columns, rows: SortedRows) -> np.ndarray:
    """The reward of every decision; 0 in last rows."""
    column = context.config.reward or "reward"
    if isinstance(reward, np.ndarray):
        found = np.append(reward[1:], np.nan) if context.config.reward_row == "end" else reward
        unused = int((np.isfinite(found) & (found != 0) & rows.last).sum())
        if unused:
            context.notes.append(
                f"{unused:,} rewards in the last row of an episode are not used, as no interval follows. If they were "
                "earned in the interval before, set reward_row='end'."
            )
    else:
        tau = np.append(np.diff(rows.t), 1.0)
        after = {name: np.append(values[1:], np.nan) for name, values in columns.items()}
        try:
            found = np.broadcast_to(np.asarray(reward(columns, after, tau), np.float64), tau.shape)
        except (TypeError, ValueError, LookupError) as error:
            raise KairodeError(f"the reward function failed on arrays of columns: {error!r}.") from error
    faulty = isinstance(reward, Expression) and reward.names & context.faults.columns
    if not (faulty or column in context.faults.columns):
        bad = ~np.isfinite(found) & ~rows.last
        context.faults.add_rows(bad, column, "the reward of the decision in this row is missing or not finite")
    return np.where(rows.last, 0.0, found)
