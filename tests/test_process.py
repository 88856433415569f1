"""What the command does before JAX is imported, and what a library leaves alone."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import kairode
from kairode import _process, _xla

LIGHT = """
import contextlib, io, sys
from kairode.cli import COMMANDS, DEPENDENT, main
environments = ("gridworld", "acrobot", "hiv", "hiv-partial", "pendulum", "swimmer", "hopper", "half-cheetah")
dependent = ([name, env, "--help"] for name in DEPENDENT for env in environments)
for words in (["--help"], ["--version"], *([name, "--help"] for name in COMMANDS), *dependent):
    sys.argv = ["kairode", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
print(*sorted({"jax", "numpy", "scipy", "matplotlib", "gymnasium"} & sys.modules.keys()))
"""


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERS"))}
    env = {**kept, "JAX_PLATFORMS": "cpu", **environment}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=True)


def test_help_imports_nothing_heavy() -> None:
    assert run("-c", LIGHT).stdout == "\n"


def test_gymnasium_is_not_imported_and_knows_the_ids_all_the_same() -> None:
    code = """
import sys, kairode
assert not {"jax", "numpy", "gymnasium"} & sys.modules.keys()
import gymnasium
assert "kairode/HIV-v0" in gymnasium.registry
assert not any(type(finder).__module__.startswith("kairode") for finder in sys.meta_path)
"""
    run("-c", code)
    run("-c", "import gymnasium, kairode; assert 'kairode/HIV-v0' in gymnasium.registry")


@pytest.mark.slow
def test_a_second_process_compiles_nothing_that_the_first_did(tmp_path) -> None:
    def programs() -> set[str]:
        return {path.name for path in (tmp_path / "cache" / "kairode").rglob("*-cache")}

    words = ("-m", "kairode", "collect", "gridworld", "--episodes", "2", "--set", "horizon=20", "--out")
    run(*words, str(tmp_path / "first.parquet"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    first = programs()
    assert first
    run(*words, str(tmp_path / "second.parquet"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert programs() == first  # what is compiled is written, however small


def test_settings_of_the_user_stand(monkeypatch, tmp_path) -> None:
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_CPP_MIN_LOG_LEVEL")
    for name in names:
        monkeypatch.setenv(name, "2")
    _process.keep_compiled_programs()
    _process.silence()
    assert [os.environ[name] for name in names] == ["2", "2", "2"]
    for name in names:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _process.keep_compiled_programs()
    assert Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).is_relative_to(tmp_path / "kairode")
    for name in names:
        monkeypatch.delenv(name, raising=False)


def test_only_the_command_allows_caches_to_be_cleared() -> None:
    root = Path(kairode.__file__).parent
    texts = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}
    assert [name for name, text in texts.items() if "clear_caches" in text] == ["_xla.py"]
    assert {name for name, text in texts.items() if "allow_clearing" in text} == {"_xla.py", "_process.py"}
    assert [name for name, text in texts.items() if "kairode._process" in text] == ["cli/__init__.py"]


@pytest.mark.slow
def test_a_library_clears_no_caches(monkeypatch) -> None:
    @jax.jit
    def mine(x: jax.Array) -> jax.Array:
        return x + 1

    mine(jnp.ones(3))
    monkeypatch.setattr(_xla, "_allowed", False)
    monkeypatch.setattr(_xla, "memory_maps", lambda: 10**9)
    env = kairode.make("gridworld", horizon=20)
    data = kairode.collect(env, episodes=10)
    model = kairode.fit("rnn", data, iterations=2)
    kairode.evaluate(env, kairode.learn(model, env, episodes=1), episodes=2)
    _xla.free_programs(0)
    assert mine._cache_size() == 1
    monkeypatch.setattr(_xla, "_allowed", True)
    _xla.free_programs(10**10)
    assert mine._cache_size() == 1
    _xla.free_programs(0)
    assert mine._cache_size() == 0
