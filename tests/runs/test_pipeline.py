"""The main job: what it leaves, what it refuses; and learning a policy."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import kairode
from kairode.agents.evaluate import mean_return, score_many
from kairode.agents.train_step import transitions_from_data
from kairode.algorithms.learn import learn_policy
from kairode.config.agents import DQNConfig
from kairode.config.algorithms import LearnConfig
from kairode.config.models import ModelConfig
from kairode.config.presets import run_preset
from kairode.data.describe import spec_to_dict
from kairode.data.rollout import episode_keys
from kairode.errors import KairodeError
from kairode.files import with_digest
from kairode.models.zoo import build
from kairode.report.run_page import write_run_page
from kairode.report.summary import policy_sentence
from kairode.result import Result, Spread
from kairode.runs import labels
from kairode.runs.findings import evaluate_on_system
from kairode.runs.labels import best_constant
from kairode.runs.migrate import migrate_config
from kairode.runs.pipeline import run_pipeline
from kairode.seeds import Purpose, derive
from kairode.trees import alone


def test_the_main_job_leaves_a_policy_and_a_page(gridworld_run):
    folder = gridworld_run.folder
    for said in ("Collected 12 episodes", "Learned a policy in 2", "without a model in 2", "Tested 11 policies"):
        assert said in gridworld_run.err
    for said in ("in imagination", "always up"):
        assert said in gridworld_run.out
    assert gridworld_run.out.splitlines()[-1] == f"Report: {folder / 'report.html'}"
    made = json.loads((folder / "record.json").read_text())
    constants = {f"always {name}" for name in kairode.make("gridworld").task.spec.actions.names}
    assert made["figures"]["tests"].keys() == {"imagination", "model-free", "random", *constants}
    assert made["stages"].keys() == {"data, models and policy", "model-free policy", "tests"}
    assert "<svg" in (folder / "report.html").read_text()
    assert len(kairode.read(folder / "experience.parquet")) == 12
    assert not list(folder.rglob("*.part"))


def test_a_policy_can_be_tested_on_any_schedule(typed, gridworld_run):
    code, out, err = typed("evaluate", str(gridworld_run.folder), "--schedule", "5", "--episodes", "10", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["decisions"] == 6.0
    assert found["time"] == 30.0
    # what the command prints is what Python finds with the policy of the folder
    env = kairode.make("gridworld", horizon=30)
    policy = kairode.load_policy(gridworld_run.folder)
    assert kairode.evaluate(env, policy, episodes=10, schedule=5).score == found["return"]


def test_a_finished_run_is_not_repeated_and_another_is_refused(typed, gridworld_run, tmp_path):
    folder = shutil.copytree(gridworld_run.folder, tmp_path / "run")
    words = (*gridworld_run.words[:-1], str(folder))
    made = json.loads((folder / "record.json").read_text())
    code, _, err = typed(*words)
    assert code == 0, err
    assert "This run is finished" in err
    assert json.loads((folder / "record.json").read_text()) == made
    code, _, err = typed(*words, "--seed", "1")
    assert code == 2
    assert err.startswith(f"error: {folder} holds another run (seed is 0 there and 1 here)")
    # the page is made of the record alone
    before = (folder / "report.html").read_text()
    (tmp_path / "alone").mkdir()
    (folder / "record.json").rename(tmp_path / "alone" / "record.json")
    assert write_run_page(tmp_path / "alone").read_text() == before


def test_a_constant_policy_is_tested_as_itself():
    env = kairode.make("hiv", horizon=60)
    found = evaluate_on_system(env, {}, 5.0, episodes=3)
    both = kairode.evaluate(env, lambda obs, key: 3, schedule=5, episodes=3)
    assert found["always RTI+PI"]["discounted_return"] == pytest.approx(both.score)
    best = max(found[f"always {name}"]["discounted_return"] for name in env.task.spec.actions.names)
    assert found[best_constant(found)]["discounted_return"] == best


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("run acrobot --prices -1", "price"),
        ("run acrobot --candidates 1 0.4", "must be strictly ascending"),
        ("run acrobot --candidates 0.13", "0.13"),
        ("run gridworld --rounds 1 --episodes 5", "episodes must be an integer of at least 10, got 5"),
        ("run gridworld --rounds 1 --paper", "--rounds 0"),
        ("run acrobot --fit-iterations 0", "fit_iterations must be"),
        ("run gridworld --schedule-refits 1", "add --rounds 5"),
        ("run gridworld --set horizn=3", "Did you mean 'horizon'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(typed, tmp_path, words, reason):
    code, _, err = typed(*words.split(), "--out", str(tmp_path / "run"))
    assert code == 2
    assert re.search(reason, err), err
    assert not (tmp_path / "run").exists()


def test_what_is_said_of_a_run_is_of_that_run():
    def figures(mean: float, spread: float) -> dict:
        around = Spread(low=mean - spread, high=mean + spread)
        return Result("return", {"return": mean}, around, 6.0, 30.0, 0.0, {}, 100).figures()

    tests = {
        "imagination": {"kind": "imagination", **figures(-40.0, 2.0)},
        "model-free": {"kind": "model-free", **figures(-34.0, 1.0)},
        "always up": {**labels.constant("up"), **figures(-41.0, 2.0)},
        "random": {"kind": "random", **figures(-150.0, 1.0)},
    }
    real = {"imagination": 20, "model-free": 50}
    spec = kairode.make("gridworld").task.spec
    found = {"tests": tests, "real_episodes": real, "spec": spec_to_dict(spec)}
    said = policy_sentence({"figures": found, "config": {"schedule": 5.0}})
    assert "above random actions (-150)" in said
    assert "similar to every constant policy (-41)" in said
    assert "below the model-free policy of 50 real episodes (-34)" in said
    assert "with a decision every 5 seconds" in said


@pytest.mark.parametrize("words", [("--latent-policy",), ("--schedule", "5")])
def test_what_does_not_go_with_rounds_is_refused(typed, tmp_path, words):
    code, _, err = typed("run", "hiv", "--rounds", "2", *words, "--out", str(tmp_path / "run"))
    assert code == 2
    assert words[0] in err
    assert "--rounds 0" in err
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_is_named(typed, tmp_path):
    code, _, err = typed("evaluate", str(tmp_path))
    assert code == 2
    assert "there is no policy" in err
    assert "kairode run" in err
    (tmp_path / "policy.json").write_text('{"file": "x", "sha256": "", "arrays": {}}')
    with pytest.raises(kairode.KairodeError, match="'sizes' is missing"):
        kairode.load_policy(tmp_path)


@pytest.mark.slow
def test_learning_from_python(tmp_path):
    env = kairode.make("gridworld", horizon=30)
    data = kairode.collect(env, episodes=12, seed=0)
    models = [kairode.fit("latent-ode", data, seed=seed, iterations=2) for seed in range(3)]
    policy = kairode.learn(
        models[:-1],
        env.task,
        data=data,
        validation_model=models[-1],
        episodes=2,
        seed=0,
        validate_every=20,
        hidden=(16, 16),
    )
    assert np.isfinite(kairode.evaluate(env, policy, episodes=5, schedule=[1, 3]).score)
    for wrong, words in (
        (lambda: kairode.learn(models, env, learning_rat=1), "Did you mean 'learning_rate'"),
        (lambda: kairode.learn(models, env.task, episodes=2), "starts=data"),
        (lambda: kairode.learn(None, env.task), "pass the environment"),
        (lambda: kairode.learn(None, env, latent_policy=True), "needs a model"),
    ):
        with pytest.raises(kairode.KairodeError, match=words):
            wrong()


@pytest.mark.slow
def test_short_rollouts_are_validated_over_whole_episodes():
    """Imagined episodes of few decisions; validation, and the policy, are of the whole task."""
    env = kairode.make("hiv", horizon=60)
    data = kairode.collect(env, episodes=12, seed=0)
    models = [kairode.fit("rnn", data, seed=seed, iterations=2) for seed in range(3)]
    dqn = DQNConfig(hidden=(16, 16), batch_size=16, replay_capacity=512, reward_scale=1e-6)
    config = LearnConfig(episodes=4, rollout_length=5, validate_every=20, dqn=dqn)
    found = learn_policy(models[:-1], env, config, data=data, schedule=5, validation_model=models[-1], monitor=env)
    assert found.policy.spec == env.task.spec
    assert found.training.decisions == [20]  # four rollouts of five decisions
    # a visit every 5 of 60 days: the look at the real system is of 12 decisions
    keys = episode_keys(derive(0, Purpose.VALIDATION), 20)
    scores = score_many(env, alone(found.policy), alone(kairode.Fixed(5.0)), keys, 100, 1)
    assert set(np.asarray(scores.decisions).ravel()) == {12}
    assert found.training.curve[-1]["real"] == pytest.approx(mean_return(env.task, scores), rel=1e-5)


@pytest.mark.slow
def test_learning_with_the_most_likely_interval(tmp_path):
    """As with a timer that is so sure of it that every draw is the most likely interval; a draw is another training."""
    env = kairode.make("gridworld", horizon=60, intervals=(2, 12))
    sure = build(
        "rnn", env.task.spec, ModelConfig(latent_size=3, timer="classes", timer_hidden=4), key=jax.random.key(0)
    )
    weights = lambda m: (m.timer.net.layers[-1].weight, m.timer.net.layers[-1].bias)  # noqa: E731
    model = eqx.tree_at(weights, sure, replace_fn=lambda x: 0.1 * x)
    sure = eqx.tree_at(weights, sure, replace_fn=lambda x: 1e6 * x)
    small = {"episodes": 6, "hidden": (8,), "batch_size": 8, "replay_capacity": 64}
    likely = kairode.learn(model, env, sample_intervals=False, folder=tmp_path, **small)
    # Two programs, which may round differently.
    np.testing.assert_allclose(likely.q.weights[0], kairode.learn(sure, env, **small).q.weights[0], rtol=1e-5)
    drawn = kairode.learn(model, env, **small)
    assert not np.allclose(likely.q.weights[0], drawn.q.weights[0], rtol=1e-3)
    with pytest.raises(
        kairode.KairodeError, match=r"another run .about.config.sample_intervals is false there and true"
    ):
        kairode.learn(model, env, folder=tmp_path, **small)


def test_older_runs_took_the_most_likely_interval():
    for kind, config in (("rounds", {"env": "hiv"}), ("run", {"env": "hiv", "rounds": 0})):
        found = migrate_config(kind, config)
        assert (found if kind == "rounds" else found["learn"])["sample_intervals"] is False


def test_experience_in_the_replay_belongs_to_the_schedule():
    env = kairode.make("hiv", horizon=60)
    data = kairode.collect(env, episodes=12, seed=0)
    everything = transitions_from_data(DQNConfig(), data, env.task.spec)
    five = transitions_from_data(DQNConfig(), data, env.task.spec, 5.0)
    assert len(everything.action) == data.decisions
    assert len(five.action) == (data.interval == 5).sum() > 0
    np.testing.assert_allclose(five.discount, 0.995**5, rtol=1e-5)


def test_the_checkpoint_of_another_training_is_refused(tmp_path):
    env = kairode.make("gridworld", horizon=30)
    small = {"episodes": 1, "hidden": (8,), "batch_size": 8, "replay_capacity": 64, "folder": tmp_path}
    first = kairode.learn(None, env, schedule=7, **small)
    same = kairode.learn(None, env, schedule=7, **small)
    assert np.array_equal(first.q.weights[0], same.q.weights[0])
    with pytest.raises(kairode.KairodeError, match=r"another run .about.schedule is .* there and"):
        kairode.learn(None, env, schedule=5, **small)
    with pytest.raises(kairode.KairodeError, match="at least 1"):
        kairode.learn(None, env, **{**small, "episodes": 0})
    breeze = kairode.make("gridworld", horizon=30, noise=0.5)
    with pytest.raises(kairode.KairodeError, match=r"about.inputs.system.settings.noise is 0.0 there and 0.5 here"):
        kairode.learn(None, breeze, schedule=7, **small)


@pytest.mark.slow
def test_what_a_policy_is_learned_with_belongs_to_its_checkpoint(tmp_path):
    env = kairode.make("gridworld", horizon=30)
    model, other = (
        build("rnn", env.task.spec, ModelConfig(latent_size=3, timer="none"), key=jax.random.key(seed))
        for seed in range(2)
    )
    small = {"episodes": 1, "hidden": (8,), "batch_size": 8, "replay_capacity": 64, "folder": tmp_path}
    first = kairode.learn(model, env, validation_model=model, **small)
    for changed, said in (
        ({"validation_model": other}, "validation_model is .* there and"),
        ({}, "validation_model is .* there and null"),
        ({"validation_model": model, "latent_policy": True}, "latent_policy is false there and true"),
    ):
        with pytest.raises(kairode.KairodeError, match=f"another run .about.inputs.{said}"):
            kairode.learn(model, env, **changed, **small)
    about = json.loads((tmp_path / "checkpoint.json").read_text())
    del about["identity"]["about"]["inputs"]  # as written by older versions
    (tmp_path / "checkpoint.json").write_text(json.dumps(with_digest(about)))
    again = kairode.learn(model, env, validation_model=model, **small)
    np.testing.assert_array_equal(first.q.weights[0], again.q.weights[0])
    with pytest.raises(kairode.KairodeError, match=r"another run .about.models is"):
        kairode.learn(other, env, validation_model=model, **small)


def test_a_run_refuses_learning_options_that_dyna_rounds_do_not_have(tmp_path: Path) -> None:
    run = run_preset("hiv")
    for name in ("rollout_length", "obs_margin"):
        config = dataclasses.replace(run, learn=dataclasses.replace(run.learn, **{name: None}))
        with pytest.raises(KairodeError, match=f"--learn.{name.replace('_', '-')} None works without Dyna rounds only"):
            run_pipeline(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
