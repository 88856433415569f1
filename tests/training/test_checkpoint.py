"""Checkpoints: a description with its own digest, sizes checked before memory is taken, one writer, any readers."""

import dataclasses
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kairode._lock import FolderBusy, locked
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.policy_files import read_policy, save_policy
from kairode.agents.q_policy import QPolicy
from kairode.config.models import ModelConfig
from kairode.envs import make
from kairode.errors import KairodeError
from kairode.files import with_digest
from kairode.models.dynamics import Scale
from kairode.models.zoo import build
from kairode.training import checkpoint
from kairode.training.model_files import load_models, save_models

SIZES = ModelConfig(latent_size=2, encoder_hidden=3, field_hidden=3)


@pytest.fixture
def models(tmp_path):
    spec = make("hiv").task.spec
    scale = Scale((0.5,) * 6, (2.0,) * 6, 10.0)
    save_models(tmp_path, "latent-ode", SIZES, [build("latent-ode", spec, SIZES, scale, key=jax.random.key(0))] * 2)
    return tmp_path


@pytest.fixture
def policy(tmp_path):
    spec = make("hiv").task.spec
    save_policy(tmp_path, QPolicy(ReLUNetwork.new(6, 5, 4, key=jax.random.key(1)), IdentityEncoder(), spec, 0.05))
    return tmp_path


def rewrite(path, sign=True, **changes):
    about = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(with_digest(about) if sign else about))


def test_models_come_back_with_their_scale(models):
    first, second = load_models(models)
    assert first.scale == Scale((0.5,) * 6, (2.0,) * 6, 10.0)
    assert jax.tree.all(jax.tree.map(np.array_equal, first, second))


def test_a_changed_description_is_refused(models):
    path = models / "models.json"
    text = path.read_text()
    digits = [i for i, one in enumerate(text) if one.isdigit()]
    for i in digits[:: len(digits) // 40]:
        path.write_text(f"{text[:i]}{(int(text[i]) + 1) % 10}{text[i + 1 :]}")
        with pytest.raises(KairodeError, match=r"models.json (was changed|is damaged|was written by a newer)"):
            load_models(models)
    path.write_text(text)
    assert len(load_models(models)) == 2


def test_descriptions_of_older_versions_have_no_digest(policy):
    path = policy / "policy.json"
    about = json.loads(path.read_text())
    del about["json_sha256"]
    path.write_text(json.dumps({**about, "format": 1}))
    assert read_policy(policy).epsilon == 0.05
    path.write_text(json.dumps(about))  # today's format without one
    with pytest.raises(KairodeError, match="was changed"):
        read_policy(policy)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": 10**9}, "has shape"),
        ({"sizes": {**vars(SIZES), "latent_size": 10**8}}, "has shape"),
        ({"arrays": {"x": ["float32", [2**60]]}}, "it has no"),
        ({"file": "../outside.safetensors"}, "leads out of the folder"),
        ({"file": "/dev/zero"}, "leads out of the folder"),
        ({"spec": []}, "does not describe a model"),
        ({"scale": [["x"], [1]]}, "does not describe a model"),
        ({"arrays": {"x": "y"}}, "is damaged"),
        ({"format": 99}, "newer version"),
    ],
)
def test_a_description_is_checked_before_memory_is_taken(models, changes, said):
    rewrite(models / "models.json", **changes)
    with pytest.raises(KairodeError, match=said):
        load_models(models)


def test_a_file_larger_than_its_description_is_not_read(policy):
    (file,) = policy.glob("*.safetensors")
    with open(file, "r+b") as content:
        content.truncate(2**33)  # without taking space on the disk
    with pytest.raises(KairodeError, match="is larger than expected"):
        read_policy(policy)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(KairodeError, match="a pipe or device"):
        read_policy(policy)
    file.unlink()
    with pytest.raises(KairodeError, match=r"safetensors is missing: run its command again"):
        read_policy(policy)


def test_the_policy_s_network_is_checked_too(policy):
    rewrite(policy / "policy.json", sizes=[6, 10**9, 4])
    with pytest.raises(KairodeError, match="has shape"):
        read_policy(policy)


def test_one_process_saves_at_a_time(tmp_path):
    tree = {"x": jnp.arange(3.0)}
    with locked(tmp_path):
        checkpoint.save(tmp_path, tree)  # this thread holds the lock
        caught = []

        def other():
            try:
                checkpoint.save(tmp_path, {"x": jnp.zeros(3)})
            except FolderBusy as error:
                caught.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "is being written by another process" in caught[0]
    np.testing.assert_array_equal(checkpoint.load(tmp_path, tree)["x"], np.arange(3.0))


def test_a_reader_takes_the_new_checkpoint_if_the_old_one_goes(tmp_path, monkeypatch):
    tree = {"x": jnp.arange(3.0)}
    checkpoint.save(tmp_path, tree)
    read = checkpoint.read_bytes

    def replaced(path, most):
        monkeypatch.setattr(checkpoint, "read_bytes", read)
        checkpoint.save(tmp_path, {"x": 2 * jnp.arange(3.0)})
        return read(path, most)

    monkeypatch.setattr(checkpoint, "read_bytes", replaced)
    np.testing.assert_array_equal(checkpoint.load(tmp_path, tree)["x"], 2 * np.arange(3.0))


def test_names_with_brackets_do_not_look_changed(tmp_path):
    spec = make("hiv").task.spec
    odd = dataclasses.replace(spec.observations[0], name="pH [ ]")
    spec = dataclasses.replace(spec, observations=(odd, *spec.observations[1:]))
    save_models(tmp_path, "rnn", SIZES, [build("rnn", spec, SIZES, key=jax.random.key(0))])
    assert load_models(tmp_path)[0].spec.observations[0].name == "pH [ ]"


def test_files_of_the_user_are_kept(tmp_path):
    (tmp_path / "models-backup.safetensors").write_bytes(b"precious")
    for value in (0.0, 1.0):
        checkpoint.save(tmp_path, {"x": np.full(2, value)}, "models")
    assert (tmp_path / "models-backup.safetensors").read_bytes() == b"precious"
    assert len([*tmp_path.glob("models-*.safetensors")]) == 2, "the earlier checkpoint is removed"
