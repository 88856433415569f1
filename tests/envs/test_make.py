"""Environments by name, their fields, and what is refused."""

import math

import pytest

import kairode
from kairode.envs.schedule import Fixed, Given, Own, as_schedule
from kairode.envs.zoo import ENVIRONMENTS, describe
from kairode.errors import KairodeError


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("setting", ["ours", "paper"])
def test_every_environment_can_be_made_and_described(name: str, setting: str) -> None:
    env = kairode.make(name, setting=setting)
    spec = env.task.spec
    assert spec.name == name
    assert spec.longest(spec.intervals.low) > 0
    assert spec.intervals.classes
    sentence, fields = describe(name)
    assert sentence
    assert {"horizon", "max_decisions", "discount"} <= {field for field, _, _ in fields}
    assert all(meaning for _, _, meaning in fields)


def test_discounts_and_units() -> None:
    found = {name: kairode.make(name).task.spec for name in ENVIRONMENTS}
    assert {name: spec.discount for name, spec in found.items()} == {
        "gridworld": 0.99,
        "acrobot": 1.0,
        "hiv": 0.995,
        "hiv-partial": 0.995,
        "swimmer": 0.99,
        "hopper": 0.99,
        "half-cheetah": 0.99,
    }
    assert [name for name, spec in found.items() if spec.tick != 1] == ["acrobot"]
    assert found["acrobot"].tick == 0.2
    assert {name: spec.intervals.classes for name, spec in found.items()} == {
        "gridworld": 7,
        "acrobot": 5,
        "hiv": 14,
        "hiv-partial": 14,
        "swimmer": 7,
        "hopper": 7,
        "half-cheetah": 9,
    }


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("hvi", "hiv"), ("HIV", "hiv"), ("halfcheetah", "half-cheetah"), ("grid-world", "gridworld")],
)
def test_unknown_name(name: str, suggestion: str) -> None:
    with pytest.raises(KairodeError, match=f"unknown environment '{name}'. Did you mean '{suggestion}'"):
        kairode.make(name)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (
            "gridworld",
            {"nois": 0.1},
            "unknown field 'nois' of the environment 'gridworld'. Did you mean 'noise'",
        ),
        ("gridworld", {"noise": -1}, "noise of 'gridworld' must be finite and not negative, got -1"),
        ("gridworld", {"noise": "much"}, "a field of 'gridworld' is of the wrong kind"),
        ("gridworld", {"intervals": (0, 3)}, r"interval range \(0, 3\)"),
        ("gridworld", {"intervals": (5, 3)}, r"interval range \(5, 3\)"),
        ("acrobot", {"substep": 0}, "substep of 'acrobot' must be positive"),
        ("acrobot", {"intervals": (0.3, 1.0)}, "multiples of 0.2 s"),
        ("hiv", {"horizon": 0}, "horizon must be positive"),
        ("hiv", {"horizon": math.nan}, "horizon must be positive"),
        ("hiv", {"max_decisions": 0}, "max_decisions must be at least 1"),
        ("hiv", {"discount": 1.5}, r"discount must lie in \[0, 1\]"),
        ("hiv", {"observed": ("T1", "V")}, "must hold V and E"),
        ("hiv", {"steps_per_day": 0}, "steps_per_day of 'hiv' must be positive"),
        ("hopper", {"timing": "some"}, "timing of 'hopper' must be one of"),
        ("hopper", {"setting": "thesis"}, "unknown setting 'thesis'"),
    ],
)
def test_bad_fields(name: str, fields: dict, message: str) -> None:
    with pytest.raises(KairodeError, match=message):
        kairode.make(name, **fields)


def test_episodes_that_never_end() -> None:
    env = kairode.make("hopper", max_decisions=None)
    with pytest.raises(KairodeError, match="never end"):
        kairode.collect(env, episodes=1)


def test_schedules_from_what_people_write() -> None:
    spec = kairode.make("hiv").task.spec
    assert as_schedule(None, spec) == Own()
    assert as_schedule("own", spec) == Own()
    assert as_schedule(5, spec) == Fixed(5.0)
    assert as_schedule([1, 2], spec) == Given((1.0, 2.0))
    assert as_schedule(Given((3, 4)), spec).shortest(spec) == 3
    assert spec.longest(as_schedule(7, spec).shortest(spec)) == 143
    with pytest.raises(KairodeError, match="empty"):
        as_schedule([], spec)
    with pytest.raises(KairodeError, match="whole number of frames"):
        as_schedule(Fixed(1.5), kairode.make("hopper").task.spec)
