"""The plain peers that speed is measured against do the same work: their equations are ours."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.csv as csv
import pytest

import kairode
from kairode.data.table import row_width
from kairode.envs import acrobot, hiv

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load_benchmark(monkeypatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"{name}_benchmark", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, f"{name}_benchmark", module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def peers(load_benchmark) -> ModuleType:
    return load_benchmark("envs")


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


def test_readers_of_tables_are_measured(load_benchmark, tmp_path: Path) -> None:
    tables = load_benchmark("tables")
    lengths = np.array([3, 8, 40])
    path = tmp_path / "visits.csv"
    table = tables.synthetic(lengths)
    csv.write_csv(table, path)
    np.testing.assert_array_equal(kairode.load_table(path).length, lengths)
    assert table["x0"].null_count + table["x1"].null_count > 0
    assert row_width(kairode.load_table(path).spec) == tables.WIDTH
    found = tables.in_process("import pyarrow.csv", f"table = pyarrow.csv.read_csv({str(path)!r})\nmore = {{}}")
    assert found["seconds"] > 0
    assert found["peak"] > 0
    assert len(tables.lengths_of(5)) == tables.SHORT + 5
