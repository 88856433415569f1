"""Environments by name, their fields, and what is refused."""

import dataclasses
import json
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode._gymnasium import IDS
from kairode.envs import Environment, Task, begin_episode
from kairode.envs.schedule import Fixed, Given, Own, as_schedule
from kairode.envs.zoo import ENVIRONMENTS, describe_env, own_fields
from kairode.errors import KairodeError


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("setting", ["ours", "paper"])
def test_every_environment_can_be_made_and_described(name: str, setting: str) -> None:
    env = kairode.make(name, setting=setting)
    spec = env.task.spec
    assert spec.name == name
    assert spec.longest(spec.intervals.low) > 0
    assert spec.intervals.classes
    sentence, fields = describe_env(name)
    assert sentence
    assert {"horizon", "max_decisions", "discount"} <= {field for field, _, _ in fields}
    declared = {field.name for field in dataclasses.fields(env)} - {"name"}
    assert {field for field, _, _ in fields} == declared, "every field has its docstring"


def test_discounts_and_units() -> None:
    found = {name: kairode.make(name).task.spec for name in ENVIRONMENTS}
    assert {name: spec.discount for name, spec in found.items()} == {
        "gridworld": 0.99,
        "acrobot": 1.0,
        "hiv": 0.995,
        "hiv-partial": 0.995,
        "pendulum": 0.99,
        "swimmer": 0.99,
        "hopper": 0.99,
        "half-cheetah": 0.99,
    }
    assert [name for name, spec in found.items() if spec.tick != 1] == ["acrobot", "pendulum"]
    assert found["acrobot"].tick == 0.2
    assert {name: spec.intervals.classes for name, spec in found.items()} == {
        "gridworld": 7,
        "acrobot": 5,
        "hiv": 14,
        "hiv-partial": 14,
        "pendulum": 5,
        "swimmer": 7,
        "hopper": 7,
        "half-cheetah": 9,
    }


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("hvi", "hiv"),
        ("HIV", "hiv"),
        ("halfcheetah", "half-cheetah"),
        ("grid-world", "gridworld"),
        *IDS.items(),
    ],
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
        ("gridworld", {"noise": "much"}, "noise of 'gridworld' takes a number such as 0.0, got 'much'."),
        ("gridworld", {"intervals": (0, 3)}, r"interval range \(0, 3\)"),
        ("gridworld", {"intervals": (5, 3)}, r"interval range \(5, 3\)"),
        ("acrobot", {"substep": 0}, "substep of 'acrobot' must be positive"),
        ("acrobot", {"intervals": (0.3, 1.0)}, "multiples of 0.2 s"),
        ("hiv", {"horizon": 0}, "horizon must be positive"),
        ("hiv", {"horizon": math.nan}, "horizon must be positive"),
        ("hiv", {"max_decisions": 0}, "max_decisions must be an integer of at least 1"),
        ("hiv", {"observed": ("V", "E", "V")}, "cannot be called 'V'"),
        ("hiv", {"visits": ((1, 2),) * 4}, "3 rows of 4 pairs"),
        ("gridworld", {"intervals": (1.5, 3.5)}, "must be whole seconds"),
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


