import dataclasses
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kairode
from kairode._lock import FolderBusy, locked, remove
from kairode._version import __version__
from kairode.config.algorithms import DynaConfig
from kairode.config.run import RunConfig
from kairode.errors import KairodeError, KairodeWarning, Stopped
from kairode.files import has_digest
from kairode.runs import migrate
from kairode.runs.folder import RunFolder
from kairode.training.session import Session


@dataclasses.dataclass(frozen=True)
class Fit:
    iterations: int = 3000
    hidden: tuple[int, ...] = (8, 8)


@dataclasses.dataclass(frozen=True)
class Config:
    env: str = "hiv"
    fit: Fit = Fit()
    rounds: int = 5
    seed: int = 3
    seeds: int = 2
    limit: float = float("inf")
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "one"


def begun(place: Path, **options: Any) -> None:
    """A run that was interrupted after its first file."""
    with RunFolder.open(place, "run", Config(), **options):
        (place / "data.bin").write_bytes(b"numbers")


def is_locked(place: Path) -> bool:
    try:
        with locked(place):
            return False
    except FolderBusy:
        return True


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} - {".lock"}


def test_a_new_folder_has_a_manifest(place: Path) -> None:
    with RunFolder.open(place, "run", Config()) as folder:
        assert not folder.resumed
        assert not folder.finished
        assert folder.record is None
    found = json.loads((place / "manifest.json").read_text())
    assert has_digest(found)
    assert len(found.pop("json_sha256")) == 64
    assert found.pop("created").endswith("Z")
    assert found == {
        "format": 1,
        "kind": "run",
        "kairode": __version__,
        "config": {
            "env": "hiv",
            "fit": {"iterations": 3000, "hidden": [8, 8]},
            "rounds": 5,
            "seed": 3,
            "seeds": 2,
            "limit": float("inf"),
            "fields": {},
        },
        "seeds": [3, 4],
        "others": [],
        "artefacts": {},
        "seconds": {},
        "finished": False,
    }
    assert RunFolder(place).config(Config) == Config()
    assert names(place) == {"manifest.json"}


def test_the_same_run_goes_on(place: Path) -> None:
    begun(place)
    before = RunFolder(place).manifest
    with RunFolder.open(place, "run", Config()) as folder:
        assert folder.resumed
        assert folder.manifest == before


@pytest.mark.parametrize(
    ("kind", "config", "said"),
    [
        ("run", Config(fit=Fit(500)), "fit.iterations is 3000 there and 500 here"),
        ("run", Config(rounds=6), "rounds is 5 there and 6 here"),
        ("fit", Config(), "of kind 'run', this is a 'fit'"),
        ("run", Fit(), "unknown field 'env' of Fit"),
    ],
)
def test_another_run_is_refused(place: Path, kind: str, config: Any, said: str) -> None:
    begun(place)
    before = (place / "manifest.json").read_bytes()
    with pytest.raises(KairodeError) as error, RunFolder.open(place, kind, config):
        pass
    message = str(error.value)
    assert message.startswith(f"{place} holds another run ({said}")
    assert message.endswith("): choose another folder with --out, or remove it.")
    assert (place / "manifest.json").read_bytes() == before


def test_mutable_fields_may_change_and_unfinish_a_run(place: Path) -> None:
    begun(place)
    with RunFolder.open(place, "run", Config(), mutable=("rounds",)) as folder:
        folder.finish({"kind": "run", "config": {}, "figures": {"return": 1.5}})
    with RunFolder.open(place, "run", Config(), mutable=("rounds",)) as folder:
        assert folder.finished
    with RunFolder.open(place, "run", Config(rounds=8), mutable=("rounds",)) as folder:
        assert folder.resumed
        assert not folder.finished
    assert RunFolder(place).config(Config).rounds == 8
    with (
        pytest.raises(KairodeError, match=r"fit\.hidden is"),
        RunFolder.open(place, "run", Config(fit=Fit(3000, (9,))), mutable=("rounds",)),
    ):
        pass


