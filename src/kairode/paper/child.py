"""The first words of a process that does a piece of work: it keeps to its cores and ends with whoever started it.

Run by its path, before anything of ours is imported: `python child.py PARENT CORES PROGRAM WORDS..`. Where a worker is
killed, what it started would run on as an orphan beside whoever does the work anew; so the system is asked to end it
softly then, which lets it save where it is.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def run_child() -> None:
    """Ask for that signal, take the cores, become the program."""
    parent, cores, *words = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if cores:
            os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    if os.getppid() != int(parent):  # it ended before it could be told apart from any other
        sys.exit(1)
    os.execv(words[0], words)


if __name__ == "__main__":
    run_child()
