"""Who is told what goes on while a run goes on."""

import dataclasses
from collections.abc import Callable

from kairode.agents.train_loop import TrainProgress
from kairode.callbacks import Callback, Progress
from kairode.training.loop import FitProgress


@dataclasses.dataclass(frozen=True)
class Watch:
    """Every part may be ignored."""

    fitting: Callable[[FitProgress], None] = lambda report: None
    collecting: Callable[[int], None] | None = None
    practice: Callable[[str, TrainProgress], None] = lambda what, report: None
    said: Callable[[str], None] = lambda sentence: None
    """Called with one sentence as a stage ends."""
    callback: Callback = lambda event: None

    def stage(self, name: str, total: int | None = None) -> None:
        """Say that a stage begins."""
        self.callback(Progress(name, 0, total, {}, 0.0))