def test_a_run_that_made_nothing_yet_does_not_stand_in_the_way(place: Path) -> None:
    with RunFolder.open(place, "fit", Fit()) as folder:
        (place / "log.txt").write_text("killed")
    with RunFolder.open(place, "run", Config()) as folder:
        assert not folder.resumed
    assert RunFolder(place).manifest.kind == "run"


def test_fields_that_an_older_config_lacks_have_their_defaults(place: Path) -> None:
    begun(place)
    path = place / "manifest.json"
    found = json.loads(path.read_text())
    del found["config"]["rounds"], found["config"]["fit"]["hidden"], found["json_sha256"], found["others"]
    path.write_text(json.dumps(found))
    begun(place)
    with (
        pytest.raises(KairodeError, match="rounds is 5 there and 6 here"),
        RunFolder.open(place, "run", Config(rounds=6)),
    ):
        pass


def interrupted_after(seconds: float) -> None:
    time.sleep(seconds)
    raise Stopped("interrupted.")


def test_stages_add_up_also_when_interrupted(place: Path) -> None:
    with RunFolder.open(place, "run", Config()) as folder:
        with folder.stage("fit"):
            time.sleep(0.06)
        (place / "x").touch()
    with RunFolder.open(place, "run", Config()) as folder:
        with pytest.raises(Stopped), folder.stage("fit"):
            interrupted_after(0.16)
        with pytest.raises(KeyboardInterrupt), folder.stage("learn"):
            raise KeyboardInterrupt
    seconds = RunFolder(place).manifest.seconds
    assert list(seconds) == ["fit", "learn"]
    assert 0.2 <= seconds["fit"] < 5
    assert seconds["learn"] < 5


def test_an_interrupt_names_the_outermost_command(place: Path) -> None:
    with (
        pytest.raises(Stopped, match=r"^at 5, saved\. Run the same command again to resume: kairode run$"),
        RunFolder.open(place, "run", Config(), "kairode run"),
        RunFolder.open(place / "fit", "fit", Fit(), "kairode fit"),
    ):
        raise Stopped("at 5, saved.")
    with (
        pytest.raises(Stopped, match=r"^interrupted\. Run the same command again to resume: kairode run$"),
        RunFolder.open(place, "run", Config(), "kairode run"),
    ):
        raise KeyboardInterrupt


def test_a_finished_run_has_its_record(place: Path) -> None:
    record = {"kind": "run", "config": {"env": "hiv"}, "figures": {"returns": [1.0, float("inf")]}}
    with RunFolder.open(place, "run", Config()) as folder:
        assert folder.finish(record) == {"format": 1, **record}
    folder = RunFolder(place)
    assert folder.finished
    assert folder.record == {"format": 1, **record}
    (place / "record.json").unlink()
    assert not RunFolder(place).finished


def test_reading_writes_nothing_and_writing_needs_an_open_folder(place: Path) -> None:
    begun(place)
    before = {path: path.read_bytes() for path in place.iterdir()}
    folder = RunFolder(place)
    assert folder.exists
    assert (folder.manifest.kind, folder.record, folder.finished) == ("run", None, False)
    assert {path: path.read_bytes() for path in place.iterdir()} == before
    with pytest.raises(RuntimeError, match="not open for writing"):
        folder.save_json("x.json", {})
    with pytest.raises(RuntimeError, match="not open for writing"):
        folder.finish({})


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path).exists
    with pytest.raises(KairodeError, match="holds no run"):
        _ = RunFolder(tmp_path).manifest
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(KairodeError, match="is a file, not a folder"),
        RunFolder.open(tmp_path / "file", "run", Config()),
    ):
        pass


