"""Minari: what is written comes back, and datasets of others become trajectories."""

import dataclasses
import gc
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.test_docs import ROOT, blocks

import kairode
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Variable
from kairode.errors import KairodeError

minari = pytest.importorskip("minari")
EpisodeBuffer = minari.data_collector.EpisodeBuffer

pytestmark = pytest.mark.filterwarnings("ignore:`\\w+` is set to None|env_spec is None:UserWarning")
ARRAYS = ("observation", "action", "interval", "reward", "length", "terminated", "truncated")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def same(before: Trajectory, after: Trajectory) -> None:
    assert after.spec == before.spec
    for name in ARRAYS:
        one, other = np.asarray(getattr(before, name)), np.asarray(getattr(after, name))
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.parametrize("name", ["gridworld", "acrobot", "hiv-partial", "pendulum"])
def test_round_trip(name: str, data_format: str) -> None:
    data = kairode.collect(kairode.make(name, max_decisions=15), episodes=8, seed=0)
    written = kairode.to_minari(data, f"kairode/{name}/random-v0", data_format=data_format)
    assert (written.total_episodes, written.total_steps) == (8, data.decisions)
    same(data, kairode.from_minari(f"kairode/{name}/random-v0"))
    same(data[2:5], kairode.from_minari(kairode.to_minari(data[2:5], "some-v0", data_format=data_format)))


def test_missing_values_descriptions_and_any_interval() -> None:
    """Two of its visits lack measurements; intervals have no short decimals; nothing ended one of the episodes."""
    data = kairode.collect(kairode.make("hiv", max_decisions=9), episodes=4, seed=0)
    draw = np.random.default_rng(0)
    observation = np.array(data.observation)
    observation[1, 3, 2] = observation[2, 0, 4] = np.nan
    interval = np.where(data.mask, draw.uniform(0.001, 20, data.interval.shape), 0.0).astype(np.float32)
    seen = (Variable("CD4", "per ml", 0.0, 9.0), *data.spec.observations[1:])
    spec = dataclasses.replace(data.spec, observations=seen, notes=("a note",), subject="mouse")
    data = dataclasses.replace(
        data, spec=spec, observation=observation, interval=interval, truncated=np.array([True, False, True, True])
    )
    back = kairode.from_minari(kairode.to_minari(data, "mice-v3", author="us", description="Mice."))
    same(data, back)
    assert (back.spec.notes, back.spec.subject) == (("a note",), "mouse")
    np.testing.assert_array_equal(back.time, data.time)


def test_what_others_find_in_it() -> None:
    """Minari's own reader has dt and time, and makes the environment again."""
    data = kairode.collect(kairode.make("hiv"), episodes=2, seed=0)
    kairode.to_minari(data, "kairode/hiv/random-v0", env="kairode/HIV-v0")
    found = minari.load_dataset("kairode/hiv/random-v0")
    episode = found[1]
    np.testing.assert_array_equal(episode.observations, data.observation[1, : data.length[1] + 1])
    np.testing.assert_array_equal(episode.infos["dt"][1:], data.interval[1, : data.length[1]])
    np.testing.assert_array_equal(episode.infos["time"], data.time[1, : data.length[1] + 1])
    assert not episode.truncations[:-1].any()
    assert episode.truncations[-1]
    env = found.recover_environment()
    assert (env.observation_space, env.action_space) == (found.observation_space, found.action_space)


def foreign(episodes: list[Any], seen: Any, done: Any, name: str = "theirs-v1") -> Any:
    return minari.create_dataset_from_buffers(name, episodes, observation_space=seen, action_space=done)


def episode(steps: int, actions: Any = None, seen: Any = None, end: str = "", **infos: Any) -> Any:
    ends = {name: [name == end and k == steps - 1 for k in range(steps)] for name in ("terminations", "truncations")}
    return EpisodeBuffer(
        observations=np.arange(2.0 * (steps + 1)).reshape(-1, 2) if seen is None else seen,
        actions=np.arange(steps) % 2 + 1 if actions is None else actions,
        rewards=np.arange(steps) / 2,
        **ends,
        infos=infos or None,
    )


BOX, TWO = spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2, start=1)


