"""Progress display: bars on a terminal, lines elsewhere, on the error stream.

Both are callbacks driven by `Progress` events. A stage begins with its first event, and ends when all its steps are
done or another stage begins.
"""

import abc
import dataclasses
import math
import statistics
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.progress import Task as RichTask
from rich.table import Column
from rich.text import Text

from kairode.callbacks import Progress

PERIOD = 60.0
"""Seconds between lines within a stage."""
FIRST = ("return", "real_return", "validation_return", "validation")
"""Metrics shown before the others."""
HIDDEN = ("total",)
"""Metrics not shown."""
HIDDEN_AT_ZERO = ("kl", "timer", "field", "skipped")
"""Metrics not shown if they are 0: disabled loss terms, skipped batches."""
LONGEST_NAME = 30
"""Maximum length of a stage's name in a bar."""


def display(quiet: bool = False, console: Console | None = None) -> "Display":
    """Bars if the error stream is a terminal, lines if it is not, nothing if `quiet`."""
    console = Console(stderr=True) if console is None else console
    if quiet:
        return Silent()
    return Bars(console) if console.is_terminal else Lines(console)


@dataclasses.dataclass
class Stage:
    """A stage in progress."""

    first: Progress
    last: Progress
    began: float
    """By the display's clock."""
    metrics: dict[str, float | list[float]] = dataclasses.field(default_factory=dict)
    """The latest value of each: not every event has all of them."""
    note: str = ""

    def figures(self, seconds: float) -> list[str]:
        """Texts to show, most important first."""
        shown = [self.note] if self.note else []
        for name in sorted(self.metrics, key=lambda name: name not in FIRST):
            text = figure(name, self.metrics[name])
            shown += [text] if text else []
        steps = self.last.done - self.first.done
        return [*shown, f"{rate(steps / seconds)} per second"] if steps > 0 and seconds > 0 else shown


class Display(abc.ABC):
    """A callback that shows events; a context manager."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.stage: Stage | None = None
        self.ended = ""
        """Name of the last stage that ended."""
        self.lock = threading.RLock()  # `Lines` also writes from a thread

    def __enter__(self) -> "Display":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.lock:
            self._end(well=error is None)

    def __call__(self, event: Progress) -> None:
        with self.lock:
            if event.message:
                self.say(event.message)
            stage = self.stage
            if stage is None or stage.last.stage != event.stage or event.done < stage.last.done:
                if stage is None and event.stage == self.ended and complete(event):
                    return  # no change
                self._end()
                self.stage = Stage(event, event, self.clock(), dict(event.metrics))
                self.begin(self.stage)
            else:
                stage.last = event
                stage.metrics |= event.metrics
                self.move(stage)
            if complete(event):
                self._end()

    def note(self, text: str) -> None:
        with self.lock:
            if self.stage is not None:
                self.stage.note = text
                self.move(self.stage)

    def passed(self, stage: Stage) -> float:
        return self.clock() - stage.began

    def _end(self, well: bool = True) -> None:
        if self.stage is not None:
            self.end(self.stage, well)
            self.ended = self.stage.last.stage
        self.stage = None

    def finished(self, stage: Stage) -> str:
        """The sentence for a finished stage; empty for one without steps that took less than a minute."""
        seconds = self.passed(stage)
        if stage.last.total is None and seconds < PERIOD:
            return ""
        return "; ".join([f"{stage.last.stage}: finished after {duration(seconds)}", *figures_of(stage)])

    @abc.abstractmethod
    def begin(self, stage: Stage) -> None:
        """A stage begins."""

    @abc.abstractmethod
    def move(self, stage: Stage) -> None:
        """A stage has new progress."""

    @abc.abstractmethod
    def end(self, stage: Stage, well: bool) -> None:
        """A stage ends; `well` is False after an exception."""

    @abc.abstractmethod
    def say(self, sentence: str) -> None:
        """Print a sentence on its own line."""


@final
class Silent(Display):
    """Shows nothing."""

    def begin(self, stage: Stage) -> None: ...

    def move(self, stage: Stage) -> None: ...

    def end(self, stage: Stage, well: bool) -> None: ...

    def say(self, sentence: str) -> None: ...


@final
class Lines(Display):
    """One line as a stage begins, one a minute within it, one as it ends."""

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic, heartbeat: float | None = 1.0
    ) -> None:
        super().__init__(clock)
        self.console = console
        self.heartbeat = heartbeat
        """Seconds between ticks of a thread, for stages without events; None for no thread."""
        self.wrote = clock()
        self.waiting = ""
        """First line of a stage, withheld until there is progress: a stage that fails at once is not announced."""
        self.closed = threading.Event()

    def __enter__(self) -> "Lines":
        if self.heartbeat is not None:
            threading.Thread(target=self._beat, args=(self.heartbeat,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed.set()
        super().__exit__(kind, error, trace)

    def _beat(self, seconds: float) -> None:
        while not self.closed.wait(seconds):
            self.tick()

    def tick(self) -> None:
        """Write a line if the last one is a minute old, and a stage's first line."""
        with self.lock:
            if self.stage is None or self.closed.is_set():
                return
            self._write_waiting()
            if self.clock() - self.wrote >= PERIOD:
                self.say(self.so_far(self.stage))

    def _write_waiting(self) -> None:
        sentence, self.waiting = self.waiting, ""
        if sentence:
            self._write(sentence, self.stage.began if self.stage is not None else self.clock())

    def so_far(self, stage: Stage) -> str:
        event, seconds = stage.last, self.passed(stage)
        count = f"{event.done:,} of {event.total:,}, " if event.total else f"{event.done:,}, " if event.done else ""
        left = time_left(stage, seconds)
        more = "" if left is None else f", about {duration(left)} left"
        return "; ".join([f"{event.stage}: {count}{duration(seconds)}{more}", *figures_of(stage, seconds)])

    def begin(self, stage: Stage) -> None:
        event = stage.last
        count = f" at {event.done:,} of {event.total:,}" if event.total and event.done else ""
        self.waiting = f"{event.stage}: started{count}"

    def move(self, stage: Stage) -> None:
        self.tick()

    def end(self, stage: Stage, well: bool) -> None:
        if well:
            self._write_waiting()
            if sentence := self.finished(stage):
                self.say(sentence)
        self.waiting = ""

    def say(self, sentence: str) -> None:
        self._write_waiting()
        self._write(sentence, self.clock())

    def _write(self, sentence: str, moment: float) -> None:
        self.wrote = moment
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)
        self.console.file.flush()


