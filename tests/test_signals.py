"""Ctrl-C and SIGTERM of the command, at any moment; memory that is not enough."""

import resource
import signal
import subprocess
import sys
import time

import pytest

from kairode._memory import LEAST_ADDRESS, check_process, out_of_memory
from kairode.errors import KairodeError

BUSY = """
import signal, sys, time
from kairode import _signals
_signals.limit = float(sys.argv[1])
_signals.prepare_signals()
try:
    if sys.argv[2] == "deaf":  # handlers that wait for their loop, which a long call keeps from running
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)
    print("ready", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.1) if sys.argv[2] == "sleeps" else sum(range(10**6))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["sleeps", "deaf"])
def test_a_process_ends_in_time(kind, number):
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, "0.5", kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    began = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 20
    if kind == "sleeps":
        assert out == "interrupted\n"
    else:
        assert process.returncode == 130
        assert err.startswith("interrupted: the computation did not stop within 0.5 s")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("seconds", [0.2, 0.6])
def test_a_command_that_is_interrupted_at_its_start_says_so(tmp_path, seconds, number):
    process = subprocess.Popen(
        [sys.executable, "-m", "kairode", "fit", "gridworld", "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(seconds)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if process.returncode == -number:  # a slow machine: Python itself had not started
        pytest.skip("Python had not started")
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in err


def test_an_address_space_that_is_too_small_is_refused(monkeypatch):
    check_process()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (LEAST_ADDRESS - 1, resource.RLIM_INFINITY))
    with pytest.raises(KairodeError, match=r"address space is 3.0 GiB, and 3.0 GiB are needed"):
        check_process()


def test_errors_that_mean_out_of_memory():
    assert out_of_memory(MemoryError())
    assert out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes"))
    assert not out_of_memory(RuntimeError("INVALID_ARGUMENT"))
