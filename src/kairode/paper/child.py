"""The process that runs a work item: it holds the item's lock for as long as it lives.

Run by its path, before any import of kairode: `python child.py PARENT CORES LOCK LOG PROGRAM WORDS..`. It reports on
its output whether it has the lock, waits for a line that lets it start, and becomes the program, whose output is the
log. If a worker is killed, its child would continue as an orphan beside its replacement; so Linux is asked to send
SIGTERM then, which lets it save a checkpoint.
"""

import ctypes
import os
import signal
import subprocess
import sys

import filelock

PR_SET_PDEATHSIG = 1
HELD, BUSY, GO = b"held\n", b"busy\n", b"go\n"


def run_child() -> None:
    """Follow the parent, take cores and lock, become the program."""
    parent, cores, lock, log, *words = sys.argv[1:]
    end_with_parent(int(parent))
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    if not filelock.lock_descriptor(file, blocking=False):
        os.write(1, BUSY)
        sys.exit(1)
    os.write(1, HELD)
    if os.read(0, len(GO)) != GO:  # the parent has ended, or the work is already done
        sys.exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if os.name == "nt":  # no exec on Windows: hold the lock until the program has ended
        sys.exit(subprocess.call(words))
    os.set_inheritable(file, True)
    os.execv(words[0], words)


def end_with_parent(parent: int) -> None:
    """Receive SIGTERM when the parent ends (Linux); at once if it has already ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.name != "nt" and os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    run_child()
