"""The table of errors between decisions: its plan, its study, and how it is printed."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest

from kairode.algorithms.fit import load_data
from kairode.config.models import PAPER_MODELS, ModelConfig
from kairode.config.serialize import from_dict, to_dict
from kairode.config.training import TrainingConfig
from kairode.models.zoo import build
from kairode.paper import between, plan, table1
from kairode.paper.between import BetweenStudy, read_between, run_between_study
from kairode.paper.budget import Scope
from kairode.paper.run_work import run_work_item
from kairode.paper.work import WorkItem
from kairode.report.prediction import between_sentences, between_table
from kairode.report.table import to_markdown
from kairode.runs.record import make_record
from kairode.stats import over_seeds
from kairode.training.evaluate_model import evaluate_model
from kairode.training.model_files import save_models

PUBLISHED = Path(__file__).parents[2] / "results"


def figures(at: float, middle: float | None, seeds: int = 5) -> dict:
    ratio = None if middle is None else middle / at
    return {
        **{name: [at] * seeds for name in ("at_decisions", "half", "double")},
        "between": [middle] * seeds,
        "ratio": [ratio] * seeds,
        "variance": dict.fromkeys(between.ERRORS, 1.0),
    }


def put(results: Path, name: str, found: dict) -> None:
    record = make_record("between", to_dict(between.STUDIES[name]), found, command="kairode study x", seconds=1.0)
    (results / "between").mkdir(parents=True, exist_ok=True)
    (results / "between" / f"{name}.json").write_text(json.dumps(record))


def test_six_models_on_three_environments(tmp_path) -> None:
    scope = Scope(tmp_path / "results", tmp_path / "runs", published=PUBLISHED)
    names = [work.name for work in plan.plan("table-between", scope)]
    for env, row in (("hiv", "hiv"), ("acrobot", "acrobot-short"), ("pendulum", "pendulum")):
        for model in PAPER_MODELS:
            needs = plan.work_item(f"between/{env}-{model}", scope).needs
            assert needs == tuple(f"fits/{row}-{model}-{seed}" for seed in range(5))
            assert set(needs) <= set(names)
    # The fits of HIV are those of table 1, in the same folders.
    shared = {work.name: work.folder for work in plan.plan("table1", scope)}
    assert shared["fits/hiv-rnn-3"] == plan.work_item("fits/hiv-rnn-3", scope).folder
    chosen = plan.plan("table-between", scope, models=["rnn"], only=["hiv-rnn", "hiv-dt-rnn"])
    assert [work.name for work in chosen][-1] == "between/hiv-rnn"
    assert len(chosen) == 6


def test_a_record_counts_if_its_fits_had_the_same_settings(tmp_path) -> None:
    scope = Scope(tmp_path / "results", tmp_path / "runs", published=PUBLISHED)
    put(scope.results, "hiv-latent-ode", figures(0.02, 0.02))
    work = plan.work_item("between/hiv-latent-ode", scope)
    assert from_dict(BetweenStudy, to_dict(work.config)) == work.config
    assert work.done
    sizes = dataclasses.replace(work.config.fit.sizes, solver="bosh3:1")
    other = dataclasses.replace(work.config, fit=dataclasses.replace(work.config.fit, sizes=sizes))
    assert not dataclasses.replace(work, config=other).done
    put(scope.results, "hiv-rnn", figures(0.3, 0.3))
    work = plan.work_item("between/hiv-rnn", scope)
    other = dataclasses.replace(work.config, fit=dataclasses.replace(work.config.fit, sizes=sizes))
    assert dataclasses.replace(work, config=other).done  # it has no solver


def test_quick_is_a_twentieth_of_fits_and_episodes(tmp_path) -> None:
    study = Scope(tmp_path, tmp_path, budget="quick").of(between.STUDIES["hiv-rnn"])
    assert (study.seeds, study.test_episodes, study.fit.training.iterations) == (2, 50, 600)
    assert study.fit == Scope(tmp_path, tmp_path, budget="quick").of(table1.cell_config("hiv", "rnn", 0))


def test_the_table(typed, tmp_path) -> None:
    results = tmp_path / "results"
    put(results, "hiv-rnn", figures(0.25, 0.5))
    put(results, "hiv-latent-ode", figures(0.02, 0.025))
    put(results, "pendulum-latent-ode", figures(0.02, 0.03))
    put(results, "pendulum-dt-rnn", figures(0.02, None, seeds=3))
    found = read_between(results / "between")
    assert {env: list(cells) for env, cells in found.items()} == {
        "hiv": ["rnn", "latent-ode"],
        "pendulum": ["dt-rnn", "latent-ode"],
    }
    cell = found["hiv"]["latent-ode"]
    assert cell["ratio"] == {"mean": 1.25, "std": 0.0, "n": 5, "values": [1.25] * 5}
    assert cell["goal"] == 1.3
    assert "goal" not in found["hiv"]["rnn"]
    lines = to_markdown(between_table(found)).splitlines()
    assert lines[0] == "|  |  | rnn | dt-rnn | latent-ode | variance |"
    assert lines[2] == "| hiv | at decisions | 0.250 ± 0.000 |  | **0.020 ± 0.000** | 1 |"
    assert lines[4] == "|  | between / at | 2.00 ± 0.00 |  | 1.25 ± 0.00 |  |"
    assert lines[8] == "|  | between decisions |  | not finite | 0.030 ± 0.000 | 1 |"
    assert between_sentences(found) == [
        "latent-ode, error between decisions relative to that at decisions (goal: 1.3): hiv 1.25, pendulum 1.50 "
        "(missed)."
    ]
    words = ("reproduce", "table-between", "--results", str(results), "--runs", str(tmp_path / "runs"))
    code, out, err = typed(*words, "--studies", "hiv-rnn", "hiv-latent-ode")
    assert code == 0, err
    assert "0.025 ± 0.000" in out
    assert "(missed)" in out
    assert "between / at" in (tmp_path / "runs" / "reproduce" / "table-between.html").read_text()
    code, out, _ = typed(*words, "--studies", "hiv-rnn", "--models", "rnn", "--json")
    assert json.loads(out)["hiv"]["rnn"]["between"]["values"] == [0.5] * 5
    assert list(json.loads(out)) == ["hiv"]
    code, _, err = typed("reproduce", "table-between", "--studies", "x")
    assert code == 2
    assert "unknown study 'x'" in err


def test_over_seeds() -> None:
    assert over_seeds([1.0, 3.0]) == {"mean": 2.0, "std": 1.0, "n": 2, "values": [1.0, 3.0]}
    assert over_seeds([1.0, None]) == {"mean": None, "std": None, "n": 2, "values": [1.0, None]}


def small_study() -> BetweenStudy:
    usual = between.STUDIES["pendulum-rnn"]
    fit = dataclasses.replace(
        usual.fit,
        episodes=3,
        validation_episodes=3,
        test_episodes=3,
        sizes=ModelConfig(latent_size=3, timer="none"),
        training=TrainingConfig(iterations=2, validate_every=1, batch_size=2),
        env_fields={"max_decisions": 4},
    )
    return dataclasses.replace(usual, fit=fit, seeds=1, test_episodes=3)


@pytest.mark.slow
def test_a_study_evaluates_saved_models(tmp_path) -> None:
    """On the test episodes of the fit."""
    study = small_study()
    test = load_data(study.fit).test
    model = build("rnn", test.spec, study.fit.sizes, key=jax.random.key(1))
    save_models(tmp_path / "pendulum-rnn-0", "rnn", study.fit.sizes, [model])
    found = run_between_study(study, tmp_path)
    assert found["at_decisions"] == pytest.approx([evaluate_model(model, test).error], rel=1e-4)
    assert found["intervals"]["half"] == [0.025, 0.025]
    assert found["intervals"]["double"] == [0.5, 0.5]
    assert found["decisions"] == {"at_decisions": 12, "half": 12, "double": 12}
    assert [len(found[name]) for name in between.ERRORS] == [1] * 4


@pytest.mark.slow
def test_a_study_alone_runs_the_fits_that_it_lacks(tmp_path, monkeypatch) -> None:
    """Its error at decisions is that of the fit's own record."""
    study = small_study()
    item = plan.work_item

    def small(name: str, scope: Scope, **options) -> WorkItem:
        work = item(name, scope, **options)
        config = study if name.startswith("between/") else study.fit
        return dataclasses.replace(work, config=config, needs=work.needs[:1], seeds=1)

    monkeypatch.setattr("kairode.paper.run_work.work_item", small)
    scope = Scope(tmp_path / "results", tmp_path / "runs")
    work = run_work_item("between/pendulum-rnn", scope)
    fitted = json.loads((scope.runs / "table1" / "pendulum-rnn-0" / "record.json").read_text())
    made = json.loads(work.record.read_text())
    assert work.done
    assert made["kind"] == "between"
    assert made["command"] == "kairode study between/pendulum-rnn --replace"
    found = made["figures"]
    assert found["at_decisions"] == pytest.approx(fitted["figures"]["test_error"], rel=1e-4)
