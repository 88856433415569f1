"""Progress display: bars on a terminal, lines elsewhere, on the error stream.

Both are callbacks driven by `Progress` events. A stage begins with its first event, and ends when all its steps are
done or another stage begins.
"""

import dataclasses
import math
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.progress import Task as RichTask
from rich.table import Column
from rich.text import Text

from kairode.callbacks import Progress
from kairode.result import short_number
from kairode.text import shorten, visible, visible_lines

PERIOD = 60.0
"""Seconds between lines within a stage."""
FIRST = ("return", "real_return", "validation_return", "validation")
"""Metrics shown before the others."""
HIDDEN = ("total",)
"""Metrics not shown."""
HIDDEN_AT_ZERO = ("kl", "timer", "field", "skipped")
"""Metrics not shown if they are 0: disabled loss terms, skipped batches."""


def display(quiet: bool = False, console: Console | None = None) -> "Display":
    """Bars if the error stream is a terminal, lines if it is not, nothing if `quiet`."""
    console = Console(stderr=True) if console is None else console
    if quiet:
        return Display()
    return Bars(console) if console.is_terminal else Lines(console)


@dataclasses.dataclass
class Stage:
    """A stage in progress."""

    first: Progress
    last: Progress
    began: float
    """By the display's clock."""
    metrics: dict[str, float | list[float]]
    """The latest value of each: not every event has all of them."""
    note: str = ""

    @property
    def steps(self) -> int:
        """Steps done in this process."""
        return self.last.done - self.first.done

    def figures(self, seconds: float = 0.0) -> str:
        """What to show, most important first; with the rate if the seconds are given."""
        names = sorted(self.metrics, key=lambda name: name not in FIRST)
        shown = [self.note, *(figure(name, self.metrics[name]) for name in names)]
        if self.steps > 0 and seconds > 0:
            rate = self.steps / seconds
            shown.append(f"{rate:,.0f} per second" if rate >= 10 else f"{rate:.2g} per second")
        return ", ".join(filter(None, shown))

    def seconds_left(self, seconds: float) -> float | None:
        """At the rate since the stage began in this process; None if unknown."""
        if self.last.total is None or self.steps <= 0 or complete(self.last):
            return None
        return seconds * (self.last.total - self.last.done) / self.steps


class Display:
    """A callback that shows events; a context manager. This one shows nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.stage: Stage | None = None
        self.ended = ""
        """Name of the last stage that ended."""
        self.lock = threading.RLock()  # `Lines` also writes from a thread

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self.lock:
            self._end(well=error is None)

    def __call__(self, event: Progress) -> None:
        with self.lock:
            if event.message:
                self._end()
                self.say(event.message)
                return
            stage = self.stage
            if stage is None or stage.last.stage != event.stage or event.done < stage.last.done:
                if stage is None and event.stage == self.ended and complete(event):
                    return  # no change
                self._end()
                if complete(event) and not event.seconds:  # by an earlier process
                    self.say(f"{event.stage}: already done")
                    self.ended = event.stage
                    return
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
        return with_figures(f"{stage.last.stage}: finished after {duration(seconds)}", stage.figures())

    def begin(self, stage: Stage) -> None:
        """A stage begins."""

    def move(self, stage: Stage) -> None:
        """A stage has new progress."""

    def end(self, stage: Stage, well: bool) -> None:
        """A stage ends; `well` is False after an exception."""

    def say(self, sentence: str) -> None:
        """Print a sentence on its own line."""


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

    def __enter__(self) -> "Display":
        if self.heartbeat is not None:
            threading.Thread(target=self._beat, args=(self.heartbeat,), daemon=True).start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
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
        left = stage.seconds_left(seconds)
        more = "" if left is None else f", about {duration(left)} left"
        return with_figures(f"{event.stage}: {count}{duration(seconds)}{more}", stage.figures(seconds))

    def begin(self, stage: Stage) -> None:
        event = stage.last
        count = f" ({event.done:,} of {event.total:,})" if event.total else ""
        self.waiting = f"{event.stage}: {'resumed' if event.done else 'started'}{count}"

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
        self.console.print(Text(visible_lines(sentence)), highlight=False, soft_wrap=True)
        self.console.file.flush()


@final
class Bars(Display):
    """A bar with count and time left, a spinner if there is nothing to count; metrics if they fit."""

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic, auto_refresh: bool = True
    ) -> None:
        super().__init__(clock)
        fixed, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self.bars = RichProgress(
            SpinnerColumn(table_column=fixed),  # keeps running while JAX compiles
            TextColumn("{task.description}", table_column=fixed, markup=False),
            Counted(BarColumn(bar_width=12)),
            Counted(MofNCompleteColumn()),
            Counted(TimeRemainingColumn(compact=True)),
            TextColumn("{task.fields[figures]}", table_column=rest, markup=False),
            console=console,
            expand=True,  # metrics get the remaining width
            get_time=clock,
            auto_refresh=auto_refresh,
            transient=True,
        )
        self.task: Any = None

    def __enter__(self) -> "Display":
        self.bars.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        super().__exit__(kind, error, trace)
        self.bars.stop()

    def begin(self, stage: Stage) -> None:
        event = stage.last
        longest = self.bars.console.width // 2
        self.task = self.bars.add_task(
            shorten(visible(event.stage), longest), total=event.total, completed=event.done, figures=""
        )
        self.move(stage)

    def move(self, stage: Stage) -> None:
        event, figures = stage.last, visible(stage.figures(self.passed(stage)))
        self.bars.update(self.task, total=event.total, completed=event.done, figures=figures, refresh=True)

    def end(self, stage: Stage, well: bool) -> None:
        self.bars.remove_task(self.task)
        if well and (sentence := self.finished(stage)):
            self.say(sentence)

    def say(self, sentence: str) -> None:
        self.bars.console.print(Text(visible_lines(sentence)), highlight=False)


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


def with_figures(sentence: str, figures: str) -> str:
    return f"{sentence}; {figures}" if figures else sentence


def figure(name: str, value: float | list[float]) -> str:
    """A metric as text, the mean over seeds that are finite; empty if it is not shown."""
    values = value if isinstance(value, list) else [value]
    known = [x for x in values if math.isfinite(x)]
    if name in HIDDEN or not known or (name in HIDDEN_AT_ZERO and not any(known)):
        return ""
    return f"{name.replace('_', ' ')} {short_number(statistics.fmean(known))}"


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
