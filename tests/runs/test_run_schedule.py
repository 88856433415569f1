"""`kairode schedule`, and the studies of return against visits."""

import dataclasses
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.algorithms.schedule import intervals_by_regime
from kairode.config.agents import DQNConfig
from kairode.config.algorithms import ScheduleConfig
from kairode.config.run import RunConfig
from kairode.data.policy import Constant
from kairode.envs.accrual import AccruedRewards, with_and_without_discount
from kairode.files import JSON_DIGEST, save_json, with_digest
from kairode.paper.schedule_study import STUDIES, ScheduleStudy, run_schedule_study
from kairode.report.schedule import chosen_sentence, read_points
from kairode.result import Result, Spread
from kairode.runs import labels
from kairode.runs.load import read_run
from kairode.runs.migrate import migrate_record
from kairode.runs.pipeline import schedule_config
from kairode.runs.record import make_record
from kairode.runs.schedule import check_schedule_config, learned_policy, load_chosen
from kairode.training import checkpoint

SMALL = DQNConfig(hidden=(8, 8), replay_capacity=256, batch_size=8, reward_scale=0.1)


@pytest.fixture
def folder(gridworld_run, tmp_path):
    """A copy of a small run with random actions alone."""
    return shutil.copytree(gridworld_run.folder, tmp_path / "copy")


