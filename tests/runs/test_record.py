"""A record tells what was run, on what, and what came out."""

import json
import re
import subprocess

import pytest

from kairode.config.run import RunConfig
from kairode.errors import KairodeError
from kairode.files import save_json
from kairode.runs.pipeline import run_pipeline
from kairode.runs.record import commit, make_record, processor


def test_a_record_is_plain_json(tmp_path) -> None:
    config = {"env": "hiv", "episodes": 5, "seed": 7, "fields": {}}
    made = make_record("run", config, {"return_mean": 1.5}, command="kairode run hiv", seconds=1.234)
    save_json(tmp_path / "record.json", made)
    back = json.loads((tmp_path / "record.json").read_text())
    assert back == made
    assert back["config"] == config
    assert back["seed"] == 7
    assert back["machine"]["cores"] >= 1
    assert back["versions"]["jax"] != "0.10.2"
    assert processor()


def test_the_commit_is_that_of_the_code() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    found = commit()
    if head.returncode == 0:
        assert found is not None
        assert re.fullmatch(rf"{head.stdout.strip()}\+?", found)
    else:
        assert found is None


def test_nothing_is_left_of_a_run_that_cannot_be(tmp_path) -> None:
    with pytest.raises(KairodeError, match="unknown environment"):
        run_pipeline(RunConfig("nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
