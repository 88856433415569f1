"""Experience replay as pure functions on arrays: uniform, and prioritised (Schaul et al. 2016).

Items are any pytree. A full buffer overwrites its oldest items. Sampling from an empty one is undefined and not
checked.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from kairode.errors import KairodeError

GROUP = 16
"""Items of a row that are summed before searching it: short cumulative sums are fast, long ones slow."""


class Replay(eqx.Module):
    """Ring buffer of the latest items."""

    items: PyTree[Array]
    """Each leaf has the capacity as its first axis."""
    cursor: Int[Array, "*agents"]
    """Index of the next item."""
    size: Int[Array, "*agents"]
    """Number of items."""

    @property
    def capacity(self) -> int:
        return jax.tree.leaves(self.items)[0].shape[0]


def empty(capacity: int, example: PyTree[Array]) -> Replay:
    """An empty buffer for items like the example."""
    items = jax.tree.map(lambda x: jnp.zeros((capacity, *jnp.shape(x)), jnp.result_type(x)), example)
    zero = jnp.zeros((), jnp.int32)
    return Replay(items, zero, zero)


def add(replay: Replay, items: PyTree[Array]) -> Replay:
    """Add items (on their first axis), at most as many as the capacity."""
    where, count = _next_places(replay, items)
    return Replay(
        jax.tree.map(lambda old, new: old.at[where].set(new), replay.items, items),
        (replay.cursor + count) % replay.capacity,
        jnp.minimum(replay.size + count, replay.capacity),
    )


def sample(replay: Replay, count: int, *, key: Key[Array, ""]) -> PyTree[Array]:
    """Uniform draw with replacement."""
    where = jax.random.randint(key, (count,), 0, replay.size)
    return jax.tree.map(lambda x: x[where], replay.items)


def _next_places(replay: Replay, items: PyTree[Array]) -> tuple[Int[Array, " n"], int]:
    count = jax.tree.leaves(items)[0].shape[0]
    if count > replay.capacity:
        raise KairodeError(f"{count} items exceed the replay buffer's capacity of {replay.capacity}.")
    return (replay.cursor + jnp.arange(count)) % replay.capacity, count


class PrioritizedReplay(eqx.Module):
    """Replay buffer whose items are drawn with probability P(i) = p_i^alpha / sum_k p_k^alpha.

    The powers p^alpha are stored in rows, with the sum of each row: drawing searches the row sums, the groups of one
    row and one group, and a change updates the sums of the rows it touches. This is cheaper than a tree here, and
    rounding errors do not accumulate.
    """

    replay: Replay
    powers: Float[Array, "rows width"]
    """p_i^alpha; 0 for empty places."""
    sums: Float[Array, " rows"]
    highest: Float[Array, ""]
    """The largest power so far, which new items get, so that each is soon drawn."""
    alpha: float = eqx.field(static=True)
    beta: float = eqx.field(static=True)


class Draw(NamedTuple):
    """Items, their indices and importance weights."""

    items: Any
    where: Any
    weights: Any


def empty_prioritized(
    capacity: int, example: PyTree[Array], *, alpha: float = 0.6, beta: float = 0.4
) -> PrioritizedReplay:
    """An empty prioritised buffer for items like `example`."""
    width = max(GROUP, 2 ** round(math.log2(math.sqrt(capacity))))
    rows = math.ceil(capacity / width)
    return PrioritizedReplay(
        empty(capacity, example), jnp.zeros((rows, width)), jnp.zeros(rows), jnp.ones(()), alpha, beta
    )


def add_prioritized(memory: PrioritizedReplay, items: PyTree[Array]) -> PrioritizedReplay:
    """Add items (the oldest are overwritten), with the highest priority so far."""
    where, count = _next_places(memory.replay, items)
    renewed = eqx.tree_at(lambda m: m.replay, memory, add(memory.replay, items))
    if count == 1:
        return _set_power(renewed, where[0], memory.highest)
    return _set_powers(renewed, where, jnp.broadcast_to(memory.highest, (count,)))


def draw(memory: PrioritizedReplay, count: int, *, key: Key[Array, ""]) -> Draw:
    """Stratified draw by priority, one item from each of `count` equal parts of the total, with weights (N
    P(i))^-beta / max."""
    return draw_at(memory, jax.random.uniform(key, (count,)))


def draw_at(memory: PrioritizedReplay, uniform: Float[Array, " n"]) -> Draw:
    """`draw` with given random numbers from [0, 1), one for each item: loops generate those of many draws at once."""
    count = uniform.shape[0]
    totals = jnp.cumsum(memory.sums)
    total = totals[-1]
    parts = (jnp.arange(count) + uniform) / count
    mark = jnp.minimum(parts * total, _just_below(total))
    row = jnp.searchsorted(totals, mark, side="right", method="compare_all")
    groups = memory.powers[row].reshape(count, -1, GROUP)
    group, rest = jax.vmap(_pick)(groups.sum(2), mark - (totals[row] - memory.sums[row]))
    # Powers are read from here on, not from the table: after its next change that would be another one, a copy.
    powers = groups[jnp.arange(count), group]
    member, _ = jax.vmap(_pick)(powers, rest)
    where = row * memory.powers.shape[1] + group * GROUP + member
    probability = powers[jnp.arange(count), member] / total
    weights = (memory.replay.size * probability) ** -memory.beta
    return Draw(jax.tree.map(lambda x: x[where], memory.replay.items), where, weights / weights.max())


def _pick(powers: Float[Array, " k"], mark: Float[Array, ""]) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """Index of the power, laid end to end, in which the mark falls, and how far into it."""
    ends = jnp.cumsum(powers)
    mark = jnp.clip(mark, 0.0, _just_below(ends[-1]))
    index = (ends <= mark).sum()
    return index, mark - (ends[index] - powers[index])


def update_priorities(
    memory: PrioritizedReplay, where: Int[Array, " n"], errors: Float[Array, " n"], *, least: float = 1e-6
) -> PrioritizedReplay:
    """Set the priorities |error| + least of drawn items; a non-finite error gets the highest."""
    sane = jnp.isfinite(errors)
    powers = jnp.where(sane, (jnp.abs(errors) + least) ** memory.alpha, memory.highest)
    highest = jnp.maximum(memory.highest, powers.max())
    return eqx.tree_at(lambda m: m.highest, _set_powers(memory, where, powers), highest)


def _set_powers(memory: PrioritizedReplay, where: Int[Array, " n"], powers: Float[Array, " n"]) -> PrioritizedReplay:
    row, column = jnp.divmod(where, memory.powers.shape[1])
    table = memory.powers.at[row, column].set(powers)
    sums = memory.sums.at[row].set(table[row].sum(1))
    return eqx.tree_at(lambda m: (m.powers, m.sums), memory, (table, sums))


def _set_power(memory: PrioritizedReplay, where: Int[Array, ""], power: Float[Array, ""]) -> PrioritizedReplay:
    """Like `_set_powers` for one item: a whole row is replaced, which XLA does in place."""
    row, column = jnp.divmod(where, memory.powers.shape[1])
    powers = memory.powers[row]
    powers = jnp.where(jnp.arange(powers.shape[0]) == column, power, powers)
    table = jax.lax.dynamic_update_slice(memory.powers, powers[None], (row, jnp.zeros_like(row)))
    return eqx.tree_at(lambda m: (m.powers, m.sums), memory, (table, memory.sums.at[row].set(powers.sum())))


def _just_below(x: Array) -> Array:
    """The next smaller number: a mark must stay below the total, or it would point past the last item."""
    return x * (1 - 1e-6)
