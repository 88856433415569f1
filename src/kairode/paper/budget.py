"""The amount of an experiment: as in the paper, or a twentieth of it as a smoke test."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from kairode.config.algorithms import DynaConfig, FitConfig, MPCConfig
from kairode.errors import KairodeError, unknown
from kairode.paper.between import BetweenStudy
from kairode.paper.schedule_study import ScheduleStudy
from kairode.paper.studies import Study

BUDGETS = ("quick", "paper")
SHARE = 20
"""Factor by which the quick budget is smaller."""
MOST = {Study: 2, ScheduleStudy: 2, BetweenStudy: 2, MPCConfig: 1}
"""Seeds of the quick budget, unless others are requested."""
EPISODE = 1000
"""Decisions of the robots' longest episodes, so that one ends in each part of a quick curve."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Scope:
    """How much is run, and where."""

    results: Path = Path("results")
    """Folder of the records."""
    runs: Path = Path("runs")
    """Folder of the runs."""
    seeds: int | None = None
    """Number of seeds of everything; None for the default of each."""
    budget: str = "paper"
    published: Path = Path("results")
    """Folder of the records used to estimate times."""

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise unknown("budget", self.budget, BUDGETS)
        if self.seeds is not None and not 1 <= self.seeds < 1000:
            raise KairodeError(f"--seeds must be an integer from 1 to 999, got {self.seeds}.")

    @classmethod
    def at(cls, results: Path | None, runs: Path, seeds: int | None = None, budget: str = "paper") -> "Scope":
        """A scope with the default folders of a budget, unless the folder of the records is given."""
        if budget == "quick" and results is None:
            return cls(runs / "quick" / "results", runs / "quick", seeds, budget)
        return cls(results or Path("results"), runs, seeds, budget)

    def of(self, config: T) -> T:
        """A config with the requested seeds and budget."""
        if not isinstance(config, Study | ScheduleStudy | BetweenStudy | MPCConfig):
            return quick(config) if self.budget == "quick" else config
        seeds = self.seeds or (min(config.seeds, MOST[type(config)]) if self.budget == "quick" else config.seeds)
        if getattr(config, "ensemble", False):
            seeds = max(2, seeds)  # each is validated in a model it is not trained in
        chosen = dataclasses.replace(config, seeds=seeds)
        return quick(chosen) if self.budget == "quick" else chosen

    def count(self, usual: int = 5) -> int:
        """Number of seeds, for work with one run per seed."""
        return self.seeds or (min(usual, 2) if self.budget == "quick" else usual)

    def folder(self, kind: str, name: str, usual: Study | ScheduleStudy | BetweenStudy | MPCConfig) -> Path:
        """Folder of a run with several seeds; another number of seeds has another folder."""
        seeds, own = self.of(usual).seeds, dataclasses.replace(self, seeds=None).of(usual).seeds
        return self.runs / (kind if seeds == own else f"{kind}-{seeds}-seeds") / name

    def words(self) -> list[str]:
        return [
            *("--results", str(self.results), "--runs", str(self.runs), "--budget", self.budget),
            *([] if self.seeds is None else ["--seeds", str(self.seeds)]),
        ]


def quick(config: T) -> T:
    """A twentieth of the work: a smoke test, not a reproduction."""
    if isinstance(config, FitConfig):
        # The same training episodes, because studies load their data from there.
        training = _parts(config.training, "iterations", "validate_every")
        return _parts(config, "validation_episodes", "test_episodes", training=training)
    if isinstance(config, Study):
        return _parts(config, "episodes", "validate_every", "validation_episodes", "test_episodes")
    if isinstance(config, ScheduleStudy):
        fewer = {"prices": config.prices[:2], "budgets": config.budgets[:1]}
        return _parts(config, "episodes", "validate_every", "test_episodes", **fewer)
    if isinstance(config, BetweenStudy):
        return _parts(config, "test_episodes", fit=quick(config.fit))
    if isinstance(config, DynaConfig):
        fixed = {"initial_episodes": 10, "episodes_per_round": 2, "rounds": 2, "ensemble_size": 2}
        return _parts(config, "imagined_episodes", "fit_iterations", **fixed)
    assert isinstance(config, MPCConfig)
    agent, plan = dataclasses.replace(config.agent, warmup=EPISODE), _parts(config.plan, "candidates", "elites")
    others = {"refit_every": EPISODE, "agent": agent, "plan": plan, "test_episodes": 2}
    return _parts(config, "decisions", "max_fit_iterations", **others)


def _parts(config: Any, *names: str, **others: Any) -> Any:
    """A config with a twentieth of these numbers (0 stays 0), and other values."""
    numbers = {name: getattr(config, name) for name in names}
    parts = {name: max(2, round(number / SHARE)) if number else 0 for name, number in numbers.items()}
    return dataclasses.replace(config, **parts, **others)
