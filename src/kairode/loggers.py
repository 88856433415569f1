"""Callbacks that write metrics elsewhere: TensorBoard."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kairode.callbacks import Callback, Progress
from kairode.errors import KairodeError


@contextlib.contextmanager
def tensorboard_callback(folder: Path | None) -> Iterator[Callback]:
    """A callback that writes every metric of every seed for TensorBoard; without a folder it does nothing."""
    if folder is None:
        yield lambda event: None
        return
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise KairodeError("--tensorboard needs tensorboardX: pip install 'kairode[tensorboard]'.") from error
    with contextlib.ExitStack() as stack:
        writers: list[Any] = []

        def write(event: Progress) -> None:
            if not writers:  # no files if the work never begins
                writers.append(stack.enter_context(contextlib.closing(SummaryWriter(str(folder / "tensorboard")))))
            for name, value in event.metrics.items():
                for seed, number in enumerate(value if isinstance(value, list) else [value]):
                    writers[0].add_scalar(f"{name}/seed{seed}", number, event.done)

        yield write
