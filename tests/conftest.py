"""Strict tests: shapes are checked, ranks never promoted silently, warnings are errors."""

import atexit
import contextlib
import importlib.metadata
import io
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script: tests send it to processes
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Most of the time of the tests is compilation: without optimisation and without the newer fusion emitters, XLA takes a
# quarter of it. With XLA_FLAGS set, even to nothing (`make slow`), programs are compiled as users have them.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers and the processes that tests start share what is compiled
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="kairode-cache-")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{os.environ['XDG_CACHE_HOME']}/jax")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

import kairode  # noqa: F401, I001  sets what JAX needs before it starts
import filelock
import jax
import jaxtyping
import pytest
from kairode._xla import allow_clearing, free_programs

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


class MadeRun(NamedTuple):
    """A run that a command made, and what it printed. Tests that change the folder take a copy."""

    folder: Path
    words: tuple[str, ...]
    out: str
    err: str


@pytest.fixture(scope="session")
def run_once(tmp_path_factory) -> Callable[..., MadeRun]:
    """Run a command with --out once in a session, whatever the number of workers."""

    def run(name: str, *words: str) -> MadeRun:
        base = tmp_path_factory.getbasetemp()
        place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
        folder, said = place / name, [place / f"{name}.out", place / f"{name}.err"]
        words = (*words, "--out", str(folder))
        place.mkdir(exist_ok=True)
        with filelock.FileLock(place / f"{name}.lock"):
            if not said[1].exists():
                code, *printed = typed_words(*words)
                assert code == 0, printed[1]
                for file, text in zip(said, printed, strict=True):
                    file.write_text(text)
        return MadeRun(folder, words, *(file.read_text() for file in said))

    return run


def typed_words(*words: str) -> tuple[int, str, str]:
    """As the fixture `typed`, for fixtures of the whole session."""
    from kairode import cli

    code, streams = 0, (io.StringIO(), io.StringIO())
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(sys, "argv", ["kairode", *words])
        patch.setenv("COLUMNS", "120")
        stack.enter_context(contextlib.redirect_stdout(streams[0]))
        stack.enter_context(contextlib.redirect_stderr(streams[1]))
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, *(stream.getvalue() for stream in streams)


FIT = ("--episodes", "12", "--validation-episodes", "4", "--test-episodes", "4", "--iterations", "30")
FIT += ("--validate-every", "10", "--batch-size", "4", "--latent-size", "3", "--field-hidden", "4")
DQN = ("--learn.dqn.hidden", "16", "16", "--learn.dqn.batch-size", "16", "--learn.dqn.replay-capacity", "512")
RUN = ("run", "gridworld", "--model", "rnn", "--fit-iterations", "4", "--ensemble-size", "2", "--learn.episodes", "2")
RUN += (*DQN, "--set", "horizon=30")
MPC = ("run", "pendulum", "--model", "dt-rnn", "--agent.hidden", "8", "8", "--agent.warmup", "200")
MPC += ("--agent.batch-size", "16", "--plan.candidates", "12", "--plan.horizon", "3", "--plan.elites", "3")
MPC += ("--refit-every", "150", "--decisions", "360", "--max-fit-iterations", "20", "--test-episodes", "2")
MPC += (
    "--sizes.latent-size",
    "6",
    "--sizes.field-hidden",
    "6",
    "--sizes.encoder-hidden",
    "5",
    "--training.batch-size",
    "16",
)


@pytest.fixture(scope="session")
def fit_words() -> tuple[str, ...]:
    """A small fit."""
    return ("fit", "hiv", *FIT, "--set", "max_decisions=6")


@pytest.fixture(scope="session")
def fit_run(run_once, fit_words) -> MadeRun:
    """A small fit of two models."""
    return run_once("fit", *fit_words, "--seeds", "2")


@pytest.fixture(scope="session")
def gridworld_run(run_once) -> MadeRun:
    """A small `kairode run`: models of random actions, a policy, a model-free one, no decision times."""
    return run_once("run", *RUN, "--episodes", "12", "--model-free-episodes", "2", "--schedule-episodes", "0")


@pytest.fixture(scope="session")
def dyna_run(run_once) -> MadeRun:
    """A small `kairode run` with a Dyna round, decision times and a refit at them."""
    words = ("--rounds", "1", "--episodes", "10", "--episodes-per-round", "2", "--model-free-episodes", "0")
    chosen = ("--schedule-episodes", "2", "--schedule-refits", "1", "--candidates", "1", "3", "--prices", "0")
    return run_once("dyna", *RUN, *words, *chosen)


@pytest.fixture(scope="session")
def mpc_run(run_once) -> MadeRun:
    """A small `kairode run pendulum`."""
    return run_once("mpc", *MPC)
