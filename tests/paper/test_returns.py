import dataclasses
import json

import jax
import numpy as np
import pytest

from kairode.config.models import PAPER_MODELS, ModelConfig
from kairode.envs import make
from kairode.models.zoo import build
from kairode.paper import returns, studies
from kairode.paper.published import RETURNS
from kairode.paper.returns import REGULAR, STUDIES, TABLES, TRANSFER
from kairode.paper.studies import ORACLE
from kairode.result import Result, Spread
from kairode.training.model_files import load_models, save_models
from kairode.trees import one


def figures(values):
    return Result("return", {"return": values}, Spread.of(values), [1.0] * 5, [1.0] * 5, [0.0] * 5, {}, 100).figures()


def recorded(folder, name, shift=0.0):
    """A record of a study with made-up values: their place in the study."""
    study = STUDIES[name]
    cells = {}
    for i, model in enumerate(study.models):
        cells[model] = {
            studies.interval_label(tau): figures([shift + 100.0 * i + 10.0 * j + k for k in range(5)])
            for j, tau in enumerate(study.schedules)
        }
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"format": 1, "figures": {"cells": cells, "curves": {}}}))


def test_the_studies_cover_the_papers_tables():
    for env, taus in REGULAR.items():
        for model in (*PAPER_MODELS, ORACLE):
            held = [
                tau
                for name, study in STUDIES.items()
                if name.startswith("paper-") and study.env == env and model in study.models
                for tau in study.schedules
            ]
            assert sorted(held) == [0.0, *taus], (env, model)
        assert TRANSFER[env] in taus
        assert set(RETURNS[env]) == {"own"} | {studies.interval_label(tau) for tau in taus}


def test_a_cell_comes_from_the_study_that_holds_it(tmp_path):
    recorded(tmp_path, "paper-acrobot")
    recorded(tmp_path, "paper-acrobot-oracle", shift=5000.0)
    found = TABLES["table2a"](tmp_path, "paper")
    assert found["acrobot"]["dt-rnn"]["mean"] == 102.0  # second model, first schedule: 100 + 0..4
    assert found["acrobot"][ORACLE]["mean"] == 5002.0
    assert found["gridworld"]["rnn"] is None
    # 0.2 is the second schedule: 10 more
    assert TABLES["table2b"](tmp_path, "paper")["acrobot"]["rnn"]["mean"] == 12.0
    assert TABLES["table4"](tmp_path, "paper")["acrobot"]["1"]["rnn"]["return"] == [50.0, 51.0, 52.0, 53.0, 54.0]
    assert found["acrobot"]["rnn"]["std"] == pytest.approx(np.std(range(5)))


def test_the_latent_policy_has_a_row_of_its_own(tmp_path):
    recorded(tmp_path, "paper-hiv-partial")
    recorded(tmp_path, "paper-hiv-partial-latent", shift=300.0)
    rows = TABLES["table3"](tmp_path, "paper")["hiv-partial"]
    assert rows["model-based, s only"]["mean"] == 2.0
    assert rows["model-based, s and z"]["mean"] == 302.0
    assert rows["model-free, s only"] is None


def test_tables_say_what_they_have_no_record_of(typed, tmp_path):
    recorded(tmp_path / "policies", "paper-acrobot")
    code, out, _ = typed("reproduce", "table2a", "--results", str(tmp_path), "--dry-run")
    assert code == 0
    assert "paper-gridworld" in out
    assert "fits/hiv-latent-ode-0 to 4" in out
    assert "-54.26" in out
    assert "502.00" in out
    assert TABLES["table4"](tmp_path / "policies", "paper")["acrobot"]["0.2"]["rnn"]["n"] == 5
    code, _, err = typed("reproduce", "table5")
    assert code == 2
    assert "table4" in err
    code, out, _ = typed("reproduce", "figure-values", "--results", str(tmp_path), "--dry-run")
    assert code == 0
    assert "policies/paper-gridworld-oracle" in out


