"""`kairode fit` as people use it: what it leaves, what it refuses, and that a kill at any moment changes nothing."""

import dataclasses
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import kairode
from kairode.algorithms.fit import command
from kairode.config.models import ModelConfig
from kairode.config.presets import FITS, OTHER, changed, preset
from kairode.config.training import LossWeights, TrainingConfig
from kairode.errors import KairodeError
from kairode.models.zoo import MODELS, build

SHORT = ["--episodes", "12", "--valid", "4", "--test", "4", "--iterations", "30", "--every", "10", "--batch", "4"]
TINY = [*SHORT, "--latent", "3", "--field-hidden", "4", "--set", "max_decisions=6"]


def weights(folder: Path) -> dict[str, np.ndarray]:
    about = json.loads((folder / "models.json").read_text())
    return safetensors.numpy.load((folder / about["file"]).read_bytes())


def test_fit_leaves_a_folder_and_says_what_it_found(typed, tmp_path) -> None:
    folder = tmp_path / "run"
    code, out, err = typed("fit", "hiv", "--seeds", "2", *TINY, "--out", str(folder))
    assert (code, err) == (0, "")
    record = json.loads((folder / "record.json").read_text())
    assert len(record["figures"]["test_error"]) == 2
    assert record["figures"]["mean"] == pytest.approx(np.mean(record["figures"]["test_error"]))
    assert list(record["figures"]["by_dimension"]) == ["T1", "T2", "T1*", "T2*", "V", "E"]
    assert record["figures"]["solver"][0]["difference"] >= 0
    assert "mean squared error" in out
    assert "seed 1" in out
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [10, 20, 30]
    assert "<svg" in (folder / "predictions.svg").read_text()
    models = kairode.load_models(folder)
    assert kairode.evaluate_model(
        models[0], kairode.collect(kairode.make("hiv", max_decisions=6), episodes=4, seed=2)
    ).error
    # the same command again: nothing to do, the same record
    before = weights(folder)
    assert typed("fit", *shlex.split(record["command"])[2:])[0] == 0
    for name, array in weights(folder).items():
        np.testing.assert_array_equal(array, before[name])
    code, _, err = typed("fit", "hiv", "--seeds", "3", *TINY, "--out", str(folder))
    assert code == 2
    assert "holds another run (seeds: 2 there, 3 here)" in err


