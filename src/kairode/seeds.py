"""Every random stream of a run, from its seed: one function of (seed, purpose, index).

A derived seed starts a stream of its own (`jax.random.key`, `numpy.random.default_rng`); within a stream episodes,
iterations and decisions are told apart by folding in their number. Streams of different purposes meet only where the
same derived seed is used in the same way: that matters for episodes of the real system, whose seeds lie in separate
ranges (`EPISODES`, for seeds 0 to 98):

| purpose | derived seed | range |
|---|---|---|
| fit data (training, validation, test) | 3 seed + index | 0 .. 296 |
| Dyna episodes | 10,000 (seed + 1) + round | 10,000 .. 999,999 |
| validation of a policy | 500,009 | |
| test of a policy | 1,000,003 + seed | from 1,000,003 |

Two of today's choices are not quite separate, and are kept so that results stay the same: the validation episodes
are those of Dyna round 9 of seed 49 (500,009), and the trials of a schedule have the number of Dyna round 1 of seed 69
(700,001; they are model episodes, drawn otherwise).
"""

import enum
from collections.abc import Callable

import numpy as np


class Purpose(enum.Enum):
    """What a stream of random numbers is for."""

    FIT_DATA = "fit data"
    """Real episodes that a model is fitted to; index 0 for training, 1 for validation, 2 for the test."""
    FILE_SPLIT = "file split"
    """Which episodes of a file are for training, validation and test."""
    MODEL = "model"
    """Weights, batches and noise of the models of a fit; index by model."""
    RUN_MODEL = "run model"
    """First of the models of `kairode run` without Dyna rounds, 100 apart so that neighbouring seeds share none."""
    DYNA_EPISODES = "Dyna episodes"
    """Real episodes of a Dyna round; index by round. Never one of the test's."""
    DYNA_MODEL = "Dyna model"
    """Models of a Dyna round; index by round times ensemble size plus member."""
    DYNA_AGENT = "Dyna agent"
    """Exploration and replay in a Dyna round; index by round."""
    DYNA_NETWORK = "Dyna network"
    """Initial weights of the value network."""
    DYNA_STARTS = "Dyna starts"
    """Observations that model episodes of a Dyna round start from; index by round. The same for every seed."""
    AGENT = "agent"
    """Exploration, replay and weights of an agent; index by agent."""
    VALIDATION = "validation"
    """Real episodes that a policy is chosen by. The same for every seed."""
    SCHEDULE_TRIAL = "schedule trial"
    """Model episodes that a schedule's price is chosen by. The same for every seed."""
    TEST = "test"
    """Real episodes that results are reported on."""
    TUNING_TEST = "tuning test"
    """Those of agents that settings are chosen by, given the first agent's number."""
    MPC_RETEST = "MPC retest"
    """Argument of `evaluate` for a controlled run, so that its episodes are not those of the test at its end."""
    MPC_EPISODE = "MPC episode"
    """Start of an episode of MPC control; index by episode."""
    HOST_EPISODE = "host episode"
    """Start of an episode in which an agent learns on a simulation; index by episode."""
    OUTCOMES = "outcomes"
    """Networks of rewards and terminations; index by member."""
    REFIT_BATCHES = "refit batches"
    """Order of batches in the refits of MPC control; index by refit."""


_FORMULAS: dict[Purpose, Callable[[int, int], int]] = {
    Purpose.FIT_DATA: lambda seed, index: 3 * seed + index,
    Purpose.FILE_SPLIT: lambda seed, index: seed,
    Purpose.MODEL: lambda seed, index: seed + index,
    Purpose.RUN_MODEL: lambda seed, index: 100 * seed + index,
    # From seed 99 on the rounds would reach the test's range.
    Purpose.DYNA_EPISODES: lambda seed, index: 10_000 * (seed + 1) + index + (100_000_000 if seed >= 99 else 0),
    Purpose.DYNA_MODEL: lambda seed, index: 1000 * seed + index,
    Purpose.DYNA_AGENT: lambda seed, index: 1000 * seed + index,
    Purpose.DYNA_NETWORK: lambda seed, index: seed,
    Purpose.DYNA_STARTS: lambda seed, index: index,
    Purpose.AGENT: lambda seed, index: seed + index,
    Purpose.VALIDATION: lambda seed, index: 500_009,
    Purpose.SCHEDULE_TRIAL: lambda seed, index: 700_001,
    Purpose.TEST: lambda seed, index: 1_000_003 + seed,
    Purpose.TUNING_TEST: lambda seed, index: 1_000_003 + 1000 * seed,
    Purpose.MPC_RETEST: lambda seed, index: 100_000 + seed,
    Purpose.MPC_EPISODE: lambda seed, index: int(np.random.SeedSequence([seed, index]).generate_state(1)[0]),
    Purpose.HOST_EPISODE: lambda seed, index: int(np.random.SeedSequence([seed, index, 2]).generate_state(1)[0]),
    Purpose.OUTCOMES: lambda seed, index: 1000 * seed + index,
    Purpose.REFIT_BATCHES: lambda seed, index: seed + 7919 * index,
}

EPISODES = (Purpose.FIT_DATA, Purpose.DYNA_EPISODES, Purpose.VALIDATION, Purpose.TEST)
"""Purposes whose derived seeds make episodes of the real system in the same way."""


def derive(seed: int, purpose: Purpose, index: int = 0) -> int:
    """The seed of one stream of a run."""
    return _FORMULAS[purpose](seed, index)


def derive_many(seed: int, purpose: Purpose, count: int, first: int = 0) -> list[int]:
    """Those of several indices in a row."""
    return [derive(seed, purpose, index) for index in range(first, first + count)]