@pytest.mark.slow
def test_a_run_chooses_decision_times_which_are_kept(typed, dyna_run, tmp_path):
    made = json.loads((dyna_run.folder / "record.json").read_text())["figures"]["visits"]
    assert made["real_episodes"] == 14  # ten, two in a Dyna round, two at chosen times
    assert list(made["rows"]) == ["own", *(f"every {k}" for k in range(1, 8)), "price 0"]
    assert list(made["intervals"]) == ["price 0"]
    assert "at chosen times, and refitted the models to all 14" in dyna_run.err
    place = shutil.copytree(dyna_run.folder, tmp_path / "run")
    [refits] = (place / "schedule").glob("revisits-*")
    before = (refits / "1" / "checkpoint.json").stat().st_mtime_ns
    code, out, err = typed("schedule", str(place), "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found == {name: made[name] for name in found}
    assert found["real_episodes"] == 14, "as in the run: candidates, episodes, refits"
    assert (refits / "1" / "checkpoint.json").stat().st_mtime_ns == before, "not done again"
    for picture in ("schedule.svg", "episode.svg"):
        assert (place / "schedule" / picture).stat().st_size > 1000
    code, out, err = typed("evaluate", str(place), "--schedule", "chosen", "--episodes", "20", "--json")
    assert code == 0, err
    chosen = json.loads(out)
    assert chosen["decisions"] == pytest.approx(found["rows"]["price 0"]["decisions"])
    assert chosen["accrued_return"] == pytest.approx(found["rows"]["price 0"]["accrued_return"], rel=1e-4)
    code, _, err = typed("schedule", str(place), "--oracle", "--refits", "1")
    assert (code, "leave one of them out" in err) == (2, True)


@pytest.mark.slow
def test_a_run_chooses_its_own_visits(typed, folder):
    words = (
        "schedule",
        str(folder),
        "--imagined-episodes",
        "2",
        "--test-episodes",
        "4",
        "--prices",
        "0",
        "2",
        "--budgets",
        "6",
    )
    code, out, err = typed(*words)
    assert code == 0, err
    assert "chosen, budget 6" in out
    assert "Return against decisions" in out
    made = json.loads((folder / "schedule" / "record.json").read_text())
    rows = made["figures"]["rows"]
    assert list(rows) == ["own", *(f"every {k}" for k in range(1, 8)), "price 0", "price 2", "budget 6"]
    assert rows["budget 6"]["decisions"] <= 6
    assert [labels.label(row) for row in rows.values()] == list(rows)
    assert migrate_record(made) == made
    assert rows["price 2"]["decisions"] <= rows["price 0"]["decisions"] + 1e-6
    assert made["command"].endswith("--prices 0 2 --budgets 6 --tolerance 0.02 --imagined-episodes 2 --test-episodes 4")
    counts = made["figures"]["intervals"]["price 0"]["all"]
    assert sum(counts.values()) == pytest.approx(4 * rows["price 0"]["decisions"])
    for picture in ("schedule.svg", "episode.svg"):
        assert (folder / "schedule" / picture).stat().st_size > 1000

    # What the table says of a fixed interval is what Python finds.
    source = read_run(folder)
    policy = kairode.load_policy(folder / "schedule")
    found = kairode.evaluate(AccruedRewards.of(source.env, 7.0), policy, episodes=4, schedule=3)
    assert rows["every 3"]["discounted_accrued_return"] == pytest.approx(found.returns["discounted_return"], rel=1e-4)
    assert rows["every 3"]["decisions"] == found.figures()["decisions"]

    code, _, err = typed("schedule", str(folder), "--prices", "-1")
    assert code == 2
    assert "price must be" in err

    # The policy is learned once, unless something else is asked for.
    before = (folder / "schedule" / "policy.json").read_text()
    words = ("schedule", str(folder), "--imagined-episodes", "2", "--test-episodes", "2", "--json")
    code, out, err = typed(*words, "--continuous", "--candidates", "1", "4")
    assert code == 0, err
    again = json.loads(out)["rows"]["price 0"]
    assert 30 / 4 <= again["decisions"] <= 30
    code, out, err = typed(*words, "--oracle", "--quantile", "0.2")
    assert code == 0, err
    assert (folder / "schedule" / "policy.json").read_text() == before
    code, out, err = typed("evaluate", str(folder), "--schedule", "chosen", "--episodes", "4", "--json")
    assert code == 0, err
    chosen = json.loads(out)
    assert chosen["decisions"] == pytest.approx(rows["price 0"]["decisions"])
    assert chosen["accrued_return"] == pytest.approx(rows["price 0"]["accrued_return"], rel=1e-4)
    code, out, err = typed(*words, "--test-seed", "1")  # other test episodes, the same policy
    assert (folder / "schedule" / "policy.json").read_text() == before
    code, out, err = typed("schedule", str(folder), "--imagined-episodes", "3", "--test-episodes", "2", "-q")
    assert code == 0, err
    assert (folder / "schedule" / "policy.json").read_text() != before
    assert not list((folder / "schedule").glob("training*"))


@pytest.mark.slow
def test_the_policy_is_learned_with_the_seed_of_the_run(folder, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(folder, place, ignore=shutil.ignore_patterns("schedule"))
    config = ScheduleConfig(imagined_episodes=2, candidates=(3.0, 7.0))

    def weights(config: ScheduleConfig = config) -> np.ndarray:
        return np.asarray(learned_policy(read_run(place), config).q.weights[0])

    zero = weights()
    written = (place / "schedule" / "policy.json").read_text()
    np.testing.assert_array_equal(weights(dataclasses.replace(config, test_seed=5, seed=0)), zero)
    assert (place / "schedule" / "policy.json").read_text() == written, "reused: only the test episodes are others"
    one = weights(dataclasses.replace(config, seed=1))
    assert np.abs(one - zero).max() > 1e-3, "another seed is learned anew"
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["config"]["seed"] = 1
    del manifest[JSON_DIGEST]
    (place / "manifest.json").write_text(json.dumps(with_digest(manifest)))
    np.testing.assert_array_equal(weights(), one)
    assert schedule_config(RunConfig("gridworld", seed=3)).seed == 3
    assert schedule_config(RunConfig("gridworld", seed=3)).test_seed == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prices": (-1.0,)}, "price must be at least 0, got -1"),
        ({"prices": (float("nan"),)}, "price must be"),
        ({"prices": (float("inf"),)}, "price must be"),
        ({"budgets": (0,)}, "integer of at least 1, got 0"),
        ({"budgets": (3,)}, "a budget of 3 cannot cover 30 seconds with intervals of at most 7"),
        ({"candidates": (3.0, 1.0)}, "must be strictly ascending"),
        ({"candidates": (1.5,)}, "multiples of 1 seconds"),
        ({"quantile": 2.0}, "quantile must lie in"),
        ({"test_episodes": 0}, "test_episodes must be an integer of at least 1, got 0"),
        ({"prices": ()}, "at least one price"),
        ({"tolerance": 1.5}, "tolerance must lie in"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_what_cannot_be_chosen(options, reason):
    env = kairode.make("gridworld", horizon=30.0)
    with pytest.raises(kairode.KairodeError, match=reason):
        check_schedule_config(ScheduleConfig(**options), env.task.spec)


def test_no_run(typed, tmp_path):
    code, _, err = typed("schedule", str(tmp_path / "nothing"))
    assert code == 2
    assert "there is no folder" in err
    code, _, err = typed("schedule", str(tmp_path))
    assert code == 2
    assert "there is no policy in" in err
    code, _, err = typed("schedule", "hopper")
    assert code == 2
    assert "those of 'hopper' are continuous" in err
    code, _, err = typed("evaluate", str(tmp_path), "--schedule", "weekly")
    assert code == 2
    assert "got 'weekly'" in err


@pytest.mark.slow
def test_policies_that_train_together_are_tested_and_kept(tmp_path):
    fixed = ScheduleStudy(
        "gridworld", "fixed", 2, intervals=(0.0, 7.0), dqn=SMALL, seeds=2, validate_every=50, test_episodes=3
    )
    chosen = dataclasses.replace(fixed, chooser="truth", intervals=(), prices=(0.0, 1.0))
    once = dataclasses.replace(chosen, episodes=0, prices=(0.0, 5.0), budgets=(30,))
    for name, study in {"fixed": fixed, "truth": chosen, "once-truth": once}.items():
        figures = run_schedule_study(study, tmp_path, tmp_path / "visits" / f"gridworld-{name}")
        made = make_record("visits", dataclasses.asdict(study), figures, command="", seconds=1.0)
        save_json(tmp_path / "results" / f"gridworld-{name}.json", made)
        for point in figures["points"].values():
            assert np.isfinite(point["discounted_accrued_return"] + point["accrued_return"]).all()
            assert len(point["decisions"]) == 2
    assert list(figures["points"]) == ["price 0", "price 5", "budget 30"]
    assert max(figures["points"]["budget 30"]["decisions"]) <= 30
    assert kairode.load_policy(tmp_path / "visits" / "gridworld-truth" / "price 0" / "1").scale == 0.1
    place = tmp_path / "visits" / "gridworld-fixed"
    before = checkpoint.describe(place / "training")["sha256"]
    (place / "training").rename(place / "practice")  # the name in older versions
    run_schedule_study(fixed, tmp_path, place)
    assert checkpoint.describe(place / "training")["sha256"] == before, "it was finished"
    found = read_points(tmp_path / "results", "gridworld")
    assert list(found) == ["fixed", "own", "truth", "once-truth price", "once-truth budget"]


def test_every_record_says_how_it_is_made_again():
    for name, study in STUDIES.items():
        assert name.startswith(study.env)
        assert len(set(study.labels)) == len(study.labels) > 0


def test_the_figure_from_the_records_here(typed, tmp_path):
    code, out, err = typed("reproduce", "figure-schedule", "--out", str(tmp_path / "figure.svg"))
    assert code == 0, err
    assert "true dynamics" in out
    code, out, _ = typed("reproduce", "figure-schedule", "--results", str(tmp_path), "--dry-run")
    assert code == 0
    assert "does not exist" in out


def test_undiscounted_is_the_plain_sum():
    env = kairode.make("hiv", horizon=40.0)
    known = AccruedRewards.of(env, 14.0)
    both = (*with_and_without_discount(env, 14.0), known)
    discounted, plain, same = (kairode.collect(kind, Constant(3), episodes=1, schedule=4) for kind in both)
    daily = kairode.collect(env, Constant(3), episodes=1, schedule=1)
    assert plain.undiscounted[0] == pytest.approx(daily.undiscounted[0], rel=1e-4)
    assert discounted.discounted[0] == pytest.approx(daily.discounted[0], rel=1e-4)
    np.testing.assert_allclose(discounted.reward, same.reward, rtol=1e-5)


def test_intervals_by_state_of_health():
    env = kairode.make("hiv", horizon=100.0)
    found = kairode.collect(env, Constant(0), episodes=3, schedule=5)
    counts = intervals_by_regime(env.task, found)
    assert list(counts) == ["healthy", "V below 1e4", "V below 1e5", "V above 1e5"]
    assert sum(sum(each.values()) for each in counts.values()) == found.decisions == 60
    assert counts["V below 1e5"] == {"5": 60}  # untreated, the patient stays as he was
    healthy = jnp.stack(
        [env.observe(jnp.array([967839.0, 621.0, 76.0, 6.0, v, e])) for v, e in ((415, 353108), (415, 9))]
    )
    assert env.task.regime(healthy).tolist() == [0, 1]


def test_a_sentence_on_what_was_chosen():
    def figures(mean: float, decisions: float) -> dict:
        name = "discounted_accrued_return"
        return Result(name, {name: mean}, Spread(), decisions, 1000.0, 0.0, {}, 20).figures()

    spec = kairode.make("hiv").task.spec
    rows = {
        "every 1": {**labels.fixed(1.0), **figures(5.0, 1000.0)},
        "every 7": {**labels.fixed(7.0), **figures(2.0, 143.0)},
        "price 0": {**labels.chosen(price=0.0), **figures(4.9, 150.0)},
    }
    text = chosen_sentence(rows, rows["price 0"], spec)
    assert text == (
        "Chosen: return 4.9 with 150 visits; every day: 5 with 1000; best fixed interval with as few visits: 2."
    )
    rows["price 0"]["decisions"] = 80.0
    assert chosen_sentence(rows, rows["price 0"], spec).endswith("every fixed interval has more visits.")


@pytest.mark.slow
def test_refits_at_chosen_times(typed, tmp_path, dyna_run, folder):
    place = shutil.copytree(dyna_run.folder, tmp_path / "run")
    words = ("schedule", str(place), "--test-episodes", "2", "--json")

    def figures(*more: str, of: tuple[str, ...] = words) -> dict:
        code, out, err = typed(*of, *more)
        assert code == 0, err
        return json.loads(out)

    [revisits] = (place / "schedule").glob("revisits-*")
    before = (revisits / "1" / "checkpoint.json").stat().st_mtime_ns
    told = figures()
    assert told["real_episodes"] == 14, "as in the run: candidates, training, refits"
    assert (revisits / "1" / "checkpoint.json").stat().st_mtime_ns == before, "not done again"
    source, policy, schedule = load_chosen(place)
    assert len(source.data) == 14
    seen = kairode.evaluate(AccruedRewards.of(source.env, 7.0), policy, episodes=2, schedule=schedule)
    assert told["rows"]["price 0"]["discounted_accrued_return"] == pytest.approx(
        seen.returns["discounted_accrued_return"], rel=1e-4
    )
    assert figures("--refits", "2")["real_episodes"] == 16
    assert figures("--refits", "0")["real_episodes"] == 12
    assert len(load_chosen(place)[0].data) == 12, "what was chosen last"

    # At once they are the same; those of other candidates are others.
    shutil.copytree(place, tmp_path / "other")
    shutil.rmtree(next((tmp_path / "other" / "schedule").glob("revisits-*")))
    other = ("schedule", str(tmp_path / "other"), *words[2:])
    assert figures("--refits", "2", of=other) == figures("--refits", "2")
    assert figures("--candidates", "2", "4", of=other)["real_episodes"] == 14
    assert len(list((tmp_path / "other" / "schedule").glob("revisits-*"))) == 1

    code, _, err = typed("schedule", str(folder), "--imagined-episodes", "2", "--test-episodes", "2", "--refits", "1")
    assert (code, "this run has none" in err) == (2, True)
    code, _, err = typed(*words, "--oracle", "--refits", "1")
    assert (code, "leave one of them out" in err) == (2, True)
    code, _, err = typed("schedule", "acrobot", "--refits", "1")
    assert (code, "this run has none" in err) == (2, True)