def test_a_dataset_of_others() -> None:
    """Steps of one, actions that start at 1, and an end that nobody reported."""
    made = foreign([episode(2, end="terminations"), episode(3, end="truncations"), episode(1)], BOX, TWO)
    data = kairode.from_minari(made)
    assert [v.name for v in data.spec.observations] == ["obs0", "obs1"]
    assert data.spec.actions.names == ("1", "2")
    assert (data.spec.name, data.spec.time_unit, data.spec.intervals.classes) == ("theirs-v1", "step", 1)
    np.testing.assert_array_equal(data.length, [2, 3, 1])
    np.testing.assert_array_equal(data.interval, [[1, 1, 0], [1, 1, 1], [1, 0, 0]])
    np.testing.assert_array_equal(data.action, [[0, 1, 0], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(data.reward, [[0, 0.5, 0], [0, 0.5, 1], [0, 0, 0]])
    np.testing.assert_array_equal(data.observation[0, :, 1], [1, 3, 5, 5])
    np.testing.assert_array_equal(data.terminated, [True, False, False])
    np.testing.assert_array_equal(data.truncated, [False, True, True])


@pytest.mark.parametrize(
    "infos", [{"dt": [0.0, 2.0, 0.5]}, {"dt": [2.0, 0.5]}, {"time": [4.0, 6.0, 6.5]}], ids=["reset", "steps", "time"]
)
def test_times_of_others(infos: dict) -> None:
    made = foreign([episode(2, **{name: np.array(values) for name, values in infos.items()})], BOX, TWO)
    data = kairode.from_minari(made)
    np.testing.assert_array_equal(data.interval, [[2.0, 0.5]])
    assert (data.spec.intervals.low, data.spec.intervals.high, data.spec.intervals.classes) == (0.5, 2.0, None)


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # Minari leaves that to Python
def test_a_collected_gymnasium_environment_can_be_fitted() -> None:
    """As Minari's own collector writes it; with its names and its end, if there is a spec."""
    env = minari.DataCollector(gymnasium.make("Pendulum-v1", max_episode_steps=30), record_infos=False)
    for seed in range(3):
        env.reset(seed=seed)
        env.action_space.seed(seed)
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    data = kairode.from_minari(env.create_dataset("pendulum/random-v0"))
    del env
    gc.collect()
    assert data.spec.max_decisions == 30
    assert (data.spec.actions.low, data.spec.actions.high) == ((-2.0,), (2.0,))
    assert data.truncated.all()
    kairode.fit("dt-rnn", data, iterations=2, latent_size=4)
    named = dataclasses.replace(data.spec, observations=tuple(Variable(x, "") for x in ("cos", "sin", "dtheta")))
    assert kairode.from_minari("pendulum/random-v0", spec=named).spec.observations[2].name == "dtheta"
    with pytest.raises(KairodeError, match=r"observations of shape \(31, 3\).*do not fit the 6 observations of 'hiv'"):
        kairode.from_minari("pendulum/random-v0", spec=kairode.make("hiv").task.spec)


def test_refusals() -> None:
    data = kairode.collect(kairode.make("gridworld", max_decisions=2), episodes=2, seed=0)
    kairode.to_minari(data, "twice-v0")
    with pytest.raises(KairodeError, match="'twice-v0' cannot be written: A Minari dataset with ID twice-v0 already"):
        kairode.to_minari(data, "twice-v0")
    with pytest.raises(KairodeError, match="'no id!' cannot be written: Malformed dataset ID"):
        kairode.to_minari(data, "no id!")
    with pytest.raises(
        KairodeError, match="there is no Minari dataset 'nowhere-v0' on this machine: pass download=True"
    ):
        kairode.from_minari("nowhere-v0")
    with pytest.raises(KairodeError, match="is not a Minari dataset: pass one, or the id of one"):
        kairode.from_minari(data)
    short = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    images = episode(1, seen=np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(KairodeError, match="observations must be vectors, a flat Box"):
        kairode.from_minari(foreign([images], short, TWO, "images-v0"))
    several = spaces.MultiDiscrete([2, 2])
    with pytest.raises(KairodeError, match="actions must be integers"):
        kairode.from_minari(foreign([episode(1, actions=np.ones((1, 2), int))], BOX, several, "several-v0"))
    for i, dt in enumerate(([0.0, 0.0, 1.0], [0.0, np.nan, 1.0], [1.0])):
        with pytest.raises(KairodeError, match=r"episode 0: infos\['dt'\] must hold a positive, finite time for each"):
            kairode.from_minari(foreign([episode(2, dt=np.array(dt))], BOX, TWO, f"times-v{i}"))


def test_the_page_runs() -> None:
    space: dict[str, Any] = {"__name__": "page"}
    for language, line, code in blocks("docs/minari.md"):
        if language == "python":
            exec(compile("\n" * (line - 1) + code, str(ROOT / "docs/minari.md"), "exec"), space)
    assert "again" in space
