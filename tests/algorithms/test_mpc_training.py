"""The loop of algorithm 3: what is stored, fitted and learned from; exact resume; the command and the video."""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.agents.actor_policy import ActorPolicy
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.algorithms.mpc import check_mpc, curve, with_plan
from kairode.algorithms.mpc_agent import FinishedEpisode, reward_skill, transitions
from kairode.algorithms.mpc_data import validation_mask
from kairode.algorithms.mpc_loop import MPCLoop
from kairode.config.agents import ActorCriticConfig
from kairode.config.algorithms import MPCConfig
from kairode.config.commands import command_of
from kairode.config.models import ModelConfig
from kairode.config.planning import PlanConfig
from kairode.config.presets import mpc_preset
from kairode.data.rows import StepRow, cut, pack_row, packed_width, unpack_row
from kairode.errors import KairodeError, Stopped
from kairode.models.predict import Episodes
from kairode.models.zoo import build
from kairode.paper import locomotion
from kairode.planning.mpc import Planner
from kairode.report import mpc as report
from kairode.report.video import draw_gif, draw_strip
from kairode.runs.mpc import best_seed, evaluate_mpc_run, is_mpc_run, load_policies, read_config, run_mpc
from kairode.runs.video import read_gait, record_video

SMALL = {
    "agent": ActorCriticConfig(hidden=(8, 8), warmup=200, batch_size=16),
    "plan": PlanConfig(candidates=12, horizon=3, elites=3),
    "refit_every": 150,
    "decisions": 450,
    "max_fit_iterations": 20,
    "test_episodes": 2,
}


def small(env: str, model: str, **given) -> MPCConfig:
    options = {**SMALL, **given}
    if model == "free":
        options.pop("plan")
    config = mpc_preset(env, model, **options)
    sizes = dataclasses.replace(config.sizes, latent_size=6, field_hidden=6, encoder_hidden=5, timer_hidden=5)
    return dataclasses.replace(config, sizes=sizes, training=dataclasses.replace(config.training, batch_size=16))


def loop_of(config: MPCConfig) -> MPCLoop:
    env = kairode.make(config.env)
    seeds = list(range(config.seed, config.seed + config.seeds))
    return MPCLoop(env, config, seeds, config.decisions)


def figures_of(made: dict) -> dict:
    return {name: value for name, value in made["figures"].items() if name != "stage_seconds"}


def test_rows_are_packed_and_cut_by_episode() -> None:
    spec = kairode.make("pendulum").task.spec
    rng = np.random.default_rng(0)
    n = 27
    first = np.isin(np.arange(n), (0, 4, 18))
    seen_obs = rng.normal(size=(n + 1, 3)).astype(np.float32)
    row = StepRow(
        seen_obs[:-1], seen_obs[1:], rng.normal(size=(n, 1)), rng.normal(size=n), rng.random(n), np.zeros(n), first
    )
    rows = pack_row(row)
    assert rows.shape == (n, packed_width(spec))
    for field, found in zip(row, unpack_row(spec, rows), strict=True):
        np.testing.assert_allclose(found, np.asarray(field, np.float32))
    pieces = cut(spec, rows, 5)
    assert pieces.real.sum(1).tolist() == [4, 5, 5, 4, 5, 4]  # episodes of 4, 14 and 9
    assert pieces.episode.tolist() == [0, 1, 1, 1, 2, 2]
    np.testing.assert_array_equal(pieces.seen_obs[1], seen_obs[4:10])
    np.testing.assert_array_equal(pieces.tau[3][:4], rows[14:18, -3])
    np.testing.assert_array_equal(pieces.control[5][:4], rows[23:27, 6:7])


def test_an_agent_sees_rows_normalized_and_discounted_by_elapsed_time() -> None:
    spec = kairode.make("pendulum").task.spec
    settings = ActorCriticConfig(reward_scale=0.5)
    rng = np.random.default_rng(0)
    seen_obs, after, torque = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), np.array([[2.0], [-1.0]])
    rows = pack_row(
        StepRow(seen_obs, after, torque, np.array([4.0, 6.0]), np.array([0.15, 0.05]), np.array([0, 1]), np.zeros(2))
    )
    normalizer = ObsNormalizer.new(spec).with_more(jnp.asarray(rng.normal(2.0, 3.0, size=(50, 3)), jnp.float32))
    found = transitions(spec, settings, normalizer, jnp.asarray(rows))
    np.testing.assert_allclose(found.reward, [2.0, 3.0])
    np.testing.assert_allclose(found.discount, [0.99**3, 0.0], rtol=1e-5)
    np.testing.assert_allclose(found.action, [[1.0], [-0.5]])
    mean, std = np.asarray(normalizer.statistics.mean), np.asarray(normalizer.statistics.std)
    np.testing.assert_allclose(found.next_features, (after - mean) / std, rtol=1e-4, atol=1e-5)


