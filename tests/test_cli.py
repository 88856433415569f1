"""The command as people type it."""

import subprocess
import sys

import pytest

import kairode
from kairode.cli import COMMANDS, DEPENDENT
from kairode.config.models import MODEL_NAMES
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
    assert out == f"Wrote 5 episodes with 20 decisions of 'hiv' to {out_file}.\n"
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
        (["run", "hiv", "--out", ""], "error: an option has an empty value"),
        (["run", "hiv", "--out="], "error: an option has an empty value"),
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
    assert err.removeprefix("loading JAX: started\n").count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_arguments_and_help(typed) -> None:
    code, _, err = typed("collect", "hiv")
    assert code == 2
    assert "--out" in err
    code, out, _ = typed("collect", "--help")
    assert code == 0
    assert "kairode collect hiv --episodes 100" in out
    assert "None" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "hiv", "--epsiodes", "4"), "--episodes"),
        (("run", "hopper", "--episodes", "4"), "Unrecognized options: --episodes"),
        (("run", "hiv", "--decisions", "4"), "Unrecognized options: --decisions"),
        (("fit", "hiv", "--latent", "4"), "--latent-size"),
        (("run", "gridworld", "--rounds", "many"), "--rounds: invalid literal"),
        (("run", "gridworld", "--schedule"), "--schedule"),
        (("dyna", "hiv", "--rounds"), "--rounds"),
        (("schedule",), "RUN|ENV"),
        (("fit",), "error: ENV|TABLE is missing"),
        (("run", "gridworld", "--model", "free"), "here --model-free-episodes trains a policy without a model"),
        (("run", "gridworld", "--seeds", "2"), "run once per seed (--seed 0, --seed 1)"),
        (("run", "--seeds=2"), "run once per seed (--seed 0, --seed 1)"),
    ],
)
def test_a_wrong_option_is_answered_by_its_own_command(typed, words: tuple[str, ...], said: str) -> None:
    code, out, err = typed(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert "None" not in err
    assert "kairode collect" not in err, "which has an option of that name too"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(typed, name: str) -> None:
    code, out, err = typed(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: kairode {name}")
    assert "default: None" not in out
    assert "{None}" not in out
    first = (COMMANDS[name].__doc__ or "").split("\n")[0]
    assert " ".join(first.split()) in " ".join(out.split())
    assert first.split()[0] in typed()[1]
    assert typed("help", name)[1] == out


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("run", "[ENV|TABLE] [-h] [OPTIONS]"),
        ("fit", "ENV|TABLE [-h] [OPTIONS]"),
        ("dyna", "[ENV] [-h] [OPTIONS]"),
        ("reproduce", "[-h] [OPTIONS] [TABLE|FIGURE|all]"),
    ],
)
def test_the_usage_names_the_first_word(typed, name: str, start: str) -> None:
    _, out, _ = typed(name, "--help")
    assert out.startswith(f"usage: kairode {name} {start}\n")
    assert name == "reproduce" or all(env in out for env in ("gridworld", "acrobot", "hiv-"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("run gridworld", "None imagines whole episodes from the start states. (default is None)"),
        ("run hopper", f"Models: {', '.join(MODEL_NAMES)}. (default: latent-ode)"),
        (
            "fit hiv",
            "--validation-episodes INT Episodes that decide which iteration's model is kept; of a file, a tenth.",
        ),
        ("fit hiv", "--timer STR Interval timer: classes, continuous or none; auto takes classes for evenly spaced"),
        ("dyna hiv", "--no-sample-intervals Turn off (on by default): Draw imagined intervals from the distribution"),
        (
            "run hopper",
            "--no-relative-obs Turn off (on by default): Agent and model see the change of relative variables",
        ),
        ("schedule", "--continuous Choose among all intervals between the shortest and the longest. (default: False)"),
    ],
)
def test_help_of_options(typed, words: str, text: str) -> None:
    """One paragraph each, in the config's words, which say what the option does."""
    _, out, _ = typed(*words.split(), "--help")
    assert text in " ".join(out.split())


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_defaults_in_the_help_are_those_of_the_environment(typed, env: str) -> None:
    controls = env in ("pendulum", "swimmer", "hopper", "half-cheetah")
    for name in DEPENDENT:
        if name == "learn" or (name == "dyna" and controls):
            continue
        code, out, err = typed(name, env, "--help")
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: kairode {name} {env} [-h]")
    _, out, _ = typed("run", env, "--help")
    assert ("--decisions " in out) is controls
    assert ("--episodes-per-round" in out) is not controls
    _, paper, _ = typed("run", env, "--help", *([] if controls else ["--paper"]))
    assert (paper == out) is controls


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
