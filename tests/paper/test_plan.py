"""What must be run for a table or figure: every piece once, nothing that is done."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from kairode._lock import locked
from kairode.config.algorithms import DynaConfig
from kairode.config.serialize import to_dict
from kairode.errors import KairodeError
from kairode.paper import returns, table1
from kairode.paper import schedule_study as visits
from kairode.paper.budget import SHARE, Scope, quick
from kairode.paper.locomotion import STUDIES as ROBOTS
from kairode.paper.plan import ALL, FIGURES, SOLVERS, plan, records_of, work_item
from kairode.paper.run_work import gather_table1, run_work_item
from kairode.report.plan import approximate_time, estimated_seconds, pending_sentence
from kairode.report.results import FIGURES as DRAWN
from kairode.runs.folder import RunFolder

PUBLISHED = Path(__file__).parents[2] / "results"


def empty(tmp_path: Path, **options) -> Scope:
    return Scope(tmp_path / "results", tmp_path / "runs", published=PUBLISHED, **options)


def put(work, **changes) -> None:
    """A record of a piece of work, with what others take from its folder."""
    config = {**to_dict(work.config), **changes}
    work.record.parent.mkdir(parents=True, exist_ok=True)
    work.record.write_text(json.dumps({"format": 1, "config": config, "made": "2026-01-01T00:00:00Z", "figures": {}}))


def test_fits_are_shared(tmp_path) -> None:
    """Table 1, the policies of several tables and the visits take the same fits, each listed once."""
    units = plan("all", empty(tmp_path))
    names = [work.name for work in units]
    assert len(names) == len(set(names))
    wants = [work.name for work in units if "fits/hiv-latent-ode-3" in work.needs]
    assert wants == ["table1/hiv-latent-ode", "between/hiv-latent-ode", "policies/paper-hiv", "policies/ours-hiv"]
    # The last three are hiv-fine, hiv-partial and hiv-whole-cooled; twelve of table-between are not in table 1.
    assert sum(name.startswith("fits/") for name in names) == 5 * (24 + 12 + 3)
    for i, work in enumerate(units):
        assert all(names.index(need) < i for need in work.needs), work.name
    folder = tmp_path / "runs" / "table1" / "hiv-latent-ode-3"
    [fit] = [work for work in units if work.name == "fits/hiv-latent-ode-3"]
    assert fit.folder == folder
    assert fit.words[:4] == ("-m", "kairode", "fit", "hiv")
    assert str(folder) in fit.words


def test_visits_need_what_they_look_ahead_with(tmp_path) -> None:
    scope = empty(tmp_path)
    assert work_item("visits/hiv-truth", scope).needs == ()
    assert work_item("visits/hiv-rounds", scope).needs == tuple(f"policies/rounds-hiv-{i}" for i in range(5))
    assert work_item("visits/hiv-random", scope).needs == tuple(
        f"fits/hiv-whole-cooled-latent-ode-{i}" for i in range(5)
    )
    assert work_item("visits/hiv-fixed-1", scope).needs == ("visits/hiv-truth",)
    assert work_item("visits/hiv-once-truth", scope).needs == ("visits/hiv-truth",)
    assert work_item("visits/hiv-once-rounds", scope).needs[0] == "visits/hiv-rounds"


def test_what_has_a_record_is_not_run_nor_what_it_needs(tmp_path) -> None:
    scope = empty(tmp_path)
    whole = plan("figure-values", scope)
    assert [work.name for work in whole][-2:] == ["policies/paper-gridworld", "policies/paper-gridworld-oracle"]
    assert len(whole) == 32
    put(work_item("policies/paper-gridworld", scope))
    put(work_item("policies/paper-gridworld-oracle", scope))
    assert [(work.name, work.state) for work in plan("figure-values", scope)] == [
        ("policies/paper-gridworld", "done"),
        ("policies/paper-gridworld-oracle", "done"),
    ]


def test_a_record_must_be_of_the_same_config(tmp_path) -> None:
    scope = empty(tmp_path)
    work = work_item("policies/paper-gridworld-oracle", scope)
    put(work, episodes=3)
    assert not work.done
    put(work)
    assert work.done
    work.record.write_text("{")
    assert not work.done
    # more seeds serve, fewer do not
    put(work, seeds=7)
    assert work.done
    put(work, seeds=4)
    assert not work.done
    assert work_item(work.name, dataclasses.replace(scope, seeds=4)).done
    # an older record does not know the newest fields
    put(work)
    made = json.loads(work.record.read_text())
    del made["config"]["obs_margin"], made["config"]["dqn"]
    work.record.write_text(json.dumps(made))
    assert work.done
    # the solver of a model without an ODE makes no difference
    fit = work_item("fits/gridworld-rnn-0", scope)
    sizes = {**to_dict(fit.config)["sizes"], "solver": "bosh3:1"}
    put(fit, sizes=sizes)
    assert fit.done
    fit = work_item("fits/gridworld-latent-ode-0", scope)
    put(fit, sizes=sizes)
    assert not fit.done


def test_a_need_is_done_where_its_folder_is_there(tmp_path) -> None:
    """A record alone does not let others go on from what it is of."""
    scope = empty(tmp_path)
    truth = work_item("visits/hiv-truth", scope)
    put(truth)
    units = {work.name: work for work in plan("figure-schedule", scope, only=["hiv-fixed-1"])}
    assert truth.done
    assert not units["visits/hiv-truth"].done
    for seed in range(5):
        place = truth.folder / "price 0" / str(seed) / "policy.json"
        place.parent.mkdir(parents=True)
        place.write_text("{}")
    assert units["visits/hiv-truth"].done
    rounds = work_item("policies/rounds-hiv-0", scope, folder_used=True)
    put(rounds)
    assert not rounds.done
    rounds.folder.mkdir()
    (rounds.folder / "checkpoint.json").write_text("{}")
    (rounds.folder / "record.json").write_text(json.dumps({"figures": {"rounds": [1] * 13}}))
    assert not rounds.done
    assert rounds.state == "to resume"
    (rounds.folder / "record.json").write_text(json.dumps({"figures": {"rounds": [1] * 13, "test": {}}}))
    assert rounds.done


def test_again_is_for_what_is_asked_for(tmp_path) -> None:
    scope = empty(tmp_path)
    put(work_item("policies/paper-gridworld-oracle", scope))
    options = {"only": ["paper-gridworld-oracle"], "since": "2026-02-01T00:00:00Z"}
    [work] = plan("table2a", scope, **options)
    assert not work.done
    assert work.words[-1] == "--replace"
    fit = work_item("fits/gridworld-rnn-0", scope)
    put(fit)
    cell, *_ = plan("table1", scope, rows=["gridworld"], models=["rnn"], since=options["since"])
    assert cell.name == fit.name  # a cell is its fits
    assert not cell.done
    (fit.folder / "models.json").write_text("{}")
    units = {work.name: work for work in plan("table2a", scope, only=["paper-gridworld"], since=options["since"])}
    assert units[fit.name].done  # a study takes them as they are


def test_the_published_records_serve(tmp_path) -> None:
    """In a clone nearly nothing is left to run."""
    scope = Scope(PUBLISHED, tmp_path / "runs", published=PUBLISHED)
    for what in ("table1", "table-between", "table2a", "table2b", "table3", *FIGURES):
        assert [work.name for work in plan(what, scope) if not work.done] == [], what
    left = {work.name for work in plan("all", scope) if not work.done}
    assert left <= {"policies/paper-hiv-oracle-3467"}


def test_every_table_and_figure_has_a_plan(tmp_path) -> None:
    scope = empty(tmp_path)
    assert set(DRAWN) <= {*FIGURES, SOLVERS}
    for what in ALL:
        assert bool(records_of(what, scope, (), (), ())) == (what != SOLVERS)
    assert records_of("figure-rounds", scope, (), (), ())[1:] == [f"policies/rounds-hiv-{i}" for i in range(5)]
    for words, message in (
        (("table9",), "unknown table or figure 'table9'"),
        (("table2a", "x"), "unknown study 'x'"),
    ):
        with pytest.raises(KairodeError, match=message):
            records_of(words[0], scope, (), (), words[1:])
    with pytest.raises(KairodeError, match="unknown budget 'fast'"):
        Scope(budget="fast")
    with pytest.raises(KairodeError, match="--seeds must be"):
        Scope(seeds=0)
    with pytest.raises(KairodeError, match="unknown study 'visits/x'"):
        work_item("visits/x", scope)


def test_seeds(tmp_path) -> None:
    """By default what belongs to each; runs of other numbers have folders of their own, fits are shared."""
    scope, seven = empty(tmp_path), empty(tmp_path, seeds=7)
    assert work_item("control/hopper-rnn", scope).seeds == 3
    assert work_item("policies/paper-hiv-12", scope).seeds == 1
    assert work_item("control/hopper-rnn", seven).seeds == 7
    assert work_item("policies/ours-hiv", empty(tmp_path, seeds=1)).seeds == 2  # one imagines, the other judges
    assert work_item("visits/hiv-truth", scope).folder == tmp_path / "runs" / "visits" / "hiv-truth"
    assert work_item("visits/hiv-truth", seven).folder == tmp_path / "runs" / "visits-7-seeds" / "hiv-truth"
    assert work_item("fits/hiv-rnn-6", seven).folder == work_item("fits/hiv-rnn-6", scope).folder
    assert len(work_item("table1/hiv-rnn", seven).needs) == 7


def test_the_quick_budget_is_a_twentieth(tmp_path) -> None:
    scope = empty(tmp_path, budget="quick")
    usual = table1.cell_config("hiv", "rnn", 0)
    fit = scope.of(usual)
    assert fit.training.iterations * SHARE == usual.training.iterations
    assert fit.episodes == usual.episodes  # studies take the same data
    study = scope.of(returns.STUDIES["paper-hiv"])
    assert (study.episodes, study.seeds, study.schedules) == (75, 2, (0.0, 5.0))
    robot = scope.of(ROBOTS["hopper-latent-ode"])
    assert (robot.decisions, robot.agent.warmup, robot.seeds) == (5000, 1000, 1)
    assert quick(DynaConfig()).rounds == 2
    once = scope.of(visits.STUDIES["hiv-once-truth"])
    assert (once.episodes, once.prices, once.budgets) == (0, (0.0, 1e7), (75,))
    for work in plan("all", scope):
        full = work_item(work.name, empty(tmp_path))
        assert str(work.folder).startswith(str(tmp_path / "runs"))
        if work.seconds is not None and full.seconds is not None:
            assert work.seconds <= max(full.seconds, 20.0)
    assert scope.words()[-2:] == ["--budget", "quick"]
    assert Scope.at(None, Path("runs"), budget="quick").results == Path("runs/quick/results")
    assert Scope.at(None, Path("runs")).results == Path("results")


def test_times_in_words(tmp_path) -> None:
    assert [approximate_time(x) for x in (None, 3, 61, 600, 7200)] == ["unknown", "10 s", "70 s", "10 min", "2.0 h"]
    scope = empty(tmp_path)
    units = [dataclasses.replace(work, seconds=60.0) for work in plan("figure-values", scope)]
    assert estimated_seconds(units, 2) == 32 * 60 / 2
    assert estimated_seconds(units, 100) == 120.0  # a fit, then the study
    assert pending_sentence(units, 2) == "To run: 32, about 16 min with 2 workers."
    units[0] = dataclasses.replace(units[0], seconds=None)
    assert pending_sentence(units, 1).endswith("one after the other; 1 of them without an estimate.")


def test_a_cell_is_put_together_from_its_fits(tmp_path) -> None:
    scope = empty(tmp_path, seeds=2)
    units = plan("table1", scope, rows=["gridworld"], models=["rnn"])
    assert [work.name for work in units] == ["fits/gridworld-rnn-0", "fits/gridworld-rnn-1", "table1/gridworld-rnn"]
    gather_table1(units, scope)
    assert not units[-1].done
    figures = {"test_error": [0.5], "by_dimension": {"x": [0.5]}, "time_edges": [0.0, 1.0]}
    base = json.loads((PUBLISHED / "table1" / "gridworld-rnn.json").read_text())
    for work in units[:2]:
        work.folder.mkdir(parents=True)
        made = {**base, "config": to_dict(work.config), "figures": figures, "seconds": 1.0}
        work.record.write_text(json.dumps(made))
    gather_table1(units, scope)
    assert units[-1].done
    assert table1.read_cell(tmp_path / "results" / "table1", "gridworld", "rnn")["values"] == [0.5, 0.5]


def test_one_piece_alone_says_what_it_lacks(tmp_path) -> None:
    with pytest.raises(KairodeError, match="'policies/paper-gridworld' needs 'fits/gridworld-rnn-0'"):
        run_work_item("policies/paper-gridworld", empty(tmp_path))
    with pytest.raises(KairodeError, match="belongs to table 1"):
        run_work_item("table1/hiv-rnn", empty(tmp_path))


def test_a_dry_run_runs_nothing(typed, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = typed("reproduce", "all", "--dry-run")
    assert code == 0, err
    assert "fits/gridworld-rnn-0 to 4" in out
    assert "policies/paper-hiv-oracle-3467" in out
    assert "-54.26" in out  # the paper's
    assert list(tmp_path.iterdir()) == []
    code, out, _ = typed("reproduce", "figure-values", "--dry-run", "--json")
    assert len(json.loads(out)) == 32
    shutil.copytree(PUBLISHED / "policies", tmp_path / "results" / "policies")
    code, out, _ = typed("reproduce", "table2a", "--dry-run")
    assert "Nothing to run." in out
    assert "-53.72 ± 1.61" in out
    code, out, err = typed("reproduce", "table2a")
    assert (code, err) == (0, "")
    assert out.startswith("Table 2a")
    for words, message in (
        (("--budget", "quick", "--results", "results"), "--budget quick keeps its records"),
        (("--address", "auto"), "--address has no effect"),
    ):
        code, _, err = typed("reproduce", "table2a", *words)
        assert code == 2
        assert message in err


@pytest.mark.slow
def test_a_cell_and_a_study_of_the_quick_budget(typed, monkeypatch, tmp_path) -> None:
    """Processes of their own, from nothing to a table; the second time from records alone."""
    monkeypatch.chdir(tmp_path)
    words = ("reproduce", "table1", "--rows", "gridworld", "--models", "rnn", "--budget", "quick")
    code, out, err = typed(*words)
    assert code == 0, err
    assert "not a reproduction" in out
    assert "2 run, 0 failed." in err
    record = tmp_path / "runs" / "quick" / "results" / "table1" / "gridworld-rnn.json"
    before = record.stat().st_mtime_ns
    assert not (tmp_path / "results").exists()
    code, _, err = typed(*words)
    assert (code, err) == (0, "")
    assert record.stat().st_mtime_ns == before
    words = ("reproduce", "table2a", "--studies", "ours-gridworld-oracle", "--budget", "quick")
    code, out, err = typed(*words)
    assert code == 0, err
    made = json.loads((record.parents[1] / "policies" / "ours-gridworld-oracle.json").read_text())
    assert made["command"] == "kairode study policies/ours-gridworld-oracle --replace --budget quick"
    assert len(made["figures"]["cells"]["oracle"]["own"]["return"]) == 2


def test_what_failed_is_named_with_its_log(typed, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    scope = empty(tmp_path, budget="quick")
    folder = tmp_path / "runs" / "quick" / "table1" / "gridworld-rnn-0"
    folder.mkdir(parents=True)
    other = scope.of(table1.cell_config("acrobot", "rnn", 0))
    with RunFolder.open(folder, "fit", other) as run:
        run.save_json("figures.json", {})
    words = ("--rows", "gridworld", "--models", "rnn", "--seeds", "1", "--budget", "quick", "--quiet")
    code, out, err = typed("reproduce", "table1", *words)
    assert code == 2
    assert "1 failed (fits/gridworld-rnn-0); see runs/quick/table1/gridworld-rnn-0/log.txt" in err
    assert "holds another run" in (folder / "log.txt").read_text()
    assert "No record yet: table1/gridworld-rnn." in out


def test_a_second_process_of_a_study_is_told(typed, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    name = "policies/ours-gridworld-oracle"
    with locked(work_item(name, Scope.at(None, tmp_path / "runs", None, "quick")).folder):
        code, out, err = typed("study", name, "--budget", "quick", "--quiet")
    assert (code, out) == (2, "")
    assert "ours-gridworld-oracle is being written by another process (pid" in err