def test_skill_is_one_for_a_model_that_knows_and_minus_for_one_that_does_not() -> None:
    """A decoder made to say the truth, and one that says nothing."""
    env = kairode.make("pendulum")
    spec, n = env.task.spec, 40
    data = kairode.collect(env, episodes=n, seed=0)
    model = build("rnn", spec, ModelConfig(latent_size=3), key=jax.random.key(0))
    episodes = Episodes(
        jnp.asarray(data.observation[:, :2]),
        jnp.asarray(data.action[:, :1]),
        jnp.asarray(data.interval[:, :1] / spec.tick),
        jnp.arange(n)[:, None] < 30,
    )
    mute = eqx.tree_at(lambda m: (m.decoder.weight, m.decoder.bias), model, (jnp.zeros((3, 3)), jnp.zeros(3)))
    after, torque, tau = data.observation[:30, 1], data.action[:30, 0], data.interval[:30, 0]
    reward, nothing = jax.vmap(env.task.reward), jnp.zeros((30, 3))
    torque, after, tau = map(jnp.asarray, (torque, after, tau))
    earned, silent = (np.asarray(reward(nothing, torque, seen, tau)) for seen in (after, nothing))
    expected = 1 - ((silent - earned) ** 2).sum() / ((earned - earned.mean()) ** 2).sum()
    found = reward_skill(mute, env.task, ObsNormalizer.new(spec), episodes, jax.random.key(1))
    np.testing.assert_allclose(found, [expected], rtol=1e-3)
    same = Episodes(episodes.obs.at[:, 1].set(0.0), episodes.action, episodes.tau, episodes.real)
    np.testing.assert_allclose(
        reward_skill(mute, env.task, ObsNormalizer.new(spec), same, jax.random.key(1)), [1.0], atol=1e-5
    )


@pytest.mark.slow
def test_what_happens_is_what_is_stored() -> None:
    config = small("hopper", "free", seeds=2)
    loop = loop_of(config)
    loop.warm_up()
    loop.begin_epoch()
    for _ in range(60):
        loop.step()
    loop.update_learner()
    row = unpack_row(loop.spec, loop._rows())
    task = loop.task
    loop.close()
    assert row.seen_obs.shape == (2, 260, 12)
    for i in range(2):
        begins = row.first[i] > 0
        ends = np.append(begins[1:], False)
        same = ~ends[:-1]
        np.testing.assert_array_equal(row.next_seen_obs[i][:-1][same], row.seen_obs[i][1:][same])
        np.testing.assert_array_equal(row.seen_obs[i][begins][:, -1], 0.0)  # nothing has moved yet
        fell = np.asarray(task.terminal(row.next_seen_obs[i]))
        np.testing.assert_array_equal(row.terminated[i] > 0, fell)
        at_origin = row.seen_obs[i].copy()
        at_origin[:, -1] = 0.0
        reward = task.reward(at_origin, row.control[i], row.next_seen_obs[i], row.tau[i])
        np.testing.assert_allclose(row.reward[i], reward, rtol=1e-3, atol=1e-3)
        assert set(row.tau[i]) <= set(range(1, 8))
    assert int(loop.learner.agent.updates[0]) == 60
    statistics = loop.normalizer.statistics
    np.testing.assert_allclose(statistics.mean[1], row.seen_obs[1][:200].mean(0), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["free", "rnn"])
def test_seeds_side_by_side_are_the_same_alone(model: str) -> None:
    made = []
    for seeds, seed in ((2, 0), (1, 1)):
        loop = loop_of(small("pendulum", model, seeds=seeds, seed=seed))
        loop.warm_up()
        loop.begin_epoch()
        for _ in range(5):
            loop.step()
        loop.update_learner()
        made.append(loop._rows()[-1])
    np.testing.assert_array_equal(made[0][:200], made[1][:200])
    np.testing.assert_allclose(made[0][200:], made[1][200:], rtol=2e-3, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("env", "model"), [("hopper", "rnn"), ("pendulum", "free")])
