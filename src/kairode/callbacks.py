"""Progress of long computations, reported to a callback.

Long-running functions take `callback=` and call it with a `Progress`. Stages that count their work, and their metrics:

| stage | counts | metrics |
|---|---|---|
| collecting .. episodes | episodes | |
| fitting | iterations | terms of the objective (`total`, `state`, ..), `skipped`; `validation` when there was one |
| learning .. | episodes of the slowest agent | `return`; `real_return`, `validation_return` after a validation |
| random decisions | decisions (MPC) | |
| ENV, MODEL | decisions (MPC) | `return`, `ms_per_decision`, `model_error` |
| evaluating N policies on M episodes | policies | |
| dyna | rounds | |

"learning" may go on: "in imagination", "without a model", "decision times". Other stages say only what is done:
"checking the solver", "fitting the model" (MPC), "choosing schedules", "writing the page".

A metric is a number, or a list with one per seed or agent. A `message` is a sentence that is always shown.
"""

import dataclasses
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of one stage of a computation."""

    stage: str
    """Name of the stage: "fitting", "learning in imagination", .."""
    done: int = 0
    """Units of work done, including earlier processes."""
    total: int | None = None
    """Total units of work; None if unknown."""
    metrics: dict[str, float | list[float]] = dataclasses.field(default_factory=dict)
    """Latest metrics; a list holds one per seed or agent, NaN for missing values."""
    seconds: float = 0.0
    """Seconds since the stage began in this process."""
    message: str = ""
    """A sentence to show when a stage begins or ends."""

    @property
    def finished(self) -> bool:
        """True once all units of work are done."""
        return self.total is not None and self.done >= self.total


Callback = Callable[[Progress], None]


def no_callback(progress: Progress) -> None:
    """Ignore progress: the default everywhere."""


def counter(stage: str, total: int | None, callback: Callback) -> Callable[[int], None]:
    """A function that is called with every amount of work done, and calls back with their sum, 0 at first."""
    done, started = 0, time.perf_counter()
    callback(Progress(stage, 0, total))

    def advance(amount: int) -> None:
        nonlocal done
        done += amount
        callback(Progress(stage, done, total, seconds=time.perf_counter() - started))

    return advance


def combined(*callbacks: Callback) -> Callback:
    """Several callbacks as one, called in order."""

    def call_all(progress: Progress) -> None:
        for callback in callbacks:
            callback(progress)

    return call_all