@pytest.mark.slow
def test_a_study_runs_and_its_record_is_drawn(monkeypatch, typed, tmp_path):
    """A study of the real gridworld, small: cells, curves, values; and from them the figures."""
    small = {"schedules": (0.0, 7.0), "episodes": 3, "seeds": 2, "test_episodes": 3}
    small |= {"validate_every": 20, "validation_episodes": 2}
    dqn = dataclasses.replace(
        STUDIES["paper-gridworld-oracle"].dqn, hidden=(16, 16), replay_capacity=256, batch_size=16
    )
    study = dataclasses.replace(STUDIES["paper-gridworld-oracle"], dqn=dqn, **small)
    monkeypatch.setitem(STUDIES, "paper-gridworld-oracle", study)
    words = ("--results", str(tmp_path), "--runs", str(tmp_path / "runs"), "--quiet")
    code, _, err = typed("study", "policies/paper-gridworld-oracle", *words)
    assert code == 0, err
    figures = json.loads((tmp_path / "policies" / "paper-gridworld-oracle.json").read_text())["figures"]
    cell = figures["cells"][ORACLE]["7"]
    assert len(cell["return"]) == 2
    assert cell["training_episodes"] == [3, 3]
    assert min(cell["return"]) >= -154.0  # 22 intervals of 7
    assert np.shape(figures["values"][ORACLE]) == studies.GRID
    assert np.array(figures["curves"][ORACLE]["real"]).shape[1] == 2

    other = {"format": 1, "figures": {"values": {"latent-ode": figures["values"][ORACLE]}}}
    other["config"] = json.loads(json.dumps(dataclasses.asdict(STUDIES["paper-gridworld"])))
    (tmp_path / "policies" / "paper-gridworld.json").write_text(json.dumps(other))
    picture = tmp_path / "values.svg"
    code, _, err = typed("reproduce", "figure-values", "--results", str(tmp_path), "--out", str(picture))
    assert code == 0, err
    assert picture.stat().st_size > 1000
    assert returns.required_studies("table2a", ["ours-hiv"]) == ["ours-hiv"]


@pytest.mark.slow
def test_an_ensemble_branches_off_its_experience(tmp_path):
    """Two schedules, three fits: each agent trains in two, the third validates it; its replay holds the data."""
    spec = make("gridworld", setting="paper").task.spec
    sizes = ModelConfig(latent_size=3, field_hidden=4, encoder_hidden=4, timer="none")
    for seed in range(3):
        model = build("latent-ode", spec, sizes, key=jax.random.key(seed))
        save_models(tmp_path / f"gridworld-latent-ode-{seed}", "latent-ode", sizes, [model])
    dqn = dataclasses.replace(STUDIES["ours-gridworld"].dqn, hidden=(8,), replay_capacity=4096, batch_size=16)
    study = dataclasses.replace(
        STUDIES["ours-gridworld"],
        dqn=dqn,
        episodes=2,
        seeds=3,
        validate_every=4,
        validation_episodes=2,
        test_episodes=2,
    )
    study = dataclasses.replace(
        study, rollout_length=2, real_transitions=True, latent_policy=False, model_env={"resample_member": True}
    )
    env = make("gridworld", setting="paper")
    batches, [validation_env] = studies.build_batches(study, env, tmp_path)
    assert one(batches[0].env, 0).size == 2
    assert one(validation_env, 0).size == 1
    assert not batches[0].env.sample_intervals  # as in the paper, though the study says nothing of it
    # agent 0 of either schedule has the fits 1 and 2, and fit 0 validates it
    weights = [np.asarray(load_models(tmp_path / f"gridworld-latent-ode-{i}")[0].decoder.weight) for i in range(3)]
    for agent in (0, 3):
        assert np.array_equal(batches[0].env.models.decoder.weight[agent], np.stack(weights[1:]))
        assert np.array_equal(validation_env.models.decoder.weight[agent, 0], weights[0])
    figures = studies.run_study(study, tmp_path)
    assert [cell["training_decisions"] for cell in figures["cells"]["latent-ode"].values()] == [[4, 4, 4]] * 2
    assert "score" in figures["curves"]["latent-ode"]
    assert figures["last"]["latent-ode"].keys() == {"own", "7"}
