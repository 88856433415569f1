import json

import numpy as np
import pytest

import kairode
from kairode.experiments.pipeline import Run, command, evaluate_run

TINY = ("--episodes", "12", "--iterations", "4", "--imagined", "2", "--model-free", "2", "--set", "horizon=30")


def test_the_main_job_leaves_a_policy_that_can_be_tested_on_any_schedule(typed, tmp_path):
    folder = tmp_path / "run"
    words = ("run", "gridworld", *TINY, "--out", str(folder))
    code, out, err = typed(*words)
    assert code == 0, err
    assert "learned in imagination" in out
    assert "random actions" in out
    assert "model-free" in out
    made = json.loads((folder / "record.json").read_text())
    assert made["figures"]["tests"].keys() == {"imagination", "model-free", "random"}
    assert (folder / "learning.svg").exists()
    assert (folder / "course.svg").exists()
    assert len(kairode.read(folder / "experience.parquet")) == 12

    code, out, _ = typed("evaluate", str(folder), "--schedule", "5", "--episodes", "10", "--json")
    found = json.loads(out)
    assert found["decisions"] == 6.0
    assert found["time"] == 30.0
    # what the command prints is what Python finds with the policy of the folder
    env = kairode.make("gridworld", horizon=30)
    policy = kairode.load_policy(folder)
    assert kairode.evaluate(env, policy, episodes=10, schedule=5).mean == found["return"]

    # the same command again finds everything done and says the same
    code, _again, err = typed(*words)
    assert code == 0, err
    assert json.loads((folder / "record.json").read_text()) == made
    code, _, err = typed(*words, "--seed", "1")
    assert code == 2
    assert "holds another run" in err
    assert "seed" in err


def test_the_command_of_a_run_names_what_differs(tmp_path):
    config = Run("gridworld", imagined=7, model_free=400, latent=True, seed=3, fields={"horizon": 30})
    assert command(config) == "kairode run gridworld --imagined 7 --latent --seed 3 --set horizon=30"


def test_what_is_no_run_is_named(typed, tmp_path):
    code, _, err = typed("evaluate", str(tmp_path))
    assert code == 2
    assert "there is no" in err
    assert "kairode run" in err
    (tmp_path / "config.json").write_text('{"source": "hiv"}')
    with pytest.raises(kairode.KairodeError, match="not of a run"):
        evaluate_run(tmp_path, schedule=None, episodes=1, seed=0)


def test_learning_from_python(tmp_path):
    env = kairode.make("gridworld", horizon=30)
    data = kairode.collect(env, episodes=12, seed=0)
    models = [kairode.fit("latent-ode", data, seed=seed, iterations=2) for seed in range(3)]
    policy = kairode.learn(models, env.task, data=data, episodes=2, seed=0, every=20, hidden=(16, 16))
    assert np.isfinite(kairode.evaluate(env, policy, episodes=5, schedule=[1, 3]).mean)
    for wrong, words in (
        (lambda: kairode.learn(models, env, learning_rat=1), "learning_rate"),
        (lambda: kairode.learn(models, env.task, episodes=2), "starts=data"),
        (lambda: kairode.learn(None, env.task), "give the environment"),
        (lambda: kairode.learn(None, env, latent=True), "needs a model"),
    ):
        with pytest.raises(kairode.KairodeError, match=words):
            wrong()