def test_the_manifest_has_the_digests_of_what_a_run_wrote(place: Path) -> None:
    with RunFolder.open(place, "run", Config()) as folder:
        (place / "inner").mkdir()
        (place / "inner" / "weights.safetensors").write_bytes(b"weights")
        for name in ("report.html", "learning.svg", "out.log", "gait.json"):  # may change after the run
            (place / name).write_text("old")
        folder.finish({"figures": {}})
    found = RunFolder(place).check().manifest.artefacts
    assert found["inner/weights.safetensors"] == hashlib.sha256(b"weights").hexdigest()
    assert set(found) == {"inner/weights.safetensors", "record.json"}
    (place / "inner" / "weights.safetensors").write_bytes(b"Weights")
    with pytest.raises(KairodeError, match=r"weights\.safetensors was changed after the run .*run its command again"):
        RunFolder(place).check()
    (place / "inner" / "weights.safetensors").unlink()
    with pytest.raises(KairodeError, match=r"weights\.safetensors is missing"):
        RunFolder(place).check()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"manifest\.json is damaged: remove .*, or choose another folder with --out"),
        ('{"format": 99, "kairode": "9.0"}', r"was written by a newer version of kairode \(9\.0\): update kairode"),
        ('{"format": 1}', r"manifest\.json: kind is missing: a string is needed"),
    ],
)
def test_a_manifest_that_cannot_be_read(place: Path, text: str, said: str) -> None:
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(text)
    with pytest.raises(KairodeError, match=said), RunFolder.open(place, "run", Config()):
        pass
    assert not is_locked(place)


def test_leftovers_of_killed_writers_are_removed_but_not_those_of_runs_inside(place: Path) -> None:
    begun(place)
    (place / "sub").mkdir()
    with RunFolder.open(place / "inner", "fit", Fit()):
        pass
    left = [place / ".record.json.0123abcd.part", place / "sub" / ".x.0123abcd.part"]
    other = [place / "inner" / ".x.0123abcd.part", place / "part", place / "sub" / "x.part"]
    for path in (*left, *other):
        path.write_text("")
    time.sleep(0.02)
    with RunFolder.open(place, "run", Config()):
        assert [path.exists() for path in left] == [False, False]
        assert all(path.exists() for path in other)


# Folders of format 0: config.json, record.json, system.json, stages.json


def old(place: Path, config: dict[str, Any], **files: Any) -> None:
    place.mkdir(parents=True)
    for name, content in {"config": config, **files}.items():
        (place / f"{name}.json").write_text(json.dumps(content))
    (place / "checkpoint.json").write_text("{}")


OLD = {"env": "hiv", "fit": {"iterations": 3000, "hidden": [8, 8]}, "rounds": 5, "seed": 3, "seeds": 2}


def test_an_older_folder_goes_on_and_gets_a_manifest(place: Path) -> None:
    old(place, OLD, stages={"fit": 2.5})
    with RunFolder.open(place, "job", Config()) as folder:
        assert folder.resumed
        assert folder.manifest.seconds == {"fit": 2.5}
        assert not folder.finished
    assert json.loads((place / "manifest.json").read_text())["seconds"] == {"fit": 2.5}
    with pytest.raises(KairodeError, match="env is"), RunFolder.open(place, "job", Config(env="acrobot")):
        pass


def test_an_older_folder_of_another_run_is_refused(place: Path) -> None:
    old(place, OLD, record={"kind": "fit", "config": OLD, "figures": {}})
    with pytest.raises(KairodeError, match="of kind 'fit'"), RunFolder.open(place, "run", Config()):
        pass
    assert not (place / "manifest.json").exists()


@pytest.mark.parametrize(
    ("kind", "figures", "finished"),
    [("run", {}, True), ("rounds", {"rounds": []}, False), ("rounds", {"test": 1}, True)],
)
def test_whether_an_older_run_was_finished(place: Path, kind: str, figures: dict[str, Any], finished: bool) -> None:
    before = {"env": "gridworld", "seed": 3}
    old(place, before, record={"kind": kind, "config": before, "figures": figures})
    folder = RunFolder(place)
    assert folder.finished is finished
    config = folder.config(RunConfig if kind == "run" else DynaConfig)
    assert (config.env, config.seed) == ("gridworld", 3)
    with RunFolder.open(place, kind, config) as folder:
        assert folder.resumed
        assert folder.finished is finished


