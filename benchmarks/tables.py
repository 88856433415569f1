"""Tables: reading a million rows, and fitting many short episodes beside a few long ones.

`read` is `kairode.load_table`, with all its checks, of a million rows as CSV and as Parquet, beside pyarrow (and
pandas, if it is installed), which only read them. Memory is the peak of a process of its own beyond what it has once
everything is imported, in MB and in multiples of the file and of its columns in memory. `ragged` are 100,000 episodes
of 2 to 10 decisions and five of 2,000 in one CSV file, as `kairode fit` reads and fits them, beside the short ones
alone: milliseconds per iteration once programs are compiled, and the peak beside the size of the rows and of the
episodes padded to the longest. Run it while nothing else runs (three minutes on two cores): `kairode bench tables`,
with `--json` for the figures alone.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from _common import has_peer, print_rows, run

from kairode.data.table import padded_bytes

ROWS = 1_000_000
MEAN = 20
"""Decisions of an episode of the million rows."""
SHORT, LONG = 100_000, 5
"""Episodes of 2 to 10 decisions, and of 2,000."""
LENGTH = 2000
MODEL, BATCH, ITERATIONS = "rnn", 32, 6000
WIDTH = 7
"""Numbers of a row: four observations, action, interval, reward."""
ROUNDS = 3

PROGRAM = """
import json, re, sys, time

def memory(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])

{imports}
base, start = memory("VmRSS"), time.perf_counter()
{work}
seconds = time.perf_counter() - start
print(json.dumps({{"seconds": seconds, "peak": memory("VmHWM") - base, **more}}))
"""
READERS = {
    "load_table": ("import kairode, kairode.data.tables.load", "kairode.load_table({path!r})"),
    "pyarrow csv": ("import pyarrow.csv", "pyarrow.csv.read_csv({path!r})"),
    "pyarrow parquet": ("import pyarrow.parquet", "pyarrow.parquet.read_table({path!r})"),
    "pandas csv": ("import pandas", "pandas.read_csv({path!r})"),
    "pandas parquet": ("import pandas", "pandas.read_parquet({path!r})"),
}
FIT = """
calls = [(0, start)]
def callback(progress):
    calls.append((progress.done, time.perf_counter()))
