"""Figures and table of how cost grows, from a record."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import kairode
from kairode.report.scaling import AXES, scaling_figures, scaling_table

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("scaling_benchmark", BENCHMARKS / "scaling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "scaling_benchmark", module)
    spec.loader.exec_module(module)
    return module


def test_growth_of_a_square(benchmark: ModuleType) -> None:
    costs = {n: {"milliseconds": 3.0 * n**2} for n in (2, 10, 70)}
    assert benchmark.exponent(costs, "milliseconds") == pytest.approx(2.0)


def test_synthetic_data_are_valid(benchmark: ModuleType, tmp_path: Path, monkeypatch) -> None:
    """As a file, written in parts, they are read back."""
    monkeypatch.setattr(benchmark, "PART", 3)
    path = benchmark.write_synthetic(tmp_path / "data.parquet", 7)
    found = kairode.read(path)
    assert found.observation.shape == (7, benchmark.SHORT + 1, 6)
    np.testing.assert_array_equal(found.observation[:3], benchmark.synthetic(3, benchmark.SHORT, 6).observation)


def test_figures_and_table(benchmark: ModuleType, tmp_path: Path) -> None:
    """Every quantity that the benchmark varies has a figure and a row."""
    assert scaling_figures(tmp_path) == {}
    assert scaling_table(tmp_path).rows == ()
    cost = {
        "milliseconds": {"10": 2.0, "100": 4.0},
        "megabytes": {"10": 1.0, "100": 10.0},
        "exponent": {"milliseconds": 0.301, "megabytes": 1.0},
    }
    figures = dict.fromkeys((*benchmark.SIZES, "streamed"), cost)
    figures["peak"] = {name: {"10": 300.0, "100": 310.0} for name in ("memory", "streamed")}
    record = {"format": 1, "kind": "bench", "config": {}, "figures": figures}
    (tmp_path / "bench-scaling.json").write_text(json.dumps(record))
    drawn = scaling_figures(tmp_path)
    assert set(drawn) == set(AXES) == set(benchmark.SIZES)
    time, memory = drawn["episodes"].axes
    assert len(time.lines) == 3  # in memory, streamed, linear growth
    assert len(memory.lines) == 5
    linear = time.lines[-1].get_xydata()
    np.testing.assert_allclose(np.asarray(linear), [[50.0, 2.0], [100.0, 4.0]])
    table = scaling_table(tmp_path)
    assert len(table.rows) == 6
