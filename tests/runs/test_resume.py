"""Killed in every stage and started again: the same record as undisturbed. And what else can go wrong on the way."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

RUN = "run gridworld --model rnn --episodes 10 --rounds 1 --episodes-per-round 2 --fit-iterations 40 --ensemble-size 3"
RUN += " --learn.episodes 3 --model-free-episodes 3 --schedule-episodes 3 --schedule-refits 1 --prices 0"
WORDS = [*RUN.split(), "--set", "horizon=40"]
STAGES = (
    "manifest.json",
    "rounds/checkpoint.json",
    "model-free/checkpoint.json",
    "tests.json",
    "schedule/policy.json",
    "schedule/revisits-*/1/checkpoint.json",
)
"""Files that appear as the stages go on: the last is written before the schedules are tested."""
AT_ONCE = "run gridworld --model rnn --episodes 10 --fit-iterations 40 --learn.episodes 300 --model-free-episodes 3"
AT_ONCE += " --schedule-episodes 0 --latent-policy --set horizon=40"
ONCE_STAGES = ("fit/checkpoint.json", "imagination/checkpoint.json", "model-free/checkpoint.json")


def start(folder: Path, words: Sequence[str] = WORDS) -> subprocess.Popen:
    # Training is saved often, so that it is killed between two checkpoints too.
    often = "from kairode.agents import train_loop; train_loop.SAVE_SECONDS = 0.5; from kairode.cli import main; main()"
    typed = [sys.executable, "-c", often, *words, "--out", str(folder)]
    return subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def without_times(folder: Path) -> dict:
    made = json.loads((folder / "record.json").read_text())
    figures = made["figures"]
    for part in (*figures.get("rounds", ()), *figures.get("curve", ()), *figures["free_curve"]):
        part.pop("seconds", None)
    return {"config": made["config"], "figures": made["figures"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "stages"), [(WORDS, STAGES), (AT_ONCE.split(), ONCE_STAGES)], ids=["rounds", "at-once"]
)
def test_killed_in_every_stage_the_same_record(tmp_path, words, stages):
    calm = start(tmp_path / "calm", words)
    out, err = calm.communicate(timeout=900)
    assert calm.returncode == 0, err
    killed = []
    for stage in stages:
        process = start(tmp_path / "rough", words)
        while process.poll() is None and not any((tmp_path / "rough").glob(stage)):
            time.sleep(0.05)
        time.sleep(0.3)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.communicate()
        killed.append(process.returncode == -signal.SIGKILL and not (tmp_path / "rough" / "record.json").exists())
    assert all(killed), dict(zip(stages, killed, strict=True))
    last = start(tmp_path / "rough", words)
    _, err = last.communicate(timeout=900)
    assert last.returncode == 0, err
    assert without_times(tmp_path / "rough") == without_times(tmp_path / "calm")
    assert not list((tmp_path / "rough").rglob("*.part"))  # what a kill cut off was cleared away
    assert "interrupted" not in out


@pytest.mark.slow
def test_ctrl_c_says_how_to_resume(tmp_path):
    process = start(tmp_path / "run")
    while process.poll() is None and not (tmp_path / "run" / "manifest.json").exists():
        time.sleep(0.05)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "Run the same command again to resume: kairode run gridworld" in err
    for path in (tmp_path / "run").rglob("*.json"):
        json.loads(path.read_text())


def test_a_folder_that_cannot_be_written_to(typed, tmp_path):
    place = tmp_path / "locked"
    place.mkdir(mode=0o500)
    if os.geteuid() == 0:  # nothing is read-only to root, but for what the kernel keeps
        place = Path("/proc/sys")
    code, out, err = typed(*WORDS, "--out", str(place / "run"))
    assert (code, out) == (2, "")
    assert err.startswith("error: cannot create the folder")
    assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    """No file may grow beyond a few kilobytes, the cache's included: writing fails in the middle, as on a full disk."""
    words = shlex.join([sys.executable, "-m", "kairode", *WORDS, "-q", "--out", str(tmp_path / "run")])
    process = subprocess.Popen(
        ["sh", "-c", f"ulimit -f 8; exec {words}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2, err
    assert err.startswith("error: cannot write")
    assert len(err.strip().splitlines()) == 1
    for path in (tmp_path / "run").rglob("*"):
        assert not path.name.endswith(".part")
        if path.suffix == ".json":
            json.loads(path.read_text())


def test_a_narrow_terminal(typed, monkeypatch, capsys):
    from kairode.report.table import Table, print_table

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # a dumb one is taken for 80 columns wide
    rows = [["learned in imagination", "2.464e+08", "2.3e+08 to 2.6e+08"]]
    print_table(Table.of(["policy", "discounted return", "95 %"], rows))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60  # with the codes of bold
    assert any("2.464e+08" in line for line in lines)
