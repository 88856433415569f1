"""Warnings about data: where the value is, and none about good data."""

import dataclasses
import re

import numpy as np
import pytest

import kairode
from kairode.data import Trajectory, checks
from kairode.data.checks import check_actions, check_data, check_rewards
from kairode.data.stream import stream
from kairode.envs.core import Discrete, Variable


@pytest.fixture(scope="module")
def data():
    return kairode.collect(kairode.make("acrobot", max_decisions=20), episodes=30, seed=0)


@pytest.mark.parametrize("name", ["gridworld", "acrobot", "hiv", "hiv-partial", "pendulum"])
def test_good_data_have_none(name):
    assert check_data(kairode.collect(kairode.make(name), episodes=20, seed=1)) == []


@pytest.mark.parametrize("value", [1e30, 3e38, -9999.0])
@pytest.mark.parametrize("place", [(0, 0), (7, 3), (29, -1)])
def test_an_outlier_is_named_with_its_place(tmp_path, data, monkeypatch, value, place):
    monkeypatch.setattr(checks, "ROWS", 64)
    episode, k = place
    k = int(data.length[episode]) if k < 0 else k
    obs = np.array(data.observation)
    obs[episode, k:, 2] = np.where(np.arange(obs.shape[1] - k) == 0, np.float32(value), obs[episode, k:, 2])
    spoilt = dataclasses.replace(data, observation=obs)
    row = int((np.asarray(data.length[:episode]) + 1).sum()) + k
    (said,) = check_data(spoilt, "visits.parquet")
    name = data.spec.observations[2].name
    assert f"variable '{name}'" in said
    assert f"episode {episode}, observation {k}, row {row} of visits.parquet" in said
    kairode.write(tmp_path / "visits.parquet", spoilt)
    assert check_data(kairode.read(tmp_path / "visits.parquet"), "visits.parquet") == [said]
    assert check_data(stream(tmp_path / "visits.parquet"), "visits.parquet") == [said]


def test_gaps_and_rewards_are_named(data):
    tau, reward = np.array(data.interval), np.array(data.reward)
    tau[4, 2], reward[5, 1] = 1e12, -1e12
    (said,) = check_data(dataclasses.replace(data, interval=tau))
    assert "an interval of 1e12 seconds (episode 4, observation 2)" in said
    (said,) = check_data(dataclasses.replace(data, reward=reward))
    assert "a reward of -1e12 (episode 5, observation 1) is far from the others" in said
    (said,) = check_data(dataclasses.replace(data, reward=np.where(reward == reward[0, 0], 0, 1e12).astype(np.float32)))
    assert said.startswith("rewards reach")
    assert said.endswith("learn with reward_scale=1e-12")


def test_many_variables_with_outliers_are_counted(data):
    obs = np.array(data.observation)
    obs[3, 4] = 1e20
    wide = dataclasses.replace(
        data,
        observation=np.concatenate([obs] * 3, axis=-1),
        spec=dataclasses.replace(
            data.spec,
            observations=tuple(
                dataclasses.replace(v, name=f"{v.name}{i}") for i in range(3) for v in data.spec.observations
            ),
        ),
    )
    said = check_data(wide)
    assert len(said) == checks.MOST_NAMED + 1
    assert said[-1] == f"{3 * obs.shape[-1] - checks.MOST_NAMED} more variables with such values"


def test_actions_that_only_held_out_episodes_have(data):
    action = np.zeros_like(data.action)
    action[-1, 0] = 1
    changed = dataclasses.replace(data, action=action)
    name = data.spec.actions.names[1]
    (said,) = check_actions(changed[:-1], {"validation": changed[:3], "test": changed[-1:]})
    assert said.startswith(f"action '{name}': taken in the test episodes and never in the training episodes")
    assert check_actions(changed, {"test": changed[-1:]}) == []


def test_rewards_that_are_too_large_for_their_scale():
    assert check_rewards(1.0, 1.0) == check_rewards(1e12, 1e-12) == check_rewards(np.nan, 1.0) == []
    (said,) = check_rewards(1.2e12, 1.0)
    assert "learn with reward_scale=1e-12" in said


