from kairode.callbacks import Progress, combined, counter, every, no_callback


def test_every_passes_first_last_and_messages_and_otherwise_waits() -> None:
    now, seen = [0.0], []
    callback = every(10.0, seen.append, clock=lambda: now[0])
    events = [  # (time, event, whether it is passed on)
        (0.0, Progress("fit", 1, 100), True),
        (9.9, Progress("fit", 2, 100), False),
        (10.0, Progress("fit", 3, 100), True),
        (10.1, Progress("learn", 1, 5), True),
        (15.0, Progress("fit", 4, 100, message="Validation error 0.1."), True),
        (20.1, Progress("fit", 5, 100), False),
        (20.2, Progress("fit", 100, 100), True),
        (20.3, Progress("learn", 2, None), True),
        (20.4, Progress("learn", 3, None), False),
    ]
    for moment, event, _ in events:
        now[0] = moment
        callback(event)
    assert seen == [event for _, event, passed in events if passed]


def test_a_counter_adds_up() -> None:
    seen: list[Progress] = []
    advance = counter("collect", 5, combined(seen.append, no_callback))
    for amount in (2, 3):
        advance(amount)
    assert [(one.stage, one.done, one.total, one.finished) for one in seen] == [
        ("collect", 0, 5, False),
        ("collect", 2, 5, False),
        ("collect", 5, 5, True),
    ]
    assert 0 <= seen[1].seconds <= seen[2].seconds


def test_a_stage_of_unknown_length_never_finishes() -> None:
    assert not Progress("fit", 10**9).finished
