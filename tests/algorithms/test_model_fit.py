"""`kairode fit` as people use it: what it leaves, what it refuses, and that a kill at any moment changes nothing."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

import kairode
from kairode.algorithms.fit import check_fit, load_data, rescale_ticks
from kairode.config.presets import fit_preset
from kairode.envs.zoo import ENVIRONMENTS
from kairode.errors import KairodeError
from kairode.models.zoo import MODELS, build
from kairode.runs.folder import RunFolder

SMALL = (
    "--iterations",
    "20",
    "--validate-every",
    "10",
    "--batch-size",
    "4",
    "--latent-size",
    "3",
    "--field-hidden",
    "4",
)


def weights(folder: Path) -> dict[str, np.ndarray]:
    about = json.loads((folder / "models.json").read_text())
    return safetensors.numpy.load((folder / about["file"]).read_bytes())


def test_fit_leaves_a_folder_and_says_what_it_found(fit_run) -> None:
    folder = fit_run.folder
    record = json.loads((folder / "record.json").read_text())
    assert len(record["figures"]["test_error"]) == 2
    assert record["figures"]["mean"] == pytest.approx(np.mean(record["figures"]["test_error"]))
    assert list(record["figures"]["by_dimension"]) == ["T1", "T2", "T1*", "T2*", "V", "E"]
    assert record["figures"]["solver"][0]["difference"] >= 0
    assert "mean squared error" in fit_run.out
    assert "seed 1" in fit_run.out
    assert "test episodes: finished" in fit_run.err
    assert "fitting: finished" in fit_run.err
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [10, 20, 30]
    assert "<svg" in (folder / "predictions.svg").read_text()
    models = kairode.load_models(folder)
    data = kairode.collect(kairode.make("hiv", max_decisions=6), episodes=4, seed=2)
    assert kairode.evaluate_model(models[0], data).error
    assert shlex.split(record["command"])[1:2] == ["fit"]


def test_the_same_fit_again_has_nothing_to_do_and_another_is_refused(typed, fit_run, tmp_path) -> None:
    folder = shutil.copytree(fit_run.folder, tmp_path / "run")
    before, record = weights(folder), (folder / "record.json").read_text()
    words = (*fit_run.words[:-1], str(folder))
    code, _, err = typed(*words)
    assert code == 0, err
    for name, array in weights(folder).items():
        np.testing.assert_array_equal(array, before[name])
    assert (folder / "record.json").read_text() == record
    code, out, err = typed(*words, "--seeds", "3")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {folder} holds another run (seeds is 2 there and 3 here): choose another folder")


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
    code, out, err = typed("fit", str(path), "--model", "ode-rnn", *SMALL, "--out", str(tmp_path / "run"))
    assert code == 0, err
    assert "glucose" in out
    [model] = kairode.load_models(tmp_path / "run")
    assert model.spec.tick == 10_000
    assert model.scale.mean[0] > 1000
    assert model.spec.intervals.classes is None
    figures = json.loads((tmp_path / "run" / "record.json").read_text())["figures"]
    assert "calibration" not in figures, "of a single model"
    assert not (tmp_path / "run" / "calibration.svg").exists()
    config = RunFolder(tmp_path / "run").manifest.config
    assert [config[name] for name in ("episodes", "validation_episodes", "test_episodes")] == [10, 1, 1]
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
    words = [*SMALL, "--out", str(tmp_path / "run")]
    assert typed("fit", str(tmp_path / "hiv.parquet"), *words)[0] == 0
    (tmp_path / "hiv.parquet").write_bytes((tmp_path / "hiv-partial.parquet").read_bytes())
    code, _, err = typed("fit", str(tmp_path / "hiv.parquet"), *words)
    assert code == 2
    assert "holds another run (the data have changed" in err


def start(folder: Path, words: tuple[str, ...], *extra: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kairode", *words, "--iterations", "400", "--out", str(folder), *extra]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KAIRODE_SAVE_SECONDS": "0"}
    with open(log(folder), "w") as file:  # a pipe that nobody reads would fill
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)


def log(folder: Path) -> Path:
    return folder.with_suffix(".log")


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed(tmp_path, fit_words) -> None:
    """SIGKILL again and again: the weights at the end are those of a run left alone, bit for bit."""
    longer = ("--iterations", "2000")  # than three kills take on any machine
    whole = start(tmp_path / "whole", fit_words, *longer)
    assert whole.wait(timeout=300) == 0, log(tmp_path / "whole").read_text()
    moments, kills = random.Random(0), 0
    for _ in range(8):
        process = start(tmp_path / "killed", fit_words, *longer)
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_it_saves_and_says_how_to_resume(typed, tmp_path, fit_words, number: signal.Signals) -> None:
    """Meanwhile another process that wants the same folder is told so at once."""
    folder = tmp_path / "run"
    process = start(folder, fit_words, "--iterations", "1000000")
    while process.poll() is None and not _iteration(folder):
        time.sleep(0.01)
    code, out, err = typed(*fit_words, "--iterations", "1000000", "--out", str(folder))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {folder} is being written by another process (pid {process.pid} on ")
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    err = log(folder).read_text()
    assert "saved. Run the same command again to resume: kairode fit hiv" in err
    assert "Traceback" not in err


def test_every_preset_builds() -> None:
    """Shapes alone: nothing is computed."""
    for name in ENVIRONMENTS:
        for model in MODELS:
            config = check_fit(fit_preset(name, model=model))
            spec = kairode.make(name, **config.env_fields).task.spec
            jax.eval_shape(
                lambda key, model=model, spec=spec, config=config: build(model, spec, config.sizes, key=key),
                jax.random.key(0),
            )
    small = build("latent-ode", kairode.make("hiv").task.spec, fit_preset("hiv").sizes, key=jax.random.key(0))
    assert small.transition.field.layers[0].weight.shape == (20, 10)


def test_a_described_file_is_read_with_the_default_settings(tmp_path) -> None:
    """Before they were checked as well: the file says itself what its columns mean."""
    path = tmp_path / "walks.parquet"
    kairode.write(path, kairode.collect(kairode.make("gridworld", max_decisions=3), episodes=10, seed=0))
    for config in (fit_preset(str(path)), check_fit(fit_preset(str(path)))):
        assert [len(part) for part in load_data(config)[:3]] == [8, 1, 1]


def test_fit_from_python(tmp_path) -> None:
    data = kairode.collect(kairode.make("hiv", max_decisions=6), episodes=20, seed=0)
    options = {"iterations": 20, "latent_size": 3, "field_hidden": 4, "weights": {"kl": 0.1}, "folder": tmp_path}
    with pytest.warns(UserWarning, match=r"the timer's intervals .mean .* days. differ from the validation data's"):
        model = kairode.fit("rnn", data, **options)
    with pytest.warns(UserWarning, match="the timer's intervals"):
        again = kairode.fit("rnn", data, **options)
    np.testing.assert_array_equal(model.decoder.weight, again.decoder.weight)
    np.testing.assert_array_equal(kairode.load_models(tmp_path)[0].decoder.weight, model.decoder.weight)
    assert kairode.predict(model, data).shape == (20, 6, 6)
    with pytest.raises(KairodeError, match=r"unknown option 'iteration' of kairode.fit.*'iterations'"):
        kairode.fit("latent-ode", data, iteration=3)
    with pytest.raises(KairodeError, match=r"unknown option 'kll' of weights of kairode.fit"):
        kairode.fit("latent-ode", data, weights={"kll": 1.0})
    with pytest.raises(KairodeError, match="latent-ode"):
        kairode.fit("latent", data)
    with pytest.raises(KairodeError, match=r"checkpoint of another run .seed is 0 there and 1 here"):
        kairode.fit("rnn", data, **{**options, "seed": 1})
    with pytest.raises(KairodeError, match=r"checkpoint of another run .digest is "):
        kairode.fit("rnn", data[:18], **options)
    with pytest.raises(KairodeError, match="single episode cannot be split"):
        kairode.fit("rnn", data[:1])


@pytest.mark.slow
def test_an_ensemble_is_fitted_as_its_members_alone() -> None:
    data = kairode.collect(kairode.make("hiv", max_decisions=6), episodes=20, seed=0)
    both = kairode.fit("rnn", data, seeds=2, iterations=5, latent_size=3)
    first = kairode.fit("rnn", data, iterations=5, latent_size=3)
    np.testing.assert_allclose(both[0].decoder.weight, first.decoder.weight, rtol=1e-5, atol=1e-6)
    assert np.abs(both[1].decoder.weight - both[0].decoder.weight).max() > 1e-3


def test_returns_do_not_depend_on_the_tick() -> None:
    """Visits about 95 days apart, discounted by 0.99 a day."""
    rows = {"episode": [0, 0, 0, 1, 1], "t": [0.0, 90.0, 190.0, 0.0, 95.0], "x": [1.0, 2.0, 3.0, 4.0, 5.0]}
    data = kairode.load_table({**rows, "action": ["a"] * 5, "reward": [1.0, 2.0, 0.0, 3.0, 0.0]}, discount=0.99)
    scaled = rescale_ticks(data)
    assert scaled.spec.tick == 100.0
    np.testing.assert_allclose(scaled.discounted, data.discounted)
    np.testing.assert_allclose(data.discounted[0], 1 + 2 * 0.99**90)
