"""What a run says of its policy and its chosen times, on made-up records."""

from pathlib import Path
from typing import Any

import pytest

import kairode
from kairode.data.describe import spec_to_dict
from kairode.report.runs import policy_table, print_run
from kairode.report.summary import compact_number, no_better_sentence, schedule_sentence, summary_sentences
from kairode.result import Result, Spread
from kairode.runs import labels
from kairode.runs.record import read_record

ROOT = Path(__file__).parents[2]


def policy_row(kind: dict[str, Any], mean: float, spread: float = 1.0) -> dict[str, Any]:
    around = Spread(low=mean - spread, high=mean + spread)
    return {**kind, **Result("return", {"return": mean}, around, 40.0, 40.0, 0.0, {}, 100).figures()}


def made(mine: float, config: dict[str, Any] | None = None, env: str = "gridworld") -> dict[str, Any]:
    """A run whose random actions return -140, and whose best constant policy -100."""
    tests = [
        policy_row({"kind": "imagination"}, mine),
        policy_row(labels.constant("up"), -150.0),
        policy_row(labels.constant("right"), -100.0),
        policy_row({"kind": "random"}, -140.0),
    ]
    learn = {"episodes": 400, "dqn": {"reward_scale": 0.1 if env == "gridworld" else 1.0}}
    usual = {"episodes": 1000, "rounds": 0, "ensemble_size": 3, "learn": learn, "latent_policy": False}
    usual |= {"env": env, "schedule": None}
    figures = {
        "spec": spec_to_dict(kairode.make("gridworld").task.spec),
        "tests": {labels.label(one): one for one in tests},
        "real_episodes": {"imagination": 1000},
        "real_decisions": {"imagination": 9000},
    }
    return {"config": {**usual, "paper": False, **(config or {})}, "figures": figures}


def test_a_policy_that_learned_something() -> None:
    assert no_better_sentence(made(-30.0)) is None
    assert summary_sentences(made(-30.0))[0].startswith("Learned from 1,000 real episodes")
    assert no_better_sentence(made(-98.0)) is not None, "the intervals touch"
    assert no_better_sentence(made(-97.9)) is None


def test_a_policy_that_did_not_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = summary_sentences(made(-120.0))
    assert found[0] == (
        "The learned policy is no better than always right: return -120 (95 % CI -121 to -119), always right -100 "
        "(-101 to -99). Suggestions: more real episodes (--episodes 2000); Dyna rounds (--rounds 5); more imagined "
        "episodes (--learn.episodes 800); more models (--ensemble-size 5); a policy conditioned on the latent state, "
        "for partially observed systems (--latent-policy)."
    )
    print_run(made(-120.0))
    out = capsys.readouterr().out
    assert out.startswith("The learned policy is no better than always right")
    assert out.count("no better") == 1


def test_what_to_try_is_what_is_left_to_try() -> None:
    after = no_better_sentence(made(-120.0, {"rounds": 5, "ensemble_size": 5, "episodes": 20}))
    assert after is not None
    assert "--episodes 40" in after
    assert "--rounds 10" in after
    assert "--ensemble-size" not in after
    assert "--latent-policy" not in after
    fixed = no_better_sentence(made(-120.0, {"schedule": 3.0}))
    assert fixed is not None
    assert "--rounds" not in fixed
    large = made(-120.0, env="mine")
    large["figures"]["tests"]["random"]["return"] = -1e6
    assert "another reward scale (--learn.dqn.reward-scale; scaled rewards are about 2e+04" in str(
        no_better_sentence(large)
    )


def row(kind: dict[str, Any], mean: float, decisions: float, spread: float = 0.5) -> dict[str, Any]:
    around = Spread(low=mean - spread, high=mean + spread)
    return {
        **kind,
        **Result("accrued_return", {"accrued_return": mean}, around, decisions, 40.0, 0.0, {}, 20).figures(),
    }


def chosen(mean: float, decisions: float, price: float = 0.0) -> dict[str, Any]:
    """Times chosen beside fixed intervals of 1 and 7 seconds: 40 decisions for -30.2, 8 for -30.4."""
    fixed = {"every 1": row(labels.fixed(1.0), -30.2, 40.0), "every 7": row(labels.fixed(7.0), -30.4, 8.0)}
    mine = row(labels.chosen(price=price), mean, decisions)
    return {"rows": {**fixed, labels.label(mine): mine}, "usual": fixed, "intervals": {labels.label(mine): {}}}


def test_what_chosen_times_gain() -> None:
    spec = kairode.make("gridworld").task.spec
    assert schedule_sentence(chosen(-30.6, 40.0), spec) == (
        "Choosing decision times gained nothing here (a second policy, learned for them): 40 decisions in 40 seconds, "
        "return accrued every second -30.6 "
        "(every second -30.2 with 40 decisions)."
    )
    assert schedule_sentence(chosen(-30.3, 9.0, 0.5), spec) == (
        "Model-chosen decision times (a second policy, learned for them): 9 decisions at a price of 0.5 each in 40 "
        "seconds, return accrued every second "
        "-30.3 (every second -30.2 with 40 decisions; best fixed interval with as few decisions -30.4, every 7 "
        "seconds). Gained: 31 fewer decisions at the return of the best fixed interval."
    )
    assert schedule_sentence(chosen(-20.0, 40.0), spec).endswith("Gained: a higher return than any fixed interval.")
    assert schedule_sentence(chosen(-33.0, 6.0), spec).startswith("Choosing decision times gained nothing here")


def test_the_published_run_says_what_it_did() -> None:
    new = read_record(ROOT / "results" / "run-hiv.json")
    assert summary_sentences(new)[1:] == [
        "The patient is healthy 42 % of the time (random actions 0 %, constant RTI+PI 0 %).",
        "Model-chosen visit times (a second policy, learned for them; models of 50 real episodes): 235 visits in "
        "1000 days, daily-accrued return 6.22e9 "
        "(every day 6.53e9 with 1000 visits; best fixed interval with as few visits 3.77e9, every 5 days). Gained: a "
        "higher return than any fixed interval with as few visits.",
    ]


def test_measures_of_another_system() -> None:
    found = made(-30.0)
    found["figures"]["spec"] |= {"subject": "engine", "measures": [["warm", "Warm: above 80 degrees."]]}
    for share, test in zip((0.5, 0.0, 0.25, 0.1), found["figures"]["tests"].values(), strict=True):
        test["measures"] = {"warm": share}
    assert summary_sentences(found)[1] == (
        "The engine is warm 50 % of the time (random actions 10 %, constant right 25 %)."
    )
    table = policy_table(found)
    assert table.headers[4] == "warm"
    assert table.rows[0].cells[4].text == "50 %"


def test_numbers() -> None:
    found = [compact_number(x) for x in (8.353e9, -30.64, 0.0, 12345.6, 1.5e12)]
    assert found == ["8.35e9", "-30.6", "0", "12346", "1.50e12"]
