"""Turns in Python: `kairode.take_turns`, on any system with named actions."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kairode.agents.q_policy import QPolicy
from kairode.algorithms.dyna import DynaConfig, DynaRound, dyna_dqn, dyna_policy, read_dyna_state, run_dyna
from kairode.algorithms.fit import same_system
from kairode.data import Trajectory
from kairode.envs import make
from kairode.envs.core import Environment
from kairode.envs.zoo import own_fields
from kairode.errors import KairodeError, Stopped, unknown
from kairode.models.dynamics import DynamicsModel

ELSEWHERE = ("env", "dqn", "seed", "setting", "fields")
"""Fields of the config that are no options here."""


class DynaResult(NamedTuple):
    """What turns came to."""

    policy: QPolicy
    models: list[DynamicsModel]
    """The ensemble, fitted to all experience."""
    data: Trajectory
    """All real episodes, in the order in which they were collected."""
    rounds: list[dict[str, Any]]
    """Figures of each round, the one of random actions first."""


def train_dyna(
    env: Any,
    *,
    rounds: int = 5,
    seed: int = 0,
    folder: str | Path | None = None,
    callback: Callable[[DynaRound], None] = lambda found: None,
    **options: Any,
) -> DynaResult:
    """Collect with the current policy, refit, learn on: `kairode.take_turns(kairode.make("hiv")).policy`.

    Args:
        env: the system, one of ours (or its name) or your own, with named actions.
        rounds: how many, after a first fit to episodes under random actions.
        seed: fixes everything random.
        folder: keep checkpoints there, and go on from them; more rounds go on from where fewer ended.
        tell: called with a `Round` as each ends.
        options: first (real episodes under random actions), each (under the policy, in a round), model, fits (how many
            models), iterations, imagined (episodes in each round), and the other fields of
            `kairode.algorithms.dyna.Rounds`.
    """
    env = make(env) if isinstance(env, str) else env
    if folder == "":
        raise KairodeError("folder is empty: leave it out, or name one.")
    if not isinstance(env, Environment):
        raise KairodeError(f"a system in JAX is needed, such as kairode.make('hiv'), got a {type(env).__name__}.")
    known = [field.name for field in dataclasses.fields(DynaConfig) if field.name not in ELSEWHERE]
    for name in options:
        if name not in known:
            raise unknown("option", name, known, where="of kairode.take_turns")
    name = env.task.spec.name
    config = DynaConfig(env=name, rounds=rounds, seed=seed, dqn=dyna_dqn(name), fields=own_fields(env), **options)
    given = {"rounds": rounds, "seed": seed, **options, **({} if folder is None else {"folder": str(folder)})}
    call = f"kairode.take_turns({name}, {', '.join(f'{key}={value!r}' for key, value in given.items())})"
    with tempfile.TemporaryDirectory() if folder is None else contextlib.nullcontext(folder) as place:
        same_system(env.task.spec, Path(place))
        try:
            made = run_dyna(config, Path(place), callback, command=call, env=env)
        except Stopped:
            if folder is None:
                raise Stopped("interrupted; without a folder nothing is kept.") from None
            raise
        state = read_dyna_state(config, env, Path(place))
    return DynaResult(dyna_policy(config, env, state), state.members, state.data, made["figures"]["rounds"])