def test_a_run_that_was_stopped_goes_on_exactly(env: str, model: str, tmp_path: Path) -> None:
    config = small(env, model, seeds=2)
    made = run_mpc(config, tmp_path / "whole")

    def stop(progress) -> None:
        if progress.stage.startswith(env) and progress.done == 400:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(
        Stopped, match=r"interrupted after 40\d decisions, saved\. Run the same command again to resume: kairode run"
    ):
        run_mpc(config, tmp_path / "parts", stop)
    assert not (tmp_path / "parts" / "record.json").exists()
    again = run_mpc(config, tmp_path / "parts")
    assert figures_of(again) == figures_of(made)
    assert run_mpc(config, tmp_path / "parts") == again  # done is done
    if model == "free":  # more decisions go on from where fewer ended
        longer = dataclasses.replace(config, decisions=600)
        more = run_mpc(longer, tmp_path / "parts")
        assert figures_of(more) == figures_of(run_mpc(longer, tmp_path / "longer"))
    with pytest.raises(KairodeError, match=r"another run .refit_every is 150 there and 100 here"):
        run_mpc(dataclasses.replace(config, refit_every=100), tmp_path / "parts")
    with pytest.raises(KairodeError, match=r"has already taken .* decisions, more than the"):
        run_mpc(dataclasses.replace(config, decisions=300), tmp_path / "parts")
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [line["decisions"] for line in lines if "return" in line][:2] == [200, 350]


@pytest.mark.slow
def test_policies_come_back_from_a_folder(typed, mpc_run, tmp_path: Path) -> None:
    made = json.loads((mpc_run.folder / "record.json").read_text())
    assert made["kind"] == "control"
    policies = load_policies(mpc_run.folder)
    assert len(policies) == 1
    assert isinstance(policies[0], Planner)
    found = kairode.evaluate(kairode.make("pendulum"), policies[0], episodes=2)
    assert found.score == pytest.approx(made["figures"]["tests"][0]["return"], rel=1e-4)
    assert made["figures"]["curve"][0]["decisions"] == 200
    assert [len(entry["return"]) for entry in made["figures"]["curve"]] == [1, 1, 1]
    assert made["figures"]["fits"][0]["iterations"] == 20
    assert np.shape(made["figures"]["fits"][0]["reward_skill"]) == (1, 10)
    assert "After 360 decisions planning with a dt-rnn model has a mean return of" in mpc_run.out
    assert (mpc_run.folder / "learning.svg").read_text().lstrip().startswith("<?xml")
    code, said, err = typed("evaluate", str(mpc_run.folder), "--episodes", "2", "--schedule", "0.2")
    assert code == 0, err
    assert "every 0.2 seconds" in said
    for words in (("evaluate", str(mpc_run.folder), "--schedule", "chosen"), ("schedule", str(mpc_run.folder))):
        code, _, error = typed(*words)
        assert code == 2
        assert "discrete" in error
    with pytest.raises(KairodeError, match="continuous actions"):
        read_config(tmp_path / "nothing")


@pytest.mark.slow
def test_a_run_that_was_refused_or_never_got_far_is_no_hindrance(tmp_path: Path) -> None:
    config = small("pendulum", "latent-ode")
    odd = dataclasses.replace(config, sizes=dataclasses.replace(config.sizes, solver="xyz"))
    with pytest.raises(KairodeError, match="unknown solver"):
        run_mpc(odd, tmp_path)
    assert not list(tmp_path.iterdir())

    def stop(progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Stopped, match=r"interrupted\. Run the same command again to resume: kairode run pendulum"):
        run_mpc(small("pendulum", "free"), tmp_path, stop)
    assert is_mpc_run(tmp_path)
    with pytest.raises(KairodeError, match="not finished"):
        evaluate_mpc_run(tmp_path)
    other = small("pendulum", "free", refit_every=200, decisions=210)
    assert run_mpc(other, tmp_path)["config"]["refit_every"] == 200