config = dataclasses.replace(
    fit_preset({path!r}),
    model={model!r},
    training=TrainingConfig(iterations={iterations}, batch_size={batch}, validate_every=250),
)
data = load_data(config)
opened = time.perf_counter() - start
fit_models(config, data.train, data.valid, callback=callback)
late = calls[len(calls) // 2 :]
milliseconds = 1e3 * (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
more = {{"opened": opened, "milliseconds": milliseconds, "streamed": not isinstance(data.train, Trajectory)}}
"""
FIT_IMPORTS = """
import dataclasses, jax
from kairode.algorithms.fit import fit_models, load_data
from kairode.config.presets import fit_preset
from kairode.config.training import TrainingConfig
from kairode.data.trajectory import Trajectory
"""


def synthetic(lengths: np.ndarray, seed: int = 0) -> pa.Table:
    """Episodes of these numbers of decisions: four observations, two of them with missing values, and three actions."""
    rng = np.random.default_rng(seed)
    counts = lengths + 1
    rows, episode = int(counts.sum()), np.repeat(np.arange(len(counts)), counts)
    passed = np.cumsum(np.round(rng.exponential(2.0, rows) + 0.1, 1))
    columns: dict[str, Any] = {
        "episode": episode,
        "t": np.round(passed - passed[np.cumsum(counts) - counts][episode], 1),
    }
    for i in range(4):
        columns[f"x{i}"] = pa.array(np.round(rng.normal(size=rows), 4), mask=rng.random(rows) < (0.05 if i < 2 else 0))
    columns["action"] = np.array(["none", "low", "high"])[rng.integers(3, size=rows)]
    columns["reward"] = np.round(rng.normal(size=rows), 3)
    return pa.table(columns)


def lengths_of(long: int) -> np.ndarray:
    """The short episodes, with some long ones among them."""
    short = np.random.default_rng(0).integers(2, 11, SHORT)
    return np.insert(short, np.linspace(0, SHORT, long, endpoint=False, dtype=int), LENGTH)


def in_process(imports: str, work: str) -> dict[str, Any]:
    """Seconds and peak of some work in a process of its own."""
    program = PROGRAM.format(imports=imports, work=work)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def reading(path: Path, columns: int) -> dict[str, Any]:
    """Each reader's best seconds of several processes, and its peak."""
    found = {}
    for name, (imports, work) in READERS.items():
        package, _, kind = name.partition(" ")
        if kind and not (path.suffix == f".{kind}" and has_peer(package)):
            continue
        runs = [in_process(imports, f"table = {work.format(path=str(path))}\nmore = {{}}") for _ in range(ROUNDS)]
        peak = max(one["peak"] for one in runs)
        found[name] = {
            "seconds": min(one["seconds"] for one in runs),
            "megabytes": peak / 1e6,
            "of_file": peak / path.stat().st_size,
            "of_columns": peak / columns,
        }
    return found


def fitting(path: Path, lengths: np.ndarray) -> dict[str, Any]:
    """What a fit takes, and what its episodes would take padded."""
    csv.write_csv(synthetic(lengths), path)
    found = in_process(FIT_IMPORTS, FIT.format(path=str(path), model=MODEL, iterations=ITERATIONS, batch=BATCH))
    padded, rows = padded_bytes(lengths, WIDTH)
    return {
        "open_seconds": found["opened"],
        "milliseconds": found["milliseconds"],
        "streamed": float(found["streamed"]),
        "megabytes": found["peak"] / 1e6,
        "rows_megabytes": rows / 1e6,
        "padded_megabytes": padded / 1e6,
    }


def measure() -> dict[str, Any]:
    lengths = np.random.default_rng(0).integers(MEAN // 2, MEAN + MEAN // 2 + 1, ROWS // MEAN)
    table = synthetic(lengths[: int(np.searchsorted(np.cumsum(lengths + 1), ROWS))])
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"million.{kind}" for kind in ("csv", "parquet")]
        csv.write_csv(table, paths[0])
        pq.write_table(table, paths[1])
        read = {path.suffix[1:]: reading(path, table.nbytes) for path in paths}
        files = {path.suffix[1:]: path.stat().st_size / 1e6 for path in paths}
        ragged = {
            name: fitting(Path(folder) / f"{name}.csv", lengths_of(n)) for name, n in (("long", LONG), ("short", 0))
        }
    slower = ragged["long"]["milliseconds"] / ragged["short"]["milliseconds"]
    sizes = {"rows": table.num_rows, "columns_megabytes": table.nbytes / 1e6, "file_megabytes": files}
    return {"table": sizes, "read": read, "ragged": {**ragged, "slower": slower}}


def show(figures: dict[str, Any]) -> None:
    rows = [
        [kind, name, *(f"{one[key]:.3g}" for key in ("seconds", "megabytes", "of_file", "of_columns"))]
        for kind, readers in figures["read"].items()
        for name, one in readers.items()
    ]
    print_rows(["file", "reader", "s", "peak, MB", "of the file", "of its columns"], rows, title="a million rows")
    keys = ("open_seconds", "milliseconds", "megabytes", "rows_megabytes", "padded_megabytes")
    rows = [[name, *(f"{figures['ragged'][name][key]:,.3g}" for key in keys)] for name in ("long", "short")]
    headers = ["episodes", "s to open", "ms an iteration", "peak, MB", "rows, MB", "padded, MB"]
    print_rows(headers, rows, title=f"{SHORT:,} short episodes, with {LONG} long ones and without")


if __name__ == "__main__":
    config = {"rows": ROWS, "short": SHORT, "long": LONG, "length": LENGTH, "model": MODEL, "batch": BATCH}
    run("tables", measure, {**config, "iterations": ITERATIONS}, show, __doc__)