@final
class Bars(Display):
    """A bar with count and time left, a spinner if there is nothing to count; metrics if they fit."""

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic, auto_refresh: bool = True
    ) -> None:
        super().__init__(clock)
        fixed = Column(no_wrap=True)
        self.bars = RichProgress(
            SpinnerColumn(table_column=fixed),  # keeps running while JAX compiles
            TextColumn("{task.description}", table_column=fixed, markup=False),
            Counted(BarColumn(bar_width=12)),
            Counted(MofNCompleteColumn()),
            Counted(TimeRemainingColumn(compact=True)),
            TextColumn(
                "{task.fields[figures]}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=console,
            expand=True,  # metrics get the remaining width
            get_time=clock,
            auto_refresh=auto_refresh,
            transient=True,
        )
        self.task: Any = None

    def __enter__(self) -> "Bars":
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.bars.stop()

    def begin(self, stage: Stage) -> None:
        name, event = stage.last.stage, stage.last
        name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        self.task = self.bars.add_task(name, total=event.total, completed=event.done, figures="")
        self.move(stage)

    def move(self, stage: Stage) -> None:
        event = stage.last
        shown = ", ".join(stage.figures(self.passed(stage)))
        self.bars.update(self.task, total=event.total, completed=event.done, figures=shown, refresh=True)

    def end(self, stage: Stage, well: bool) -> None:
        self.bars.remove_task(self.task)
        if well and (sentence := self.finished(stage)):
            self.say(sentence)

    def say(self, sentence: str) -> None:
        self.bars.console.print(sentence, highlight=False, markup=False)


@final
class Counted(ProgressColumn):
    """A column that is empty if there is nothing to count."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__(Column(no_wrap=True))
        self.column = column

    def render(self, task: RichTask) -> Any:
        return Text("") if task.total is None else self.column(task)


def complete(event: Progress) -> bool:
    return event.total is not None and event.done >= event.total > 0


def figures_of(stage: Stage, seconds: float = 0.0) -> list[str]:
    shown = stage.figures(seconds)
    return [", ".join(shown)] if shown else []


def figure(name: str, value: float | list[float]) -> str:
    """A metric as text, the mean over seeds that are finite; empty if it is not shown."""
    values = value if isinstance(value, list) else [value]
    known = [x for x in values if math.isfinite(x)]
    if name in HIDDEN or not known or (name in HIDDEN_AT_ZERO and not any(known)):
        return ""
    return f"{name.replace('_', ' ')} {statistics.fmean(known):.4g}"


def rate(steps: float) -> str:
    return f"{steps:,.0f}" if steps >= 10 else f"{steps:.2g}"


def time_left(stage: Stage, seconds: float) -> float | None:
    """Seconds, at the rate since the stage began in this process; None if unknown."""
    event, steps = stage.last, stage.last.done - stage.first.done
    if event.total is None or steps <= 0 or complete(event):
        return None
    return seconds * (event.total - event.done) / steps


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