@pytest.mark.slow
def test_a_replay_that_runs_over_keeps_the_order() -> None:
    config = small(
        "pendulum", "free", agent=ActorCriticConfig(hidden=(4, 4), warmup=90, batch_size=8, replay_capacity=64)
    )
    loop = loop_of(config)
    loop.warm_up()
    loop.begin_epoch()
    for _ in range(30):
        loop.step()
    loop.update_learner()
    row = unpack_row(loop.spec, loop._rows())
    same = row.first[0][1:] == 0
    np.testing.assert_array_equal(row.next_seen_obs[0][:-1][same], row.seen_obs[0][1:][same])
    assert row.seen_obs.shape == (1, 64, 3)
    assert (~same).sum() <= 2


def test_the_same_episodes_are_held_back_while_there_are_more() -> None:
    spec = kairode.make("pendulum").task.spec
    rows = np.zeros((400, packed_width(spec)), np.float32)
    rows[::8, -1] = 1.0  # episodes of eight decisions
    few, many = (cut(spec, rows[:n], 5) for n in (160, 400))
    kept = [set(pieces.episode[validation_mask(pieces)]) for pieces in (few, many)]
    assert kept[0] == {4, 14}
    assert kept[1] == {4, 14, 24, 34, 44}


def test_the_curve_is_the_mean_of_the_episodes_of_an_epoch() -> None:
    config = small("pendulum", "free", seeds=2)
    ended = [
        FinishedEpisode(0, 100, 1.0, 5),
        FinishedEpisode(0, 200, 3.0, 5),
        FinishedEpisode(1, 150, 7.0, 5),
        FinishedEpisode(0, 210, 10.0, 5),
    ]
    found = curve(config, ended)
    assert [entry["decisions"] for entry in found] == [200, 350, 450]
    assert [entry["return"] for entry in found] == [[2.0, 7.0], [10.0, None], [None, None]]
    decisions, returns = report.curve_points({"figures": {"curve": found}})
    assert decisions.tolist() == [200, 350, 450]
    np.testing.assert_array_equal(returns, [[2.0, 10.0, 10.0], [7.0, 7.0, 7.0]])


@pytest.mark.slow
def test_the_command_trains_tests_and_records_the_gait(typed, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--agent.hidden", "8", "8", "--agent.warmup", "200", "--agent.batch-size", "16", "--refit-every", "150")
    words = ("run", "hopper", "--model", "free", "--seeds", "2", "--test-episodes", "2", "--decisions", "450")
    code, said, error = typed(*words, *options, "--out", str(folder))
    assert code == 0, error
    assert "random actions" in said
    assert "After 450 decisions DDPG alone has a mean return of" in said
    assert said.startswith("The learned policy is no better than middle controls: return ")
    assert "more decisions (--decisions 900); another learner (--agent.kind sac)" in said
    assert "0 of 2 seeds are clearly better than middle controls" in said  # two episodes are no test
    assert (folder / "gait.gif").read_bytes()[:3] == b"GIF"
    assert "0.00 s" in (folder / "gait.svg").read_text()
    record = json.loads((folder / "record.json").read_text())
    frames = record_video(kairode.make("hopper"), load_policies(folder)[best_seed(record)])
    kept = read_gait(folder)
    np.testing.assert_allclose([frame.pose for frame in kept.frames], [frame.pose for frame in frames], atol=1e-6)
    code, said, error = typed("report", str(folder), "--gait", str(tmp_path / "gait.svg"))
    assert code == 0, error
    assert ">hopper<" in (tmp_path / "gait.svg").read_text()
    code, _, error = typed("report", str(tmp_path), "--gait", str(tmp_path / "none.svg"))
    assert code == 2
    assert "holds no recording" in error
    code, said, _ = typed("evaluate", str(folder), "--episodes", "2", "--schedule", "4")
    assert code == 0
    assert "every 4 frames" in said
    assert "(the best of 2)" in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("hopper", "--decisions", "300"), "decisions must exceed the 15,000 random ones that come first, got 300"),
        (("hopper", "--agent.kind", "ppo"), "ddpg, td3, sac"),
        (("hopper", "--model", "lstm"), "unknown model"),
        (("hiv", "--model", "free"), "free is for continuous actions"),
        (("hopper", "--plan.candidates", "0"), "candidates must be an integer of at least 1, got 0"),
        (("hopper", "--model", "free", "--plan.noise", "0.3"), "noise (--plan.noise) has no effect: without a model"),
        (("hopper", "--model", "rnn", "--sizes.solver", "rk4:2"), "solver (--sizes.solver) has no effect"),
        (("pendulum", "--no-relative-obs"), "relative_obs=False (--no-relative-obs) has no effect"),
    ],
)
def test_what_cannot_be_done_is_said(words, complaint: str, typed) -> None:
    code, _, error = typed("run", *words)
    assert code == 2
    assert complaint in error


