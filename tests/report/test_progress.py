"""What is shown of work under way, on a terminal and without one, and what TensorBoard is given."""

import contextlib
import io
import math
import re
import sys

import pytest
from rich.console import Console

from kairode.callbacks import Progress, counter
from kairode.errors import KairodeError
from kairode.loggers import tensorboard_callback
from kairode.report.progress import Bars, Display, Lines, display, duration


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def plain(clock: Clock) -> tuple[Lines, io.StringIO]:
    stream = io.StringIO()
    return Lines(Console(file=stream, width=80), clock, heartbeat=None), stream


def event(stage: str, done: int = 0, total: int | None = None, message: str = "", **metrics) -> Progress:
    return Progress(stage, done, total, metrics, 0.0, message)


def test_a_line_as_a_stage_begins_one_a_minute_and_one_as_it_ends() -> None:
    clock = Clock()
    lines, stream = plain(clock)
    with lines:
        for done in range(0, 3001, 10):  # ten steps in half a second: 150 seconds
            clock.now = 1000.0 + done / 20
            lines(event("fitting", done, 3000, validation=[0.5, 0.3]))
        lines(event("evaluating on 100 episodes"))
        clock.now += 20
    assert stream.getvalue().splitlines() == [
        "fitting: started (0 of 3,000)",
        "fitting: 1,200 of 3,000, 1 min 0 s, about 1 min 30 s left; validation 0.4, 20 per second",
        "fitting: 2,400 of 3,000, 2 min 0 s, about 30 s left; validation 0.4, 20 per second",
        "fitting: finished after 2 min 30 s; validation 0.4",
        "evaluating on 100 episodes: started",
    ]


def test_lines_go_on_where_there_is_no_news() -> None:
    clock = Clock()
    lines, stream = plain(clock)
    with lines:
        lines(event("checking the solver"))
        for _ in range(125):
            clock.now += 1.0
            lines.tick()
    assert stream.getvalue().splitlines() == [
        "checking the solver: started",
        "checking the solver: 1 min 0 s",
        "checking the solver: 2 min 0 s",
        "checking the solver: finished after 2 min 5 s",
    ]


def test_the_thread_ticks_and_ends() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = Lines(Console(file=stream, width=80), clock, heartbeat=0.001)
    with lines:
        lines(event("collecting"))
        clock.now += 61.0
        while "1 min 1 s" not in stream.getvalue():
            pass
    assert lines.closed.is_set()


def test_a_stage_that_goes_on_one_that_comes_back_and_one_that_ends_early() -> None:
    clock = Clock()
    lines, stream = plain(clock)
    with lines:
        lines(event("fitting", 40, 100))
        lines(event("fitting", 100, 100))
        lines(event("fitting", 100, 100))  # nothing new
        lines(event("fitting", 0, 50))  # the next round
        lines(event("fitting", 10, 50))  # which stops early
        lines(event("learning", 0, 9, message="Round 1 has ended."))
    assert stream.getvalue().splitlines() == [
        "fitting: resumed (40 of 100)",
        "fitting: finished after 0 s",
        "fitting: started (0 of 50)",
        "fitting: finished after 0 s",
        "Round 1 has ended.",
    ]


def test_what_an_earlier_process_finished_is_one_line() -> None:
    lines, stream = plain(Clock())
    with lines:
        lines(event("fitting", 150, 150))
        lines(event("fitting", 150, 150))
        lines(event("evaluating", 1, 2))
        lines(Progress("fitting", 150, 150, {}, 3.0))  # in this process, interleaved with another stage
    assert stream.getvalue().splitlines() == [
        "fitting: already done",
        "evaluating: resumed (1 of 2)",
        "evaluating: finished after 0 s",
        "fitting: resumed (150 of 150)",
        "fitting: finished after 0 s",
    ]


