"""Settings of loading a table: which columns are what."""

import dataclasses
from pathlib import Path
from typing import Literal

from kairode.errors import KairodeError

CSV = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
PACKED = (".gz", ".bz2", ".zst")
"""Endings of compressed CSV files."""
TIME_UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
"""Units that dates and timestamps are converted to, in seconds."""


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """What the columns of a table mean; for files that Kairode did not write."""

    episode: str = "episode"
    """Column that identifies the episode (patient, machine, run)."""
    time: str = "t"
    """Column of times: numbers, dates or timestamps."""
    time_unit: str | None = None
    """Unit of time. Numbers are taken to be in it; dates and timestamps are converted to it (second, minute, hour, day,
    week; day by default)."""
    action: tuple[str, ...] = ("action",)
    """Column of the action, a name or a number; the combinations of several columns become the actions."""
    controls: tuple[str, ...] = ()
    """Columns of continuous actions, in place of --action."""
    reward: str | None = None
    """Column of the reward, or an expression of columns such as "1000 * E - 0.1 * V": names mean values at the end of
    the interval, `before(E)` the value at the decision, tau the interval. By default the column reward; where there is
    none, rewards are 0. On the command, write --reward="-V" if it begins with a minus sign."""
    reward_row: Literal["decision", "end"] = "decision"
    """Whether the reward column's value stands in the row of the decision that earned it or in the row that ends its
    interval."""
    reward_missing: Literal["refuse", "carry"] = "refuse"
    """Where a reward expression needs a measurement that was not taken: refuse the table, or compute the reward from
    the last value measured (the variable's median before the first). Where models compute the reward, they use their
    own predictions."""
    terminal: str | None = None
    """Column that is true in the last row of an episode that terminated (death, failure). By default the column
    terminated; episodes without it are truncated: the record ended."""
    static: tuple[str, ...] = ()
    """Columns that are constant within an episode, such as age."""
    categorical: tuple[str, ...] = ()
    """Columns of categories, such as sex, encoded as one variable per category (one for two categories)."""
    ignore: tuple[str, ...] = ()
    """Columns to leave out. All others with numbers are observations."""
    missing: Literal["keep", "carry", "refuse"] = "keep"
    """Missing measurements: keep them as missing (models are shown their own predictions there), carry the last value
    forward (the variable's median before the first), or refuse the table."""
    same_time: Literal["refuse", "merge"] = "refuse"
    """Rows of an episode with the same time: refuse the table, or merge them (means of numbers, sums of rewards, the
    last category and action)."""
    discount: float = 1.0
    """Discount factor per unit of time."""

    def __post_init__(self) -> None:
        for name, values in (("missing", ("keep", "carry", "refuse")), ("same_time", ("refuse", "merge"))):
            _one_of(name, getattr(self, name), values)
        _one_of("reward_row", self.reward_row, ("decision", "end"))
        _one_of("reward_missing", self.reward_missing, ("refuse", "carry"))
        for name in ("episode", "time", "terminal", "reward", "time_unit"):
            value = getattr(self, name)
            if not (isinstance(value, str) or (value is None and name not in ("episode", "time"))):
                what = "a word such as day" if name == "time_unit" else "the name of a column"
                raise KairodeError(f"{name} must be {what}, got {value!r}.")
        if self.reward is not None:
            object.__setattr__(self, "reward", self.reward.strip())
        if self.time_unit is not None and self.time_unit.removesuffix("s") in TIME_UNITS:
            object.__setattr__(self, "time_unit", self.time_unit.removesuffix("s"))
        if not (isinstance(self.discount, int | float) and 0 <= self.discount <= 1):
            raise KairodeError(f"discount must be a number in [0, 1], got {self.discount!r}.")
        if not (self.action or self.controls):
            raise KairodeError("action needs at least one column.")
        if self.controls and self.action not in ((), ("action",)):
            raise KairodeError("give either action or controls: discrete and continuous actions cannot be combined.")
        roles: dict[str, str] = {}
        for role, columns in self.roles.items():
            for column in columns:
                if roles.setdefault(column, role) != role and {role, roles[column]} != {"static", "categorical"}:
                    raise KairodeError(f"the column '{column}' cannot be {roles[column]} and {role}: choose one.")
        if self.reward in roles:
            raise KairodeError(f"the column '{self.reward}' cannot be {roles[self.reward]} and reward: choose one.")

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """Columns by what they are."""
        single = {"episode": (self.episode,), "time": (self.time,)}
        actions = {"controls": self.controls} if self.controls else {"action": self.action}
        end = {"terminal": (self.terminal,)} if self.terminal else {}
        more = {"static": self.static, "categorical": self.categorical, "ignore": self.ignore}
        return {**single, **actions, **end, **more}


def unless_default(config: TableConfig | None) -> TableConfig | None:
    """None in place of the default names and settings, with which a file that Kairode wrote describes itself."""
    return None if config == TableConfig() else config


def ending(path: str | Path) -> str:
    """The ending of a file's name, without that of its compression."""
    path = Path(path)
    return (path.with_suffix("") if path.suffix.lower() in PACKED else path).suffix.lower()


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise KairodeError(f"{name} must be {', '.join(known[:-1])} or {known[-1]}, got '{value}'.")
