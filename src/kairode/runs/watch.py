"""Who is told what goes on while a run goes on."""

import dataclasses
from collections.abc import Callable

from kairode.agents.train_loop import PracticeReport
from kairode.training.loop import Report


@dataclasses.dataclass(frozen=True)
class Watch:
    """Every part may be ignored."""

    fitting: Callable[[Report], None] = lambda report: None
    collecting: Callable[[int], None] | None = None
    practice: Callable[[str, PracticeReport], None] = lambda what, report: None
    said: Callable[[str], None] = lambda sentence: None
    """Called with one sentence as a stage ends."""
