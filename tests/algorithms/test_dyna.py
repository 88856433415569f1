"""Turns in Python, on a system that no name makes."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.envs.gridworld import WindyGridworld
from kairode.errors import KairodeError

SMALL = {"first": 10, "each": 2, "fits": 2, "iterations": 4, "imagined": 6, "branch": 3}


class Mine(WindyGridworld):
    """No name makes it."""

    @property
    def task(self):
        task = super().task
        return dataclasses.replace(task, spec=dataclasses.replace(task.spec, name="mine"))


@pytest.mark.slow
def test_turns_on_a_system_of_ones_own(tmp_path) -> None:
    env = Mine(noise=0.0, horizon=20.0)
    told = []
    turns = kairode.train_dyna(env, rounds=1, folder=tmp_path / "turns", callback=told.append, **SMALL)
    assert [found["real_episodes"] for found in turns.rounds] == [found.real_episodes for found in told] == [10, 12]
    assert len(turns.data) == 12
    assert dict(turns.data.spec.settings)["horizon"] == 20
    assert len(turns.models) == 2
    assert np.isfinite(kairode.evaluate(env, turns.policy, episodes=2).score)

    more = kairode.train_dyna(env, rounds=2, folder=tmp_path / "turns", **SMALL)
    assert more.rounds[:2] == turns.rounds, "it went on"
    with pytest.raises(KairodeError, match=r"another system .settings.noise: 0.0 there, 0.9 here"):
        kairode.train_dyna(Mine(noise=0.9, horizon=20.0), rounds=2, folder=tmp_path / "turns", **SMALL)
    fresh = kairode.train_dyna(env, rounds=2, **SMALL)
    assert fresh.rounds == more.rounds
    seen = jnp.asarray(turns.data.observation[:4, 0])
    assert (np.asarray(fresh.policy.q(seen)) == np.asarray(more.policy.q(seen))).all()


def test_what_it_refuses(tmp_path) -> None:
    with pytest.raises(KairodeError, match=r"unknown option 'frist'.*Did you mean 'first'"):
        kairode.train_dyna("gridworld", frist=10)
    with pytest.raises(KairodeError, match="JAX environment"):
        kairode.train_dyna(kairode.make("hopper"))
    for wrong in ({"model": "latnt-ode"}, {"iterations": 1}, {"branch": 0}, {"explore": 3.0}, {"margin": -1.0}):
        with pytest.raises(KairodeError):
            kairode.train_dyna("gridworld", folder=tmp_path / "wrong", **wrong)
    assert not (tmp_path / "wrong").exists()
    with pytest.raises(KairodeError, match="controls"):
        kairode.train_dyna("pendulum")
