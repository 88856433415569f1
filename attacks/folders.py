"""Run folders and files that are not what they should be: links, pipes, devices, without permission, on a full disk."""

import contextlib
import dataclasses
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attacks._common import Effort, Outcome, attack, environment, kairode
from attacks.kills import PART

SECONDS, COMMAND_SECONDS = 10, 60
"""Limits of a call of the library and of a command."""
MEMORY = 4 * 2**30
"""Bytes that one call may take: reading an endless file stops there."""
LONG = "x" * 300
NOBODY = 65534
SMALL = "--episodes 10 --validation-episodes 2 --test-episodes 2 --iterations 40 --set horizon=20 -q"
RUN = "run gridworld --model rnn --episodes 10 --rounds 0 --fit-iterations 40 --learn.episodes 3 --schedule-episodes 0"
RUN += " --model-free-episodes 0 --set horizon=20 -q"
HARMLESS = {".lock"}
"""Files that a refused call may leave."""
Prepare = Callable[[Path], Any]


@attack(
    "folders and files of odd kinds",
    "one clear sentence, exit 2, nothing half-made; or it works; none hangs",
    ("slow", "full"),
)
def odd_folders(folder: Path, effort: Effort) -> Outcome:
    """Read and write where the folder or a file in it is a link, a pipe, a device, or may not be used."""
    made = kairode(*RUN.split(), "--out", str(folder / "run"))
    if made.returncode:
        raise RuntimeError(f"the undisturbed run failed: {made.stderr}")
    calls = _calls(folder)
    commands = [_command(folder / "commands" / f"{i}", case) for i, case in enumerate(_commands(effort))]
    commands += [_full(folder, name, words) for name, words in DISK.items()]
    found = [*calls, *commands]
    failures = [f"{name}: {text}" for name, text in found if text]
    details = {
        "calls": len(calls),
        "commands": len(commands),
        "skipped": [] if os.geteuid() == 0 else ["a folder of another user"],
        "failures": failures[:40],
    }
    return Outcome(f"{len(failures)} of {len(found):,} cases fail", not failures and len(calls) > 50, details)


def _calls(folder: Path) -> list[tuple[str, str]]:
    """The library's functions, in a process that has no more rights than a user's."""
    program = "import sys; from pathlib import Path; from attacks.folders import call_all; call_all(Path(sys.argv[1]))"
    words = [*_without_rights(), sys.executable, "-c", program, str(folder)]
    here = Path(__file__).parents[1]
    try:
        done = subprocess.run(words, cwd=here, env=environment(), capture_output=True, text=True, timeout=900)
        out, end = done.stdout, f"exit {done.returncode}: {done.stderr[-500:]}" * bool(done.returncode)
    except subprocess.TimeoutExpired as error:
        out, end = (error.stdout or b"").decode(), "hung"
    found = [tuple(json.loads(line)) for line in out.splitlines() if line.startswith("[")]
    return [*((name, text) for name, text in found), *[("the process of the calls", end)] * bool(end)]


def _without_rights() -> list[str]:
    """A prefix for root, to whom every file is writable otherwise."""
    rights = "-dac_override,-dac_read_search,-fowner"
    return ["setpriv", "--bounding-set", rights, "--inh-caps", rights] if os.geteuid() == 0 else []


def call_all(folder: Path) -> None:
    """Make every call, and print for each its name and what is wrong: nothing, if it worked or was refused well."""
    for number, (name, call, prepare, kind) in enumerate([*_reads(folder / "run"), *_writes()]):
        scratch = folder / "calls" / str(number)
        scratch.mkdir(parents=True)
        try:
            path = prepare(scratch)
        except PermissionError:  # a folder of another user can be made by root alone
            continue
        print(json.dumps([name, _called(functools.partial(call, path), scratch, kind)]), flush=True)


def _called(call: Callable[[], Any], scratch: Path, kind: str) -> str:
    """What is wrong with a call: it hangs, raises anything but a sentence, or leaves files."""
    from kairode import KairodeError

    before, refused = _tree(scratch), ""
    try:
        with _bounds():
            call()
    except KairodeError as error:
        refused = str(error)
        if not refused.strip() or "\n" in refused.strip() or "Errno" in refused or refused.strip()[-1] not in ".)":
            return f"not one clear sentence: {refused!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    if refused and kind == "works":
        return f"refused: {refused}"
    if not refused and kind == "refused":
        return "was not refused"
    more = _tree(scratch) - before
    left = {name for name in more if name.endswith(".part") or (refused and Path(name).name not in HARMLESS)}
    return f"left {', '.join(sorted(left))}" if left else ""


class Hung(BaseException):
    """A call took too long; the library catches no such error."""


