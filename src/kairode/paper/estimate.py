"""Estimated time of a work item on one core: from its published record, or from measured rates."""

from pathlib import Path
from typing import Any

from kairode.config.algorithms import MODEL_FREE, DynaConfig, FitConfig, MPCConfig
from kairode.paper.between import BetweenStudy
from kairode.paper.schedule_study import ScheduleStudy
from kairode.paper.studies import ORACLE, Study
from kairode.runs.record import read_record

START = 20.0
"""Seconds until a process has imported, collected and compiled what it needs (observed on two cores, no record)."""
DECISION = {True: 3.1e-3, False: 1.1e-3}
"""Seconds per decision of an agent on the real system (records results/visits/hiv-fixed-*.json, two cores) and in
imagination (results/bench-policy.json)."""
LENGTH = {"gridworld": 22.0, "acrobot": 120.0, "hiv": 210.0, "hiv-partial": 220.0}
"""Decisions per training episode, if there is no record (means of the published studies)."""
EVERY = 140.0
"""Decisions per HIV episode with chosen intervals (mean of the studies of visits)."""
ROUND = 1500.0 / 13
"""Seconds per Dyna round on HIV (results/policies/rounds-hiv-0.json, two cores)."""
FREE_DECISION = 6.6e-4
"""Seconds per decision of a robot without a model (results/control/*-free.json, two cores)."""
PLANNED = {"swimmer": 0.034, "hopper": 0.034, "half-cheetah": 0.25}
"""Seconds per planned decision with a Latent-ODE (results/bench-mpc.json: the loop of four hoppers; a half-cheetah's
plan takes 7.7 times a hopper's). Models without an ODE were not measured."""
ITERATION = {"gridworld": 3.2e-3, "acrobot": 12.3e-3, "hiv": 6.6e-3, "hiv-partial": 6.6e-3, "pendulum": 5.2e-3}
"""Seconds per iteration of fitting a Latent-ODE (results/bench-fit.json; gridworld's and
pendulum's observed, no record)."""
BETWEEN = 10.0
"""Seconds of evaluating a model between decisions (observed on two cores, no record)."""
LIGHTER = {"rnn": 0.15, "dt-rnn": 0.14, "decay-rnn": 0.15, "latent-rnn": 0.21}
"""Relative time of other models (the same record, HIV)."""


def seconds(config: Any, usual: Any, published: Path) -> float | None:
    """Estimated seconds of a config, by the published record of the usual one; None if unknown."""
    recorded = _recorded(usual, published)
    whole = _by_rate(usual) if recorded is None else recorded
    return None if whole is None else START + max(0.0, whole - START) * amount(config) / amount(usual)


def amount(config: Any) -> float:
    """The quantity that the time of a config is proportional to."""
    if isinstance(config, FitConfig):
        return float(config.training.iterations * config.seeds)
    if isinstance(config, Study):
        return float(config.episodes * config.seeds)
    if isinstance(config, ScheduleStudy):
        return float(max(1, config.episodes) * config.seeds * len(config.labels))
    if isinstance(config, BetweenStudy):
        return float(config.seeds * config.test_episodes)
    if isinstance(config, DynaConfig):
        return float((config.rounds + 2) * (config.imagined_episodes + config.ensemble_size * config.fit_iterations))
    assert isinstance(config, MPCConfig)
    plans = 1.0 if config.model == MODEL_FREE else config.plan.candidates / 1000
    return float(config.decisions * config.seeds) * max(0.1, plans)


def _recorded(usual: Any, published: Path) -> float | None:
    """From the record: its seconds on a CPU, otherwise its decisions at the measured rate."""
    try:
        made = read_record(published)
        if isinstance(usual, FitConfig):  # one per core, several in a record
            return float(made["seconds"]) / len(made["figures"]["test_error"])
        if made["machine"]["device"] == "cpu":
            return float(made["seconds"])
        if isinstance(usual, Study):
            cells = [(name, cell) for name, row in made["figures"]["cells"].items() for cell in row.values()]
            return sum(sum(cell["training_decisions"]) * DECISION[name == ORACLE] for name, cell in cells)
        if isinstance(usual, ScheduleStudy):
            points = made["figures"]["points"].values()
            return sum(sum(point["training_decisions"]) for point in points) * DECISION[True]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _by_rate(usual: Any) -> float | None:
    if isinstance(usual, FitConfig) and usual.source in ITERATION:
        longer = 4.0 if usual.source.startswith("hiv") and not usual.env_fields.get("max_decisions") else 1.0
        each = longer * LIGHTER.get(usual.model, 1.0) * ITERATION[usual.source]
        return START + each * usual.training.iterations
    if isinstance(usual, Study):
        length = min(LENGTH[usual.env], usual.rollout_length or LENGTH[usual.env])
        each = usual.episodes * usual.seeds * len(usual.schedules) * length
        return sum(each * DECISION[model == ORACLE] for model in usual.models)
    if isinstance(usual, ScheduleStudy) and usual.episodes:
        lengths = [1000.0 / (tau or 4.0) for tau in usual.intervals] or [EVERY] * len(usual.labels)
        return usual.episodes * usual.seeds * sum(lengths) * DECISION[True]
    if isinstance(usual, BetweenStudy):
        return START + BETWEEN * usual.seeds
    if isinstance(usual, DynaConfig):
        return ROUND * (usual.rounds + 1)
    if isinstance(usual, MPCConfig) and usual.model == MODEL_FREE:
        return FREE_DECISION * usual.seeds * usual.decisions
    if isinstance(usual, MPCConfig) and "ode" in usual.model and usual.env in PLANNED:
        return PLANNED[usual.env] * usual.seeds * usual.decisions
    return None
