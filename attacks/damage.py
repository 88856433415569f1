"""Damaged and odd files: every refusal is a `KairodeError`, and no change of content goes unnoticed."""

import functools
import json
import operator
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import kairode
from attacks._common import Effort, Outcome, amount, attack, count
from attacks._common import kairode as run_kairode
from attacks.folders import RUN
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.policy_files import read_policy, save_policy
from kairode.agents.q_policy import QPolicy
from kairode.config.models import ModelConfig
from kairode.data.stream import stream
from kairode.data.table import _table
from kairode.files import JSON_DIGEST, with_digest
from kairode.models.zoo import build
from kairode.report.run_page import write_run_page
from kairode.runs.folder import RunFolder
from kairode.training.model_files import load_models, save_models

MOST_TAKEN = 2**28
"""Bytes that refusing a description may take."""
WORDS = ("", "nan", "-1", "1e400", "null", "[]", "{}", '"x"', "true", "9" * 30, "[" * 200 + "]" * 200, '"\\ud800"')
"""Values that mutations of JSON put in place of others."""


@functools.cache
def data() -> kairode.Trajectory:
    """A few episodes of HIV and its names of actions."""
    return kairode.collect(kairode.make("hiv", max_decisions=12), episodes=6, seed=1)


def flipped(raw: bytes, rng: np.random.Generator) -> bytes:
    """One bit changed."""
    found = bytearray(raw)
    found[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
    return bytes(found)


def damaged(raw: bytes, rng: np.random.Generator) -> bytes:
    """Bits changed, bytes replaced, a block removed, repeated, zeroed or moved, or the end cut off."""
    found = bytearray(raw)
    how = int(rng.integers(7))
    a, b = np.sort(rng.integers(len(raw), size=2)).tolist()
    b = min(b, a + int(rng.integers(1, 200)))
    if how == 0:
        for _ in range(int(rng.integers(1, 20))):
            found[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
    elif how == 1:
        found[a:b] = rng.bytes(b - a)
    elif how == 2:
        found[a:b] = bytes(b - a)
    elif how == 3:
        del found[a:b]
    elif how == 4:
        found[a:a] = found[a:b]
    elif how == 5:
        del found[a:]
    else:  # in the footer, where a change of one byte means most
        size = int.from_bytes(raw[-8:-4], "little")
        place = len(raw) - 8 - int(rng.integers(max(1, min(size, len(raw) - 8))))
        found[max(0, place)] = int(rng.integers(256))
    return bytes(found)


def odd_tables(rng: np.random.Generator) -> Iterator[pa.Table]:
    """Valid Parquet of tables that are not what is expected: metadata, types and values are replaced."""
    good = table()
    columns = good.column_names
    while True:
        found, how = good, int(rng.integers(6))
        if how < 3:  # the metadata
            found = good.replace_schema_metadata({b"kairode": odd_json(good.schema.metadata[b"kairode"], rng)})
        else:
            name = columns[int(rng.integers(len(columns)))]
            place = columns.index(name)
            column = odd_columns(good.num_rows, rng)
            found = good.set_column(place, name, column)
            if how == 4:
                found = found.replace_schema_metadata(None)
            elif how == 5:
                found = found.drop_columns([columns[int(rng.integers(len(columns)))]])
        yield found


def odd_columns(rows: int, rng: np.random.Generator) -> pa.Array:
    """A column of a random type with odd values."""
    numbers = rng.choice([0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e308, 3e38, 1e-320, 2.0**63], rows)
    makers: list[Callable[[], pa.Array]] = [
        lambda: pa.array(numbers),
        lambda: pa.array(numbers, mask=rng.random(rows) < 0.3),
        lambda: pa.array(rng.integers(-(2**63), 2**63 - 1, rows)),
        lambda: pa.array(rng.integers(0, 2**64 - 1, rows, dtype=np.uint64)),
        lambda: pa.array([None] * rows),
        lambda: pa.array([str(x) for x in numbers]),
        lambda: pa.array([rng.bytes(5) for _ in range(rows)], pa.binary()),
        lambda: pa.array([[1.0]] * rows),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array(rng.integers(0, 2**40, rows), pa.timestamp("us")),
        lambda: pa.array(rng.integers(0, 2**20, rows, dtype=np.int32), pa.date32()),
        lambda: pa.array(rng.random(rows) < 0.5),
        lambda: pa.array(["", "\0", "é", "\U0001f600"] * rows)[:rows].dictionary_encode(),
        lambda: pa.array(np.clip(numbers, -1, 1).astype(np.float16)),
        lambda: pa.array([pa.scalar("1.5").as_py()] * rows, pa.string()),
        lambda: pa.array(range(rows), pa.decimal128(20, 3)),
    ]
    return makers[int(rng.integers(len(makers)))]()


def odd_json(raw: bytes, rng: np.random.Generator) -> bytes:
    """JSON with one value replaced or removed, or its text damaged."""
    if rng.random() < 0.2:
        return damaged(raw, rng)
    found = json.loads(raw)
    places = list(_places(found))
    parent, name = places[int(rng.integers(len(places)))]
    if rng.random() < 0.2:
        del parent[name]
        return json.dumps(found).encode()
    parent[name] = "@@"
    return json.dumps(found).replace('"@@"', WORDS[int(rng.integers(len(WORDS)))]).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All places in nested lists and objects."""
    for name in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, name
        if isinstance(value[name], dict | list):
            yield from _places(value[name])


@functools.cache
def table() -> pa.Table:
    """The table of the episodes, without a digest, as another program would write it."""
    sink = pa.BufferOutputStream()
    pq.write_table(_table(data(), 0), sink)
    return pq.read_table(pa.BufferReader(sink.getvalue()))


def same(a: kairode.Trajectory, b: kairode.Trajectory) -> bool:
    """Whether two trajectories have the same content."""
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    return a.spec == b.spec and all(np.array_equal(x, y) for x, y in zip(left, right, strict=True))


def refusal(read: Callable[[], Any]) -> tuple[str, Any]:
    """How reading ends: ("read", the result), ("refused", the message) or ("error", what was raised)."""
    try:
        return "read", read()
    except kairode.KairodeError as error:
        return "refused", str(error)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"[:200]


@attack("damaged or odd Parquet", "every refusal a KairodeError with file and place: 0 other exceptions")
def parquet(folder: Path, effort: Effort) -> Outcome:
    """General mutations of a file's bytes, and valid files whose metadata, types or values are odd."""
    path, rng, failures = folder / "visits.parquet", np.random.default_rng(17), []
    kairode.write(path, data())
    whole = path.read_bytes()
    general, odd = amount(effort, 60, 3000, 6000), amount(effort, 60, 2000, 3000)
    tables = odd_tables(rng)
    unnamed = 0
    for i in range(general + odd):
        if i < general:
            path.write_bytes(damaged(whole, rng))
        else:
            try:
                pq.write_table(next(tables), path)
            except (pa.ArrowException, TypeError):  # Arrow itself cannot write it
                continue
        for read in (kairode.read, stream) if i % 5 == 0 else (kairode.read,):
            kind, found = refusal(lambda read=read: read(path))  # type: ignore[misc]
            if kind == "error":
                failures.append(found)
            unnamed += kind == "refused" and str(path) not in found
    outcome = count(failures, general + odd, "ended in another exception")
    return Outcome(
        outcome.figure, outcome.held and not unnamed, {**outcome.details, "without_the_file_s_name": unnamed}
    )


@attack("bits flipped in Parquet", "0 read with other content")
def parquet_bits(folder: Path, effort: Effort) -> Outcome:
    """One bit of a file changed: it is refused, or read with the same content."""
    path, rng, failures = folder / "visits.parquet", np.random.default_rng(18), []
    kairode.write(path, data())
    whole, before = path.read_bytes(), kairode.read(path)
    tried, intact = amount(effort, 200, 2000, 6000), 0
    for _ in range(tried):
        path.write_bytes(flipped(whole, rng))
        kind, found = refusal(lambda: kairode.read(path))
        if kind == "read" and not same(found, before):
            failures.append("other content")
        elif kind == "error":
            failures.append(found)
        intact += kind == "read"
    outcome = count(failures, tried, "read with other content")
    return Outcome(outcome.figure, outcome.held, {**outcome.details, "read_unchanged": intact})


def saved(folder: Path) -> tuple[Path, Path]:
    """Folders of a saved model and a saved policy."""
    spec = data().spec
    model = build(
        "latent-ode", spec, ModelConfig(latent_size=3, encoder_hidden=4, field_hidden=4), key=jax.random.key(0)
    )
    save_models(folder / "models", "latent-ode", ModelConfig(latent_size=3, encoder_hidden=4, field_hidden=4), [model])
    q = ReLUNetwork.new(len(spec.observations), 8, spec.actions.n, key=jax.random.key(1))
    save_policy(folder / "policy", QPolicy(q, IdentityEncoder(), spec, 0.05, 1e-6, False))
    return folder / "models", folder / "policy"


@attack("models.json, policy.json changed", "0 other exceptions and 0 changes that load")
def descriptions(folder: Path, effort: Effort) -> Outcome:
    """Digits, values and bytes of a description changed; with its digest, and with a digest made to match."""
    rng = np.random.default_rng(19)
    errors, silent, tried = [], [], 0
    step = amount(effort, 20, 7, 1)
    for place, load, name in zip(saved(folder), (load_models, read_policy), ("models", "policy"), strict=True):
        path = place / f"{name}.json"
        raw = path.read_bytes()
        digits = [i for i, byte in enumerate(raw) if chr(byte).isdigit()]
        rounds = amount(effort, 20, 400, 1125)
        for i in range(rounds + len(digits[::step])):
            if i < rounds:
                changed = odd_json(raw, rng) if i % 2 else damaged(raw, rng)
            else:
                found = bytearray(raw)
                where = digits[(i - rounds) * step]
                found[where] = ord("0") + (found[where] - ord("0") + 1) % 10
                changed = bytes(found)
            tried += 1
            path.write_bytes(changed)
            kind, found_ = refusal(lambda load=load, place=place: load(place))  # type: ignore[misc]
            if kind == "error":
                errors.append(found_)
            elif kind == "read" and _parsed(changed) != _parsed(raw):
                silent.append(changed[:80].decode(errors="replace"))
            parsed = _parsed(changed)
            if isinstance(parsed, dict):  # an attacker who knows of the digest
                tried += 1
                path.write_text(json.dumps(with_digest({k: v for k, v in parsed.items() if k != JSON_DIGEST})))
                kind, found_ = refusal(lambda load=load, place=place: load(place))  # type: ignore[misc]
                errors += [found_] if kind == "error" else []
        path.write_bytes(raw)
    figure = f"{len(errors)} other exceptions and {len(silent)} loaded of {tried:,}"
    return Outcome(figure, not errors and not silent, {"tried": tried, "errors": errors[:5], "loaded": silent[:5]})


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


@attack(
    "files of a finished run changed",
    "0 commands that accept other content, 0 other exceptions",
    ("slow", "full"),
)
def run_files(folder: Path, effort: Effort) -> Outcome:
    """Records, manifests, policies, models, data and metrics of runs, damaged or with another value in their JSON."""
    words = {
        "run": f"{RUN} --out {folder / 'run'}",
        "fit": "fit gridworld --model rnn --episodes 10 --validation-episodes 2 --test-episodes 2 --iterations 20 "
        f"--set horizon=20 -q --out {folder / 'fit'}",
    }
    for text in words.values():
        made = run_kairode(*text.split())
        if made.returncode:
            raise RuntimeError(f"the undisturbed command failed: {made.stderr}")
    rng, errors, silent, tried = np.random.default_rng(22), [], [], 0
    record = operator.attrgetter("record")
    readers: dict[str, dict[str, Callable[[Path], Any]]] = {
        "run": {"report": write_run_page, "load_policy": kairode.load_policy, "record": lambda x: record(RunFolder(x))},
        "fit": {"load_models": kairode.load_models, "record": lambda x: record(RunFolder(x))},
    }
    for kind, uses in readers.items():
        place = folder / kind
        names = [*RunFolder(place).manifest.artefacts, "manifest.json"]
        for _ in range(amount(effort, 20, 150, 1000)):
            name = names[int(rng.integers(len(names)))]
            raw = (place / name).read_bytes()
            changed = odd_json(raw, rng) if name.endswith(".json") and rng.random() < 0.5 else damaged(raw, rng)
            if changed == raw or (name == "manifest.json" and _parsed(changed) == _parsed(raw)):
                continue
            (place / name).write_bytes(changed)
            for use, function in uses.items():
                tried += 1
                how, found = refusal(lambda function=function, place=place: function(place))  # type: ignore[misc]
                if how == "error":
                    errors.append(f"{use}, {name}: {found}")
                elif how == "read" and _matters(use, name):
                    silent.append(f"{use} after {name} was changed")
            (place / name).write_bytes(raw)
    figure = f"{len(errors)} other exceptions and {len(silent)} accepted of {tried:,}"
    return Outcome(figure, not errors and not silent, {"tried": tried, "errors": errors[:5], "accepted": silent[:5]})


def _matters(use: str, name: str) -> bool:
    """Whether a use must notice that a file was changed: a page and a policy any file, others what they read."""
    if use in ("report", "load_policy"):
        return True
    reads = {"record": ("record.json", "manifest.json"), "load_models": ("models",)}[use]
    return name.startswith(reads)


@attack("tensors of models and policies damaged", "0 loaded with other content, 0 other exceptions")
def tensors(folder: Path, effort: Effort) -> Outcome:
    """Bytes of the safetensors files changed."""
    rng = np.random.default_rng(20)
    failures, tried = [], 0
    for place, load in zip(saved(folder), (load_models, read_policy), strict=True):
        (path,) = place.glob("*.safetensors")
        raw = path.read_bytes()
        for i in range(amount(effort, 40, 300, 1500)):
            changed = damaged(raw, rng) if i % 2 else flipped(raw, rng)
            path.write_bytes(changed)
            kind, found = refusal(lambda load=load, place=place: load(place))  # type: ignore[misc]
            tried += 1
            if kind == "error" or (kind == "read" and changed != raw):
                failures.append(found if kind == "error" else "loaded")
        shutil.rmtree(place)
    return count(failures, tried, "loaded or ended in another exception")


@attack("descriptions that ask for much memory", "refused before memory is taken")
def sizes(folder: Path, effort: Effort) -> Outcome:
    """Sizes of models, policies and tables in a description far beyond the file; deep and long JSON."""
    models, policy = saved(folder)
    failures = []
    cases: list[tuple[str, Callable[[], Any]]] = []
    for place, load, name, change in (
        (models, load_models, "models", {"seeds": 10**9}),
        (models, load_models, "models", {"sizes": {"latent_size": 10**8}}),
        (models, load_models, "models", {"arrays": {"x": ["float32", [2**40]]}}),
        (policy, read_policy, "policy", {"sizes": [6, 10**9, 4]}),
    ):
        copy = folder / f"case{len(cases)}"
        shutil.copytree(place, copy)
        about = json.loads((copy / f"{name}.json").read_text())
        about = {
            k: ({**about[k], **v} if isinstance(about.get(k), dict) and k == "sizes" else v)
            for k, v in {**about, **change}.items()
        }
        (copy / f"{name}.json").write_text(json.dumps(with_digest(about)))
        cases.append((f"{name} {next(iter(change))}", lambda load=load, copy=copy: load(copy)))  # type: ignore[misc]
    deep = folder / "deep"
    shutil.copytree(models, deep)
    (deep / "models.json").write_text("[" * 10**6)
    cases.append(("deep JSON", lambda: load_models(deep)))
    bomb = folder / "bomb.parquet"
    rows = 2**31
    footer = table().replace_schema_metadata({**table().schema.metadata, b"kairode": b"[" * 10**5})
    pq.write_table(footer, bomb)
    cases.append(("deep metadata", lambda: kairode.read(bomb)))
    big = folder / "big.parquet"
    pq.write_table(table(), big)
    if refusal(lambda: kairode.read(big))[0] != "read":
        failures.append("the intact table is refused")
    _claim_rows(big, rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cases.append(("rows of Parquet", lambda: kairode.read(big)))
    for name, load_it in cases:
        kind, found = refusal(load_it)
        if kind != "refused":
            failures.append(f"{name}: {found}"[:200])
    taken = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if taken > MOST_TAKEN:
        failures.append(f"{taken:,} bytes were taken")
    return count(failures, len(cases), "were not refused")


def _claim_rows(path: Path, rows: int) -> None:
    """Replace the number of rows in a footer (a varint of thrift) by another of the same length, where it occurs."""
    raw = bytearray(path.read_bytes())
    actual = pq.ParquetFile(path).metadata.num_rows
    old, new = _varint(2 * actual), _varint(2 * min(rows, 2 ** (7 * len(_varint(2 * actual)) - 2)))
    if len(old) == len(new):
        place = bytes(raw).rfind(old)
        raw[place : place + len(old)] = new
    path.write_bytes(bytes(raw))


def _varint(value: int) -> bytes:
    found = b""
    while value >= 128:
        found += bytes([value % 128 + 128])
        value //= 128
    return found + bytes([value])
