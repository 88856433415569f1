"""Ctrl-C and SIGTERM of the command: a sentence at any moment, and an end within seconds.

Python handles a signal when the main thread runs Python again, so a long compiled call would delay it. A second thread
is told of the signal at once, and ends the process if the main thread has not done so in time: files are written
atomically and computations have checkpoints, so nothing is lost but the work since the last one.

A library leaves signals to the process that imports it, so only the command uses this module.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

CODE = 130
"""Exit code of an interrupted command."""
INTERRUPTED = "interrupted: run the same command again."
LATE = (
    "interrupted: the computation did not stop within {:g} s and was ended; what it saved is kept. Run the same "
    "command again to resume."
)
limit = 7.0
"""Seconds from a signal to the end of the process."""
IMPORT = "<frozen importlib._bootstrap>"
"""Name of the file of Python's import system."""
REPEAT = 1.0
"""Seconds after which an interrupt that had no effect is raised again."""
MOST_SAVING = 60.0
"""The same while a checkpoint is being saved."""
_received, _saving = threading.Event(), threading.Event()


def prepare_signals() -> None:
    """Let SIGTERM interrupt like Ctrl-C, and bound the time that both take."""
    if os.name != "posix":
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # of a command in the background
            signal.signal(number, _interrupt)
    sys.unraisablehook = _ignore_interrupts
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, writer), name="signals", daemon=True).start()


def ignore_signals() -> None:
    """When all is done: Python restores the system's handlers as it ends, which would make a success look killed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def received() -> bool:
    """Whether the process was asked to stop."""
    return _received.is_set()


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """While a checkpoint is saved in this block, the process is given more time to end."""
    _saving.set()
    try:
        yield
    finally:
        _saving.clear()


def end(message: str) -> NoReturn:
    """Print a message and end the process without waiting for its threads."""
    with contextlib.suppress(OSError, ValueError):
        os.write(2, f"{message}\n".encode())
    os._exit(CODE)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.set()
    while frame is not None:
        if frame.f_code.co_filename == IMPORT:  # libraries print or lose what is raised while they are imported
            end(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _watch(reader: socket.socket, writer: socket.socket) -> None:
    """Wait for a signal; `writer` is kept open here."""
    while True:
        numbers = reader.recv(64)
        if {signal.SIGINT, signal.SIGTERM} & set(numbers):
            _received.set()
            break
    began = time.monotonic()
    deadline = began + limit
    while time.monotonic() < deadline:
        time.sleep(REPEAT)
        if _saving.is_set():  # once it is saved, the process has the usual time again
            deadline = min(time.monotonic() + limit, began + max(limit, MOST_SAVING))
        # An interrupt that was raised in a callback of another library is lost, so it is raised again; a computation
        # that has its own handler stops by itself.
        if signal.getsignal(signal.SIGTERM) is _interrupt and not _saving.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    end(LATE.format(limit))


def _ignore_interrupts(lost: "sys.UnraisableHookArgs") -> None:
    """Say nothing of an interrupt that was raised where nobody can catch it."""
    if not (lost.exc_type is KeyboardInterrupt and received()):
        sys.__unraisablehook__(lost)
