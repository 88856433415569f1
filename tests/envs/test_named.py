"""Systems of one's own by name: gym:ID and MODULE:NAME."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

import kairode
from kairode.errors import KairodeError

MODULE = '''
import gymnasium
import numpy as np
from gymnasium import spaces

import kairode
from kairode.envs.gridworld import WindyGridworld


class Mine(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2)

    def __init__(self, size=1):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(self.size), False, False, {}


class Grid(WindyGridworld):
    """Ours already."""


gymnasium.register("NAME/Mine-v3", entry_point=Mine, max_episode_steps=9)
made, gym_made = kairode.make("gridworld", noise=0.5), Mine(5)
number = 3


def build(size=2):
    return Mine(size)


def anything(**fields):
    return kairode.make("gridworld", **fields)


def grid(noise=0.0):
    return kairode.make("gridworld", noise=noise)


def wrapping(intervals=(1, 2)):
    return kairode.from_gymnasium("CartPole-v1", intervals=intervals)


def nonsense():
    return [3]
'''
numbers = itertools.count()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A module in the working directory, under a name that no test imported before."""
    name = f"mine_of_test_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(MODULE.replace("NAME", name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield SimpleNamespace(name=name, folder=tmp_path)
    gymnasium.registry.pop(f"{name}/Mine-v3", None)


def reward_of(env: Any) -> float:
    """Of one step of the environment."""
    return float(kairode.collect(env, episodes=1, schedule=1).reward[0, 0])


def test_ids_of_gymnasium() -> None:
    env = kairode.make("gym:CartPole-v1", intervals=[2, 3])
    spec = env.task.spec
    assert (spec.name, spec.horizon, spec.intervals.low, spec.intervals.high) == ("CartPole-v1", 500.0, 2.0, 3.0)
    assert kairode.make("gym:FrozenLake-v1", map_name="8x8").task.spec.observations[-1].name == "obs=63"
    # Gymnasium imports a module that registers an id itself.
    again = kairode.make("gym:kairode:kairode/WindyGridworld-v0", horizon=9)
    assert again.task.spec.actions.n == kairode.make("gridworld").task.spec.actions.n


def test_what_a_module_holds(mine) -> None:
    env = kairode.make(f"{mine.name}:Mine", horizon=5, size=4)
    assert (env.task.spec.name, env.task.spec.horizon, reward_of(env)) == ("Mine", 5.0, 4.0)
    assert reward_of(kairode.make(f"{mine.name}:build", horizon=5, size=3)) == 3.0
    assert reward_of(kairode.make(f"{mine.name}:build", horizon=5)) == 2.0
    assert reward_of(kairode.make(f"{mine.name}:gym_made", horizon=5)) == 5.0
    by_id = kairode.make(f"{mine.name}:{mine.name}/Mine-v3", intervals=2).task.spec
    assert (by_id.name, by_id.horizon) == (f"{mine.name}/Mine-v3", 9.0)
    for name, fields, noise in (
        ("Grid", {"noise": 0.1}, 0.1),
        ("made", {}, 0.5),
        ("grid", {}, 0.0),
        ("grid", {"noise": 0.2}, 0.2),
        ("anything", {"noise": 0.3}, 0.3),
    ):
        assert dict(kairode.make(f"{mine.name}:{name}", **fields).task.spec.settings)["noise"] == noise
    assert kairode.make(f"{mine.name}:wrapping", intervals=4).task.spec.intervals.high == 4.0


REFUSED = {
    "Mined": "unknown name 'Mined' in the module 'IT'. Did you mean 'Mine'",
    "biuld": "unknown name 'biuld' in the module 'IT'. Did you mean 'build'",
    "number": "'IT:number' is a int: it must be an environment, a class of one, or a function that makes one",
    "nonsense": "'IT:nonsense' returned a list, not an environment",
    "": "is no name of a system",
}


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_are_no_systems(mine, name: str) -> None:
    with pytest.raises(KairodeError, match=REFUSED[name].replace("IT", mine.name)):
        kairode.make(f"{mine.name}:{name}")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("Mine", {"horizon": 5, "sise": 3}, "'Mine' cannot be made: .*unexpected keyword argument 'sise'"),
        ("build", {"horizon": 5, "sise": 3}, "'build' cannot be made: .*unexpected keyword argument 'sise'"),
        ("Grid", {"nois": 3}, r"'IT:Grid' cannot be made with nois=3: .*unexpected keyword argument 'nois'"),
        ("grid", {"nois": 3}, "unknown field 'nois' of 'IT:grid'. Did you mean 'noise'"),
        ("made", {"noise": 0.1}, "'IT:made' is made already, and takes no fields: noise"),
        ("Mine", {"setting": "paper"}, "'IT:Mine' has no setting 'paper'"),
    ],
)
def test_wrong_fields(mine, name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(KairodeError, match=message.replace("IT", mine.name)):
        kairode.make(f"{mine.name}:{name}", **fields)


def test_modules_that_cannot_be_imported(mine) -> None:
    with pytest.raises(KairodeError, match="there is no module 'no_such_module' for 'no_such_module:It': give MODULE"):
        kairode.make("no_such_module:It")
    with pytest.raises(KairodeError, match=f"there is no module '{mine.name}.part' for"):
        kairode.make(f"{mine.name}.part:It")
    (mine.folder / f"{mine.name}_divides.py").write_text("1 / 0")
    with pytest.raises(KairodeError, match=f"importing '{mine.name}_divides' failed: ZeroDivisionError: division"):
        kairode.make(f"{mine.name}_divides:It")
    (mine.folder / f"{mine.name}_needs.py").write_text("import nothing_like_it")
    with pytest.raises(KairodeError, match=f"'{mine.name}_needs' needs a package that is not installed: nothing_like"):
        kairode.make(f"{mine.name}_needs:It")
    with pytest.raises(KairodeError, match="':It' is no name of a system"):
        kairode.make(":It")


def test_ids_that_gymnasium_does_not_know() -> None:
    with pytest.raises(KairodeError, match=r"Gymnasium cannot make 'CartPool-v1'.*Did you mean: `CartPole`"):
        kairode.make("gym:CartPool-v1")
    with pytest.raises(KairodeError, match="'gym:' is no name of a system"):
        kairode.make("gym:")
    with pytest.raises(KairodeError, match=r"'CartPole-v1' cannot be made: .*unexpected keyword argument 'intervls'"):
        kairode.make("gym:CartPole-v1", intervls=3)
