"""Files: atomic writes that leave nothing behind, and reading with bounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kairode.errors import KairodeError
from kairode.files import (
    atomic_write,
    has_digest,
    inside,
    load_json,
    parse_json,
    read_bytes,
    remove_parts,
    save_json,
    with_digest,
)

HOLDER = """
import sys
from kairode.files import atomic_write
with atomic_write(sys.argv[1]) as part:
    part.write_bytes(b"half")
    print(part, flush=True)
    sys.stdin.read()
"""


def writer(target: Path) -> tuple[subprocess.Popen, Path]:
    """A process in the middle of a write, and its temporary file."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_temporary_file_of_a_killed_process_is_removed_by_the_next_write(tmp_path):
    killed, left = writer(tmp_path / "a.json")
    busy, kept = writer(tmp_path / "b.json")
    killed.kill()
    killed.communicate()
    assert left.exists()
    mine = tmp_path / ".notes.part"  # of somebody else
    mine.write_text("x")
    with atomic_write(tmp_path / "c.json") as part:
        assert part.exists()
        part.write_text("whole")
    assert not left.exists()
    assert kept.exists()
    assert mine.exists()
    busy.communicate("")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".notes.part", "b.json", "c.json"]
    assert (tmp_path / "b.json").read_bytes() == b"half"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as part:
        part.write_text(f"{1 / 0}")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    remove_parts(tmp_path / "nowhere")


def test_a_link_is_written_through_and_odd_targets_are_refused(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    with atomic_write(link) as part:
        part.write_text("{}")
    assert link.is_symlink()
    assert real.read_text() == "{}"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    os.mkfifo(tmp_path / "pipe")
    for target, said in (
        (tmp_path, "it is a folder"),
        (tmp_path / "pipe", "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
        (loop, "cannot write"),
        (real / "x.json", "is a file, not a folder"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(KairodeError, match=said), atomic_write(target) as part:
            part.write_text("never")


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(KairodeError, match=r"larger than expected .5 bytes, at most 4"):
        read_bytes(path, 4)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none", 4)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(KairodeError, match="a pipe or device"):
            read_bytes(tmp_path / name, 100)
        with pytest.raises(KairodeError, match="a pipe or device, not a file: remove it"):
            load_json(tmp_path / name)
    with pytest.raises(KairodeError, match="is a folder"):
        load_json(tmp_path)


def test_json_of_bounded_depth():
    assert parse_json("[" * 60 + "1" + "]" * 60)
    assert parse_json("3") == 3
    for text in ("[" * 70 + "]" * 70, "[" * 10**6, '{"a":' * 70 + "1" + "}" * 70):
        with pytest.raises(ValueError, match=r"nested|Expecting"):
            parse_json(text)


def test_a_digest_notices_every_change_and_no_reordering():
    content = {"seed": 3, "scale": [0.1, 1e-300, float("inf")], "of": {"x": None, "y": "é"}, "sizes": (1, 2)}
    stored = json.loads(json.dumps(with_digest(content)))
    assert has_digest(stored)
    assert has_digest(dict(reversed(stored.items())))
    assert not has_digest({**stored, "seed": 4})
    assert not has_digest({**stored, "scale": [0.1, 2e-300, float("inf")]})
    assert not has_digest({name: value for name, value in stored.items() if name != "of"})
    assert not has_digest(content)


def test_names_in_files_stay_inside_their_folder(tmp_path):
    assert inside(tmp_path, "fit/models.json") == tmp_path / "fit" / "models.json"
    for name in ("../x", "/etc/passwd", "a/../../x", "", 3, None, "a\0b", "\ud800"):
        with pytest.raises(KairodeError, match="leads out of the folder"):
            inside(tmp_path, name)


def test_what_is_saved_comes_back_whatever_the_names(tmp_path):
    content = with_digest({"names": ["pH [ ]", "x [ - ]", "a [1,  2].parquet", 'q " [ 1 ]', "\\"], "numbers": [1.0, 2]})
    save_json(tmp_path / "a.json", content)
    assert has_digest(load_json(tmp_path / "a.json"))
    assert load_json(tmp_path / "a.json") == content
    assert '"numbers": [1.0, 2]' in (tmp_path / "a.json").read_text()
