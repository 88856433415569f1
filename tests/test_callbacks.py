from kairode.callbacks import Progress, combined, counter, no_callback


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