WRONG_KINDS = [
    ("kd.make('hiv', max_decisions=2.5)", "max_decisions must be an integer of at least 1, got 2.5"),
    ("kd.make('hopper', intervals=(1.5, 3))", "intervals of 'hopper' must be whole frames, got (1.5, 3)"),
    ("kd.make('hiv', horizon='long')", "horizon of 'hiv' takes a number such as 1000.0, got 'long'."),
    ("kd.make('hiv', observed=5)", "a field of 'hiv' has the wrong type (observed=5)"),
    ("kd.collect(kd.make('hiv'), episodes=1.5)", "episodes must be an integer of at least 1, got 1.5"),
    ("kd.collect(kd.make('hiv'), episodes=1, seed=1.5)", "seed must be an integer between"),
    ("kd.collect(kd.make('hiv'), lambda o, k: o[0], episodes=1)", "must return one integer, got float32[]"),
    ("kd.collect(kd.make('hopper'), lambda o, k: o[:2], episodes=1)", "must return 3 numbers (thigh, leg, foot)"),
    ("kd.collect(kd.make('hiv'), 3, episodes=1)", "3 is not a policy: pass None (random), a function"),
    ("kd.collect('hiv', episodes=1)", "'hiv' is not an environment: create one, e.g. with kairode.make('hiv')"),
    ("kd.collect(kd.make('hiv'), lambda o, k: 3 if o[4] > 0 else 0, episodes=1)", "jnp.where instead of if"),
    (
        "import numpy as n; kd.collect(kd.make('hiv'), lambda o, k: n.asarray(o)[0], episodes=1)",
        "jax.numpy instead",
    ),
    ("kd.make(3)", "unknown environment '3'"),
    ("kd.write('x.parquet', None)", "None is not a trajectory"),
    ("kd.read({'t': []})", "the path of a Parquet file is required, got dict"),
]
EACH = """
import json, sys
import kairode as kd
said = []
for code in json.load(sys.stdin):
    try:
        exec(code)
        said.append("nothing")
    except kd.KairodeError as error:
        said.append(str(error))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What a user is told: the types of arguments are checked in these tests alone, not in a process of its own."""
    codes = [code for code, _ in WRONG_KINDS]
    done = subprocess.run([sys.executable, "-c", EACH], input=json.dumps(codes), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(codes, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("code", "message"), WRONG_KINDS)
def test_wrong_kinds_where_nothing_checks_types(code: str, message: str, said: dict[str, str]) -> None:
    assert message in said[code]


def test_fields_of_its_own() -> None:
    assert own_fields(kairode.make("hiv")) == {}
    two = kairode.make("hiv", observed=("V", "E"))
    assert own_fields(two) == {"observed": ("V", "E")}
    assert kairode.make(two.task.spec.name, **own_fields(two)) == two
    assert own_fields(kairode.make("acrobot", horizon=50.0)) == {"horizon": 50.0}
    assert own_fields(kairode.make("hopper", max_decisions=9)) == {"max_decisions": 9}


def test_lists_and_numpys_numbers_will_do() -> None:
    assert kairode.make("hiv", horizon=np.float32(50), max_decisions=np.int64(5)) == kairode.make(
        "hiv", horizon=50.0, max_decisions=5
    )
    assert kairode.make("gridworld", intervals=np.array([1, 3])) == kairode.make("gridworld", intervals=(1, 3))
    assert kairode.make("hiv", observed=["T1", "T2", "T1*", "T2*", "V", "E"]) == kairode.make("hiv")
    assert kairode.make("gridworld", intervals=[2, 3]) == kairode.make("gridworld", intervals=(2, 3))


def test_an_environment_may_hold_its_task_as_a_field() -> None:
    # As a learned model will: arrays beside a task, and everything under vmap.
    class ModelEnv(Environment):
        task: Task
        weights: jax.Array

        def reset(self, *, key):
            return self.weights

        def observe(self, state):
            return state

        def interval(self, state, action, *, key):
            return jnp.ones(())

        def transition(self, state, action, tau, *, key):
            return state * self.weights

    task = kairode.make("gridworld").task
    model_envs = jax.vmap(lambda w: ModelEnv(task, w))(jnp.ones((3, 2)))
    key = jax.random.key(0)
    moments = jax.vmap(lambda world: begin_episode(world, key=key))(model_envs)
    assert moments.obs.shape == (3, 2)
    jax.jit(lambda task, obs: task.reward(obs, jnp.asarray(0), obs, jnp.ones(())))(task, jnp.zeros(2))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (1e9, "must not be longer than an episode, 1000 days, got 1e.09"),
        ([1, 1e9], "must not be longer than an episode"),
        (["a"], "must be numbers"),
        (1e-9, "decisions per episode of 'hiv', more than 1,000,000"),
    ],
)
def test_schedules_beyond_reason(schedule, message: str) -> None:
    with pytest.raises(KairodeError, match=message):
        kairode.collect(kairode.make("hiv"), episodes=1, schedule=schedule)


def test_schedules_from_what_people_write() -> None:
    spec = kairode.make("hiv").task.spec
    assert as_schedule(None, spec) == Own()
    assert as_schedule("own", spec) == Own()
    assert as_schedule(5, spec) == Fixed(5.0)
    assert as_schedule([1, 2], spec) == Given((1.0, 2.0))
    assert as_schedule(Given((3, 4)), spec).shortest(spec) == 3
    assert spec.longest(as_schedule(7, spec).shortest(spec)) == 143
    assert as_schedule(np.array([1, 2]), spec) == Given((1.0, 2.0))
    with pytest.raises(KairodeError, match="positive, finite time, got 0"):
        as_schedule(Fixed(jnp.asarray(0.0)), spec)
    with pytest.raises(KairodeError, match="empty"):
        as_schedule([], spec)
    with pytest.raises(KairodeError, match="integer number of frames"):
        as_schedule(Fixed(1.5), kairode.make("hopper").task.spec)
