"""What TensorBoard is given, and what is said without it."""

import sys

import pytest

from kairode.errors import KairodeError
from kairode.report.progress import watching
from kairode.training.loop import FitProgress

REPORT = FitProgress(
    50, 100, {"total": [1.0, 2.0], "state": [1.0, float("nan")], "kl": [0, 0], "timer": [0, 0]}, [0.5, 0.7], [0, 1], 2.0
)


def test_tensorboard_gets_every_term(tmp_path) -> None:
    with watching("rnn on hiv", tmp_path, quiet=True) as (callback, collected):
        collected(3)
        callback(REPORT)
    [events] = (tmp_path / "tensorboard").iterdir()
    content = events.read_bytes()
    for name in (b"state/seed0", b"validation/seed1"):
        assert name in content


def test_without_tensorboard(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(KairodeError, match=r"kairode\[tensorboard\]"), watching("x", tmp_path, quiet=True):
        pass
    assert not list(tmp_path.iterdir())
    with watching("x", None, quiet=True) as (callback, _):
        callback(REPORT)
