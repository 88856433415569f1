"""The documents hold: the how-to pages run, links lead somewhere, commands exist, public names are explained."""

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attacks.__main__ import ATTACKS

import kairode
from kairode.cli import COMMANDS, parse_command
from kairode.errors import KairodeError
from kairode.report.summary import summary_sentences

ROOT = Path(__file__).parents[1]
HOW_TO = (
    pytest.param("docs/add-a-model.md", marks=pytest.mark.slow),
    "docs/add-an-environment.md",
    "docs/add-a-planner.md",
    "docs/gpu-and-ray.md",
    pytest.param("docs/dosing-example.md", marks=pytest.mark.slow),
    pytest.param(  # warnings about estimates are what the page shows
        "docs/from-a-table.md",
        marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore::kairode.KairodeWarning")],
    ),
    pytest.param("docs/scaling.md", marks=pytest.mark.slow),
    pytest.param("docs/agent-intervals.md", marks=pytest.mark.slow),
)
"""Pages whose Python is run."""
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
LISTS = (
    ("kairode.models.zoo", "MODELS"),
    ("kairode.envs.zoo", "ENVIRONMENTS"),
)
"""What a page may add its own to."""


def blocks(page: str) -> Iterator[tuple[str, int, str]]:
    """The fenced blocks of a page: language, number of the first line, content."""
    begun: tuple[str, int, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(read(page).splitlines(), 1):
        fence = re.match(r"( *)```(\w*)", line)
        if begun is None:
            if fence:
                begun, lines = (fence[2], number + 1, len(fence[1])), []
        elif fence:
            yield begun[0], begun[1], "\n".join(lines) + "\n"
            begun = None
        else:
            lines.append(line[begun[2] :])
    assert begun is None, f"{page}: the block at line {begun and begun[1]} does not end"


@pytest.fixture
def own_lists() -> Iterator[None]:
    """What a page adds to the package's lists is gone when it ends."""
    lists = [getattr(importlib.import_module(module), name) for module, name in LISTS]
    before = [dict(one) for one in lists]
    yield
    for one, was in zip(lists, before, strict=True):
        one.clear()
        one.update(was)


@pytest.mark.slow
@pytest.mark.parametrize("page", HOW_TO)
@pytest.mark.usefixtures("own_lists")
def test_a_how_to_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python, block by block, as a reader would; the asserts are the page's claims."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "page"}
    claims = 0
    for language, line, code in blocks(page):
        if language == "python":
            exec(compile("\n" * (line - 1) + code, str(ROOT / page), "exec"), space)
            claims += len(re.findall(r"^\s*(?:assert |np\.testing\.)", code, re.MULTILINE))
    assert claims, f"{page} claims nothing"


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few episodes and iterations; episodes of HIV last for sixty days."""
    few = {"episodes": 2}
    dyna = {"initial_episodes": 10, "ensemble_size": 2, "fit_iterations": 4, "imagined_episodes": 4, "rounds": 1}
    offline = {"decisions": 300, "updates": 500, "stops": 1}
    small = {"collect": {"episodes": 12}, "fit": {"iterations": 2}, "learn": few, "evaluate": few, "train_dyna": dyna}
    small["learn_offline"] = offline
    for name, options in small.items():
        whole = getattr(kairode, name)
        monkeypatch.setattr(kairode, name, lambda *a, _whole=whole, _small=options, **k: _whole(*a, **{**k, **_small}))
    made = kairode.make
    monkeypatch.setattr(
        kairode, "make", lambda name, **k: made(name, **({"horizon": 60} if name == "hiv" else {}), **k)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("little")
def test_the_ten_lines_of_the_readme_run() -> None:
    """Unchanged but for the numbers of episodes and iterations."""
    code = next(code for language, _, code in blocks("README.md") if language == "python")
    assert 10 <= len([line for line in code.splitlines() if line]) <= 11
    space: dict[str, Any] = {}
    exec(code, space)
    assert space["timed"].accrues


@pytest.mark.slow
@pytest.mark.usefixtures("little")
@pytest.mark.filterwarnings("ignore::kairode.KairodeWarning")
def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python in order, except MPC (minutes) and what a command must have written before."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for language, line, code in blocks("docs/guide.md"):
        if language != "python" or "kd.train_mpc" in code:
            continue
        kept = "\n".join(line for line in code.splitlines() if "load_models" not in line)
        exec(compile("\n" * (line - 1) + kept, str(ROOT / "docs/guide.md"), "exec"), space)
    assert {"data", "models", "policy", "cheap"} <= space.keys()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, part = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), f"{page} links to {target}, which is not there"
        if part:
            assert part in headings(path), f"{page} links to {target}: no such heading"


def headings(path: Path) -> set[str]:
    """Anchors as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


NAMED = re.compile(r"`((?:results|tests|docs|benchmarks|src/kairode)/[\w./-]+\.(?:json|py|md|svg))`")
TO_BE_WRITTEN = {"src/kairode/models/relaxing.py", "src/kairode/envs/infusion.py", "tests/envs/test_infusion.py"}
"""What the how-to pages let their reader write."""


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_the_text_exist(page: str) -> None:
    """Those that are written as code; words in capitals stand for any name."""
    named = {name for name in NAMED.findall(read(page)) if not re.search("[A-Z]{3}", name)} - TO_BE_WRITTEN
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing, f"{page} names files that are not there"


def read(page: str) -> str:
    return (ROOT / page).read_text()


def commands(page: str) -> list[tuple[int, list[str]]]:
    """The command lines in fenced blocks: number of the line, words."""
    found = []
    for language, first, text in blocks(page):
        if language in ("python", "text"):
            continue
        joined = text.replace("\\\n", "  ")
        for number, line in enumerate(joined.splitlines(), first):
            if line.startswith(("kairode ", "$ kairode ")):
                found.append((number, shlex.split(line.removeprefix("$ "), comments=True)[1:]))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_typed(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every `kairode ...` names a subcommand and its options, as the command line itself parses them."""
    typed = commands(page)
    wrong = [f"{page}, line {n}: kairode {shlex.join(words)}" for n, words in typed if not can_be_typed(words)]
    capsys.readouterr()
    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_can_be_typed(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`kairode run ENV --seed 1` in a sentence; a command's name alone stands for all its uses."""
    text = re.sub(r"^ *```.*?^ *```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    wrong = []
    for said in re.findall(r"`kairode ([a-z][^`]*)`", text):
        words = shlex.split(said)
        if not (words[0] in COMMANDS if len(words) == 1 else can_be_typed(words)):
            wrong.append(said)
    capsys.readouterr()
    assert not wrong


def can_be_typed(words: list[str]) -> bool:
    """Whether the command line parses."""
    try:
        parse_command(words)
    except SystemExit as stop:
        return not stop.code
    except KairodeError:
        return False
    return True


RECORDS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "results").rglob("*.json"))
NO_COMMAND = {"results/policies/tuning-hiv.json", "results/solvers-mpc.json"}
"""Records of comparisons that were made once, by no command."""


def test_commands_of_records_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for name in RECORDS:
        said = json.loads(read(name)).get("command") or "none"
        commands = [shlex.split(one) for one in re.split(r"; | && ", said) if one.startswith("kairode ")]
        if said.startswith("python -m attacks "):
            if said.split()[3] not in ATTACKS:
                wrong.append(f"{name}: {said}")
            continue
        if said.startswith("python tools/"):
            if not (ROOT / said.split()[1]).is_file():
                wrong.append(f"{name}: {said}")
            continue
        if (name in NO_COMMAND) != (not commands) or not all(can_be_typed(words[1:]) for words in commands):
            wrong.append(f"{name}: {said}")
    capsys.readouterr()
    assert not wrong


def test_records_cut_short_by_time_say_so_in_their_command() -> None:
    for name in RECORDS:
        record = json.loads(read(name))
        if record.get("kind") == "visits":
            limited = any("planned_episodes" in point for point in record["figures"]["points"].values())
            assert ("--time-limit" in record["command"]) == limited, name


def test_commands_are_checked() -> None:
    """The check above sees what it should, and refuses what it should."""
    assert len(commands("docs/guide.md")) > 5
    with pytest.raises(KairodeError, match="unknown command 'fly'"):
        parse_command(["fly"])
    for words in (["fit", "hiv", "--sneeds", "5"], ["fit", "hiv", "--seeds", "five"], ["evaluate"]):
        with pytest.raises(SystemExit) as stop:
            parse_command(words)
        assert stop.value.code == 2


@pytest.mark.parametrize("name", [name for name in kairode.__all__ if name != "__version__"])
def test_public_names_are_explained(name: str) -> None:
    """With a docstring of their own, not one inherited or made up by a dataclass; functions say what they take."""
    thing = getattr(kairode, name)
    text = (thing.__dict__.get("__doc__") if isinstance(thing, type) else thing.__doc__) or ""
    assert len(text.split()) >= 3, f"kairode.{name} says nothing of itself"
    assert not text.startswith(f"{name}("), f"kairode.{name}: a signature is no explanation"


def test_last_lines_of_the_main_job_in_the_readme() -> None:
    said = " ".join(read("README.md").split())
    for sentence in summary_sentences(json.loads(read("results/run-hiv.json"))):
        assert sentence in said


def test_figures_of_the_gpu_page() -> None:
    """Its table says what the records say."""

    def figures(name: str) -> Any:
        return json.loads((ROOT / "results" / f"{name}.json").read_text())["figures"]

    rows = {
        cells[0]: cells[1:3]
        for line in read("docs/gpu-and-ray.md").splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
    }
    policy, policy_cpu = figures("bench-policy-h200"), figures("bench-policy")
    plan, plan_cpu = figures("bench-mpc-h200"), figures("bench-mpc")
    fit, fit_cpu = figures("bench-fit-h200"), figures("bench-fit")
    expected = {
        "learn a policy, one agent, a decision": (policy["milliseconds"]["1"], policy_cpu["milliseconds"]["ours_1"]),
        "the same, 210 agents in one loop": (policy["milliseconds"]["210"], None),
        "MPC plan, hopper (1,000 sequences of ten actions)": (plan["hopper"]["plan"], plan_cpu["hopper"]["plan"]),
        "MPC plan, half-cheetah": (plan["half-cheetah"]["plan"], plan_cpu["half-cheetah"]["plan"]),
        "fit five Latent-ODEs (`midpoint:2`), HIV, an iteration": (
            fit["hiv"]["5"]["latent-ode"],
            fit_cpu["hiv"]["5"]["latent-ode-midpoint2"],
        ),
        "the same with the adaptive dopri5": [one["hiv"]["5"]["latent-ode-dopri5"] for one in (fit, fit_cpu)],
        "fit five RNNs, acrobot, an iteration": [one["acrobot"]["5"]["rnn"] for one in (fit, fit_cpu)],
    }
    for row, values in expected.items():
        for said, value in zip(rows[row], values, strict=True):
            if value is None:
                assert said == "-"
            else:
                assert float(said) == pytest.approx(value, rel=0.01), row
    assert policy["decisions_a_second"] == {"1": 7626.0, "35": 122200.0, "210": 203000.0}


def test_the_dosing_table_is_that_of_its_record() -> None:
    figures = json.loads((ROOT / "results" / "dosing.json").read_text())["figures"].values()
    page = (ROOT / "docs" / "dosing-example.md").read_text()
    chosen = [f"{one['chosen']['return']:.1f} ({one['chosen']['visits']:.1f} visits)" for one in figures]
    for numbers in (
        [f"{one['constant']:.1f}" for one in figures],
        [f"{one['learned']['return']:.1f}" for one in figures],
    ):
        assert f"17.3 visits | {' | '.join(numbers)} |" in page
    assert f"chosen by the model | {' | '.join(chosen)} |" in page
