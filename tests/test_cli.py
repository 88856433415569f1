"""The command as people type it."""

import shlex
import subprocess
import sys

import pytest
from kairode.config.run import command

import kairode
from kairode.cli.common import fields_of
from kairode.config.algorithms import RunConfig
from kairode.envs.zoo import ENVIRONMENTS


def test_envs(typed) -> None:
    code, out, _ = typed("envs")
    assert code == 0
    for name in ENVIRONMENTS:
        assert name in out
    assert "kairode/HalfCheetah-v0" in out
    code, out, _ = typed("envs", "acrobot")
    assert code == 0
    assert "theta1 (rad)" in out
    assert "substep" in out
    assert "1 per 0.2 second" in out
    assert "R = -cos(theta1') - cos(theta1' + theta2')." in out
    assert typed("--version")[1] == f"kairode {kairode.__version__}\n"


def test_collect(typed, tmp_path) -> None:
    out_file = tmp_path / "deep" / "visits.parquet"
    words = ["collect", "hiv", "--episodes", "5", "--out", str(out_file), "--seed", "3", "--set", "max_decisions=4"]
    code, out, _ = typed(*words)
    assert code == 0
    assert out == f"5 episodes, 20 decisions of 'hiv' are in {out_file}.\n"
    seen = kairode.read(out_file)
    assert seen.decisions == 20
    assert seen.spec.max_decisions == 4
    code, out, _ = typed(*words, "--quiet", "--schedule", "2", "--set", "horizon=inf", "max_decisions=4")
    assert (code, out) == (0, "")
    assert (kairode.read(out_file).interval == 2).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["collect", "hvi", "--out", "x.parquet"], "error: unknown environment 'hvi'. Did you mean 'hiv'?"),
        (["envs", "hopperr"], "error: unknown environment 'hopperr'. Did you mean 'hopper'?"),
        (["collect", "hiv", "--out", "x.parquet", "--set", "horizn=5"], "Did you mean 'horizon'?"),
        (["collect", "hiv", "--out", "x.parquet", "--set", "horizon"], "error: --set takes name=value, got 'horizon'."),
        (
            ["collect", "hiv", "--out", "x.parquet", "--episodes", "0"],
            "error: episodes must be an integer of at least 1, got 0.",
        ),
        (["collect", "hiv", "--out", "x.parquet", "--schedule", "-3"], "must be a positive, finite time, got -3."),
        (["collect", "hiv", "--out", "x.parquet", "--setting", "their"], "unknown setting 'their'"),
        (["collect", "hiv", "--out", "."], "error: cannot write '.': it is a folder."),
        (["bench", "nothing"], "error: unknown benchmark 'nothing'."),
        (["runn", "hiv"], "error: unknown command 'runn'. Did you mean 'run'?"),
        (["run", "hiv", "--out", ""], "error: an empty word was given"),
        (["run", "hiv", "--out="], "error: an empty word was given"),
        (["run", "hiv", "--set", "horizon=abc"], "error: horizon of 'hiv' takes a number such as 1000.0, got 'abc'."),
        (["run", "hiv", "--set", "observed=V"], "error: observed of 'hiv' takes several values such as ('T1',"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(monkeypatch, typed, tmp_path, words: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = typed(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_fields_survive_the_way_into_a_record_and_back() -> None:
    fields = {"substep": float("inf"), "intervals": (0.2, 0.4), "max_decisions": None, "timing": "all"}
    words = shlex.split(command(RunConfig("acrobot", env_fields=fields)))
    given = fields_of(tuple(words[words.index("--set") + 1 :]))
    assert {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()} == fields


def test_missing_arguments_and_help(typed) -> None:
    code, _, err = typed("collect", "hiv")
    assert code == 2
    assert "--out" in err
    code, out, _ = typed("collect", "--help")
    assert code == 0
    assert "kairode collect hiv --episodes 100" in out
    assert "None" not in out


def test_a_wrong_option_is_answered_by_its_own_command(typed) -> None:
    code, _, err = typed("run", "hiv", "--epsiodes", "4")
    assert code == 2
    assert "--episodes" in err
    assert "None" not in err
    assert "collect" not in err, "which has an option of that name too"


def test_environments_on_a_narrow_terminal(typed, monkeypatch) -> None:
    _, wide, _ = typed("envs")
    assert "Gymnasium id" in wide
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setattr("rich.console.Console.width", 40)
    _, narrow, _ = typed("envs")
    for name in ("half-cheetah", "kairode/WindyGridworld-v0"):
        assert name in narrow
    assert "…" not in narrow


def test_installed_command() -> None:
    done = subprocess.run([sys.executable, "-m", "kairode", "envs"], capture_output=True, text=True, check=True)
    assert "kairode/HIV-v0" in done.stdout