def test_python_and_command_warn_and_strict_refuses(tmp_path, data, typed):
    obs = np.array(data.observation)
    obs[3, 4, 0] = 1e30
    spoilt = dataclasses.replace(data, observation=obs)
    with pytest.warns(kairode.KairodeWarning, match="1e30 .episode 3, observation 4. is far"):
        kairode.fit("rnn", spoilt, iterations=1, timer="none", latent_size=2)
    path = tmp_path / "visits.parquet"
    kairode.write(path, spoilt)
    words = ("fit", str(path), "--model", "rnn", "--iterations", "1", "--timer", "none", "--out", str(tmp_path / "run"))
    code, _, err = typed(*words)
    assert code == 0
    assert err.rstrip().splitlines()[-2] == "Warning (--strict makes it an error):"
    assert "row " in err.splitlines()[-1]
    code, _, err = typed(*words, "--strict")
    assert code == 2
    assert err.startswith("error: variable '")


def test_an_otherwise_constant_variable_and_many_sentinels(data):
    obs = np.array(data.observation)
    obs[..., 0] = 5.0
    assert check_data(dataclasses.replace(data, observation=obs)) == []
    obs[3, 4, 0] = 1e30
    (said,) = check_data(dataclasses.replace(data, observation=obs))
    assert "1e30" in said
    obs = np.array(data.observation)
    obs[:, ::40, 1] = -9999.0
    obs[::3, 7, 1] = -9999.0
    (said,) = check_data(dataclasses.replace(data, observation=obs))
    assert "-9999" in said
    assert check_data(dataclasses.replace(data, observation=obs), robust=True) == [said]
    obs = np.array(data.observation)
    obs[3, 4, 0] = 1e30
    assert check_data(dataclasses.replace(data, observation=obs), robust=True) == []


def observed(values: np.ndarray) -> Trajectory:
    """Episodes of one variable."""
    episodes, moments = values.shape
    spec = dataclasses.replace(
        kairode.make("pendulum").task.spec,
        observations=(Variable("x", "unit"),),
        actions=Discrete(("off", "on")),
        map_axes=None,
    )
    shape = (episodes, moments - 1)
    return Trajectory(
        spec=spec,
        observation=values[..., None].astype(np.float32),
        action=np.zeros(shape, np.int32),
        interval=np.ones(shape, np.float32),
        reward=np.zeros(shape, np.float32),
        length=np.full(episodes, moments - 1, np.int32),
        terminated=np.zeros(episodes, bool),
        truncated=np.ones(episodes, bool),
    )


@pytest.fixture
def usual() -> np.ndarray:
    return np.random.default_rng(0).normal(70.0, 10.0, (30, 12))


@pytest.mark.parametrize(("code", "share"), [(-9999, 0.01), (-9999, 0.33), (-999, 0.02), (-999, 0.1), (999, 0.05)])
def test_codes_for_missing_values_are_named(usual, code, share):
    usual[np.random.default_rng(1).random(usual.shape) < share] = code
    (said,) = check_data(observed(usual))
    assert f"variable 'x': {code} occurs in" in said
    assert check_data(observed(usual), robust=True)


def test_what_is_usual_has_no_warning(usual):
    rng = np.random.default_rng(2)
    on = rng.random(usual.shape) < 0.1
    pump = np.where(on, 5.0, 0.0) + rng.normal(0, 1e-3, usual.shape)
    assert check_data(observed(pump)) == [], "a pump that is mostly off"
    assert check_data(observed(on.astype(float))) == []
    assert check_data(observed(np.where(on, 0.0, usual))) == [], "a dose that is often 0"
    assert check_data(observed(rng.lognormal(0, 1.5, usual.shape))) == []
    (said,) = check_data(observed(pump), robust=True)
    assert "% of the values are beyond ten standard deviations of the robust scale" in said


def test_a_small_table_with_an_outlier(usual):
    few = usual[:5, :11]
    few[2, 3] = 1e30
    (said,) = check_data(observed(few))
    assert "1e30 (episode 2, observation 3) is far from the other values" in said
    range_of_half = re.search(r"from ([\d.]+) to ([\d.]+)", said)
    assert range_of_half
    low, high = map(float, range_of_half.groups())
    assert 50 < low < high < 90


def test_several_gaps_are_named(data):
    tau = np.array(data.interval)
    tau[:, 3] = 1e6
    (said,) = check_data(dataclasses.replace(data, interval=tau))
    assert "an interval of 1e6 seconds" in said


def test_values_beyond_single_precision_are_named(usual):
    (said,) = check_data(observed(usual + 1e9))
    assert "single precision" in said
    assert check_data(observed(usual + 1e4)) == []