@contextlib.contextmanager
def _bounds() -> Iterator[None]:
    """Limits on the time and memory of a call."""

    def late(number: int, frame: Any) -> None:
        raise Hung(f"did not return within {SECONDS} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _tree(folder: Path) -> set[str]:
    """The names of all files, of those that can be listed."""
    return {os.fsdecode(os.path.join(place, name)) for place, _, files in os.walk(folder) for name in files}


def _readers(original: Path) -> dict[str, tuple[str, Callable[[Path], Any]]]:
    """Functions that read a run, each with the file that it cannot do without."""
    from kairode import load_models, load_policy, read, stream
    from kairode.agents.policy_files import read_policy
    from kairode.config.run import RunConfig
    from kairode.runs.folder import RunFolder
    from kairode.runs.load import read_run
    from kairode.training import checkpoint

    config = RunFolder(original).config(RunConfig)

    def resume(run: Path) -> None:
        with RunFolder.open(run, "run", config) as opened:
            assert opened.resumed or opened.manifest.kind == "run"

    return {
        "load_models": ("fit/models.json", lambda run: load_models(run / "fit")),
        "load_policy": ("policy.json", load_policy),
        "read_policy": ("policy.json", read_policy),
        "checkpoint.describe": ("fit/checkpoint.json", lambda run: checkpoint.describe(run / "fit")),
        "kairode.read": ("experience.parquet", lambda run: read(run / "experience.parquet")),
        "kairode.stream": ("experience.parquet", lambda run: stream(run / "experience.parquet")[:2]),
        "RunFolder.check": ("manifest.json", lambda run: RunFolder(run).check().record),
        "RunFolder.record": ("record.json", lambda run: RunFolder(run).record),
        "RunFolder.manifest": ("manifest.json", lambda run: RunFolder(run).manifest),
        "RunFolder.open": ("manifest.json", resume),
        "read_run": ("policy.json", read_run),
    }


def _move_out(file: str, run: Path) -> None:
    """Replace a file by a link to it, outside of the run folder."""
    path = run / file
    outside = run.parent / f"outside-{path.name}"
    path.rename(outside)
    path.symlink_to(outside)


REPLACED: dict[str, Prepare] = {
    "a pipe": os.mkfifo,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/full": lambda path: path.symlink_to("/dev/full"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "unreadable": lambda path: path.touch(mode=0),
    "empty": Path.touch,
}
"""What a file may be instead."""
BROKEN = ("a link to itself", "a link to nothing")


def _reads(original: Path) -> Iterator[tuple[str, Callable[[Path], Any], Prepare, str]]:
    """Calls on copies of a finished run: name, call, preparation, and what is expected."""
    readers = _readers(original)

    def copied(change: Prepare, scratch: Path) -> Path:
        shutil.copytree(original, scratch / "inner" / "run")
        change(scratch / "inner" / "run")
        return scratch / "inner" / "run"

    def replaced(name: str, by: Prepare, run: Path) -> None:
        (run / name).unlink()
        by(run / name)

    for reader, (file, call) in readers.items():
        yield f"{reader}, nothing changed", call, functools.partial(copied, lambda run: None), "works"
        for kind, by in REPLACED.items():
            change = functools.partial(copied, functools.partial(replaced, file, by))
            absent = kind in BROKEN and file in ("manifest.json", "record.json")  # as if there were none
            yield f"{reader}, {file} is {kind}", call, change, "either" if absent else "refused"
        outside = functools.partial(copied, functools.partial(_move_out, file))
        yield f"{reader}, {file} is a link to the file outside", call, outside, "either"
    for name, file, entry in (
        ("load_models", "fit/models.json", "relative"),
        ("load_models", "fit/models.json", "absolute"),
        ("read_policy", "policy.json", "relative"),
        ("read_policy", "policy.json", "absolute"),
    ):
        change = functools.partial(copied, functools.partial(_weights_outside, file, entry))
        yield f"{name}, weights outside, by their {entry} path", readers[name][1], change, "refused"
    change = functools.partial(copied, _artefact_outside)
    yield "RunFolder.check, an artefact outside", readers["RunFolder.check"][1], change, "refused"


def _weights_outside(file: str, entry: str, run: Path) -> None:
    """Move weights out of the folder, and let their description name the new place."""
    path = run / file
    about = json.loads(path.read_text())
    outside = run.parent / "outside.safetensors"
    (path.parent / about["file"]).rename(outside)
    relative = os.path.relpath(outside, path.parent)
    _rewrite(path, about | {"file": str(outside) if entry == "absolute" else relative})


def _artefact_outside(run: Path) -> None:
    """Let the manifest name a file outside of the folder, with the right digest."""
    from kairode.files import file_digest

    (run.parent / "x").write_text("{}")
    about = json.loads((run / "manifest.json").read_text())
    artefacts = about["artefacts"] | {"../x": file_digest(run.parent / "x")}
    _rewrite(run / "manifest.json", about | {"artefacts": artefacts})


def _rewrite(path: Path, content: dict[str, Any]) -> None:
    """Write JSON as someone would who knows the format: its own digest is right."""
    from kairode.files import JSON_DIGEST, with_digest

    kept = {name: value for name, value in content.items() if name != JSON_DIGEST}
    path.write_text(json.dumps(with_digest(kept) if JSON_DIGEST in content else kept))


def _made(make: Prepare, name: str = "target") -> Prepare:
    """A path in a scratch folder, made in some way."""

    def prepare(scratch: Path) -> Path:
        make(scratch / name)
        return scratch / name

    return prepare


def _linked(path: Path) -> None:
    (path.parent / "real").mkdir()
    path.symlink_to("real")


def _loop(path: Path) -> None:
    path.with_name("other").symlink_to(path.name)
    path.symlink_to("other")


def _of_another(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, NOBODY, NOBODY)


TARGETS: dict[str, tuple[Prepare, str]] = {
    "new": (_made(lambda path: None), "works"),
    "a link to a folder": (_made(_linked), "works"),
    "a link to nothing": (_made(lambda path: path.symlink_to("nothing")), "either"),
    "a loop of links": (_made(_loop), "refused"),
    "a file": (_made(Path.touch), "either"),
    "under a file": (lambda scratch: _made(Path.touch)(scratch) / "below", "refused"),
    "a read-only folder": (_made(lambda path: path.mkdir(mode=0o500)), "refused"),
    "below a read-only folder": (lambda scratch: _made(lambda path: path.mkdir(mode=0o500))(scratch) / "a", "refused"),
    "a folder without x": (_made(lambda path: path.mkdir(mode=0o600)), "refused"),
    "below a folder without x": (lambda scratch: _made(lambda path: path.mkdir(mode=0o600))(scratch) / "a", "refused"),
    "a folder of another user": (_made(_of_another), "refused"),
    "below a folder of another user": (lambda scratch: _made(_of_another)(scratch) / "a", "refused"),
    "a name of 300 characters": (lambda scratch: scratch / LONG, "refused"),
    "a path of 6,000 characters": (lambda scratch: scratch.joinpath(*["x" * 200] * 30), "refused"),
    "a name that is not UTF-8": (lambda scratch: scratch / os.fsdecode(b"caf\xe9"), "works"),
    "a name with a null character": (lambda scratch: scratch / "a\0b", "refused"),
    "a pipe": (_made(os.mkfifo), "refused"),
    "a link to /dev/full": (_made(lambda path: path.symlink_to("/dev/full")), "refused"),
    "a link to /dev/zero": (_made(lambda path: path.symlink_to("/dev/zero")), "refused"),
}
"""Places to write to, and what is expected of a run folder there."""
INSIDE = ("manifest.json", ".lock", ".owner.json", "checkpoint.json")
"""Files in the folder that may be of another kind."""


def _writes() -> Iterator[tuple[str, Callable[[Path], Any], Prepare, str]]:
    """Calls that write: name, call, preparation, and what is expected."""
    import numpy as np

    from kairode import collect, make, write
    from kairode.config.run import RunConfig
    from kairode.runs.folder import RunFolder
    from kairode.training import checkpoint

    episodes = collect(make("gridworld", horizon=5), episodes=2)

    def run(path: Path) -> None:
        with RunFolder.open(path, "run", RunConfig()) as folder:
            folder.finish({"figures": {}})

    def save(path: Path) -> None:
        checkpoint.save(path, {"x": np.zeros(3)})

    def table(path: Path) -> None:
        write(path / "episodes.parquet", episodes)

    for target, (prepare, expected) in TARGETS.items():
        for name, call in (("RunFolder.open", run), ("checkpoint.save", save), ("kairode.write into it", table)):
            folder = "refused" if target == "a file" else expected
            yield f"{name}, the folder is {target}", call, prepare, folder
        usual = target not in ("a read-only folder", "a folder without x", "a folder of another user")
        file = {"a link to a folder": "refused", "a file": "works"}.get(target, expected if usual else "refused")
        yield f"kairode.write, the file is {target}", lambda path: write(path, episodes), prepare, file
    for inner in INSIDE:
        for kind, by in REPLACED.items():

            def replaced(path: Path, inner: str = inner, by: Prepare = by) -> None:
                path.mkdir()
                by(path / inner)

            for name, call in (("RunFolder.open", run), ("checkpoint.save", save)):
                yield f"{name}, {inner} is {kind}", call, _made(replaced), "either"


DISK = {
    "fit on a full disk": f"fit gridworld --model rnn {SMALL} --out {{}}/fit",
    "collect on a full disk": "collect gridworld --episodes 3000 -q --out {}/episodes.parquet",
}


def _full(folder: Path, name: str, words: str) -> tuple[str, str]:
    """A command whose files may not grow beyond a few kilobytes, its cache's included; then without the limit."""
    place = folder / name.replace(" ", "-")
    typed, cache = words.replace("{}", str(place)).split(), {"XDG_CACHE_HOME": str(place / "cache")}
    limit = ["prlimit", "--fsize=8192:8192", sys.executable, "-m", "kairode"]  # this process has threads: no preexec_fn
    limited = subprocess.run([*limit, *typed], env=environment(cache), capture_output=True, text=True, timeout=600)
    wrong = _refused_well(limited)
    if wrong or any(place.glob(PART)):
        return name, wrong or "a temporary file is left"
    again = kairode(*typed, env=cache)
    return name, f"afterwards: exit {again.returncode}: {again.stderr[-300:]}" if again.returncode else ""


def _refused_well(done: subprocess.CompletedProcess[str]) -> str:
    """What is wrong with the end of a command that had to be refused: nothing if it said so in one sentence."""
    err = done.stderr.replace("loading JAX: started\n", "").strip()
    if done.returncode != 2 or not err.startswith("error: ") or len(err.splitlines()) != 1 or "Errno" in err:
        return f"exit {done.returncode}: {err[-300:]!r}"
    return ""


@dataclasses.dataclass(frozen=True)
class Case:
    """A command with a path that is prepared, and its expected exit codes."""

    name: str
    words: str
    prepare: Prepare
    codes: tuple[int, ...] = (2,)


def _commands(effort: Effort) -> list[Case]:
    """The commands, of which a quick attack takes some."""
    fit = f"fit gridworld --model rnn {SMALL} --out {{}}"
    loud = fit.replace(" -q", "")
    expected = {"works": (0,), "refused": (2,), "either": (0, 2)}

    def copied(scratch: Path, file: str, by: str) -> Path:
        shutil.copytree(scratch.parents[1] / "run", scratch / "run")
        (scratch / "run" / file).unlink()
        REPLACED[by](scratch / "run" / file)
        return scratch / "run"

    found = [
        Case("fit into a name that is not UTF-8, with output", loud, TARGETS["a name that is not UTF-8"][0], (0,)),
        Case("run whose manifest is a pipe", f"{RUN} --out {{}}", lambda s: copied(s, "manifest.json", "a pipe")),
        Case("evaluate whose policy is a pipe", "evaluate {}", lambda s: copied(s, "policy.json", "a pipe")),
        Case("evaluate whose policy is /dev/zero", "evaluate {}", lambda s: copied(s, "policy.json", "/dev/zero")),
        Case("collect into a pipe", "collect gridworld --episodes 5 --out {} -q", TARGETS["a pipe"][0]),
    ]
    if effort == "quick":
        return found
    found += [
        Case("report whose record is a pipe", "report {}", lambda s: copied(s, "record.json", "a pipe")),
        Case("schedule whose data are a pipe", "schedule {} -q", lambda s: copied(s, "experience.parquet", "a pipe")),
        Case("fit of a pipe", "fit {} --iterations 10 -q --out {}.fit", _made(os.mkfifo, "x.parquet")),
        Case("collect to /dev/full", "collect gridworld --episodes 5 -q --out /dev/full", lambda scratch: scratch),
        Case("run into a name that is not UTF-8", f"{RUN} --out {{}}", TARGETS["a name that is not UTF-8"][0], (0,)),
    ]
    for target, (prepare, kind) in TARGETS.items():
        if "\0" not in target and "null" not in target:
            codes = (2,) if target == "a file" else expected[kind]
            found.append(Case(f"fit into {target}", fit, prepare, codes))
    return found


def _command(scratch: Path, case: Case) -> tuple[str, str]:
    """What is wrong with the end of a command: it hangs, is not refused well, or leaves files."""
    scratch.mkdir(parents=True)
    if "another user" in case.name and os.geteuid() != 0:
        return case.name, ""
    path = str(case.prepare(scratch))
    words = [*_without_rights(), sys.executable, "-m", "kairode", *(w.replace("{}", path) for w in case.words.split())]
    before, begun = _tree(scratch), time.monotonic()
    try:
        done = subprocess.run(
            words, env=environment(), capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired:
        return case.name, f"hung for {time.monotonic() - begun:.0f} s"
    if done.returncode not in case.codes:
        return case.name, f"exit {done.returncode}: {done.stderr[-300:]!r}"
    if done.returncode:
        left = {name for name in _tree(scratch) - before if Path(name).name not in HARMLESS}
        return case.name, _refused_well(done) or f"left {', '.join(sorted(left))}" * bool(left)
    return case.name, ""