@pytest.mark.slow
def test_fit_a_file(typed, tmp_path) -> None:
    """A table with other units of time and observation, and no word about them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, rows = np.random.default_rng(0), []
    for episode in range(12):
        t, x = 0.0, 5000.0
        for k in range(8):
            last = k == 7
            rows.append((episode, t, x, None if last else "ab"[k % 2], None if last else 1.0, False, last))
            t, x = t + rng.uniform(3600, 20000), x * 0.9 + 10 * rng.normal()
    names = ("episode", "t", "glucose", "action", "reward", "terminated", "truncated")
    path = tmp_path / "clinic.parquet"
    pq.write_table(pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)}), path)
    words = ["--iterations", "20", "--every", "10", "--batch", "4", "--latent", "3", "--field-hidden", "4"]
    code, out, err = typed("fit", str(path), "--model", "ode-rnn", *words, "--out", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    assert "glucose" in out
    [model] = kairode.load_models(tmp_path / "run")
    assert model.spec.tick == 10_000
    assert model.scale.mean[0] > 1000
    assert model.spec.intervals.classes is None
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [config["preset"][name] for name in ("episodes", "valid", "test")] == [10, 1, 1]
    code, _, err = typed("fit", str(path), "--episodes", "5")
    assert code == 2
    assert "is a file" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hiv", "--model", "latent_ode"], "Did you mean 'latent-ode'?"),
        (["hivv"], "hiv"),
        (["nowhere.parquet"], "nowhere.parquet does not exist"),
        (["hiv", "--solver", "rk5:1"], "solver"),
        (["hiv", "--seeds", "0"], "seeds must be an integer"),
        (["hiv", "--iterations", "0"], "iterations must be"),
        (["hiv", "--set", "nothing=1"], "nothing"),
    ],
)
def test_fit_refuses(monkeypatch, typed, tmp_path, words: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = typed("fit", *words)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert says in err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_file_of_other_dimensions_cannot_go_on(typed, tmp_path) -> None:
    """The folder of a run on six markers, a table of four."""
    for name in ("hiv", "hiv-partial"):
        data = kairode.collect(kairode.make(name, max_decisions=6), episodes=12, seed=0)
        kairode.write(tmp_path / f"{name}.parquet", data)
    words = [*SHORT[6:], "--latent", "3", "--field-hidden", "4", "--out", str(tmp_path / "run")]
    assert typed("fit", str(tmp_path / "hiv.parquet"), *words)[0] == 0
    (tmp_path / "hiv.parquet").write_bytes((tmp_path / "hiv-partial.parquet").read_bytes())
    code, _, err = typed("fit", str(tmp_path / "hiv.parquet"), *words)
    assert code == 2
    assert "holds another run (digest" in err


def start(folder: Path, *extra: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "kairode", "fit", "hiv", *TINY, "--iterations", "400", "--out", str(folder), *extra]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KAIRODE_SAVE_SECONDS": "0"}
    with open(log(folder), "w") as file:  # a pipe that nobody reads would fill
        return subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=environment)


def log(folder: Path) -> Path:
    return folder.with_suffix(".log")


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed(tmp_path) -> None:
    """SIGKILL again and again: the weights at the end are those of a run left alone, bit for bit."""
    whole = start(tmp_path / "whole")
    assert whole.wait(timeout=300) == 0, log(tmp_path / "whole").read_text()
    moments, kills = random.Random(0), 0
    for _ in range(8):
        process = start(tmp_path / "killed")
        if kills < 3:
            before = _iteration(tmp_path / "killed")
            while process.poll() is None and _iteration(tmp_path / "killed") == before:
                time.sleep(0.01)
            time.sleep(moments.uniform(0.0, 0.4))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
        if process.wait(timeout=300) == 0:
            break
    assert kills >= 2
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    assert not list((tmp_path / "killed").glob(".checkpoint*.part"))
    figures = [json.loads((tmp_path / name / "record.json").read_text())["figures"] for name in ("whole", "killed")]
    assert figures[0] == figures[1]


def _iteration(folder: Path) -> str:
    """Which checkpoint is there."""
    try:
        return json.loads((folder / "checkpoint.json").read_text())["sha256"]
    except (OSError, ValueError):
        return ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(tmp_path, number: signal.Signals) -> None:
    process = start(tmp_path / "run", "--iterations", "1000000")
    while process.poll() is None and not _iteration(tmp_path / "run"):
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    err = log(tmp_path / "run").read_text()
    assert "saved. The same command goes on from there: kairode fit hiv" in err
    assert "Traceback" not in err


def test_every_preset_builds_and_can_be_written_down() -> None:
    for name, this in {**FITS, "other": OTHER}.items():
        json.dumps(dataclasses.asdict(this))
        if name != "other":
            for model in MODELS:
                make_fit_config(name, model, this, seeds=1, seed=0, data_seed=0, setting="ours", fields={})
    import jax

    small = build("latent-ode", kairode.make("hiv").task.spec, preset("hiv").sizes, key=jax.random.key(0))
    assert small.transition.field.layers[0].weight.shape == (20, 10)


def test_options_are_the_fields_of_settings() -> None:
    """What the command line offers and what can be set are the same."""
    options = {field.name for field in dataclasses.fields(FitOptions)} - {"weights", "episodes", "valid", "test"}
    fields = {f.name for f in dataclasses.fields(ModelConfig)} | {f.name for f in dataclasses.fields(TrainingConfig)}
    assert options == fields - {"weights", "most_skipped"}
    assert {f.name for f in dataclasses.fields(WeightOptions)} == {f.name for f in dataclasses.fields(LossWeights)}
    found = changed(preset("hiv"), FitOptions(iterations=7, latent=5, test=9, weights=WeightOptions(kl=0.5)))
    assert (found.settings.iterations, found.sizes.latent, found.test, found.settings.weights.kl) == (7, 5, 9, 0.5)
    config = make_fit_config("hiv", "rnn", found, seeds=2, seed=1, data_seed=0, setting="ours", fields={"horizon": 90})
    for part in ("--iterations 7", "--latent 5", "--test 9", "--weights.kl 0.5", "--seed 1", "horizon=90"):
        assert part in command(config)


def test_fit_from_python(tmp_path) -> None:
    data = kairode.collect(kairode.make("hiv", max_decisions=6), episodes=20, seed=0)
    model = kairode.fit(
        "latent-ode", data, iterations=20, latent=3, field_hidden=4, weights={"kl": 0.1}, folder=tmp_path
    )
    again = kairode.fit(
        "latent-ode", data, iterations=20, latent=3, field_hidden=4, weights={"kl": 0.1}, folder=tmp_path
    )
    np.testing.assert_array_equal(model.decoder.weight, again.decoder.weight)
    assert kairode.predict(model, data).shape == (20, 6, 6)
    with pytest.raises(KairodeError, match="iterations"):
        kairode.fit("latent-ode", data, iteration=3)
    with pytest.raises(KairodeError, match="latent-ode"):
        kairode.fit("latent", data)
    with pytest.raises(KairodeError, match="one model"):
        kairode.fit("latent-ode", data, seeds=2)
    with pytest.raises(KairodeError, match="not finished"):
        kairode.load_models(tmp_path)
    with pytest.raises(KairodeError, match="holds another run"):
        kairode.fit("latent-ode", data, iterations=20, seed=1, folder=tmp_path)