@pytest.fixture(autouse=True)
def made_up_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configs here are none of ours, so none of our fields was renamed in them."""
    monkeypatch.setattr(migrate, "CHANGES", {})


def test_renamed_options(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up option that had another name in format 0; an unfinished run does not name its kind."""
    monkeypatch.setitem(migrate.CHANGES, "run", lambda config: {"rounds": config.pop("turns"), **config})
    old(place, {"turns": 7, **{name: value for name, value in OLD.items() if name != "rounds"}})
    config = Config(rounds=7)
    assert RunFolder(place, kind="run").config(Config) == config
    with RunFolder.open(place, "run", config) as folder:
        assert folder.resumed
    assert RunFolder(place).manifest.kind == "run"
    with RunFolder.open(place, "run", config) as folder:  # a second time, from the manifest
        assert folder.resumed


# Two processes, one folder

WRITER = """
import dataclasses, sys
from kairode.runs.folder import RunFolder

@dataclasses.dataclass(frozen=True)
class Config:
    seed: int = 0

with RunFolder.open(sys.argv[1], "run", Config()) as folder:
    with open(folder.path / ".x.0123abcd.part", "w"):
        print("open", flush=True)
        sys.stdin.read()
"""


@dataclasses.dataclass(frozen=True)
class Seed:
    seed: int = 0