def test_without_mujoco_a_run_says_what_to_install_and_leaves_nothing(typed, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    code, _, error = typed("run", "hopper", "--model", "free", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "pip install 'kairode[mujoco]'" in error
    assert not (tmp_path / "run").exists()


def test_the_commands_of_the_studies() -> None:
    for config in locomotion.STUDIES.values():
        model = "" if config.model == "latent-ode" else f" --model {config.model}"
        assert command_of(config) == f"kairode run {config.env}{model} --seeds 3"


def test_relative_variables_are_values_in_the_papers_setting() -> None:
    spec = kairode.make("hopper").task.spec
    assert check_mpc(mpc_preset("hopper", "rnn"), spec).relative_obs
    assert not check_mpc(mpc_preset("hopper", "rnn", setting="paper"), spec).relative_obs


def test_options_of_python() -> None:
    config = mpc_preset("swimmer", "latent-ode")
    found = with_plan(config, {"candidates": 100, "noise": 0.2, "solver": "rk4:2", "refit_every": 7})
    assert found.plan == dataclasses.replace(config.plan, candidates=100, noise=0.2, elites=5)
    assert (found.sizes.solver, found.refit_every) == ("rk4:2", 7)
    assert with_plan(config, {"candidates": 100, "elites": 50}).plan.elites == 50
    with pytest.raises(KairodeError, match=r"unknown option 'candidate' of kairode.train_mpc.*'candidates'"):
        with_plan(config, {"candidate": 100})
    with pytest.raises(KairodeError, match="without a model"):
        with_plan(mpc_preset("swimmer", "free"), {"noise": 0.2})


@pytest.mark.slow
def test_training_from_python(tmp_path: Path) -> None:
    env = kairode.make("pendulum", horizon=4.0)
    options = {"decisions": 1030, "agent": "td3", "seed": 3, "refit_every": 500}
    policy = kairode.train_mpc(env, "free", **options, folder=tmp_path)
    assert isinstance(policy, ActorPolicy)
    assert policy.settings.kind == "td3"
    again = kairode.train_mpc(env, "free", **options, folder=tmp_path)
    for a, b in zip(*map(jax.tree.leaves, (policy.networks, again.networks)), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(KairodeError, match=r"another run .config.env_fields.horizon is 4.0 there and 5.0 here"):
        kairode.train_mpc(kairode.make("pendulum", horizon=5.0), "free", **options, folder=tmp_path)
    with pytest.raises(KairodeError, match="discrete"):
        kairode.train_mpc(kairode.make("hiv"))


def test_fields_given_as_lists_work_on_robots() -> None:
    env = kairode.make("hopper", intervals=[2, 5])
    found = kairode.collect(env, episodes=2, seed=0)
    taus = np.asarray(found.interval)[found.mask]
    assert taus.min() >= 2
    assert taus.max() <= 5


@pytest.mark.slow
def test_a_video_shows_what_happened(tmp_path: Path) -> None:
    env = kairode.make("swimmer")
    spec = env.task.spec
    from kairode.agents.actor_critic import init_actor_critic

    networks = init_actor_critic(len(spec.observations), 2, ActorCriticConfig(), key=jax.random.key(0)).networks
    frames = record_video(env, ActorPolicy(networks, ObsNormalizer.new(spec), ActorCriticConfig(), spec), seconds=0.5)
    assert frames[0].time == 0
    assert 0.5 <= frames[-1].time < 0.6
    assert all(frame.pose.shape == (3, 5) for frame in frames)
    draw_gif(frames, tmp_path / "gait.gif", "swimmer")
    draw_strip({"swimmer": frames}, tmp_path / "strip.svg")
    assert (tmp_path / "gait.gif").stat().st_size > 1000


@pytest.mark.slow
def test_planning_with_a_flow_goes_on_exactly(tmp_path: Path) -> None:
    test_a_run_that_was_stopped_goes_on_exactly("hopper", "latent-ode", tmp_path)


@pytest.mark.slow
def test_planning_solves_the_pendulum(tmp_path: Path) -> None:
    made = run_mpc(mpc_preset("pendulum", decisions=5000, test_episodes=20), tmp_path)
    assert made["figures"]["tests"][0]["return"] > -250
