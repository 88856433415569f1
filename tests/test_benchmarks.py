"""The plain peers that speed is measured against do the same work: their equations are ours."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kairode.envs import acrobot, hiv

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def peers(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("envs_benchmark", FOLDER / "envs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "envs_benchmark", module)
    spec.loader.exec_module(module)
    return module


def test_acrobots_equations(peers: ModuleType) -> None:
    states = np.random.default_rng(0).uniform(-3, 3, (4, 50))
    ours = jax.vmap(lambda state: acrobot.acrobot_field(tuple(state), jnp.asarray(-1.0)))(jnp.asarray(states.T))
    theirs = peers.NumpyAcrobot.field(states, np.full(50, -1.0))
    np.testing.assert_allclose(np.stack(ours), theirs, rtol=1e-3, atol=1e-4)


def test_hivs_equations(peers: ModuleType) -> None:
    for e1, e2 in hiv.TREATMENTS.values():
        state = np.array(hiv.HEALTHY)
        theirs = peers.ScipyHIV.field(state, 0.0, e1, e2)
        ours = hiv.hiv_field(tuple(jnp.asarray(state)), jnp.asarray(e1), jnp.asarray(e2))
        scale = np.abs(state) + 1
        np.testing.assert_allclose(np.array(ours) / scale, np.array(theirs) / scale, atol=1e-4)


@pytest.mark.parametrize("name", ["NumpyGridworld", "NumpyAcrobot", "ScipyHIV"])
def test_peers_run_through_episodes(peers: ModuleType, name: str) -> None:
    peer = getattr(peers, name)(3)
    for _ in range(30):
        assert np.isfinite(peer.step()).all()
    assert peer.time.shape == (3,)
