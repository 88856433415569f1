"""Strict tests: shapes are checked, ranks never promoted silently, warnings are errors."""

import atexit
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time of the tests is compilation: without optimisation and without the newer fusion emitters, XLA takes a
# quarter of it. With XLA_FLAGS set, even to nothing (`make slow`), programs are compiled as users have them.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="kairode-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

import kairode  # noqa: E402, F401, I001  sets what JAX needs before it starts
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from kairode._xla import allow_clearing, free_programs  # noqa: E402

# The tower: a whole number is a fine float.
jaxtyping.install_import_hook("kairode", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")
jax.config.update("jax_numpy_rank_promotion", "raise")
allow_clearing()


@pytest.fixture(autouse=True)
def _room_for_programs() -> Iterator[None]:
    """Hundreds of tests in one process compile more programs than it may hold."""
    yield
    free_programs(40_000)  # later than elsewhere: what is forgotten is compiled again


@pytest.fixture
def typed(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """The command as people type it: exit code, what was printed, and what went to the error stream."""
    from kairode import cli

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kairode", *words])
        monkeypatch.setenv("COLUMNS", "120")
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