def start(place: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", WRITER, str(place)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def writer(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the folder open."""
    with start(place) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_a_second_process_is_told_at_once(place: Path, writer: subprocess.Popen[str]) -> None:
    assert is_locked(place)
    started = time.perf_counter()
    with pytest.raises(FolderBusy) as error, RunFolder.open(place, "run", Seed()):
        pass
    assert time.perf_counter() - started < 1
    message = str(error.value)
    assert message.startswith(
        f"{place} is being written by another process (pid {writer.pid} on {socket.gethostname()}, since 20"
    )
    assert message.endswith("): wait for it, or choose another folder.")
    assert RunFolder(place).manifest.kind == "run"  # reading is free
    with pytest.raises(FolderBusy):
        remove(place)
    assert (place / "manifest.json").exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_holds_nothing(place: Path, writer: subprocess.Popen[str], how: signal.Signals) -> None:
    os.kill(writer.pid, how)
    writer.wait()
    assert not is_locked(place)
    time.sleep(0.02)
    with RunFolder.open(place, "run", Seed()) as folder:
        assert not (place / ".x.0123abcd.part").exists()
        assert json.loads((place / ".owner.json").read_text())["pid"] == os.getpid()
        assert not folder.resumed  # it had made nothing
    assert not (place / ".owner.json").exists()


def test_a_folder_is_free_again_after_an_error(place: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder.open(place, "run", Config()):
        raise ZeroDivisionError
    assert not is_locked(place)


def test_one_process_does_not_open_a_folder_twice(place: Path) -> None:
    with (
        RunFolder.open(place, "run", Config()),
        pytest.raises(FolderBusy, match=f"pid {os.getpid()}"),
        RunFolder.open(place, "run", Config()),
    ):
        pass


def small_calls() -> dict[str, Callable[[Path], Any]]:
    """Library calls that write to a folder."""
    env = kairode.make("gridworld", horizon=30)
    data = kairode.collect(env, episodes=3)
    return {
        "fit": lambda folder: kairode.fit("rnn", data, iterations=1, latent_size=3, folder=folder),
        "learn": lambda folder: kairode.learn(None, env, episodes=1, replay_capacity=256, folder=folder),
        "train_dyna": lambda folder: kairode.train_dyna(env, rounds=0, folder=folder),
        "train_mpc": lambda folder: kairode.train_mpc("pendulum", "free", folder=folder),
    }


@pytest.mark.parametrize("name", ["fit", "learn", "train_dyna", "train_mpc"])
def test_a_call_with_a_folder_is_told_too(place: Path, writer: subprocess.Popen[str], name: str) -> None:
    before = names(place)
    with pytest.raises(FolderBusy, match=f"is being written by another process .pid {writer.pid} on"):
        small_calls()[name](place)
    assert names(place) == before


def test_a_session_shares_the_lock_of_the_run_around_it(place: Path) -> None:
    with RunFolder.open(place, "run", Config()):
        with Session(place), Session(place / "part") as part:
            part.save(np.zeros(1))
        assert not (place / "part" / ".lock").exists()  # it is no run folder of its own
        assert is_locked(place)
        with ThreadPoolExecutor(1) as other, pytest.raises(FolderBusy, match=f"pid {os.getpid()}"):
            other.submit(lambda: Session(place).__enter__()).result()
    with Session(place):
        assert is_locked(place)
    assert not is_locked(place)


def test_of_many_processes_one_writes(place: Path) -> None:
    many = [start(place) for _ in range(3)]
    while sum(process.poll() is None for process in many) > 1:
        time.sleep(0.02)
    said = [process.communicate() for process in many]
    assert sorted(out for out, _ in said) == ["", "", "open\n"]
    assert sum("is being written by another process" in err for _, err in said) == 2


def test_removal(place: Path) -> None:
    begun(place)
    (place / "sub").mkdir()
    (place / "sub" / "x").touch()
    remove(place)
    assert not place.exists()
    remove(place)  # nothing to remove
    begun(place)
    with locked(place):
        assert is_locked(place)


def test_files_that_were_there_before_are_not_a_part_of_the_run(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "notes.json").write_text("{}")
    (place / "data").mkdir()
    (place / "data" / "mine.parquet").write_text("mine")
    with RunFolder.open(place, "run", Config()) as folder:
        folder.save_json("result.json", {})
        folder.finish({"kind": "run"})
    assert set(RunFolder(place).manifest.artefacts) == {"record.json", "result.json"}
    (place / "notes.json").write_text("[1]")
    (place / "data" / "mine.parquet").unlink()
    RunFolder(place).check()


def test_a_changed_record_is_refused_wherever_it_is_read(place: Path) -> None:
    with RunFolder.open(place, "run", Config()) as folder:
        folder.finish({"kind": "run", "figures": {"mean": 1.0}})
    path = place / "record.json"
    text = path.read_text()
    for changed in (text.replace("1.0", "2.0"), "[]", "{}", "", '{"figures": 3}'):
        path.write_text(changed)
        with pytest.raises(KairodeError, match=r"record.json was changed after the run"):
            _ = RunFolder(place).record
        with (
            pytest.raises(KairodeError, match=r"record.json was changed after the run"),
            RunFolder.open(place, "run", Config()) as folder,
        ):
            _ = folder.record
    path.write_text(text)
    assert RunFolder(place).record


def test_with_warnings_as_errors_nothing_is_left(place: Path) -> None:
    with pytest.raises(KairodeWarning, match="misleading"), RunFolder.open(place, "run", Config()):
        raise KairodeWarning("misleading")
    assert not (place / "manifest.json").exists()


def test_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with (
        pytest.raises(KairodeError, match="is a link to a folder that does not exist"),
        RunFolder.open(tmp_path / "link", "run", Config()),
    ):
        pass


def test_results_of_a_run_that_strict_ended_stay_its_own(tmp_path):
    def ended() -> None:
        with RunFolder.open(tmp_path, "run", RunConfig(seed=1)) as folder:
            folder.save_json("tests.json", {})
            raise KairodeWarning("strict")

    with pytest.raises(KairodeWarning):
        ended()
    with pytest.raises(KairodeError, match="holds another run"), RunFolder.open(tmp_path, "run", RunConfig(seed=2)):
        pass
    with RunFolder.open(tmp_path, "run", RunConfig(seed=1)) as folder:
        assert folder.resumed