def test_what_an_exception_ends_is_not_finished() -> None:
    lines, stream = plain(Clock())
    with contextlib.suppress(RuntimeError), lines:
        lines(event("fitting", 1, 2))
        raise RuntimeError
    assert stream.getvalue() == ""
    with contextlib.suppress(RuntimeError), lines:
        lines(event("fitting", 1, 2))
        lines.closed.clear()
        lines.tick()
        raise RuntimeError
    assert stream.getvalue() == "fitting: resumed (1 of 2)\n"


def test_quiet_shows_nothing(capsys) -> None:
    with display(quiet=True) as show:
        assert type(show) is Display
        show(event("fitting", 1, 2, message="A sentence."))
        show.say("Another.")
        show.note("more")
    assert capsys.readouterr() == ("", "")


def test_progress_goes_to_the_error_stream(capsys) -> None:
    with display() as show:
        assert isinstance(show, Lines)
        advance = counter("collecting", 2, show)
        advance(1)
        advance(1)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "collecting: started (0 of 2)\ncollecting: finished after 0 s\n"
    assert isinstance(display(console=Console(file=io.StringIO(), force_terminal=True)), Bars)


def shown(bars: Bars, stream: io.StringIO) -> str:
    """The line that stands on the terminal now."""
    stream.truncate(0)
    stream.seek(0)
    bars.bars.refresh()
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n").strip().split("\n")
    assert all(len(line) <= 80 for line in lines)
    return lines[-1].strip()


def bars_of(clock: Clock) -> tuple[Bars, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system="standard", legacy_windows=False)
    return Bars(console, clock, auto_refresh=False), stream


def test_eighty_columns_keep_the_bar_the_count_and_the_time_left() -> None:
    clock = Clock()
    bars, stream = bars_of(clock)
    figures = {f"a_long_name_{i}": 123.456 for i in range(10)}
    with bars:
        for done in range(0, 1201, 100):
            clock.now = 1000.0 + done / 20
            bars(event("policies/paper-gridworld-oracle-and-some-more", done, 12000, **figures))
        line = shown(bars, stream)
        assert "policies/paper-gridworld-o…and-some-more" in line[:44]
        assert re.search("[━╸╺]{12}", line)
        assert " 1200/12000 " in line
        assert " 09:00 " in line
        assert line.endswith("…"), "figures are cut first"
        bars(event("evaluating 11 policies on 100 episodes"))
        line = shown(bars, stream)
        assert line.endswith("evaluating 11 policies on 100 episodes")
        assert "━" not in line


def test_a_wide_terminal_shows_the_figures() -> None:
    clock = Clock()
    bars, stream = bars_of(clock)
    with bars:
        bars(event("fitting", 0, 100))
        clock.now += 2.0
        bars(event("fitting", 50, 100, validation=0.25, kl=0.0, state=math.nan))
        line = shown(bars, stream)
        assert line.endswith("validation 0.25, 25 per second")
        bars.note("writing a checkpoint")
        assert "writing a checkpoint, valid" in shown(bars, stream)
        stream.truncate(0)
        bars(event("fitting", 100, 100))
        assert "fitting: finished after 2 s; writing a checkpoint, validation 0.25" in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (3720, "1 h 2 min")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


FIT = Progress("fitting", 50, 100, {"state": [1.0, math.nan], "validation": [0.5, 0.7], "return": 3.0})


def test_tensorboard_gets_every_metric_of_every_seed(tmp_path) -> None:
    with tensorboard_callback(tmp_path) as write:
        write(FIT)
    [events] = (tmp_path / "tensorboard").iterdir()
    content = events.read_bytes()
    for name in (b"state/seed0", b"validation/seed1", b"return/seed0"):
        assert name in content


def test_without_tensorboard(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(KairodeError, match=r"kairode\[tensorboard\]"), tensorboard_callback(tmp_path):
        pass
    assert not list(tmp_path.iterdir())
    with tensorboard_callback(None) as write:
        write(FIT)
